//! All free frames of all zones as bits, shared by all CPUs, without a lock.
//!
//! # Vocabulary
//! [`Section`] and its words, hints and tags are in [`section`](super::section); a *pageblock* is
//! 512 frames, named by its [`PageblockIndex`] across sections; a *span* is the range of sections a
//! zone may have frames in.
//!
//! Blocks are found by a [search](super::search).
#![allow(unsafe_code, reason = "finds sections by address")]

use super::bits::{self, PAGEBLOCK_WORDS};
use super::device::Reports;
use super::doubled::Doubled;
use super::section::{Section, hint_masks};
use super::summary::{Marks, Summary};
use super::tags::Tags;
use super::wanted::Wanted;
use crate::frame::pageblock::{
    PAGEBLOCK_FRAMES, PageblockIndex, SECTION_FRAMES, SECTION_PAGEBLOCKS, Tag, fills_pageblocks,
};
use crate::frame::{Mobility, Order, Pfn, ZoneId};
use crate::sync::model::{Mutant, is_mutant};
use crate::sync::prim::{AtomicU64, AtomicUsize, Ordering};

/// The table of sections; see the module. Without sections nothing is free.
pub struct Bitmap<'m> {
    /// Addresses of sections, by `pfn / SECTION_FRAMES`; 0 while there is none.
    table: &'m [AtomicUsize],
    pub(super) tags: Tags<'m>,
    pub(super) summary: Summary<'m>,
    /// Claims that were rolled back. A statistic, so Relaxed, and rare.
    failed_claims: &'m AtomicU64,
    pub(super) reports: &'m Reports<'m>,
    /// Whether pageblocks ever evacuate.
    pub(super) evacuates: bool,
}

impl<'m> Bitmap<'m> {
    /// A bitmap over an empty table.
    pub fn new(
        table: &'m [AtomicUsize],
        tags: Tags<'m>,
        summary: Summary<'m>,
        failed_claims: &'m AtomicU64,
        reports: &'m Reports<'m>,
        evacuates: bool,
    ) -> Self {
        debug_assert_eq!(tags.len(), table.len() * SECTION_PAGEBLOCKS);
        Bitmap { table, tags, summary, failed_claims, reports, evacuates }
    }

