//! A section: the metadata of 2^18 frames (1 GiB of 4 KiB pages).
//!
//! # Vocabulary
//! * *word*: 64 frames, one bit each, set while the frame is free in the store.
//! * *pageblock*: 512 frames, 8 words, exactly one cache line.
//! * *some*, *whole*: per pageblock, hints that at least one frame, or every frame, is free.
//! * *lacks*: per pageblock and order, a hint that it has free frames and no free block of that
//!   order: see [`hints`](super::hints).
//! * *tag*: per pageblock, which zone and mobility its frames belong to; kept by the store.
//! * *avoided*: per pageblock, a copy of what its tag says, for searches: they
//!   pass by those that are avoided.
//! * *mixed*: per pageblock, a hint: frames were taken for requests that are not akin to it since
//!   it was last whole, or thinned: movable ones where unmovable or reclaimable ones belong, or the
//!   other way round.
//! * *entire*, *reported*: per pageblock, that all its frames are free though its words are 0: see
//!   [`entire`](super::entire) and [`reported`](super::reported).
//! * *cold*, *touched*: per pageblock, hints whether its memory is present: see
//!   [`hints`](super::hints).
//! * *refused*: per reported pageblock, that the device did not make it usable of late: see
//!   [`hints`](super::hints).
//!
//! # Theory
//! The bits of words, and those of entire and reported pageblocks, are the only truth. The atomic
//! that clears a bit confers the frame; only its owner sets it again. Hints may be wrong at any
//! time, but never stay wrong against the search: the caller that sets bits looks at the hint
//! *after*, and the caller that clears a hint looks at the bits *after*, both sequentially
//! consistent (Dekker's pattern). Of two that race at least one sees the other, and the hint ends
//! up set. A hint that is set without cause costs one look.
//!
//! A taker clears bits with release, and a search reads them with acquire: a search that misses
//! frames sees what their taker did before, such as free other frames where the search had been.
//!
//! The [summary](super::hints) marks which sections have pageblocks that a search may want. The
//! caller that changes a hint updates the mark. A claim clears `some` before `whole`: in the other
//! order a pageblock that is taken entirely would be marked as partly free in between.
//!
//! A tag changes only while its changer owns all 512 frames. No other caller then holds a frame of
//! that pageblock, or reads the tag to free one. Four changes are exceptions. The carver of a frame
//! owns that frame alone, and marks its pageblock for good; holders of other frames free them to
//! either front. The caller that removes memory isolates pageblocks before it owns a frame of them:
//! later searches skip the pageblock, and frees go past the caches. A search or free that read the
//! tag before goes on as if it had come first. The caller that has isolated a pageblock may give it
//! another mobility, while frames of it are held: no other caller changes the tag then. A free that
//! read the tag before the isolation pushes its frame to a front of the old mobility, which so gets
//! a frame that lies elsewhere, as from a mixed pageblock; one that reads it during the isolation
//! goes past the caches. A search that read it before takes frames for the old mobility, as if it
//! had come first.
//!
//! And any caller may make a pageblock avoided, or end that: see
//! [`avoided`](super::avoided).
//!
//! LLFree (USENIX ATC 2023) keeps counters where this keeps hints. A counter and the bits cannot be
//! changed together.
#![allow(unsafe_code, reason = "writes sections field by field")]

use core::mem::offset_of;

use super::bits::{self, HINT_WORDS, PAGEBLOCK_WORDS, WORD_FRAMES, WordBlocks};
use super::hints::{Lacks, Marks, Presence, Refusals, Sort};
use crate::frame::Order;
use crate::frame::pageblock::{PAGEBLOCK_FRAMES, SECTION_PAGEBLOCKS, fills_pageblocks};
use crate::sync::model::IS_LOOM;
use crate::sync::prefetch_write;
use crate::sync::prim::{AtomicU32, AtomicU64, Ordering};
use crate::sync::total::HINTS;

