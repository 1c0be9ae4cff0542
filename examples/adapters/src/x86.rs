//! The frame traits of the crate `x86_64`, which its page tables allocate by.
#![allow(unsafe_code, reason = "implements an unsafe trait")]

use pagedepot::cpus::Cpus;
use pagedepot::{Allocator, Flags, Mobility, Order, Pfn};
use x86_64::PhysAddr;
use x86_64::structures::paging::{FrameAllocator, FrameDeallocator, PageSize, PhysFrame};

/// Frames of 4 KiB, 2 MiB and 1 GiB of a depot, whose pages must be of 4 KiB.
///
/// Page tables are unmovable; make another value for pages of user memory.
pub struct Frames<'d, 'm, C> {
    /// The depot that the frames come from.
    pub depot: &'d Allocator<'m, C>,
    /// Whether their owner can move them.
    pub mobility: Mobility,
}

/// Base frames in a frame of this size.
const fn frames<S: PageSize>() -> u32 {
    (S::SIZE / 4096) as u32
}

// SAFETY: the allocator hands each frame out once until it is freed.
unsafe impl<S: PageSize, C: Cpus> FrameAllocator<S> for Frames<'_, '_, C> {
    fn allocate_frame(&mut self) -> Option<PhysFrame<S>> {
        let flags = Flags::new(self.mobility);
        let pfn = match frames::<S>() {
            1 => self.depot.alloc(Order::BASE, flags).ok()?,
            // 1 GiB is no block; 2 MiB is one, and comes from the caches.
            frames => self.depot.alloc_contiguous(frames, frames, flags).ok()?,
        };
        PhysFrame::from_start_address(PhysAddr::new(pfn.index() as u64 * 4096)).ok()
    }
}

impl<S: PageSize, C: Cpus> FrameDeallocator<S> for Frames<'_, '_, C> {
    /// # Panics
    /// When the frame is not allocated, or of other memory.
    unsafe fn deallocate_frame(&mut self, frame: PhysFrame<S>) {
        let pfn = Pfn::try_from(frame.start_address().as_u64() / 4096).expect("a frame number");
        let freed = match frames::<S>() {
            1 => self.depot.free(pfn, Order::BASE),
            frames => self.depot.free_contiguous(pfn, frames),
        };
        freed.unwrap_or_else(|error| panic!("{frame:?}: {error}"));
    }
}