    /// The tags of pageblocks.
    #[inline]
    pub fn tags(&self) -> &Tags<'m> {
        &self.tags
    }

    /// The marks of the section with this number, which is in range.
    pub fn marks(&self, number: usize) -> Marks<'m> {
        self.summary.marks(number)
    }

    /// How many sections there can be.
    pub fn sections_max(&self) -> usize {
        self.table.len()
    }

    /// The section with this number.
    #[inline]
    pub fn section(&self, number: usize) -> Option<&'m Section<'m>> {
        // Acquire: pairs with the Release in `install`, publishes the section's first contents.
        match self.table.get(number)?.load(Ordering::Acquire) {
            0 => None,
            address => {
                let section = core::ptr::with_exposed_provenance::<Section<'m>>(address);
                // SAFETY: only `install` stores addresses, of sections that live for 'm.
                Some(unsafe { &*section })
            }
        }
    }

    /// Makes a section known. `false`: there is one already, or the number is out of range.
    pub fn install(&self, number: usize, section: &'m Section<'m>) -> bool {
        let address = (&raw const *section).expose_provenance();
        // Release: pairs with the Acquire in `section`.
        self.table.get(number).is_some_and(|cell| {
            cell.compare_exchange(0, address, Ordering::Release, Ordering::Relaxed).is_ok()
        })
    }

    /// Whether `pfn` is free now.
    pub fn is_free(&self, pfn: Pfn) -> bool {
        self.section((pfn.get() / SECTION_FRAMES) as usize)
            .is_some_and(|section| section.is_free(pfn.get() % SECTION_FRAMES))
    }

    /// Notes that a pageblock is mixed from which blocks of this mobility were taken, if they are
    /// not akin to its own.
    pub(super) fn note_mixed(
        &self,
        section: &Section<'_>,
        pageblock: PageblockIndex,
        mobility: Mobility,
    ) {
        if !cfg!(loom) && !self.tags.of(pageblock).mobility().is_akin(mobility) {
            section.note_mixed(pageblock.in_section());
        }
    }

    /// Notes that a pageblock is mixed no more.
    pub fn note_unmixed(&self, pageblock: PageblockIndex) {
        if let Some(section) = self.section(pageblock.section()) {
            section.note_unmixed(pageblock.in_section());
        }
    }

    /// Makes a partly used pageblock of a zone evacuate. `false`: it cannot, or does.
    pub fn evacuate(&self, section: &Section<'_>, pageblock: PageblockIndex, zone: ZoneId) -> bool {
        let begun = self.tags.evacuate(pageblock, zone);
        self.note_tag(section, pageblock);
        begun
    }

    /// Ends the evacuation of a pageblock.
    pub fn settle(&self, section: &Section<'_>, pageblock: PageblockIndex) {
        if self.evacuates && self.tags.settle(pageblock) {
            self.note_tag(section, pageblock);
        }
    }

    /// After frames were put into a pageblock that is whole, entire or reported now: ends its
    /// evacuation, and takes what is in its words and free as one out of the words again. Returns
    /// those frames, which so were free already.
    #[cold]
    pub fn heal(&self, section: &Section<'_>, pageblock: PageblockIndex) -> Doubled {
        self.end_evacuation(section, pageblock);
        match section.is_as_one(pageblock.in_section()) {
            true => self.strip(section, pageblock),
            false => Doubled::NONE,
        }
    }

    /// Ends the evacuation of a pageblock that has become free.
    #[inline]
    fn end_evacuation(&self, section: &Section<'_>, pageblock: PageblockIndex) {
        if self.evacuates && self.tags.raw(pageblock).is_evacuating() && self.tags.heal(pageblock) {
            self.note_tag(section, pageblock);
        }
    }

    /// Copies to the section whether the pageblock evacuates. Call after its tag was changed.
    pub fn note_tag(&self, section: &Section<'_>, pageblock: PageblockIndex) {
        section.note_evacuating(pageblock.in_section(), || self.tags.is_evacuating(pageblock));
    }

    /// Gives a pageblock that the caller owns another tag, unless it is isolated.
    #[inline]
    pub(super) fn retag_one(&self, pageblock: PageblockIndex, tag: Tag) {
        // One that has the tag needs no write. What begins to evacuate now does so after this.
        if self.tags.raw(pageblock) != tag {
            self.change_tag(pageblock, tag);
        }
    }

    #[cold]
    fn change_tag(&self, pageblock: PageblockIndex, tag: Tag) {
        if let Ok(before) = self.tags.retag(pageblock, tag) {
            self.note_change(pageblock, before);
            self.note_mobility(pageblock, before, tag);
        }
    }

    /// Copies to its section that a pageblock with this tag before evacuates no more, if it did.
    pub(super) fn note_change(&self, pageblock: PageblockIndex, before: Tag) {
        if before.is_evacuating()
            && let Some(section) = self.section(pageblock.section())
        {
            self.note_tag(section, pageblock);
        }
    }

    /// Gives a block of at most a word, or of pageblocks, back; returns which of its frames were
    /// free already.
    #[inline]
    pub fn put_at_once(&self, pfn: Pfn, order: Order) -> Doubled {
        if order >= Order::PAGEBLOCK {
            let (base, bit) = hint_place(PageblockIndex::of(pfn));
            return self.put_pageblocks(base, pageblock_mask(bit, order.frames()));
        }
        let Some(section) = self.section((pfn.get() / SECTION_FRAMES) as usize) else {
            return Doubled::NONE;
        };
        let word = (pfn.get() % SECTION_FRAMES / bits::WORD_FRAMES) as usize;
        let doubled =
            section.put_mask(word, bits::block_mask(order) << (pfn.get() % bits::WORD_FRAMES));
        let mut doubled = Doubled::in_word(pfn.get() / bits::WORD_FRAMES, doubled);
        if section.refresh_hints(word / PAGEBLOCK_WORDS) {
            doubled.add(self.heal(section, PageblockIndex::of(pfn)));
        }
        doubled
    }

    /// Asks for the line of the bitmap where a search would begin.
    #[inline]
    pub fn prefetch(&self, wanted: &Wanted<'_>) {
        let pageblock = PageblockIndex(wanted.hint.load(Ordering::Relaxed));
        if let Some(section) = self.section(pageblock.section()) {
            section.prefetch(pageblock.in_section());
        }
    }

    #[inline]
    pub(super) fn retag(&self, start: PageblockIndex, frames: u32, wanted: &Wanted<'_>) {
        (start.0..start.0 + frames / PAGEBLOCK_FRAMES)
            .for_each(|pageblock| self.retag_one(PageblockIndex(pageblock), wanted.tag()));
    }

    /// Takes exactly `start..start + frames`, or nothing. Wakes what is reported of it, if that is
    /// all that is missing.
    pub fn claim(&self, start: Pfn, frames: u32) -> bool {
        while !self.claim_in_words(start, frames) {
            if !self.wake_range(start, frames) {
                return false;
            }
        }
        true
    }

    fn claim_in_words(&self, start: Pfn, frames: u32) -> bool {
        let mut done = 0;
        for (section, at, count) in self.by_section(start, frames) {
            if !section.is_some_and(|section| section.claim(at, count)) {
                let done = if is_mutant(Mutant::KeepsPart) { 0 } else { done };
                self.put(start, done);
                self.failed_claims.fetch_add(1, Ordering::Relaxed);
                return false;
            }
            done += count;
        }
        true
    }

    /// Gives `start..start + frames` back; returns which of them were free already.
    #[inline]
    pub fn put(&self, start: Pfn, frames: u32) -> Doubled {
        let (mut doubled, mut done) = (Doubled::NONE, 0);
        for (section, at, count) in self.by_section(start, frames) {
            // Counted from frame 0, the section's first word is `first`.
            let first = (start.get() + done - at) / bits::WORD_FRAMES;
            let index =
                |pageblock| PageblockIndex(first / PAGEBLOCK_WORDS as u32 + pageblock as u32);
            done += count;
            let Some(section) = section else { continue };
            if fills_pageblocks(at, count) {
                hint_masks(at, count)
                    .for_each(|(at, mask)| doubled.add(self.put_pageblocks(index(at * 64), mask)));
                continue;
            }
            let tell_doubled = |word, mask| {
                doubled.add(Doubled::in_word(first + word as u32, mask));
            };
            let mut stripped = Doubled::NONE;
            section.put_each(at, count, tell_doubled, |pageblock| {
                stripped.add(self.heal(section, index(pageblock)));
            });
            doubled.add(stripped);
        }
        doubled
    }

    /// As [`put`](Self::put), of the pageblocks of `mask` in the word of hints that begins with
    /// `base`.
    fn put_pageblocks(&self, base: PageblockIndex, mask: u64) -> Doubled {
        let mut doubled = Doubled::NONE;
        let Some(section) = self.section(base.section()) else { return doubled };
        let first = (base.section() * SECTION_PAGEBLOCKS) as u32;
        let tell_doubled = |word, mask| {
            let word = first * PAGEBLOCK_WORDS as u32 + word as u32;
            doubled.add(Doubled::in_word(word, mask));
        };
        section.put_pageblocks(base.in_section() / 64, mask, tell_doubled, |pageblock| {
            self.end_evacuation(section, PageblockIndex(first + pageblock as u32));
        });
        doubled
    }

    /// Claims that found a frame missing and rolled back.
    pub fn failed_claims(&self) -> u64 {
        self.failed_claims.load(Ordering::Relaxed)
    }

    /// The parts of a range by section: the section, the first frame in it, how many.
    fn by_section(
        &self,
        start: Pfn,
        frames: u32,
    ) -> impl Iterator<Item = (Option<&'m Section<'m>>, u32, u32)> {
        let end = u64::from(start.get()) + u64::from(frames);
        let mut at = u64::from(start.get());
        core::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let number = at / u64::from(SECTION_FRAMES);
            let stop = end.min((number + 1) * u64::from(SECTION_FRAMES));
            let part = (
                self.section(number as usize),
                (at % u64::from(SECTION_FRAMES)) as u32,
                (stop - at) as u32,
            );
            at = stop;
            Some(part)
        })
    }

    /// Gives many blocks of `order` back. Neighbours in the list that lie in one word go back by
    /// one atomic operation; the list is not sorted, which would cost more than it saves.
    /// Returns which frames were free already.
    pub fn put_blocks(&self, order: Order, blocks: impl Iterator<Item = Pfn> + Clone) -> Doubled {
        if order.get() > bits::WORD_ORDER_MAX {
            return self.put_large(order, blocks);
        }
        let mut ahead = Ahead { bitmap: self, blocks: blocks.clone(), pageblock: u32::MAX };
        // Blocks side by side have one line: there is nothing to ask for.
        _ = (0..PREFETCHED_BLOCKS).all(|_| ahead.step());
        let mut doubled = Doubled::NONE;
        let mut run =
            Run { bitmap: self, word: u32::MAX, mask: 0, section: None, doubled: &mut doubled };
        for pfn in blocks {
            if run.ends_before(pfn) {
                ahead.step();
            }
            run.add(pfn, order);
        }
        run.flush();
        doubled
    }

    /// As [`put_blocks`](Self::put_blocks), of blocks of several words. Neighbours in the list that
    /// make up a pageblock go back as one, and such pageblocks that lie in one word of hints
    /// together.
    fn put_large(&self, order: Order, blocks: impl Iterator<Item = Pfn>) -> Doubled {
        let (mut whole, mut run) = (WholeRun::new(self), None::<(Pfn, u32)>);
        for pfn in blocks {
            run = match run {
                Some((first, frames)) if joins(first, frames, pfn, order) => {
                    Some((first.min(pfn), frames + order.frames()))
                }
                run => {
                    run.inspect(|&(first, frames)| whole.put(first, frames));
                    Some((pfn, order.frames()))
                }
            };
        }
        run.inspect(|&(first, frames)| whole.put(first, frames));
        whole.flush();
        whole.doubled
    }

    /// Frames of `zone` that are free now: reads every word of its span.
    pub fn count_free(&self, zone: ZoneId, span: (u32, u32)) -> u64 {
        let pageblocks = SECTION_PAGEBLOCKS as u32;
        (span.0 * pageblocks..span.1 * pageblocks)
            .map(PageblockIndex)
            .filter(|&pageblock| {
                self.tags.of(pageblock).is_present() && self.tags.of(pageblock).zone() == zone
            })
            .filter_map(|pageblock| {
                Some(u64::from(
                    self.section(pageblock.section())?.count_free(pageblock.in_section()),
                ))
            })
            .sum()
    }
}

