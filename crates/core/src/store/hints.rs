//! Hints about pageblocks besides `some` and `whole`: whether they have memory ([`Presence`]),
//! which orders they lack ([`Lacks`]), whether a device refused them ([`Refusals`]). And the
//! summary of all hints, which says what sections a search need not look into.
//!
//! # Vocabulary of the summary
//! * *sort*: a kind of pageblock that searches look for, read off its hints: *partial* (`some` and
//!   not `whole`), whole and *warm*, or *cold* (below), or the first of an aligned pair
//!   of whole ones, which is a block of order 10; a pair is cold if one of the two is.
//! * *mark*: one bit per section and sort. A set mark says that the section may have pageblocks of
//!   that sort, a clear one that it has none.
//!
//! # Theory of the summary
//! A mark is to the hints of a section what a hint is to the words of a pageblock, and by the same
//! rule (Dekker's pattern, see [`section`](super::section)) it never stays clear against a search.
//! The caller that changes a hint, so that a pageblock becomes one of a sort, looks at the mark
//! *after* and sets it. The search that clears a mark, because it saw no such pageblock, looks at
//! the hints *after*, and sets it again. A pageblock becomes partial by two hints: the caller that
//! sets `some` looks at `whole` after, the caller that clears `whole` looks at `some` after, so
//! that one of the two sees both. A pair becomes one by two bits of one word: the later of the two
//! changes sees both. How a whole pageblock becomes warm is said below.
//!
//! A mark can be clear for the moment between its clearing and that second look, while a pageblock
//! of the sort is there. Marks therefore only lead to what is found quickly. The last pass of each
//! search follows no marks and reads the hints of all sections, so no search fails because of a
//! mark. A mark that is set without cause costs one look at the section's hints, which clears it.
//!
//! A search thus reads one word per 64 sections and the hints, a cache line of each kind, of the
//! section it is led to, however many blocks are held.
//!
//! # Presence
//! All free pageblocks have memory but those never touched, or given back.
//! * *cold*: a bit per pageblock. It says that no frame of it was taken since its memory was added,
//!   or since it was given back to what provides it. To touch such memory is to have it provided: a
//!   page fault each, and the program's footprint grows.
//! * *warm*: not cold.
//! * *touched*: a bit per pageblock: a frame of it was taken once. A cold pageblock that was
//!   touched before is one whose memory went back.
//!
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
//! The summary has a mark for warm and one for cold pageblocks. The caller that
//! changes the bit so that a whole pageblock becomes warm looks at `whole` *after*, the caller that
//! sets `whole` looks at the bit after, and each sets the mark of the sort that it sees (Dekker's
//! pattern). The second of the two changes sees both. A pageblock becomes cold only before its
//! frames are put, by the one owner of them all, and who puts the last of them sets the marks also
//! where `whole` is set already: by a free that made the pageblock whole before, and was late.
//!
//! # Refusals
//! A *refused* pageblock stays reported, and free. Searches and claims pass it by: a device that
//! has no memory would else be asked for each pageblock by each search of a request, of which there
//! are up to eighteen, and more where it waits for other callers.
//!
//! A request that has found nothing so far *forgets* all refusals before its last resort, or before
//! it fails where it has none. So it asks for each pageblock twice at most, and one that it passes
//! by when it fails was refused while it ran.
//!
//! All accesses are Relaxed. Only the caller that has taken all frames of a pageblock notes a
//! refusal of it. A refusal that is forgotten too early or too late by a caller beside it counts as
//! that caller's.
//!
//! # Lacks
//! By these hints searches pass by pageblocks whose free frames lie scattered. *lacks* is a bit per
//! pageblock and order, from 1 to the last below a pageblock's. It says that frames are free in the
//! pageblock, and that no block of that order is.
//!
//! A pageblock that lacks an order lacks all above it, so its bits are one bound: the search that
//! finds no block sets the bits from its order on, the free that makes a block clears those up to
//! the block's order. The rule is that of the hints `some` and `whole` (Dekker's pattern, see
//! [`section`](super::section)): the search looks at the words again *after* it has set bits, the
//! free looks at the bits *after* it has changed the words. Of two that race at least one sees the
//! other. A block of several words that several frees make is seen by the last of them.
//!
//! So once all have stopped, a set bit is right. A clear one may be wrong, and costs one look. A
//! set one is wrong only between the search's first and its second look, in which frees put a block
//! there. That search is announced as in flight, as those are that clear `some`: a request that
//! passes the pageblock by at that moment does not take its round for undisturbed.
//!
//! No bit is set while a pageblock is taken from in blocks of one order: its last block leaves it
//! empty, which `some` says. A free then reads one word here and writes none.

