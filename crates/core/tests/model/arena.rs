//! Memory for the metadata, and for the frames of worlds that map them.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::mem::MaybeUninit;
use std::ptr::NonNull;

use pagedepot::{LinearMap, PageSize, Pfn};

const PAGE: usize = PageSize::Kib4.bytes();
/// The alignment that the metadata is skewed against: at least any that it needs.
const ALIGN: usize = 1 << 16;

/// One stretch of memory: the metadata, then the frames from number 0 on.
pub struct Arena {
    memory: NonNull<u8>,
    layout: Layout,
    /// Offset of the metadata.
    metadata_at: usize,
    metadata: usize,
}

impl Arena {
    /// Allocates room for `metadata` bytes, `skew` bytes off alignment, and `frames` frames behind
    /// them.
    pub fn new(metadata: usize, skew: usize, frames: usize) -> Self {
        let bytes = ALIGN + (skew + metadata).next_multiple_of(PAGE) + frames * PAGE;
        // Without an alignment: memory is then zeroed by the kernel, when it is touched.
        let layout = Layout::from_size_align(bytes, 1).unwrap();
        // SAFETY: the layout has a size.
        let memory = NonNull::new(unsafe { alloc_zeroed(layout) });
        let memory = memory.unwrap_or_else(|| handle_alloc_error(layout));
        let metadata_at = memory.as_ptr().expose_provenance().next_multiple_of(ALIGN) + skew;
        Arena { memory, layout, metadata_at: metadata_at - memory.as_ptr().addr(), metadata }
    }

    /// The memory for the metadata. Call it once.
    #[expect(clippy::mut_from_ref, reason = "no other code touches the metadata")]
    pub fn metadata(&self) -> &mut [MaybeUninit<u8>] {
        // SAFETY: in bounds; called once.
        unsafe {
            std::slice::from_raw_parts_mut(
                self.memory.as_ptr().add(self.metadata_at).cast(),
                self.metadata,
            )
        }
    }

    fn frame_zero(&self) -> usize {
        (self.memory.as_ptr().addr() + self.metadata_at + self.metadata).next_multiple_of(PAGE)
    }

    /// The mapping of the frames.
    pub fn linear_map(&self) -> LinearMap {
        // SAFETY: the frames lie behind the metadata, the run keeps the arena until the allocator
        // is gone, and provenance was exposed.
        unsafe { LinearMap::new(self.frame_zero()) }
    }

    fn cell(&self, frame: u32, offset: usize) -> *mut u64 {
        std::ptr::with_exposed_provenance_mut(self.frame_zero() + frame as usize * PAGE + offset)
    }

    /// Writes marks into a frame that the run holds.
    pub fn mark(&self, frame: u32) {
        for offset in MARKS {
            // SAFETY: the frame is held, and mapped.
            unsafe { self.cell(frame, offset).write(mark(frame, offset)) };
        }
    }

    pub fn check_marks(&self, frame: u32) {
        for offset in MARKS {
            // SAFETY: as above.
            let found = unsafe { self.cell(frame, offset).read() };
            assert!(
                found == mark(frame, offset),
                "other code wrote to {}, which is held",
                Pfn::new(frame)
            );
        }
    }

    pub fn check_zeroes(&self, frame: u32) {
        for offset in (0..PAGE).step_by(8) {
            // SAFETY: as above.
            let found = unsafe { self.cell(frame, offset).read() };
            assert!(found == 0, "{} is not zeroed at {offset}", Pfn::new(frame));
        }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: as allocated.
        unsafe { dealloc(self.memory.as_ptr(), self.layout) };
    }
}

/// Offsets of marks: at the start, where a magazine that is off by half its size would begin, and
/// at the end.
const MARKS: [usize; 3] = [0, PAGE - 128, PAGE - 8];

fn mark(frame: u32, offset: usize) -> u64 {
    (u64::from(frame) << 16 | offset as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