/// Blocks whose lines of the bitmap are asked for before the first of them goes back: as many as a
/// CPU can wait for at once. Other CPUs have most lines: they put and take frames there, too.
const PREFETCHED_BLOCKS: usize = 8;

/// Where, in a list of blocks that go back, the lines of the bitmap are asked for.
struct Ahead<'s, 'm, B> {
    bitmap: &'s Bitmap<'m>,
    blocks: B,
    /// The last one whose line was asked for; `u32::MAX`: none yet.
    pageblock: u32,
}

impl<B: Iterator<Item = Pfn>> Ahead<'_, '_, B> {
    /// Asks for the next block's line. `false`: it was asked for just before, or no block is left.
    #[inline(always)]
    fn step(&mut self) -> bool {
        let Some(pageblock) = self.blocks.next().map(PageblockIndex::of) else { return false };
        let is_other = pageblock.0 != self.pageblock;
        if is_other {
            self.pageblock = pageblock.0;
            if let Some(section) = self.bitmap.section(pageblock.section()) {
                section.prefetch(pageblock.in_section());
            }
        }
        is_other
    }
}

/// Frames of one word that are about to go back together.
struct Run<'s, 'm> {
    bitmap: &'s Bitmap<'m>,
    section: Option<&'m Section<'m>>,
    /// Across sections; `u32::MAX`: none yet.
    word: u32,
    mask: u64,
    /// By reference: the other fields then stay in registers.
    doubled: &'s mut Doubled,
}

