//! The calls of a program to a design.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use pagedepot::{CpuId, Flags, Order};
use pagedepot_linux::Depot;
use pagedepot_linux::pressure::{Monitor, Policy};
use pagedepot_linux::reclaim::GiveBackEnd;

use crate::design::page_bytes;
use crate::failure::Failure;
use crate::names::Design;

/// A design that holds a program's memory.
pub trait Holder: Sync {
    /// Allocates a block of whole pages, aligned to a page.
    fn alloc(&self, bytes: usize) -> Option<NonNull<u8>>;

    /// Frees a block of `alloc`, given back once and with its size.
    fn free(&self, block: NonNull<u8>, bytes: usize);

    /// Gives back what can be, as far as one call of a thread of the program can.
    fn ask(&self);
}

/// The demand of a program on the design that holds its memory.
#[derive(Clone, Copy, Debug)]
pub struct HolderDemand {
    /// Most bytes that it holds.
    pub bytes: usize,
    /// The CPU that nothing is to interrupt.
    pub isolated: Option<CpuId>,
    /// Whether the program is short, so that defaults of some seconds are cut to a tenth.
    pub quick: bool,
}

/// Makes a design that holds memory.
pub type MakeHolder = fn(Design, &HolderDemand) -> Result<Box<dyn Holder>, Failure>;

/// This project's, with a monitor.
pub struct DepotHolder {
    depot: Depot,
    _monitor: Monitor,
}

fn failed(why: impl std::fmt::Display) -> Failure {
    Failure::Run(format!("{}: {why}", Design::Depot))
}

impl DepotHolder {
    /// Makes a depot with twice the memory of the demand: fragments need some.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn new(demand: &HolderDemand) -> Result<Self, Failure> {
        let mut builder = Depot::builder(2 * demand.bytes);
        if let Some(cpu) = demand.isolated {
            builder = builder.isolated_cpus([cpu].into_iter().collect());
        }
        let depot = builder.build().map_err(failed)?;
        let mut policy = Policy::default();
        if demand.quick {
            (policy.idle_ms, policy.look_ms) = (policy.idle_ms / 10, policy.look_ms / 10);
        }
        let monitor = Monitor::builder(&depot).policy(policy).start().map_err(failed)?;
        Ok(DepotHolder { depot, _monitor: monitor })
    }
}

impl Holder for DepotHolder {
    fn alloc(&self, bytes: usize) -> Option<NonNull<u8>> {
        let order = Order::for_bytes(bytes, self.depot.page_size())?;
        let raw = self.depot.raw();
        raw.alloc(order, Flags::default()).ok().map(|pfn| raw.address(pfn))
    }

    fn free(&self, block: NonNull<u8>, bytes: usize) {
        let order = Order::for_bytes(bytes, self.depot.page_size())
            .expect("it was allocated with this size");
        let pfn = self.depot.pfn_of(block.as_ptr()).expect("it is a block of this depot");
        // SAFETY: a block of `alloc` with this size, which the workload frees once.
        let freed = unsafe { self.depot.raw().free(pfn, order) };
        freed.expect("it is a block of this depot");
    }

    fn ask(&self) {
        let deadline = Instant::now() + Duration::from_secs(5);
        let give = || self.depot.give_back(u64::MAX, deadline).expect("the depot is not pinned");
        // The monitor gives back just now, or what the peak lacked is still remembered.
        while let GiveBackEnd::Busy | GiveBackEnd::LowMemory = give().end
            && Instant::now() < deadline
        {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// The C library's `malloc`.
pub struct Glibc;

unsafe extern "C" {
    /// glibc's: returns 1 if memory went back.
    #[cfg(target_env = "gnu")]
    fn malloc_trim(pad: usize) -> i32;
}

impl Holder for Glibc {
    fn alloc(&self, bytes: usize) -> Option<NonNull<u8>> {
        let mut block: *mut c_void = std::ptr::null_mut();
        // SAFETY: the alignment is a power of two and a multiple of a pointer's size.
        let error = unsafe { libc::posix_memalign(&raw mut block, page_bytes(), bytes) };
        if error == 0 { NonNull::new(block.cast()) } else { None }
    }

    fn free(&self, block: NonNull<u8>, _bytes: usize) {
        // SAFETY: got by `alloc`; the workload frees it once.
        unsafe { libc::free(block.as_ptr().cast()) };
    }

    fn ask(&self) {
        // SAFETY: may be called at any time.
        #[cfg(target_env = "gnu")]
        unsafe {
            malloc_trim(0)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request that ran short is remembered for a while, in which a depot keeps what is free.
    #[test]
    fn what_is_asked_for_comes_back_after_a_shortage_too() {
        const BYTES: usize = 256 << 10;
        let demand = HolderDemand { bytes: 8 << 20, isolated: None, quick: false };
        let holder = DepotHolder::new(&demand).unwrap();
        let blocks: Vec<_> = std::iter::from_fn(|| holder.alloc(BYTES)).collect();
        // SAFETY: blocks of this thread's.
        blocks.iter().for_each(|block| unsafe { block.write(1) });
        assert!(holder.alloc(BYTES).is_none());
        blocks.iter().for_each(|&block| holder.free(block, BYTES));
        holder.ask();
        let is_present = |block: &&NonNull<u8>| {
            let mut state = 0_u8;
            // SAFETY: a byte per page is written; the page is mapped.
            let error = unsafe { libc::mincore(block.as_ptr().cast(), 1, &raw mut state) };
            assert_eq!(error, 0);
            state & 1 == 1
        };
        let present = blocks.iter().filter(is_present).count();
        assert!(present < blocks.len() / 2, "{present} of {}", blocks.len());
    }
}
