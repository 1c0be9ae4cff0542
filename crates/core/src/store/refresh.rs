//! Changes of hints, which follow the bits of a [section](super::section). The theory is there: the
//! caller that sets bits looks at the hint after, the caller that clears a hint looks at the bits
//! after.

use super::bits::{self, HINT_WORDS, PAGEBLOCK_WORDS};
use super::hints::{Hints, Sort, note_step};
use super::section::Section;
use crate::frame::Order;
use crate::frame::pageblock::SECTION_PAGEBLOCKS;
use crate::sync::model::{IS_LOOM, Mutant, is_mutant};
use crate::sync::prim::{AtomicU64, Ordering};
use crate::sync::total::HINTS;

impl Section<'_> {
    /// Mask of the pageblocks `64 * i ..` that are mixed.
    pub fn mixed(&self, i: usize) -> u64 {
        // Relaxed: a hint.
        self.mixed[i].load(Ordering::Relaxed)
    }

    /// Whether a pageblock is mixed.
    pub fn is_mixed(&self, pageblock: usize) -> bool {
        self.mixed(pageblock / 64) >> (pageblock % 64) & 1 == 1
    }

    /// Notes that a pageblock of which the caller owns a frame is mixed, until it is whole.
    #[cold]
    pub fn note_mixed(&self, pageblock: usize) {
        let (at, bit) = (pageblock / 64, 1 << (pageblock % 64));
        // SeqCst, both: pairs with `set_whole`. A caller that saw the pageblock whole before the
        // frame was taken may set the hint late. Either it sees the bit and clears it, or the
        // hint is cleared here; the free that makes the pageblock whole then sets the hint and
        // looks.
        self.mixed[at].fetch_or(bit, HINTS.change());
        if self.whole[at].load(HINTS.look()) & bit != 0 {
            self.clear_whole(pageblock);
        }
    }

    /// Notes that a pageblock is mixed no more. What others take there at the same time may go
    /// unnoticed.
    pub fn note_unmixed(&self, pageblock: usize) {
        // Relaxed: a hint.
        self.mixed[pageblock / 64].fetch_and(!(1 << (pageblock % 64)), Ordering::Relaxed);
    }

    /// Mask of the pageblocks `64 * i ..` that are reported.
    #[inline]
    pub fn reported(&self, i: usize) -> u64 {
        // Acquire: pairs with the AcqRel in `take_reported`. A search that misses a pageblock sees
        // what its taker did before, as with words.
        self.reported[i].load(Ordering::Acquire)
    }

    /// Whether a pageblock is reported.
    pub fn is_reported(&self, pageblock: usize) -> bool {
        self.reported(pageblock / 64) >> (pageblock % 64) & 1 == 1
    }

    /// Gives all frames of a pageblock back that the caller owns, as reported.
    pub fn put_reported(&self, pageblock: usize) {
        let (at, bit) = (pageblock / 64, 1 << (pageblock % 64));
        self.forget_mixed(at, bit);
        // Before, as where it becomes entire: a frame that is freed again is found by the bit.
        self.clear_some(pageblock);
        // Release: pairs with the Acquire in `take_reported`, for the frames' next owner.
        self.reported[at].fetch_or(bit, Ordering::Release);
    }

    /// Takes all frames of a pageblock, if it is reported. The caller has the device make them
    /// usable.
    pub fn take_reported(&self, pageblock: usize) -> bool {
        let (cell, bit) = (&self.reported[pageblock / 64], 1 << (pageblock % 64));
        if is_mutant(Mutant::WakesTwice) {
            let is_reported = self.is_reported(pageblock);
            cell.fetch_and(!bit, Ordering::AcqRel);
            return is_reported;
        }
        // Acquire: pairs with the Release in `put_reported`. Release: pairs with the Acquire in
        // `reported`.
        cell.fetch_and(!bit, Ordering::AcqRel) & bit != 0
    }

    /// Sets the hints of a pageblock into which frames have been put. `true`: it became whole, or
    /// is entire or reported, so that the frames were free already. Call after the bits.
    ///
    /// The hint `whole` may be an old one, of a free that was late to set it, when all had been
    /// taken again. The pageblock may have become cold since, so it is marked anew. The hint stays:
    /// if a free cleared it, others might make the pageblock whole in between, and a request pass
    /// it by that sees no move in flight.
    #[inline]
    pub fn refresh_hints(&self, pageblock: usize) -> bool {
        let (at, bit) = (pageblock / 64, 1 << (pageblock % 64));
        // SeqCst loads: pair with the SeqCst clear in `clear_some`/`clear_whole` (see the theory).
        // `whole` first: a pageblock that comes back entirely is not marked as partly free.
        let is_whole = self.is_whole(pageblock);
        let whole = self.whole[at].load(HINTS.look());
        if is_whole {
            self.set_whole(pageblock);
        } else if whole & bit != 0 {
            mark_whole(self, pageblock, whole);
        }
        if self.lacks.any(pageblock) {
            self.refresh_lacks(pageblock);
        }
        if self.some[at].load(HINTS.look()) & bit == 0 {
            return self.set_some_unless_as_one(pageblock) || is_whole;
        }
        is_whole
    }

    /// Sets the `some` hint of a pageblock that is neither entire nor reported; `true`: it is.
    #[cold]
    fn set_some_unless_as_one(&self, pageblock: usize) -> bool {
        // A caller that frees what it holds sees both bits clear: its frame comes from the caller
        // that cleared one.
        let is_as_one = self.is_as_one(pageblock);
        if !is_as_one {
            self.set_some(pageblock);
        }
        is_as_one
    }

    /// Notes that a pageblock in which a search found no block of `order` has none, unless one came
    /// back.
    #[cold]
    pub(super) fn note_lack(&self, pageblock: usize, order: Order) {
        if self.lacks.set(pageblock, order) {
            HINTS.fence();
            if !is_mutant(Mutant::LacksUnseen) {
                self.refresh_lacks(pageblock);
            }
        }
    }

    /// Notes which blocks a pageblock has that was noted to lack some.
    #[cold]
    fn refresh_lacks(&self, pageblock: usize) {
        self.lacks.clear(pageblock, &self.words_now(pageblock));
    }

    /// Whether a pageblock has a block that its hints say it lacks. Never, when all others have
    /// stopped.
    pub fn hides_block(&self, pageblock: usize) -> bool {
        self.lacks.hides(pageblock, &self.words_now(pageblock))
    }

    /// The words of a pageblock, ordered with changes of its hints.
    fn words_now(&self, pageblock: usize) -> [u64; PAGEBLOCK_WORDS] {
        let words = self.pageblock_words(pageblock);
        // SeqCst: a free that makes a block and a search that sets a hint must not both miss.
        core::array::from_fn(|i| words[i].load(HINTS.look()))
    }

    /// Sets the `some` hint of a pageblock, and the mark that leads there if it is partly free.
    fn set_some(&self, pageblock: usize) {
        let (at, bit) = (pageblock / 64, 1 << (pageblock % 64));
        // SeqCst: pairs with the loads in `clear_whole` and `has`, which come after their changes.
        self.some[at].fetch_or(bit, HINTS.change());
        HINTS.fence();
        if self.whole[at].load(HINTS.look()) & bit == 0 {
            self.marks.set(Sort::Partial);
        }
    }

    /// Sets the `whole` hint of a pageblock, and the marks that lead there.
    #[cold]
    fn set_whole(&self, pageblock: usize) {
        let (at, bit) = (pageblock / 64, 1 << (pageblock % 64));
        // SeqCst: pairs with the loads in `has`; of two neighbours the later sees the other one.
        let others = self.whole[at].fetch_or(bit, HINTS.change());
        HINTS.fence();
        mark_whole(self, pageblock, others | bit);
        self.forget_mixed(at, bit);
    }

    /// Notes that pageblocks of which all frames came back are mixed no more.
    #[inline]
    pub(super) fn forget_mixed(&self, at: usize, mask: u64) {
        // SeqCst load: pairs with the change in `note_mixed`, which looks at `whole` after. It is a
        // hint: one that comes when the pageblock is not whole any more may be lost.
        if !IS_LOOM && self.mixed[at].load(HINTS.look()) & mask != 0 {
            // Relaxed: as above.
            self.mixed[at].fetch_and(!mask, Ordering::Relaxed);
        }
    }

    /// Clears the mark of a sort of pageblocks, unless the section has one.
    pub fn clear_mark(&self, sort: Sort) {
        if !self.has(sort) {
            self.marks.clear(sort, || self.has(sort));
        }
    }

    /// Whether the section's hints show a pageblock of this sort.
    fn has(&self, sort: Sort) -> bool {
        (0..HINT_WORDS).any(|at| has_among(self, sort, at, !0))
    }

    /// Whether the section has pageblocks of this sort with free frames and no mark that leads
    /// there. Never, when all others have stopped.
    pub fn hides(&self, sort: Sort) -> bool {
        let is_free = |&at: &usize| self.count_in_words(at) > 0 || self.is_entire(at);
        let has_free = |at: usize| {
            let all = (at * 64..SECTION_PAGEBLOCKS.min(at * 64 + 64)).filter(is_free);
            has_among(self, sort, at, all.fold(0, |mask, of| mask | 1 << (of % 64)))
        };
        !self.marks.is_set(sort) && self.has(sort) && (0..HINT_WORDS).any(has_free)
    }

    #[inline]
    pub(super) fn whole_hint(&self, pageblock: usize) -> bool {
        // Relaxed: a hint; the words decide.
        self.whole[pageblock / 64].load(Ordering::Relaxed) >> (pageblock % 64) & 1 == 1
    }

    fn is_whole(&self, pageblock: usize) -> bool {
        // SeqCst: a setter of the last bit and a clearer of the hint must not both miss.
        self.pageblock_words(pageblock).iter().all(|w| w.load(HINTS.look()) == !0)
    }

    #[inline]
    pub(super) fn has_some(&self, pageblock: usize) -> bool {
        self.pageblock_words(pageblock).iter().any(|w| w.load(HINTS.look()) != 0)
    }

    #[inline]
    pub(super) fn clear_whole(&self, pageblock: usize) {
        self.clear_whole_of(pageblock / 64, 1 << (pageblock % 64));
    }

    /// Clears the hints `whole` of the pageblocks of `mask` in a word of hints, like
    /// [`clear_whole`](Self::clear_whole).
    pub(super) fn clear_whole_of(&self, at: usize, mask: u64) {
        self.whole[at].fetch_and(!mask, HINTS.change());
        HINTS.fence();
        for bit in bits::each(mask) {
            let pageblock = at * 64 + bit as usize;
            if self.is_whole(pageblock) {
                self.set_whole(pageblock);
                continue;
            }
            if self.presence.note_taken(at, 1 << bit) {
                // SeqCst: pairs with the change in `set_whole`, which looks at the bit after.
                let whole = self.whole[at].load(HINTS.look());
                if whole >> bit & 1 == 1 {
                    mark_whole(self, pageblock, whole);
                }
            }
            if is_mutant(Mutant::MarksByOneHint) {
                continue;
            }
            // SeqCst load: pairs with the change in `set_some`, which looks at `whole` after.
            if self.some[at].load(HINTS.look()) >> bit & 1 == 1 {
                self.marks.set(Sort::Partial);
            }
        }
    }

    /// Clears the `some` hint of a pageblock in which a search found nothing, unless frames came
    /// back.
    pub fn clear_some(&self, pageblock: usize) {
        self.clear_some_of(pageblock / 64, 1 << (pageblock % 64));
    }

    /// Clears the hints `some` of the pageblocks of `mask` in a word of hints, like
    /// [`clear_some`](Self::clear_some).
    pub(super) fn clear_some_of(&self, at: usize, mask: u64) {
        // Relaxed: a hint that is clear already needs no clearing; a later setter sees the words.
        let mask = self.some[at].load(Ordering::Relaxed) & mask;
        if mask == 0 {
            return;
        }
        self.some[at].fetch_and(!mask, HINTS.change());
        HINTS.fence();
        for pageblock in bits::each(mask).map(|bit| at * 64 + bit as usize) {
            if self.has_some(pageblock) {
                self.set_some(pageblock);
            }
        }
    }
}

