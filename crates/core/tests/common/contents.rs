//! The contents that holders write into their frames. Without an ordering between one holder and
//! the next this is a data race, which ThreadSanitizer and Miri see.

use std::cell::UnsafeCell;

use pagedepot::Pfn;

pub struct Contents(Vec<UnsafeCell<u32>>);

// SAFETY: each cell is accessed by the holder of its frame alone.
unsafe impl Sync for Contents {}

impl Contents {
    /// Makes contents for so many frames, 0 each.
    pub fn new(frames: u32) -> Self {
        Contents((0..frames).map(|_| UnsafeCell::new(0)).collect())
    }

    /// Writes `to` into a frame that the caller holds, and whose last holder wrote `from`.
    pub fn change(&self, pfn: Pfn, from: u32, to: u32) {
        // SAFETY: the caller holds the frame.
        let written = unsafe { self.0[pfn.index()].get().replace(to) };
        assert_eq!(written, from, "{pfn}");
    }
}
