//! Memory for the books, and for the frames where a world has them.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::mem::MaybeUninit;
use std::ptr::NonNull;

use pagedepot::{LinearMap, PageSize, Pfn};

const PAGE: usize = PageSize::Kib4.bytes();
/// What the books are skewed against: as much as any alignment they need.
const ALIGN: usize = 1 << 16;

/// One stretch of memory: the books, then the frames from number 0 on.
pub struct Arena {
    memory: NonNull<u8>,
    layout: Layout,
    /// Offset of the books.
    books_at: usize,
    books: usize,
}

impl Arena {
    /// Room for `books` bytes, `skew` bytes off alignment, and `frames` frames behind them.
    pub fn new(books: usize, skew: usize, frames: usize) -> Self {
        let bytes = ALIGN + (skew + books).next_multiple_of(PAGE) + frames * PAGE;
        // Without an alignment: memory is then zeroed by the kernel, when it is touched.
        let layout = Layout::from_size_align(bytes, 1).unwrap();
        // SAFETY: the layout has a size.
        let memory = NonNull::new(unsafe { alloc_zeroed(layout) });
        let memory = memory.unwrap_or_else(|| handle_alloc_error(layout));
        let books_at = memory.as_ptr().expose_provenance().next_multiple_of(ALIGN) + skew;
        Arena { memory, layout, books_at: books_at - memory.as_ptr().addr(), books }
    }

    /// The memory for the books; to be asked for once.
    #[expect(clippy::mut_from_ref, reason = "the books are a part that nobody else touches")]
    pub fn books(&self) -> &mut [MaybeUninit<u8>] {
        // SAFETY: in bounds; asked for once.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr().add(self.books_at).cast(), self.books) }
    }

    fn frame_zero(&self) -> usize {
        (self.memory.as_ptr().addr() + self.books_at + self.books).next_multiple_of(PAGE)
    }

    /// The mapping of the frames.
    pub fn linear_map(&self) -> LinearMap {
        // SAFETY: the frames lie behind the books, and the run keeps the arena until the allocator
        // is gone; provenance was exposed.
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
            assert!(found == mark(frame, offset), "somebody wrote to {}, which is held", Pfn::new(frame));
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

/// Where marks are: at the start, where a magazine that is off by half its size would begin, and at
/// the end.
const MARKS: [usize; 3] = [0, PAGE - 128, PAGE - 8];

fn mark(frame: u32, offset: usize) -> u64 {
    (u64::from(frame) << 16 | offset as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