use super::bits::{self, HINT_WORDS, PAGEBLOCK_WORDS, WORD_ORDER_MAX};
use crate::frame::Order;
use crate::frame::pageblock::SECTION_PAGEBLOCKS;
use crate::sync::count;
use crate::sync::model::{IS_LOOM, Mutant, is_mutant};
use crate::sync::prim::{AtomicU64, Ordering};
use crate::sync::total::HINTS;
use core::ops::Range;

/// The sorts of pageblocks that searches look for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sort {
    Partial,
    Warm,
    WarmPair,
    Cold,
    ColdPair,
}

/// The hints of 64 pageblocks.
#[derive(Clone, Copy, Default)]
pub struct Hints {
    pub some: u64,
    /// All frames are free; but for [`Sort::Partial`], in the words or as one.
    pub whole: u64,
    pub cold: u64,
}

/// Mask of the first pageblock of each aligned pair of which both are in `mask`.
#[inline]
pub const fn pairs(mask: u64) -> u64 {
    mask & mask >> 1 & 0x5555_5555_5555_5555
}

impl Sort {
    pub const ALL: [Sort; 5] =
        [Sort::Partial, Sort::Warm, Sort::WarmPair, Sort::Cold, Sort::ColdPair];

    /// Mask of the pageblocks of this sort among 64 with these hints.
    #[inline]
    pub const fn of_hints(self, Hints { some, whole, cold }: Hints) -> u64 {
        match self {
            Sort::Partial => some & !whole,
            Sort::Warm => whole & !cold,
            Sort::Cold => whole & cold,
            Sort::WarmPair => pairs(whole & !cold),
            Sort::ColdPair => pairs(whole) & !pairs(whole & !cold),
        }
    }
}

/// Sections per [`Group`].
const GROUP_SECTIONS: usize = u64::BITS as usize;

/// The marks of 64 sections: a word per sort.
#[derive(Default)]
pub struct Group([AtomicU64; Sort::ALL.len()]);

/// The marks of all sections.
#[derive(Clone, Copy)]
pub struct Summary<'m> {
    groups: &'m [Group],
}

impl<'m> Summary<'m> {
    /// Number of groups of a summary of so many sections.
    pub const fn groups(sections: usize) -> usize {
        sections.div_ceil(GROUP_SECTIONS)
    }

    pub fn new(groups: &'m [Group]) -> Self {
        Summary { groups }
    }

    /// The marks of the section with this number, which has a group.
    pub fn marks(&self, number: usize) -> Marks<'m> {
        Marks { group: &self.groups[number / GROUP_SECTIONS], bit: 1 << (number % GROUP_SECTIONS) }
    }

    /// Finds the first of these sections that is marked to have pageblocks of one of the `sorts`.
    #[inline]
    pub fn next<const N: usize>(&self, sorts: [Sort; N], sections: Range<usize>) -> Option<usize> {
        let mut from = sections.start;
        while from < sections.end {
            note_step();
            // Acquire: pairs with the SeqCst (Release) of `Marks::set` and `Marks::clear`.
            let marks = &self.groups.get(from / GROUP_SECTIONS)?.0;
            let word = sorts
                .into_iter()
                .fold(0, |word, sort| word | marks[sort as usize].load(Ordering::Acquire));
            let rest = word >> (from % GROUP_SECTIONS);
            if rest != 0 {
                let number = from + rest.trailing_zeros() as usize;
                return (number < sections.end).then_some(number);
            }
            from += GROUP_SECTIONS - from % GROUP_SECTIONS;
        }
        None
    }
}

