//! Collections in a depot's pages: [`Depot`] as an [`Allocator`] of the crate `allocator-api2`
//! (feature `allocator-api2`).
//!
//! Each allocation gets whole pages of its own, so this is for collections of many pages: a vector
//! of records, a hash table. For small boxes put an arena or a slab allocator between.
//!
//! ```
//! use allocator_api2::vec::Vec;
//! use pagedepot_linux::Depot;
//!
//! let depot = Depot::new(64 << 20)?;
//! let mut records: Vec<u64, Depot> = Vec::new_in(depot.clone());
//! records.extend(0..1_000_000);
//! assert_eq!(records.iter().sum::<u64>(), 499_999_500_000);
//! drop(records);
//! assert_eq!(depot.validate()?.held_pages(), 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | layout | what it gets |
//! |---|---|
//! | 0 bytes | nothing: a dangling pointer |
//! | up to 8 pages, and powers of two up to 1024 pages | a block, from this CPU's cache |
//! | others, up to 2^18 pages | contiguous pages, as many as it needs |
//! | aligned to more than 2 MiB | an error |

use std::alloc::Layout;
use std::ptr::NonNull;

use allocator_api2::alloc::{AllocError, Allocator};
use pagedepot::{Flags, FreeError, Order};

use crate::depot::handle::Depot;
use crate::memory::region::HUGE_BYTES;

/// Requests of up to this many pages are rounded up to a block, which CPUs cache. Rounding up
/// larger ones would waste too much memory.
const ROUNDED_PAGES_MAX: usize = 8;

/// The memory for a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extent {
    Nothing,
    Block(Order),
    /// Contiguous pages: their number, and the alignment of the first in pages.
    Run(u32, u32),
}

impl Depot {
    fn extent(&self, layout: Layout) -> Option<Extent> {
        let page = self.page_size().bytes();
        let (pages, align) = (layout.size().div_ceil(page), layout.align().div_ceil(page));
        if layout.align() > HUGE_BYTES {
            return None;
        }
        let block = pages.max(align);
        let is_block = block <= ROUNDED_PAGES_MAX || pages.is_power_of_two();
        match Order::for_frames(block).filter(|_| is_block) {
            _ if pages == 0 => Some(Extent::Nothing),
            Some(order) => Some(Extent::Block(order)),
            None => Some(Extent::Run(pages.try_into().ok()?, align as u32)),
        }
    }

    fn allocate_with(&self, layout: Layout, flags: Flags) -> Result<NonNull<[u8]>, AllocError> {
        let (raw, shift) = (self.raw(), self.page_size().shift());
        let (pfn, pages) = match self.extent(layout).ok_or(AllocError)? {
            Extent::Nothing => {
                let nowhere = std::ptr::without_provenance_mut(layout.align());
                let nowhere = NonNull::new(nowhere).ok_or(AllocError)?;
                return Ok(NonNull::slice_from_raw_parts(nowhere, 0));
            }
            Extent::Block(order) => (raw.alloc(order, flags), order.frames()),
            Extent::Run(pages, align) => (raw.alloc_contiguous(pages, align, flags), pages),
        };
        let start = raw.address(pfn.map_err(|_| AllocError)?);
        Ok(NonNull::slice_from_raw_parts(start, (pages as usize) << shift))
    }

    /// The memory unchanged, if the new layout gets the same.
    fn in_place(&self, start: NonNull<u8>, old: Layout, new: Layout) -> Option<NonNull<[u8]>> {
        let (before, after) = (self.extent(old)?, self.extent(new)?);
        let pages = match after {
            Extent::Nothing => return None,
            Extent::Block(order) => order.frames(),
            Extent::Run(pages, _) => pages,
        };
        let bytes = (pages as usize) << self.page_size().shift();
        (before == after).then(|| NonNull::slice_from_raw_parts(start, bytes))
    }

    /// Leaves the memory where it is if it is what `new` gets. Else allocates for `new`, copies
    /// what both layouts have room for, and frees the old memory.
    ///
    /// # Safety
    /// `start` was allocated here for `old` and is the caller's.
    unsafe fn resize(
        &self,
        start: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        if let Some(same) = self.in_place(start, old, new) {
            return Ok(same);
        }
        let moved = self.allocate(new)?;
        // SAFETY: both are valid for the smaller size and apart; the old one is given up.
        unsafe {
            moved.cast::<u8>().copy_from_nonoverlapping(start, old.size().min(new.size()));
            self.deallocate(start, old);
        }
        Ok(moved)
    }
}

