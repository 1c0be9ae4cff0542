//! This project's design, as programs use it.

use pagedepot::{AllocError, CpuId, Flags, Mode, Order, Pfn, Scope};
use pagedepot_linux::Depot;

use super::{Block, Demand, Design, PAGE_BYTES, Subject};
use crate::failure::Failure;

/// Pages that a depot has at least, 4 GiB: how much CPUs may cache depends on it. Addresses, of
/// which only what is touched becomes memory.
const PAGES_MIN: u64 = 1 << 20;

/// See the module.
pub struct DepotSubject(Depot);

impl DepotSubject {
    /// With memory for `demand` twice, so that it fills half of it.
    ///
    /// # Errors
    /// When the memory cannot be had.
    pub fn new(demand: &Demand) -> Result<Self, Failure> {
        Self::with_pages((demand.frames() * 2).max(PAGES_MIN))
    }

    /// With exactly so many pages.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_pages(pages: u64) -> Result<Self, Failure> {
        let depot = Depot::new(pages as usize * PAGE_BYTES);
        depot.map(DepotSubject).map_err(|e| Failure::Run(format!("{}: {e}", Design::Depot)))
    }

    /// A zeroed page.
    pub fn zeroed(&self) -> Result<Pfn, AllocError> {
        self.0.alloc(Order::BASE, Flags::default().zeroed())
    }

    /// Where a page is.
    pub fn address(&self, page: Pfn) -> std::ptr::NonNull<u8> {
        self.0.address(page)
    }

    /// Frees pages at once.
    pub fn free_all(&self, pages: &[(Pfn, Order)]) {
        // SAFETY: whoever frees pages here got them from `alloc` or `zeroed`, frees them once, and
        // uses them no more: see `Subject::free`.
        if let Err(error) = unsafe { self.0.free_many(pages) } {
            panic!("{}: {error}", Design::Depot);
        }
    }

    /// Takes back what a CPU caches; pages taken.
    pub fn drain(&self, cpu: CpuId, mode: Mode) -> u64 {
        self.0.drain(Scope::cpu(cpu), mode).taken_pages
    }
}

impl Block for Pfn {
    fn bits(self) -> usize {
        self.index()
    }
}

const fn order<const ORDER: u32>() -> Order {
    Order::new(ORDER).expect("benches know the orders there are")
}

impl Subject for DepotSubject {
    const DESIGN: Design = Design::Depot;
    type Block = Pfn;

    #[inline]
    fn alloc<const ORDER: u32>(&self) -> Option<Pfn> {
        self.0.alloc(const { order::<ORDER>() }, Flags::default()).ok()
    }

    #[inline]
    fn free<const ORDER: u32>(&self, block: Pfn) {
        // SAFETY: got by `alloc` with the same order, and freed once; nobody uses its memory.
        if unsafe { self.0.free(block, const { order::<ORDER>() }) }.is_err() {
            refused(block);
        }
    }
}

#[cold]
#[inline(never)]
fn refused(block: Pfn) -> ! {
    panic!("{} refused to free {block:?}: it lost track of it", Design::Depot)
}