/// The marks of one section.
#[derive(Clone, Copy)]
pub struct Marks<'m> {
    group: &'m Group,
    bit: u64,
}

impl Marks<'_> {
    /// Sets the mark of a sort, of which the section has a pageblock now. Call after its hints
    /// changed by one of [`HINTS`] and its fence.
    #[inline]
    pub fn set(&self, sort: Sort) {
        let cell = &self.group.0[sort as usize];
        // SeqCst load: pairs with the SeqCst clear in `clear` (see the theory).
        if cell.load(HINTS.look()) & self.bit == 0 {
            cell.fetch_or(self.bit, HINTS.change());
        }
    }

    /// Sets the marks of the pairs that pageblocks of `mask` are in. Call as [`set`](Self::set).
    #[cold]
    pub fn set_pairs(&self, hints: Hints, mask: u64) {
        let all = pairs(hints.whole) & (mask | mask >> 1);
        if all == 0 {
            return;
        }
        let warm = all & Sort::WarmPair.of_hints(hints);
        if warm != 0 {
            self.set(Sort::WarmPair);
        }
        if warm != all {
            self.set(Sort::ColdPair);
        }
    }

    /// Clears the mark of a sort, unless `has` finds a pageblock of that sort afterwards.
    pub fn clear(&self, sort: Sort, has: impl Fn() -> bool) {
        if !self.is_set(sort) {
            return;
        }
        self.group.0[sort as usize].fetch_and(!self.bit, HINTS.change());
        HINTS.fence();
        if is_mutant(Mutant::ClearsUnseen) {
            return;
        }
        if has() {
            self.set(sort);
        }
    }

    /// Whether the mark of a sort is set now.
    pub fn is_set(&self, sort: Sort) -> bool {
        // Relaxed: of no consequence, `clear` looks again.
        self.group.0[sort as usize].load(Ordering::Relaxed) & self.bit != 0
    }
}

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
            was_cold && !IS_LOOM && self.touched[at].fetch_or(bit, Ordering::Relaxed) & bit != 0;
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

/// A bit per pageblock of a section; see the module.
#[derive(Default)]
pub struct Refusals([AtomicU64; HINT_WORDS]);

impl Refusals {
    /// Mask of the pageblocks `64 * i ..` that are refused.
    #[inline]
    pub fn of(&self, i: usize) -> u64 {
        self.0[i].load(Ordering::Relaxed)
    }

    /// Whether a pageblock is.
    pub fn has(&self, pageblock: usize) -> bool {
        self.of(pageblock / 64) >> (pageblock % 64) & 1 == 1
    }

    /// Notes whether the device has refused a pageblock whose reported bit the caller has cleared.
    pub fn note(&self, pageblock: usize, is_refused: bool) {
        if self.has(pageblock) == is_refused || is_mutant(Mutant::ForgetsRefusals) {
            return;
        }
        let (cell, bit) = (&self.0[pageblock / 64], 1 << (pageblock % 64));
        match is_refused {
            true => cell.fetch_or(bit, Ordering::Relaxed),
            false => cell.fetch_and(!bit, Ordering::Relaxed),
        };
    }

    /// Notes that all of them are old.
    pub fn forget(&self) {
        self.0.iter().for_each(|cell| cell.store(0, Ordering::Relaxed));
    }
}

/// The highest order that has a bit.
const ORDER_MAX: u32 = Order::PAGEBLOCK.get() - 1;
/// Pageblocks per word. One has a byte: bit `n - 1` is order `n`.
const IN_WORD: usize = 8;
/// Words for the 64 pageblocks of a word of other hints: a cache line.
const LINE_WORDS: usize = (SECTION_PAGEBLOCKS / HINT_WORDS).div_ceil(IN_WORD);
const _: () = assert!(ORDER_MAX <= 8);

/// The bits of order 1 in a word.
const FIRST_BITS: u64 = bits::BYTES;
/// Multiplied by this, the lowest bits of a word's bytes meet in the highest byte, in order.
const GATHER: u64 = 0x0102_0408_1020_4080;

/// The bits of the pageblocks of a section.
#[derive(Default)]
pub struct Lacks([[AtomicU64; LINE_WORDS]; HINT_WORDS]);