impl Run<'_, '_> {
    /// Whether the block lies in another word.
    #[inline(always)]
    fn ends_before(&self, pfn: Pfn) -> bool {
        pfn.get() / bits::WORD_FRAMES != self.word
    }

    // Inlined by force, as `flush` is: spills and drains call it once per block.
    #[inline(always)]
    fn add(&mut self, pfn: Pfn, order: Order) {
        let word = pfn.get() / bits::WORD_FRAMES;
        let mask = bits::block_mask(order) << (pfn.get() % bits::WORD_FRAMES);
        if word != self.word {
            self.flush();
            self.word = word;
            self.mask = 0;
            self.section = self.bitmap.section((pfn.get() / SECTION_FRAMES) as usize);
        }
        if self.mask & mask != 0 {
            note_doubled(self.doubled, word, self.mask & mask);
        }
        self.mask |= mask;
    }

    #[inline(always)]
    fn flush(&mut self) {
        let Some(section) = self.section else { return };
        let at = self.word as usize % (SECTION_PAGEBLOCKS * PAGEBLOCK_WORDS);
        let doubled = section.put_mask(at, self.mask);
        if doubled != 0 {
            note_doubled(self.doubled, self.word, doubled);
        }
        if section.refresh_hints(at / PAGEBLOCK_WORDS) {
            let pageblock = PageblockIndex(self.word / PAGEBLOCK_WORDS as u32);
            self.doubled.add(self.bitmap.heal(section, pageblock));
        }
    }
}