// SAFETY: memory that it returns is a block or run of pages that only `deallocate` frees, mapped
// while there is a handle, of which the collection has one; clones are handles to the same depot.
unsafe impl Allocator for Depot {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        self.allocate_with(layout, Flags::default())
    }

    fn allocate_zeroed(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        self.allocate_with(layout, Flags::default().zeroed())
    }

    /// # Panics
    /// For memory that is not this depot's, in breach of the contract.
    unsafe fn deallocate(&self, start: NonNull<u8>, layout: Layout) {
        let (raw, pfn) = (self.raw(), self.pfn_of(start.as_ptr()));
        let freed = match (self.extent(layout), pfn) {
            (Some(Extent::Nothing), _) => return,
            // SAFETY: the caller's promise: allocated here with a layout that gets the same.
            (Some(Extent::Block(order)), Some(pfn)) => unsafe { raw.free(pfn, order) },
            // SAFETY: as above.
            (Some(Extent::Run(pages, _)), Some(pfn)) => unsafe { raw.free_contiguous(pfn, pages) },
            _ => Err(FreeError::OutOfRange),
        };
        // In a forked child nothing is freed: the pages are the parent's.
        assert!(
            matches!(freed, Ok(()) | Err(FreeError::Forked)) || std::thread::panicking(),
            "memory of another allocator: {freed:?}"
        );
    }

    unsafe fn grow(
        &self,
        start: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: the caller's promise.
        unsafe { self.resize(start, old, new) }
    }

    unsafe fn shrink(
        &self,
        start: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: the caller's promise.
        unsafe { self.resize(start, old, new) }
    }
}

#[cfg(test)]
mod tests {
    use allocator_api2::boxed::Box;
    use allocator_api2::vec::Vec;

    use super::*;
    use crate::test_units::{mib, page_bytes};

    #[test]
    fn layouts_get_what_the_table_says() {
        let page = page_bytes();
        let depot = Depot::new(16 * mib()).unwrap();
        let extent = |bytes, align| depot.extent(Layout::from_size_align(bytes, align).unwrap());
        let order = |n| Some(Extent::Block(Order::new(n).unwrap()));
        assert_eq!(extent(0, 8), Some(Extent::Nothing));
        assert_eq!((extent(1, 1), extent(5 * page, 8)), (order(0), order(3)));
        assert_eq!(
            (extent(9 * page, 8), extent(16 * page, 8)),
            (Some(Extent::Run(9, 1)), order(4))
        );
        assert_eq!(extent(1, page << 2), order(2));
        let huge = Order::for_frames(HUGE_BYTES / page).map(Extent::Block);
        assert_eq!((extent(1, HUGE_BYTES), extent(1, 2 * HUGE_BYTES)), (huge, None));
        assert_eq!(extent(9 * page, page << 4), Some(Extent::Run(9, 16)));
        assert_eq!(extent(page << 11, 8), Some(Extent::Run(2048, 1)));
    }

    #[test]
    fn collections_grow_shrink_and_give_all_back() {
        let page = page_bytes();
        let depot = Depot::builder(256 * mib()).checked(true).build().unwrap();
        let mut numbers = Vec::new_in(depot.clone());
        for n in 0..3_000_000_u64 {
            numbers.push(n);
        }
        numbers.truncate(100_000);
        numbers.shrink_to_fit();
        assert!(numbers.iter().copied().eq(0..100_000));
        let aligned = |bytes, align| Layout::from_size_align(bytes, align).unwrap();
        for layout in
            [aligned(9 * page, page << 4), aligned(100, HUGE_BYTES), aligned(3 * mib(), 8)]
        {
            let zeroed = depot.allocate_zeroed(layout).unwrap();
            assert_eq!(zeroed.cast::<u8>().as_ptr().addr() % layout.align(), 0);
            // SAFETY: allocated above, zeroed, and freed once.
            unsafe {
                assert!(zeroed.as_ref().iter().all(|&byte| byte == 0));
                depot.deallocate(zeroed.cast(), layout);
            }
        }
        drop(Box::new_in([7u8; 10_000], depot.clone()));
        let empty: Vec<[u64; 0], Depot> = Vec::with_capacity_in(9, depot.clone());
        drop((empty, numbers));
        assert!(depot.allocate(aligned(1024 * mib(), 8)).is_err());
        assert_eq!(depot.validate().unwrap().held_pages(), 0);
    }
}
