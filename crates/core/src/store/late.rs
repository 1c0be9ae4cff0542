//! Misuse found late: frames that came back to the store and were free there.
//!
//! The call that brings them may not have finished: a drain has more magazines to empty, an
//! allocation holds a block. The report may panic, and a panic there would lose the pages that the
//! call holds. So the store notes the misuse, and calls of the allocator report it as their last
//! step.
//!
//! All callers share one note: of two calls that end at the same moment, one reports for both.

use core::mem::forget;

use super::doubled::DoubleFree;
use super::misuse::Misuse;
use crate::frame::Pfn;
use crate::sync::prim::{AtomicU64, Ordering};

/// The note. Relaxed: the word is all there is to it.
///
/// | bits | field |
/// |---|---|
/// | 0..=31 | the first frame that was met |
/// | 32..=63 | how many, at most 2^32 - 1; 0: none, and nothing else in the word |
pub struct MisuseNote(AtomicU64);

impl MisuseNote {
    pub fn new() -> Self {
        MisuseNote(AtomicU64::new(0))
    }
}

fn pack(doubled: DoubleFree) -> u64 {
    let first = doubled.first.map_or(0, |pfn| u64::from(pfn.get()));
    if doubled.frames == 0 { 0 } else { u64::from(doubled.frames) << 32 | first }
}

fn unpack(word: u64) -> DoubleFree {
    let frames = (word >> 32) as u32;
    DoubleFree { first: (frames > 0).then(|| Pfn::new(word as u32)), frames }
}

impl MisuseNote {
    /// Notes frames that were put into the store and free there.
    #[cold]
    pub fn note(&self, doubled: DoubleFree) {
        let add = |word| {
            let mut noted = unpack(word);
            noted.add(doubled);
            Some(pack(noted))
        };
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// Whether there may be something to report.
    #[inline]
    pub fn is_any(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    /// Reports what was noted. If `report` panics, `undo` is called.
    #[cold]
    pub fn report(&self, report: impl FnOnce(Misuse), undo: impl FnMut()) {
        let DoubleFree { first, frames } = unpack(self.0.swap(0, Ordering::Relaxed));
        let Some(first) = first else { return };
        let undo = OnUnwind(undo);
        report(Misuse::DoubleFree { first, frames });
        forget(undo);
    }
}

/// Calls the function when dropped by an unwinding panic: without one, it is forgotten.
struct OnUnwind<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnUnwind<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn notes_come_back() {
        for first in [0, 1, u32::MAX] {
            for frames in [1, 2, u32::MAX] {
                let doubled = DoubleFree { first: Some(Pfn::new(first)), frames };
                assert_eq!(unpack(pack(doubled)), doubled);
            }
        }
        assert_eq!((pack(DoubleFree::NONE), unpack(0)), (0, DoubleFree::NONE));
    }
}