impl Lacks {
    #[inline]
    fn word(&self, pageblock: usize) -> &AtomicU64 {
        &self.0[pageblock / 64][pageblock % 64 / IN_WORD]
    }

    /// Mask of the pageblocks `64 * i ..` that may have a block of `order`.
    #[inline]
    pub fn may_have(&self, i: usize, order: Order) -> u64 {
        if !(1..=ORDER_MAX).contains(&order.get()) {
            return !0;
        }
        let lack = self.0[i].iter().zip((0..).step_by(IN_WORD)).fold(0, |all, (word, at)| {
            // Acquire: pairs with the SeqCst (Release) of `set`. A search that passes a pageblock
            // by sees what the taker of its frames did before.
            let lowest = word.load(Ordering::Acquire) >> (order.get() - 1) & FIRST_BITS;
            all | (lowest.wrapping_mul(GATHER) >> 56) << at
        });
        !lack
    }

    /// Whether a pageblock lacks any order. Call after its words were changed.
    #[inline]
    pub fn any(&self, pageblock: usize) -> bool {
        // SeqCst: pairs with the change in `set`, whose caller looks at the words after.
        self.word(pageblock).load(HINTS.look()) & bits_of(pageblock, 1, ORDER_MAX) != 0
    }

    /// Notes that a pageblock lacks `order`. `true`: it was not noted before, and the caller looks
    /// at the words again.
    pub fn set(&self, pageblock: usize, order: Order) -> bool {
        let (cell, mask) = (self.word(pageblock), bits_of(pageblock, order.get(), ORDER_MAX));
        // Relaxed: bits that are set are right, or their setter looks at the words again.
        if cell.load(Ordering::Relaxed) & mask == mask {
            return false;
        }
        cell.fetch_or(mask, HINTS.change());
        true
    }

    /// Notes that a pageblock with these words has blocks of all orders that they have.
    pub fn clear(&self, pageblock: usize, words: &[u64; PAGEBLOCK_WORDS]) {
        let (cell, mask) = (self.word(pageblock), bits_of(pageblock, 1, largest(words)));
        // Relaxed: the caller has looked by `any`; a search that sets bits later looks at words.
        if cell.load(Ordering::Relaxed) & mask != 0 {
            cell.fetch_and(!mask, HINTS.change());
        }
    }

    /// Whether a pageblock with these words has a block of an order that it is noted to lack.
    /// Never, when all others have stopped.
    pub fn hides(&self, pageblock: usize, words: &[u64; PAGEBLOCK_WORDS]) -> bool {
        let mask = bits_of(pageblock, 1, largest(words));
        self.word(pageblock).load(Ordering::Relaxed) & mask != 0
    }
}

/// The bits of a pageblock for the orders from `first` to `last`.
#[inline]
const fn bits_of(pageblock: usize, first: u32, last: u32) -> u64 {
    let bits = (1 << last) - (1 << (first - 1));
    bits << (pageblock % IN_WORD * 8)
}

/// The largest order below a pageblock's of which these words have a free block; 0 if none has any.
fn largest(words: &[u64; PAGEBLOCK_WORDS]) -> u32 {
    let mut largest = 0;
    for &word in words {
        while let Some(next) = Order::new(largest + 1).filter(|next| next.get() <= WORD_ORDER_MAX)
            && bits::free_blocks(word, next) != 0
        {
            largest += 1;
        }
    }
    let is_free = |order: u32| {
        words
            .chunks(1 << (order - WORD_ORDER_MAX))
            .any(|block| block.iter().all(|&word| word == !0))
    };
    while (WORD_ORDER_MAX..ORDER_MAX).contains(&largest) && is_free(largest + 1) {
        largest += 1;
    }
    largest
}

#[cfg(all(test, not(loom)))]
std::thread_local! {
    /// Words of hints and of the summary that searches have read, and pageblocks they have looked
    /// into.
    pub static STEPS: core::cell::Cell<u64> = const { core::cell::Cell::new(0) };
}

/// Counts a step of a search, in unit tests only.
#[inline]
pub fn note_step() {
    #[cfg(all(test, not(loom)))]
    STEPS.set(STEPS.get() + 1);
}