/// Whether new memory is cold. In a model it is not, but for what the model makes so: each bit
/// would be one more change to explore.
const IS_NEW_COLD: bool = !IS_LOOM;

/// Words per section.
const SECTION_WORDS: usize = SECTION_PAGEBLOCKS * PAGEBLOCK_WORDS;

// A block of the highest order is a pair of pageblocks whose hints lie in one word.
const _: () =
    assert!(Order::MAX.frames() == 2 * PAGEBLOCK_FRAMES && SECTION_PAGEBLOCKS.is_multiple_of(2));

/// The metadata of one section. Words first: a pageblock's words then begin on a cache line.
#[repr(C, align(64))]
pub struct Section<'m> {
    words: [AtomicU64; SECTION_WORDS],
    pub(super) some: [AtomicU64; HINT_WORDS],
    pub(super) whole: [AtomicU64; HINT_WORDS],
    pub(super) entire: [AtomicU64; HINT_WORDS],
    pub(super) avoided: [AtomicU64; HINT_WORDS],
    pub(super) mixed: [AtomicU64; HINT_WORDS],
    pub(super) reported: [AtomicU64; HINT_WORDS],
    pub refusals: Refusals,
    pub lacks: Lacks,
    pub presence: Presence,
    /// A statistic, so Relaxed: pageblocks that serve unmovable or reclaimable requests.
    pub unmovable: AtomicU32,
    pub(super) marks: Marks<'m>,
}

