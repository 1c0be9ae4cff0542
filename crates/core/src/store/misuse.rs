//! Errors of callers and backings, frames that were freed twice among them.
//!
//! # Misuse found late
//! Frames that come back to the store may be free there already, and a backing may hand out frames
//! that are none of the zone's. The call that meets them may not have finished: a drain has more
//! magazines to empty, an allocation holds blocks. The report may panic, and a panic there would
//! lose the pages that the call holds. So the store notes the misuse, and calls of the allocator
//! report it as their last step.
//!
//! All callers share the notes: of two calls that end at the same moment, one reports for both.
//!
//! A frame that is freed for the second time while a search or a claim owns it, and gives it back,
//! is noted by neither in most places. It stays free once, and the zone's count of free pages is
//! one too high from then on.

use core::fmt;
use core::mem::forget;

use super::bits;
use crate::frame::Pfn;
use crate::sync::prim::{AtomicU64, Ordering};

/// The treatment of a caller that frees what it does not hold, found after the fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Misuse {
    /// Frames that came back to the store were free there already: a block was freed twice, or
    /// with a wrong order. They stay free once. Told by the call that brought them there, or by
    /// another that ends at the same moment, as the last thing it does.
    DoubleFree {
        /// The first of them that was met.
        first: Pfn,
        /// Number of frames.
        frames: u32,
    },
    /// A [`Backing`](crate::Backing) handed out frames that are misaligned or not of the zone asked
    /// for, against its contract. They are not handed on; what else came with them is. Told like
    /// double frees.
    Backing {
        /// The first of them, as the backing named it.
        first: Pfn,
        /// Number of frames.
        frames: u32,
    },
}

impl fmt::Display for Misuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Misuse::DoubleFree { first, frames: 1 } => {
                write!(
                    f,
                    "{first} came back that was free already: it was freed twice, or with a wrong \
                     order"
                )
            }
            Misuse::DoubleFree { first, frames } => write!(
                f,
                "{frames} frames came back that were free already, {first} first: they were freed \
                 twice, or with a wrong order"
            ),
            Misuse::Backing { first, frames } => write!(
                f,
                "the backing handed out {frames} frames from {first} on, which are misaligned or \
                 not of the zone asked for"
            ),
        }
    }
}

/// Frames that were given back though they were free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DoubleFree {
    /// The first that was met.
    pub first: Option<Pfn>,
    /// Number of frames.
    pub frames: u32,
}

impl DoubleFree {
    /// No frame.
    pub const NONE: Self = DoubleFree { first: None, frames: 0 };

    /// The doubled frames of `mask` in a word of 64 frames, counted from frame 0.
    #[inline]
    pub fn in_word(word: u32, mask: u64) -> Self {
        if mask == 0 {
            return DoubleFree::NONE;
        }
        let first = Pfn::new(word * bits::WORD_FRAMES + mask.trailing_zeros());
        DoubleFree { first: Some(first), frames: mask.count_ones() }
    }

    /// Adds others, met later.
    #[inline]
    pub fn add(&mut self, other: DoubleFree) {
        if other.frames > 0 {
            self.first = self.first.or(other.first);
            self.frames = self.frames.saturating_add(other.frames);
        }
    }
}

/// The notes, one of each kind of misuse. Relaxed: each word is all there is to it.
///
/// | bits | field |
/// |---|---|
/// | 0..=31 | the first frame that was met |
/// | 32..=63 | how many, at most 2^32 - 1; 0: none, and nothing else in the word |
#[derive(Default)]
pub struct MisuseNote {
    doubled: AtomicU64,
    backing: AtomicU64,
}

impl MisuseNote {
    /// Notes misuse.
    #[cold]
    pub fn note(&self, misuse: Misuse) {
        let (note, first, frames) = match misuse {
            Misuse::DoubleFree { first, frames } => (&self.doubled, first, frames),
            Misuse::Backing { first, frames } => (&self.backing, first, frames),
        };
        let add = |word: u64| {
            let first = if word == 0 { first.get() } else { word as u32 };
            let frames = frames.saturating_add((word >> 32) as u32);
            Some(u64::from(frames) << 32 | u64::from(first))
        };
        let _ = note.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// Whether there may be something to report.
    #[inline]
    pub fn is_any(&self) -> bool {
        self.doubled.load(Ordering::Relaxed) | self.backing.load(Ordering::Relaxed) != 0
    }

    /// Reports what was noted. If `report` panics, `undo` is called, and a note that is left is for
    /// another call.
    #[cold]
    pub fn report(&self, report: impl Fn(Misuse), undo: impl FnMut()) {
        let undo = OnUnwind(undo);
        let take = |note: &AtomicU64| {
            let word = note.swap(0, Ordering::Relaxed);
            (Pfn::new(word as u32), (word >> 32) as u32)
        };
        if let (first, frames @ 1..) = take(&self.doubled) {
            report(Misuse::DoubleFree { first, frames });
        }
        if let (first, frames @ 1..) = take(&self.backing) {
            report(Misuse::Backing { first, frames });
        }
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
        let note = MisuseNote::default();
        for first in [0, 1, u32::MAX].map(Pfn::new) {
            for (frames, sum) in [(1, 4), (2, 5), (u32::MAX, u32::MAX)] {
                note.note(Misuse::Backing { first, frames });
                note.note(Misuse::DoubleFree { first, frames });
                note.note(Misuse::DoubleFree { first: Pfn::new(7), frames: 3 });
                let told = std::cell::RefCell::new(Vec::new());
                note.report(|misuse| told.borrow_mut().push(misuse), || ());
                let expected =
                    [Misuse::DoubleFree { first, frames: sum }, Misuse::Backing { first, frames }];
                assert_eq!(told.into_inner(), expected);
                assert!(!note.is_any());
            }
        }
    }
}
