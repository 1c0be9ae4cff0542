//! Pageblocks that are free as one.
//!
//! # Vocabulary
//! * *entire*: a bit per pageblock. While it is set, all 512 frames are free, though their words
//!   are 0.
//! * *break up*: to clear that bit, and put the frames into the words.
//!
//! A block of a pageblock or two lies in 8 or 16 words, and to change each takes an atomic
//! operation; as entire it is one operation on one word. So blocks of orders 9 and 10 come back as
//! entire. Two or four blocks that make up a pageblock do, too, if they come together. Frames that
//! come one by one are put into the words, and make their pageblock [whole](super::section).
//!
//! # Invariants
//! 1. A frame is free in one place: its bit in the words, or the entire or the
//!    [reported](super::reported) bit of its pageblock. The words of an entire pageblock are 0; a
//!    hint that is set all the same costs one look.
//! 2. Only the owner of all 512 frames sets the bit, which gives them up as `put` does.
//! 3. The read-modify-write that clears the bit confers all 512 frames. It clears the bits of
//!    several pageblocks together, those of a pair or all that a search has chosen in a word, or
//!    none of them.
//!
//! A search goes to entire pageblocks where it goes to whole ones that are
//! [warm](super::hints), and by the same marks. It takes all of one, and puts into the words
//! what it does not want. So does a claim of given frames,
//! which takes them out of the words again. Both are announced as moves in flight: a request that
//! found nothing meanwhile looks again. A block of order 9 or 10 that is taken by one operation, or
//! put by one, is not announced: it is in the store or with its caller at every moment
//! (`docs/decisions/0003-in-flight.md`).
//!
//! The caller that sets the bit looks at the marks after, the one that clears a mark at the bits:
//! Dekker's pattern, as with hints. Of two neighbours that become whole and entire at the same time
//! each looks at the other's word after; the later sees the pair.
//!
//! A frame of an entire pageblock that is freed has been freed before. It is found as with reported
//! ones: the hint `some` is clear, so the free looks at the bit. Who sets the bit has cleared the
//! hint. A legal free that is late sets it once more, if all that it has freed was taken and put
//! back as entire meanwhile; a frame that is freed for the second time before the next search that
//! comes by may then be free twice.

use core::ops::Range;

use super::bits::{self, PAGEBLOCK_WORDS};
use super::hints::{Hints, Sort, pairs};
use super::section::{Section, clear_exactly, hint_masks, pageblocks};
use crate::frame::pageblock::{PAGEBLOCK_FRAMES, fills_pageblocks};
use crate::sync::model::{Mutant, is_mutant};
use crate::sync::prim::Ordering;
use crate::sync::total::HINTS;

/// The words of a pageblock, by number.
fn words(pageblock: usize) -> Range<usize> {
    pageblock * PAGEBLOCK_WORDS..(pageblock + 1) * PAGEBLOCK_WORDS
}