/// Whether the hints show one of this sort among the pageblocks of `mask` in a word of hints.
fn has_among(section: &Section<'_>, sort: Sort, at: usize, mask: u64) -> bool {
    note_step();
    // SeqCst: pairs with `set_some`, `set_whole`, `clear_whole` and `put_entire`, which look at
    // the mark after.
    let now = |hints: &[AtomicU64; HINT_WORDS]| hints[at].load(HINTS.look()) & mask;
    let whole = now(&section.whole);
    let hints = match sort {
        Sort::Partial => Hints { some: now(&section.some), whole, cold: 0 },
        _ => {
            let entire = now(&section.entire);
            Hints { some: 0, whole: whole | entire, cold: section.presence.cold_now(at) & !entire }
        }
    };
    sort.of_hints(hints) != 0
}

/// Sets the marks that lead to a pageblock that is whole in its words, by itself and in a pair;
/// `whole` are the hints around it. Call after they were changed, or whether it is cold.
#[cold]
fn mark_whole(section: &Section<'_>, pageblock: usize, whole: u64) {
    let (at, bit, neighbour) = (pageblock / 64, 1 << (pageblock % 64), 1 << ((pageblock % 64) ^ 1));
    // SeqCst: of two neighbours the later sees the other one, be it whole or entire.
    let entire = section.entire[at].load(HINTS.look());
    let cold = section.presence.cold_now(at) & !entire;
    section.marks.set(if cold & bit == 0 { Sort::Warm } else { Sort::Cold });
    if (whole | entire) & neighbour != 0 {
        let is_cold = cold & (bit | neighbour) != 0;
        section.marks.set(if is_cold { Sort::ColdPair } else { Sort::WarmPair });
    }
}
