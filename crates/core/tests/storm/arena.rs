//! The memory of the frames.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::mem::MaybeUninit;
use std::ptr::NonNull;

use pagedepot::{LinearMap, PageSize, Pfn};

const PAGE: usize = PageSize::Kib4.bytes();
/// Offsets at which a holder writes: at the ends, and where a magazine in the frame would begin.
const CELLS: [usize; 3] = [0, PAGE / 2, PAGE - 8];

/// Memory for the frames from a first one on, which the system provides when it is touched.
pub struct Arena {
    memory: NonNull<u8>,
    layout: Layout,
    first: u32,
    /// Bytes of metadata before the frames.
    metadata_bytes: usize,
}

// SAFETY: a frame's memory is accessed by its holder, see the methods.
unsafe impl Sync for Arena {}

impl Arena {
    /// Makes memory for the frames, and for metadata in whose reach the first ones are.
    pub fn new(first: u32, frames: u32, metadata_bytes: usize) -> Self {
        let metadata_bytes = metadata_bytes.next_multiple_of(PAGE);
        let bytes = (frames as usize + 1) * PAGE + metadata_bytes;
        let layout = Layout::from_size_align(bytes, 1).unwrap();
        // SAFETY: the layout has a size.
        let memory = NonNull::new(unsafe { alloc_zeroed(layout) });
        let memory = memory.unwrap_or_else(|| handle_alloc_error(layout));
        memory.as_ptr().expose_provenance();
        Arena { memory, layout, first, metadata_bytes }
    }

    fn address(&self) -> usize {
        (self.memory.as_ptr().addr() + self.metadata_bytes).next_multiple_of(PAGE)
    }

    /// Returns the memory for metadata.
    ///
    /// # Safety
    /// It is called once.
    #[expect(clippy::mut_from_ref, reason = "one call")]
    pub unsafe fn metadata(&self) -> &mut [MaybeUninit<u8>] {
        // SAFETY: allocated, before all frames, and the caller's alone.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr().cast(), self.metadata_bytes) }
    }

    pub fn linear_map(&self) -> LinearMap {
        let first = self.address();
        // SAFETY: the frames are mapped there while the arena lives, and the storms vouch for their
        // frees: a frame that they free is their own.
        unsafe { LinearMap::new(first.wrapping_sub(self.first as usize * PAGE)) }
    }

    fn cell(&self, pfn: Pfn, offset: usize) -> *mut u64 {
        let first = self.address();
        std::ptr::with_exposed_provenance_mut(
            first + (pfn.get() - self.first) as usize * PAGE + offset,
        )
    }

    /// Writes into a frame that the caller holds.
    pub fn write(&self, pfn: Pfn, value: u64) {
        for offset in CELLS {
            // SAFETY: mapped, and the caller's.
            unsafe { self.cell(pfn, offset).write(value) };
        }
    }

    /// Fails unless the frame, which the caller holds, is as [`write`](Self::write) left it.
    pub fn check(&self, pfn: Pfn, value: u64) {
        for offset in CELLS {
            // SAFETY: as above.
            let found = unsafe { self.cell(pfn, offset).read() };
            assert!(found == value, "{pfn} at {offset}: {found:#x} instead of {value:#x}");
        }
    }

    /// Copies a frame into another one; the caller holds both.
    pub fn copy(&self, from: Pfn, to: Pfn) {
        // SAFETY: both are mapped, and the caller's.
        unsafe { self.cell(to, 0).copy_from_nonoverlapping(self.cell(from, 0), PAGE / 8) };
    }

    /// Fails unless a frame that the caller holds is zeroed: its cells, or `all` of it.
    pub fn check_zeroes(&self, pfn: Pfn, all: bool) {
        self.check(pfn, 0);
        for offset in (0..PAGE).step_by(8).filter(|_| all) {
            // SAFETY: as above.
            let found = unsafe { self.cell(pfn, offset).read() };
            assert!(found == 0, "{pfn} is not zeroed at {offset}: {found:#x}");
        }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: as allocated.
        unsafe { dealloc(self.memory.as_ptr(), self.layout) };
    }
}