/// Pageblocks of one word of hints that are about to go back together.
struct WholeRun<'s, 'm> {
    bitmap: &'s Bitmap<'m>,
    /// The first pageblock of the word.
    base: PageblockIndex,
    mask: u64,
    doubled: Doubled,
}

impl<'s, 'm> WholeRun<'s, 'm> {
    fn new(bitmap: &'s Bitmap<'m>) -> Self {
        WholeRun { bitmap, base: PageblockIndex(0), mask: 0, doubled: Doubled::NONE }
    }

    /// Puts frames that lie in one pageblock, or are a pair: pageblocks soon, anything else now.
    fn put(&mut self, first: Pfn, frames: u32) {
        if !fills_pageblocks(first.get(), frames) {
            self.doubled.add(self.bitmap.put(first, frames));
            return;
        }
        let (base, bit) = hint_place(PageblockIndex::of(first));
        let mask = pageblock_mask(bit, frames);
        // One that is in the run already is in the list twice.
        if base != self.base || self.mask & mask != 0 {
            self.flush();
            self.base = base;
        }
        self.mask |= mask;
    }

    fn flush(&mut self) {
        let mask = core::mem::take(&mut self.mask);
        if mask != 0 {
            self.doubled.add(self.bitmap.put_pageblocks(self.base, mask));
        }
    }
}

/// Where the hint of a pageblock is: the first pageblock of the word, and the bit.
#[inline]
fn hint_place(pageblock: PageblockIndex) -> (PageblockIndex, u32) {
    let bit = pageblock.in_section() as u32 % 64;
    (PageblockIndex(pageblock.0 - bit), bit)
}

/// The pageblocks that so many frames make up, from this bit of a word of hints on.
#[inline]
fn pageblock_mask(bit: u32, frames: u32) -> u64 {
    bits::range_mask(bit, frames / PAGEBLOCK_FRAMES)
}

/// Whether a block lies beside a run, before or behind it, in the same pageblock.
fn joins(first: Pfn, frames: u32, block: Pfn, order: Order) -> bool {
    let is_beside = block.get().wrapping_add(order.frames()) == first.get()
        || first.get().wrapping_add(frames) == block.get();
    is_beside && PageblockIndex::of(first) == PageblockIndex::of(block)
}

#[cold]
#[inline(never)]
fn note_doubled(doubled: &mut Doubled, word: u32, mask: u64) {
    doubled.add(Doubled::in_word(word, mask));
}