// Hints of a kind fill a line, and none lies in two.
const _: () = assert!(
    IS_LOOM
        || size_of::<Section<'_>>() == 32768 + 1024 + 128
            && offset_of!(Section<'_>, some).is_multiple_of(64)
            && offset_of!(Section<'_>, lacks).is_multiple_of(64)
            && offset_of!(Section<'_>, presence).is_multiple_of(64)
);

impl<'m> Section<'m> {
    /// Writes the metadata of a section to `place`: of one without memory, or, if `is_free`, with
    /// every frame free, and cold.
    ///
    /// # Safety
    /// `place` is valid for writes, aligned, and used by this caller alone.
    pub unsafe fn init(place: *mut Self, marks: Marks<'m>, is_free: bool) {
        let all = bits::range_mask(0, SECTION_PAGEBLOCKS.min(64) as u32);
        let (words, hints) = if is_free { (!0, all) } else { (0, 0) };
        // Field by field, and each field in one run: the section is too large for a stack, and a
        // 64 GiB depot writes 2 MiB here.
        // SAFETY: in bounds of the section the caller gave.
        unsafe {
            fill(&raw mut (*place).words, || AtomicU64::new(words));
            fill(&raw mut (*place).some, || AtomicU64::new(hints));
            fill(&raw mut (*place).whole, || AtomicU64::new(hints));
            fill(&raw mut (*place).entire, || AtomicU64::new(0));
            fill(&raw mut (*place).avoided, || AtomicU64::new(0));
            fill(&raw mut (*place).mixed, || AtomicU64::new(0));
            fill(&raw mut (*place).reported, || AtomicU64::new(0));
            (&raw mut (*place).refusals).write(Refusals::default());
            (&raw mut (*place).lacks).write(Lacks::default());
            (&raw mut (*place).presence).write(Presence::new(if IS_NEW_COLD { hints } else { 0 }));
            (&raw mut (*place).unmovable).write(AtomicU32::new(0));
            (&raw mut (*place).marks).write(marks);
        }
        let sorts = match IS_NEW_COLD {
            true => [Sort::Cold, Sort::ColdPair],
            false => [Sort::Warm, Sort::WarmPair],
        };
        sorts.into_iter().filter(|_| is_free).for_each(|sort| marks.set(sort));
    }

    /// Hint words for a search: (some, whole) of pageblocks `64 * i ..`.
    #[inline]
    pub fn hints(&self, i: usize) -> (u64, u64) {
        // Acquire: pairs with the SeqCst (Release) of `clear_some` and `clear_whole`.
        (self.some[i].load(Ordering::Acquire), self.whole[i].load(Ordering::Acquire))
    }

    /// Pageblocks that are entire or hinted to be whole.
    pub fn count_whole(&self) -> u32 {
        // Relaxed: a policy.
        let now = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let both = self.whole.iter().zip(&self.entire);
        both.map(|(whole, entire)| (now(whole) | now(entire)).count_ones()).sum()
    }

    /// Takes what is free in the words of a pageblock out of them; tells words and bits.
    pub fn strip(&self, pageblock: usize, mut tell: impl FnMut(u32, u64)) {
        for (i, word) in (0..).zip(self.pageblock_words(pageblock)) {
            // AcqRel: as in `take_from_word`.
            match word.swap(0, Ordering::AcqRel) {
                0 => {}
                stripped => tell(i, stripped),
            }
        }
    }

    /// Free frames of a pageblock, counted now.
    pub fn count_free(&self, pageblock: usize) -> u32 {
        if self.is_as_one(pageblock) { PAGEBLOCK_FRAMES } else { self.count_in_words(pageblock) }
    }

    /// Counts free frames like [`count_free`](Self::count_free), without those that are entire or
    /// reported.
    pub fn count_in_words(&self, pageblock: usize) -> u32 {
        // Relaxed: the count is old as soon as it is taken. A caller that wants frames claims them.
        self.pageblock_words(pageblock).iter().map(|w| w.load(Ordering::Relaxed).count_ones()).sum()
    }

    /// Asks for the line of a pageblock's words, to change them.
    #[inline]
    pub fn prefetch(&self, pageblock: usize) {
        prefetch_write(&self.words[pageblock * PAGEBLOCK_WORDS]);
    }

    #[inline]
    pub(super) fn pageblock_words(&self, pageblock: usize) -> &[AtomicU64] {
        &self.words[pageblock * PAGEBLOCK_WORDS..(pageblock + 1) * PAGEBLOCK_WORDS]
    }

    /// The words of a pageblock, each as it is now; full ones if it is entire, or reported and not
    /// refused of late.
    #[inline]
    pub fn words_of(&self, pageblock: usize) -> [u64; PAGEBLOCK_WORDS] {
        if self.is_as_one(pageblock) && !self.refusals.has(pageblock) {
            return [!0; PAGEBLOCK_WORDS];
        }
        let words = self.pageblock_words(pageblock);
        // Only a look: a caller that wants the frames claims them. Acquire: as in `claim`.
        core::array::from_fn(|i| words[i].load(Ordering::Acquire))
    }

    /// Whether frame `at` is free now.
    pub fn is_free(&self, at: u32) -> bool {
        // Relaxed: a look, as in `count_in_words`.
        let word = self.words[(at / WORD_FRAMES) as usize].load(Ordering::Relaxed);
        word >> (at % WORD_FRAMES) & 1 == 1 || self.is_as_one((at / PAGEBLOCK_FRAMES) as usize)
    }

    /// Whether all of the frames `start..start + frames` are free now and not refused, or none is
    /// free.
    pub(super) fn are_all(&self, start: u32, frames: u32, is_free: bool) -> bool {
        bits::masks(start, start + frames).all(|(at, mask)| {
            // First: what is broken up meanwhile is in the words then.
            let pageblock = at / PAGEBLOCK_WORDS;
            let is_as_one = self.is_as_one(pageblock);
            // Acquire: as in `claim`. A search that misses frames sees that they are in flight.
            let word = self.words[at].load(Ordering::Acquire);
            match is_free {
                true => word & mask == mask || is_as_one && !self.refusals.has(pageblock),
                false => word & mask == 0 && !is_as_one,
            }
        })
    }

    /// Takes up to `want` blocks of `order` (at most [`Order::PAGEBLOCK`]) from a pageblock and
    /// passes those of each word to `give`, counted from the section's first frame. Returns how
    /// many. None comes from a free block of the order `spared`, which is larger and fits a word.
    ///
    /// At most one compare-and-swap per word succeeds; the loop ends when the word has no block
    /// left, so others' progress is the only thing that can repeat it.
    ///
    /// # Panics
    /// If the order is higher: such a block lies in two pageblocks.
    pub fn take(
        &self,
        pageblock: usize,
        order: Order,
        spared: Option<Order>,
        want: u32,
        give: impl FnMut(WordBlocks),
    ) -> u32 {
        if order.get() > bits::WORD_ORDER_MAX {
            return self.take_words(pageblock, order, want, give);
        }
        let was_whole = self.whole_hint(pageblock);
        let (taken, empty) = match spared {
            None => {
                let blocks = |word| bits::free_blocks(word, order);
                self.take_in_words(pageblock, order, blocks, want, give)
            }
            Some(spared) => {
                let blocks = |word| bits::free_blocks(bits::outside(word, spared), order);
                self.take_in_words(pageblock, order, blocks, want, give)
            }
        };
        // In this order: see the theory.
        if empty {
            self.clear_some(pageblock);
        } else if taken < want && spared.is_none() {
            self.note_lack(pageblock, order);
        }
        if was_whole && (taken > 0 || empty) {
            self.clear_whole(pageblock);
        }
        taken
    }

    /// Takes one block that fits a word, by one atomic operation, the lowest of its word.
    ///
    /// Clears no `some` hint: for a moment that might hide what others have put back. The `whole`
    /// hint it may clear, because the pageblock is not whole before this block is back.
    #[inline]
    pub fn take_at_once(&self, pageblock: usize, order: Order) -> Option<u32> {
        let mut words = (0..).zip(self.pageblock_words(pageblock));
        let (word, bit) = words.find_map(|(i, cell)| Some((i, take_lowest(cell, order)?)))?;
        if self.whole_hint(pageblock) {
            self.clear_whole(pageblock);
        }
        Some((pageblock as u32 * PAGEBLOCK_WORDS as u32 + word) * WORD_FRAMES + bit)
    }

    /// Takes blocks that fit a word, of those that `blocks` finds in one; returns how many, and
    /// whether it has seen that nothing is left.
    fn take_in_words(
        &self,
        pageblock: usize,
        order: Order,
        blocks: impl Fn(u64) -> u64,
        want: u32,
        mut give: impl FnMut(WordBlocks),
    ) -> (u32, bool) {
        let (mut taken, mut left) = (0, 0);
        for (i, cell) in self.pageblock_words(pageblock).iter().enumerate() {
            if taken == want {
                return (taken, false);
            }
            let (starts, rest) = take_from_word(cell, order, &blocks, want - taken);
            left |= rest;
            let base = (pageblock as u32 * PAGEBLOCK_WORDS as u32 + i as u32) * WORD_FRAMES;
            if starts != 0 {
                let found = WordBlocks::new(base, starts);
                taken += found.blocks();
                give(found);
            }
        }
        (taken, left == 0)
    }

    /// Takes blocks of several words.
    fn take_words(
        &self,
        pageblock: usize,
        order: Order,
        want: u32,
        mut give: impl FnMut(WordBlocks),
    ) -> u32 {
        assert!(order <= Order::PAGEBLOCK, "a block of order {order} lies in two pageblocks");
        let base = pageblock as u32 * PAGEBLOCK_FRAMES;
        let starts = (base..base + PAGEBLOCK_FRAMES).step_by(order.frames() as usize);
        // Smaller blocks of an entire pageblock are for a search that takes all of it.
        let claimed = starts.filter(|&start| match order < Order::PAGEBLOCK {
            true => self.claim_in_words(start, order.frames()),
            false => self.claim(start, order.frames()),
        });
        let taken = claimed.take(want as usize).map(|at| give(WordBlocks::one(at))).count() as u32;
        if order < Order::PAGEBLOCK {
            if !self.has_some(pageblock) {
                self.clear_some(pageblock);
            } else if taken < want {
                self.note_lack(pageblock, order);
            }
        }
        taken
    }

    /// Takes exactly the frames `start..start + frames` of this section, or nothing; pageblocks
    /// that are entire by one atomic operation, up to 64 in one word of hints.
    #[inline]
    pub fn claim(&self, start: u32, frames: u32) -> bool {
        fills_pageblocks(start, frames) && self.take_entire(start, frames)
            || self.claim_in_words(start, frames)
            || self.break_up(start, frames) && self.claim_in_words(start, frames)
    }

    /// Claims frames like [`claim`](Self::claim), none of which is in an entire pageblock.
    ///
    /// All words are read first: a claim that cannot succeed then writes nothing. The words are
    /// cleared in ascending order; where one has lost a frame meanwhile, those cleared are set
    /// again. Two claims of the same range cannot both fail for each other's sake alone: the one
    /// that clears the lowest common word goes on.
    fn claim_in_words(&self, start: u32, frames: u32) -> bool {
        let all = bits::masks(start, start + frames);
        // Acquire: pairs with the Release of those who cleared bits (see the theory).
        let is_free =
            |(at, mask): (usize, _)| self.words[at].load(Ordering::Acquire) & mask == mask;
        if !all.clone().all(is_free) {
            return false;
        }
        let mut done = 0;
        for (at, mask) in all {
            if !clear_exactly(&self.words[at], mask) {
                self.put(start, done);
                return false;
            }
            done += mask.count_ones();
        }
        self.clear_hints(start, frames);
        true
    }

    /// Clears the hints of pageblocks of which these frames were claimed.
    fn clear_hints(&self, start: u32, frames: u32) {
        for (at, mask) in hint_masks(start, frames) {
            // A claim of all of it leaves nothing for `some` to point at; first, see the theory.
            if frames >= PAGEBLOCK_FRAMES {
                self.clear_some_of(at, mask);
            }
            // Relaxed: a caller that sets the hint later sees that the words are not full.
            let whole = self.whole[at].load(Ordering::Relaxed) & mask;
            if whole != 0 {
                self.clear_whole_of(at, whole);
            }
        }
    }

    /// Gives the frames `start..start + frames` back. Returns how many of them were free already:
    /// anything but 0 is a double free, and those frames stay free once.
    pub fn put(&self, start: u32, frames: u32) -> u32 {
        let mut doubled = 0;
        let mut tell_doubled = |_, mask: u64| doubled += mask.count_ones();
        match fills_pageblocks(start, frames) {
            true => hint_masks(start, frames)
                .for_each(|(at, mask)| self.put_pageblocks(at, mask, &mut tell_doubled, |_| ())),
            false => self.put_each(start, frames, tell_doubled, |_| ()),
        }
        doubled
    }

    /// Puts frames that were not memory before into the words, as cold ones: later requests are
    /// expected to take small blocks.
    pub fn put_new(&self, start: u32, frames: u32) {
        if IS_NEW_COLD && frames > 0 {
            hint_masks(start, frames).for_each(|(at, mask)| self.presence.note_cold(at, mask));
        }
        self.put_each(start, frames, |_, _| (), |_| ());
    }

    /// Puts frames into the words like [`put`](Self::put), also where pageblocks are filled; tells
    /// by word which of the frames were free already, if any, and which pageblocks became whole.
    pub fn put_each(
        &self,
        start: u32,
        frames: u32,
        mut tell_doubled: impl FnMut(usize, u64),
        mut tell_whole: impl FnMut(usize),
    ) {
        if frames == 0 {
            return;
        }
        let mut put_mask = |word, mask| match self.put_mask(word, mask) {
            0 => {}
            doubled => tell_doubled(word, doubled),
        };
        bits::masks(start, start + frames).for_each(|(word, mask)| put_mask(word, mask));
        for pageblock in pageblocks(start, frames) {
            if self.refresh_hints(pageblock) {
                tell_whole(pageblock);
            }
        }
    }

    /// Gives the frames of `mask` in `word` back, hints not included; returns those that were free.
    #[inline]
    pub fn put_mask(&self, word: usize, mask: u64) -> u64 {
        // SeqCst: Release for the frames' next owner; and ordered before the load of the hint in
        // `refresh_hints`, against the clear-then-recheck of the hint.
        let old = self.words[word].fetch_or(mask, HINTS.change());
        HINTS.fence();
        old & mask
    }
}

/// Takes up to `want` blocks of `order` from one word, of those that `blocks` finds in it; returns
/// their first bits, and what is left.
#[inline]
fn take_from_word(
    cell: &AtomicU64,
    order: Order,
    blocks: impl Fn(u64) -> u64,
    want: u32,
) -> (u64, u64) {
    let mut word = cell.load(Ordering::Acquire);
    loop {
        let blocks = blocks(word);
        if blocks == 0 || want == 0 {
            return (0, word);
        }
        let starts = bits::highest(blocks, want);
        let rest = word & !bits::expand(starts, order);
        // Acquire: pairs with the SeqCst (Release) of `put_mask`; what the last owner wrote to the
        // frames is visible. Release, and Acquire of the loads: see the theory.
        match cell.compare_exchange_weak(word, rest, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return (starts, rest),
            Err(now) => word = now,
        }
    }
}

/// Takes the lowest block of `order` from one word; returns its first bit.
#[inline]
fn take_lowest(cell: &AtomicU64, order: Order) -> Option<u32> {
    let mut word = cell.load(Ordering::Acquire);
    loop {
        // Most words that have no block have no frame at all: the search fills one after the other.
        let blocks = if word == 0 { 0 } else { bits::free_blocks(word, order) };
        if blocks == 0 {
            return None;
        }
        let first = blocks & blocks.wrapping_neg();
        let rest = word & !bits::expand(first, order);
        // As in `take_from_word`.
        match cell.compare_exchange_weak(word, rest, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return Some(first.trailing_zeros()),
            Err(now) => word = now,
        }
    }
}

/// Clears the bits of `mask` if all are set.
pub(super) fn clear_exactly(cell: &AtomicU64, mask: u64) -> bool {
    let mut word = cell.load(Ordering::Acquire);
    while word & mask == mask {
        // As in `take_from_word`.
        match cell.compare_exchange_weak(word, word & !mask, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return true,
            Err(now) => word = now,
        }
    }
    false
}

/// The pageblocks that `start..start + frames`, which is not empty, touches: by word of hints, the
/// bits of those in it.
pub(super) fn hint_masks(start: u32, frames: u32) -> impl Iterator<Item = (usize, u64)> {
    bits::masks(start / PAGEBLOCK_FRAMES, (start + frames).div_ceil(PAGEBLOCK_FRAMES))
}

/// The pageblocks that `start..start + frames` touches.
pub(super) fn pageblocks(start: u32, frames: u32) -> impl Iterator<Item = usize> {
    (start / PAGEBLOCK_FRAMES..(start + frames).div_ceil(PAGEBLOCK_FRAMES))
        .map(|pageblock| pageblock as usize)
}

/// Writes every element of an array in place.
///
/// # Safety
/// `place` is valid for writes and aligned.
unsafe fn fill<T, const N: usize>(place: *mut [T; N], value: impl Fn() -> T) {
    for i in 0..N {
        // SAFETY: i < N.
        unsafe { place.cast::<T>().add(i).write(value()) };
    }
}

#[cfg(all(test, not(loom)))]
#[path = "section_tests.rs"]
pub(super) mod tests;
