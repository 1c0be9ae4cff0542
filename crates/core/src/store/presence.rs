//! The free pageblocks that have memory: all but those never touched, or given back.
//!
//! # Vocabulary
//! * *cold*: a bit per pageblock. It says that no frame of it was taken since its memory was added,
//!   or since it was given back to what provides it. To touch such memory is to have it provided: a
//!   page fault each, and the program's footprint grows.
//! * *warm*: not cold.
//! * *touched*: a bit per pageblock: a frame of it was taken once. A cold pageblock that was
//!   touched before is one whose memory went back.
//!
//! # Theory
//! A program that frees memory and takes as much again should get what it has just freed. So a
//! search for whole pageblocks goes through the warm ones of the section of its hint, then the warm
//! ones of other sections, and then through cold ones; each in ascending order from where it last
//! found some, so that CPUs with sections of their own stay there. The lists of a buddy allocator
//! have the same effect because a free goes to a list's head; here no list is kept and no free does
//! anything for it.
//!
//! The caller that clears the `whole` hint of a cold pageblock, because it took a frame, clears the
//! bit: a free need not look. What is free as one, [entire](super::entire), is warm: the owner of a
//! pageblock that it gives back cold sets the bit, and puts the frames into the words.
//!
//! The bit is a hint, and may be wrong in both ways:
//! * set on a pageblock that was touched (its frames were taken while its `whole` hint was clear):
//!   others are taken before it, and perhaps touched. It is cleared when the next frame is taken.
//! * clear on one that was not touched (a taker that was late cleared what an owner has set since,
//!   or a caller took frames and never wrote to them): to take it costs the page faults.
//!
//! Neither decides whether a pageblock is found: the last pass of each search asks for neither.
//!
//! # Marks
//! The [summary](super::summary) has a mark for warm and one for cold pageblocks. The caller that
//! changes the bit so that a whole pageblock becomes warm looks at `whole` *after*, the caller that
//! sets `whole` looks at the bit after, and each sets the mark of the sort that it sees (Dekker's
//! pattern). The second of the two changes sees both. A pageblock becomes cold only before its
//! frames are put, by the one owner of them all.

use super::bits::HINT_WORDS;
use crate::sync::count;
use crate::sync::model::{Mutant, is_mutant};
use crate::sync::prim::{AtomicU64, Ordering};
use crate::sync::total::HINTS;

/// Bits that say which pageblocks of a section are cold.
#[repr(C)]
pub struct Presence {
    cold: [AtomicU64; HINT_WORDS],
    touched: [AtomicU64; HINT_WORDS],
    /// Number of cold pageblocks that were taken though they had been touched before.
    refaults: AtomicU64,
}

impl Presence {
    /// Makes the bits of a section: of each 64 pageblocks, those of `cold` are cold.
    pub fn new(cold: u64) -> Self {
        Presence {
            cold: core::array::from_fn(|_| AtomicU64::new(cold)),
            touched: core::array::from_fn(|_| AtomicU64::new(0)),
            refaults: AtomicU64::new(0),
        }
    }

    /// Mask of the pageblocks `64 * i ..` that are cold, if they are whole in their words.
    #[inline]
    pub fn cold(&self, i: usize) -> u64 {
        // Relaxed: a hint, and the last pass of a search does without it.
        self.cold[i].load(Ordering::Relaxed)
    }

    /// Reads [`cold`](Self::cold) to set a mark. Call after a hint was changed.
    #[inline]
    pub fn cold_now(&self, i: usize) -> u64 {
        // SeqCst: pairs with the changes in `note_cold` and `warm`.
        self.cold[i].load(HINTS.look())
    }

    /// Notes that the memory of the pageblocks of `mask` in a word of hints is not present. The
    /// caller owns all their frames, and puts them into the words.
    pub fn note_cold(&self, at: usize, mask: u64) {
        // SeqCst: before the frames are put, and so before any look for a mark.
        self.cold[at].fetch_or(mask, HINTS.change());
    }

    /// Notes that a frame was taken of a pageblock, whose `whole` hint the caller has cleared.
    /// `true`: it was cold. If its `whole` hint is set now, the caller marks it.
    #[inline]
    pub fn note_taken(&self, at: usize, bit: u64) -> bool {
        self.cold(at) & bit != 0 && self.warm(at, bit)
    }

    #[cold]
    fn warm(&self, at: usize, bit: u64) -> bool {
        // SeqCst: before the caller looks at `whole`.
        let was_cold = self.cold[at].fetch_and(!bit, HINTS.change()) & bit != 0;
        HINTS.fence();
        // Relaxed: statistics, which no model reads.
        let was_touched =
            was_cold && !cfg!(loom) && self.touched[at].fetch_or(bit, Ordering::Relaxed) & bit != 0;
        if was_touched {
            count(&self.refaults, 1);
        }
        !is_mutant(Mutant::WarmsUnseen)
    }

    /// Counts the pageblocks of which a frame was taken.
    pub fn first_touches(&self) -> u64 {
        // Relaxed: a statistic.
        self.touched.iter().map(|word| u64::from(word.load(Ordering::Relaxed).count_ones())).sum()
    }

    /// Counts how often a frame was taken of a pageblock whose memory had been given back.
    pub fn refaults(&self) -> u64 {
        self.refaults.load(Ordering::Relaxed)
    }
}
