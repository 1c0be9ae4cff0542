//! A mark with its holder in every frame: two holders of one frame meet there.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, Ordering};

use pagedepot::Pfn;

/// A frame's holder (0: none), recorded twice.
struct Mark {
    /// Changed by relaxed operations, which order nothing: two holders of one frame meet here.
    owner: AtomicU32,
    /// The value that a holder writes into its frame. Without an ordering between one holder and
    /// the next this is a data race, which ThreadSanitizer and Miri see.
    contents: UnsafeCell<u32>,
}

// SAFETY: `contents` is accessed by the frame's holder alone, see `change`.
unsafe impl Sync for Mark {}

/// The marks of the frames from a first one on.
pub struct Marks {
    first: u32,
    marks: Vec<Mark>,
}

impl Marks {
    pub fn new(first: u32, frames: u32) -> Self {
        let mark = |_| Mark { owner: AtomicU32::new(0), contents: UnsafeCell::new(0) };
        Marks { first, marks: (0..frames).map(mark).collect() }
    }

    pub fn take(&self, start: Pfn, frames: u32, owner: u32) {
        self.change(start, frames, 0, owner);
    }

    pub fn give_back(&self, start: Pfn, frames: u32, owner: u32) {
        self.change(start, frames, owner, 0);
    }

    fn change(&self, start: Pfn, frames: u32, from: u32, to: u32) {
        for mark in &self.marks[(start.get() - self.first) as usize..][..frames as usize] {
            // Relaxed: the allocator must order one holder after another.
            let changed =
                mark.owner.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed);
            assert!(changed.is_ok(), "{start} + {frames}: {from} -> {to} found {changed:?}");
            // SAFETY: the caller holds the frame, and the exchange shows that no other thread does.
            let written = unsafe { mark.contents.get().replace(to) };
            assert_eq!(
                written, from,
                "{start} + {frames}: its holder did not see what the last one wrote"
            );
        }
    }

    /// Frames that are held; called when all other threads have stopped.
    pub fn held(&self) -> u64 {
        let is_held = |mark: &&Mark| {
            // SAFETY: no thread changes a mark, or is about to.
            let contents = unsafe { *mark.contents.get() };
            assert_eq!(mark.owner.load(Ordering::Relaxed), contents);
            contents != 0
        };
        self.marks.iter().filter(is_held).count() as u64
    }
}