impl Section<'_> {
    /// Mask of the pageblocks `64 * i ..` that are entire.
    #[inline]
    pub fn entire(&self, i: usize) -> u64 {
        // Acquire: pairs with the AcqRel in `take_entire`. A search that misses a pageblock sees
        // what its taker did before, as with words.
        self.entire[i].load(Ordering::Acquire)
    }

    /// Whether a pageblock is entire.
    #[inline]
    pub fn is_entire(&self, pageblock: usize) -> bool {
        self.entire(pageblock / 64) >> (pageblock % 64) & 1 == 1
    }

    /// Mask of the pageblocks `64 * i ..` that are entire or hinted to be whole.
    #[inline]
    pub fn entirely_free(&self, i: usize) -> u64 {
        self.hints(i).1 | self.entire(i)
    }

    /// Pageblocks that are [`entirely_free`](Self::entirely_free), and those that are reported.
    #[inline]
    pub fn entirely_free_or_reported(&self, i: usize) -> u64 {
        self.entirely_free(i) | self.reported(i)
    }

    /// Whether all frames of a pageblock are free though its words are 0: it is entire, or
    /// reported.
    #[inline]
    pub fn is_as_one(&self, pageblock: usize) -> bool {
        self.is_entire(pageblock) || self.is_reported(pageblock)
    }

    /// Takes all frames of a run of pageblocks, if all of them are entire and their bits lie in one
    /// word.
    #[inline]
    pub(super) fn take_entire(&self, start: u32, frames: u32) -> bool {
        debug_assert!(fills_pageblocks(start, frames));
        let mut masks = hint_masks(start, frames);
        let (Some((at, mask)), None) = (masks.next(), masks.next()) else { return false };
        self.take_entire_of(at, mask)
    }

    /// Takes all frames of the pageblocks of `mask` in a word of hints, if all of them are entire.
    #[inline]
    pub(super) fn take_entire_of(&self, at: usize, mask: u64) -> bool {
        if is_mutant(Mutant::TakesTwice) {
            let is_entire = self.entire(at) & mask == mask;
            self.entire[at].fetch_and(!mask, Ordering::AcqRel);
            return is_entire;
        }
        // Acquire: pairs with the SeqCst (Release) of `put_entire`. Release: pairs with the Acquire
        // in `entire`.
        clear_exactly(&self.entire[at], mask)
    }

    /// Gives the pageblocks of `mask` in a word of hints, which the caller owns, back as entire.
    /// Returns those that were entire already.
    #[inline]
    pub(super) fn put_entire(&self, at: usize, mask: u64) -> u64 {
        // SeqCst: Release for the frames' next owner; and before the looks at marks and neighbours,
        // see the module.
        let before = self.entire[at].fetch_or(mask, HINTS.change());
        HINTS.fence();
        if !is_mutant(Mutant::EntireUnmarked) {
            self.marks.set(Sort::Warm);
        }
        let entire = before | mask;
        // SeqCst: as above.
        let whole = self.whole[at].load(HINTS.look()) | entire;
        let are_pairs = pairs(whole) & (mask | mask >> 1);
        if are_pairs & !pairs(entire) != 0 {
            let cold = self.presence.cold_now(at) & !entire;
            self.marks.set_pairs(Hints { some: 0, whole, cold }, mask);
        } else if are_pairs != 0 {
            self.marks.set(Sort::WarmPair);
        }
        self.forget_mixed(at, mask);
        before & mask
    }

    /// Puts all frames of the pageblocks of `mask` in a word of hints, as
    /// [`put_each`](Self::put_each) does. They are entire then; tells those.
    ///
    /// What the caller owns is free nowhere else. Anything else was freed twice, and stays free
    /// once: as one, or in the words, where the rest joins it. Words are read only where the hint
    /// says that something is free there: a frame that is freed for the second time at this moment
    /// may be free twice.
    #[inline]
    pub(super) fn put_pageblocks(
        &self,
        at: usize,
        mask: u64,
        mut tell_doubled: impl FnMut(usize, u64),
        mut tell_whole: impl FnMut(usize),
    ) {
        // SeqCst: as in `refresh_hints`.
        let used = mask & self.some[at].load(HINTS.look());
        let used = used | mask & (self.entire(at) | self.reported(at));
        let unused = mask & !used;
        let doubled = if unused == 0 { 0 } else { self.put_entire(at, unused) };
        for pageblock in bits::each(used | doubled).map(|bit| at * 64 + bit as usize) {
            self.put_used(pageblock, doubled, &mut tell_doubled);
        }
        bits::each(mask).for_each(|bit| tell_whole(at * 64 + bit as usize));
    }

    /// Puts all frames of a pageblock some of which may be free already, or which is in `doubled`.
    #[cold]
    fn put_used(&self, pageblock: usize, doubled: u64, mut tell_doubled: impl FnMut(usize, u64)) {
        if self.is_as_one(pageblock) || doubled >> (pageblock % 64) & 1 == 1 {
            words(pageblock).for_each(|word| tell_doubled(word, !0));
        } else if self.count_in_words(pageblock) > 0 {
            self.put_words(pageblock, tell_doubled);
        } else {
            // Before, while the caller owns all frames: nothing that it might hide can come back.
            self.clear_some(pageblock);
            self.put_entire(pageblock / 64, 1 << (pageblock % 64));
        }
    }

    /// Puts all frames of a pageblock into its words.
    fn put_words(&self, pageblock: usize, mut tell_doubled: impl FnMut(usize, u64)) {
        for word in words(pageblock) {
            match self.put_mask(word, !0) {
                0 => {}
                doubled => tell_doubled(word, doubled),
            }
        }
        self.refresh_hints(pageblock);
    }

    /// Breaks up the entire pageblocks that a run touches, if all of the run is free. `true`: there
    /// was one, so that a claim in the words may succeed now.
    #[cold]
    pub(super) fn break_up(&self, start: u32, frames: u32) -> bool {
        let is_any = pageblocks(start, frames).any(|pageblock| self.is_entire(pageblock));
        if !is_any || !self.are_all(start, frames, true) {
            return false;
        }
        for pageblock in pageblocks(start, frames) {
            if self.take_entire(pageblock as u32 * PAGEBLOCK_FRAMES, PAGEBLOCK_FRAMES) {
                self.put_words(pageblock, |_, _| ());
            }
        }
        true
    }
}

/// Mask of the pageblocks `64 * i ..` of a section that are reported and not
/// [refused](super::hints).
#[inline]
pub(super) fn wakeable(section: &Section<'_>, i: usize) -> u64 {
    let reported = section.reported(i);
    if reported == 0 { 0 } else { reported & !section.refusals.of(i) }
}

/// Pageblocks that are [`wakeable`], and those that are [entirely free](Section::entirely_free).
#[inline]
pub(super) fn entirely_free_or_wakeable(section: &Section<'_>, i: usize) -> u64 {
    section.entirely_free(i) | wakeable(section, i)
}

#[cfg(all(test, not(loom)))]
#[path = "entire_tests.rs"]
mod tests;
