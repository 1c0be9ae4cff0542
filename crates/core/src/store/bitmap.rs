//! All free frames of all zones as bits, shared by all CPUs, without a lock.
//!
//! # Vocabulary
//! [`Section`] and its words, hints and tags are in [`section`](super::section); a *pageblock* is
//! 512 frames, named by its [`PageblockIndex`] across sections; a *span* is the range of sections a
//! zone may have frames in.
//!
//! Blocks are found by a [search](super::search). They go back one or many at a time. Neighbours in
//! a list that lie in one word go back by one atomic operation, and large blocks that make up
//! pageblocks as those. The list is not sorted, which would cost more than it saves.
//!
//! Crates above the core look at single pageblocks, and take frames from a given one.
#![allow(unsafe_code, reason = "finds sections by address")]

use super::backing::Reports;
use super::bits::{self, PAGEBLOCK_WORDS};
use super::hints::Summary;
use super::misuse::DoubleFree;
use super::passes::SearchRequest;
use super::section::{Section, hint_masks};
use super::tags::Tags;
use crate::frame::pageblock::{
    PAGEBLOCK_FRAMES, PageblockIndex, SECTION_FRAMES, SECTION_PAGEBLOCKS, Tag, fills_pageblocks,
};
use crate::frame::{FrameRange, Kind, Order, Pfn, ZoneId};
use crate::sync::model::{IS_LOOM, Mutant, is_mutant};
use crate::sync::prim::{AtomicU64, AtomicUsize, Ordering};
use core::ops::Range;

/// The table of sections; see the module. Without sections nothing is free.
pub struct Bitmap<'m> {
    /// Addresses of sections, by `pfn / SECTION_FRAMES`; 0 while there is none.
    table: &'m [AtomicUsize],
    pub tags: Tags<'m>,
    pub summary: Summary<'m>,
    /// Claims that were rolled back. A statistic, so Relaxed, and rare.
    failed_claims: &'m AtomicU64,
    pub reports: &'m Reports<'m>,
    /// Whether pageblocks are ever avoided.
    pub(super) avoids: bool,
}

impl<'m> Bitmap<'m> {
    /// A bitmap over an empty table.
    pub fn new(
        table: &'m [AtomicUsize],
        tags: Tags<'m>,
        summary: Summary<'m>,
        failed_claims: &'m AtomicU64,
        reports: &'m Reports<'m>,
        avoids: bool,
    ) -> Self {
        debug_assert_eq!(tags.len(), table.len() * SECTION_PAGEBLOCKS);
        Bitmap { table, tags, summary, failed_claims, reports, avoids }
    }

    /// The largest number of sections.
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

    /// Notes that a pageblock is mixed from which blocks of this kind were taken, if they are
    /// not akin to its own.
    pub fn note_mixed(&self, section: &Section<'_>, pageblock: PageblockIndex, kind: Kind) {
        let tag = self.tags.of(pageblock);
        // A search that read the tag before isolation takes frames all the same.
        let tag = tag.of_isolated().unwrap_or(tag);
        if !IS_LOOM && tag.kind().is_movable() != kind.is_movable() {
            section.note_mixed(pageblock.in_section());
        }
    }

    /// Gives a pageblock that the caller owns another tag, unless it is isolated.
    #[inline]
    pub(super) fn retag_one(&self, pageblock: PageblockIndex, tag: Tag) {
        // One that has the tag needs no write. What is avoided from now on comes after this.
        if self.tags.raw(pageblock) != tag {
            self.change_tag(pageblock, tag);
        }
    }

    /// Changes a tag, of which searches hear. `false`: the pageblock is isolated.
    #[cold]
    pub(super) fn change_tag(&self, pageblock: PageblockIndex, tag: Tag) -> bool {
        let note = |before| {
            self.note_change(pageblock, before);
            self.note_mobility(pageblock, before, tag);
        };
        self.tags.retag(pageblock, tag).map(note).is_ok()
    }

    /// Asks for the line of the bitmap where a search would begin.
    #[inline]
    pub fn prefetch(&self, wanted: &SearchRequest<'_>) {
        let pageblock = PageblockIndex(wanted.hint.load(Ordering::Relaxed));
        if let Some(section) = self.section(pageblock.section()) {
            section.prefetch(pageblock.in_section());
        }
    }

    #[inline]
    pub(super) fn retag(&self, start: PageblockIndex, frames: u32, wanted: &SearchRequest<'_>) {
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
        let is_in_one_section = self.by_section(start, frames).nth(1).is_none();
        // As within a section: a claim that cannot succeed writes nothing. What it would put back
        // would be warm, though no caller had it. Where all is free, `wake_range` comes next.
        let reported = || self.reported_in(FrameRange::new(start, frames)).next();
        if !is_in_one_section && (!self.are_all(start, frames, true) || reported().is_some()) {
            return false;
        }
        let mut done = 0;
        for (_, section, at, count) in self.by_section(start, frames) {
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

    /// The parts of a range by section: the number of the section's first pageblock, the section,
    /// the first frame in it, how many.
    pub fn by_section(
        &self,
        start: Pfn,
        frames: u32,
    ) -> impl Iterator<Item = (usize, Option<&'m Section<'m>>, u32, u32)> {
        let end = u64::from(start.get()) + u64::from(frames);
        let mut at = u64::from(start.get());
        core::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let number = at / u64::from(SECTION_FRAMES);
            let stop = end.min((number + 1) * u64::from(SECTION_FRAMES));
            let part = (
                number as usize * SECTION_PAGEBLOCKS,
                self.section(number as usize),
                (at % u64::from(SECTION_FRAMES)) as u32,
                (stop - at) as u32,
            );
            at = stop;
            Some(part)
        })
    }

    /// Frames of `zone` that are free now: reads every word of its span.
    pub fn count_free(&self, zone: ZoneId, span: (u32, u32)) -> u64 {
        let pageblocks = SECTION_PAGEBLOCKS as u32;
        let all = (span.0 * pageblocks..span.1 * pageblocks).map(PageblockIndex);
        let is_ours = |tag: Tag| tag.is_present() && tag.zone() == zone;
        all.filter(|&pageblock| is_ours(self.tags.of(pageblock)))
            .filter_map(|pageblock| Some((self.section(pageblock.section())?, pageblock)))
            .map(|(section, pageblock)| u64::from(section.count_free(pageblock.in_section())))
            .sum()
    }
}

impl<'m> Bitmap<'m> {
    /// Gives a block of at most a word, or of pageblocks, back; returns which of its frames were
    /// free already.
    #[inline]
    pub fn put_at_once(&self, pfn: Pfn, order: Order) -> DoubleFree {
        debug_assert!(pfn.is_aligned(order), "{pfn} begins no block of order {order}");
        if order >= Order::PAGEBLOCK {
            let (base, bit) = hint_place(PageblockIndex::of(pfn));
            return self.put_pageblocks(base, pageblock_mask(bit, order.frames()));
        }
        let Some(section) = self.section((pfn.get() / SECTION_FRAMES) as usize) else {
            return DoubleFree::NONE;
        };
        let word = (pfn.get() % SECTION_FRAMES / bits::WORD_FRAMES) as usize;
        let mask = bits::block_mask(order) << (pfn.get() % bits::WORD_FRAMES);
        let doubled = section.put_mask(word, mask);
        let mut doubled = DoubleFree::in_word(pfn.get() / bits::WORD_FRAMES, doubled);
        if section.refresh_hints(word / PAGEBLOCK_WORDS) {
            doubled.add(self.heal(section, PageblockIndex::of(pfn)));
        }
        doubled
    }

    /// Gives `start..start + frames` back; returns which of them were free already.
    #[inline]
    pub fn put(&self, start: Pfn, frames: u32) -> DoubleFree {
        let mut doubled = DoubleFree::NONE;
        for (first, section, at, count) in self.by_section(start, frames) {
            let Some(section) = section else { continue };
            if fills_pageblocks(at, count) {
                hint_masks(at, count).for_each(|(at, mask)| {
                    let base = PageblockIndex((first + at * 64) as u32);
                    doubled.add(self.put_pageblocks(base, mask));
                });
            } else {
                doubled.add(self.put_each(section, first, (at, count)));
            }
        }
        doubled
    }

    /// Puts back frames whose memory was given back, like [`put`](Self::put). Pageblocks that they
    /// fill are [cold](super::hints).
    pub fn put_cold(&self, start: Pfn, frames: u32) -> DoubleFree {
        let mut doubled = DoubleFree::NONE;
        for (first, section, at, count) in self.by_section(start, frames) {
            let Some(section) = section else { continue };
            let inner = at.next_multiple_of(PAGEBLOCK_FRAMES)
                ..(at + count) / PAGEBLOCK_FRAMES * PAGEBLOCK_FRAMES;
            if !inner.is_empty() {
                hint_masks(inner.start, inner.end - inner.start)
                    .for_each(|(at, mask)| section.presence.note_cold(at, mask));
            }
            doubled.add(self.put_each(section, first, (at, count)));
        }
        doubled
    }

    /// Puts frames of a section, whose first pageblock is `first`, into its words.
    #[inline]
    fn put_each(&self, section: &Section<'_>, first: usize, (at, count): (u32, u32)) -> DoubleFree {
        let (mut doubled, mut stripped) = (DoubleFree::NONE, DoubleFree::NONE);
        let tell_doubled = |word, mask| {
            doubled.add(DoubleFree::in_word((first * PAGEBLOCK_WORDS + word) as u32, mask));
        };
        section.put_each(at, count, tell_doubled, |pageblock| {
            stripped.add(self.heal(section, PageblockIndex((first + pageblock) as u32)));
        });
        doubled.add(stripped);
        doubled
    }

    /// Puts back the pageblocks of `mask` in the word of hints that begins with `base`, like
    /// [`put`](Self::put).
    fn put_pageblocks(&self, base: PageblockIndex, mask: u64) -> DoubleFree {
        let mut doubled = DoubleFree::NONE;
        let Some(section) = self.section(base.section()) else { return doubled };
        let first = (base.section() * SECTION_PAGEBLOCKS) as u32;
        let tell_doubled = |word, mask| {
            let word = first * PAGEBLOCK_WORDS as u32 + word as u32;
            doubled.add(DoubleFree::in_word(word, mask));
        };
        section.put_pageblocks(base.in_section() / 64, mask, tell_doubled, |pageblock| {
            self.end_avoidance(section, PageblockIndex(first + pageblock as u32));
        });
        doubled
    }

    /// Gives many blocks of `order` back. Returns which frames were free already.
    pub fn put_blocks(&self, order: Order, blocks: impl Iterator<Item = Pfn>) -> DoubleFree {
        if order.get() > bits::WORD_ORDER_MAX {
            return self.put_large(order, blocks);
        }
        let mut doubled = DoubleFree::NONE;
        let mut run =
            Run { bitmap: self, word: u32::MAX, mask: 0, section: None, doubled: &mut doubled };
        for pfn in blocks {
            run.add(pfn, order);
        }
        run.flush();
        doubled
    }

    /// Puts back blocks of several words, like [`put_blocks`](Self::put_blocks). Neighbours in the
    /// list that make up a pageblock go back as one, and such pageblocks that lie in one word of
    /// hints together.
    fn put_large(&self, order: Order, blocks: impl Iterator<Item = Pfn>) -> DoubleFree {
        let (mut whole, mut run) = (WholeRun::new(self), None::<(Pfn, u32)>);
        for pfn in blocks {
            if order >= Order::PAGEBLOCK {
                // It makes up a pageblock, or two, alone.
                whole.put(pfn, order.frames());
                continue;
            }
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
}

/// Frames of one word that are about to go back together.
struct Run<'s, 'm> {
    bitmap: &'s Bitmap<'m>,
    section: Option<&'m Section<'m>>,
    /// Index of the word of hints, across sections; `u32::MAX`: none yet.
    word: u32,
    mask: u64,
    /// The doubled frames, by reference: the other fields then stay in registers.
    doubled: &'s mut DoubleFree,
}

impl Run<'_, '_> {
    // Inlined by force, as `flush` is: spills and drains call it once per block.
    #[inline(always)]
    fn add(&mut self, pfn: Pfn, order: Order) {
        let word = pfn.get() / bits::WORD_FRAMES;
        let mask = bits::block_mask(order) << (pfn.get() % bits::WORD_FRAMES);
        if word != self.word {
            let section = self.bitmap.section((pfn.get() / SECTION_FRAMES) as usize);
            // Another CPU may have the line. A compare-and-swap begins by a load, which would fetch
            // it to be read, and only then to be written. Further ahead costs more, where the lines
            // are at hand, than it was seen to save where they are not.
            if let Some(section) = section {
                section.prefetch(PageblockIndex::of(pfn).in_section());
            }
            self.flush();
            self.word = word;
            self.mask = 0;
            self.section = section;
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
    doubled: DoubleFree,
}

impl<'s, 'm> WholeRun<'s, 'm> {
    fn new(bitmap: &'s Bitmap<'m>) -> Self {
        WholeRun { bitmap, base: PageblockIndex(0), mask: 0, doubled: DoubleFree::NONE }
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

/// The place of a pageblock's hint: the first pageblock of the word, and the bit.
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
fn note_doubled(doubled: &mut DoubleFree, word: u32, mask: u64) {
    doubled.add(DoubleFree::in_word(word, mask));
}

impl Bitmap<'_> {
    /// Free frames of a pageblock now. Reads no word of one whose hints say that nothing is free: a
    /// hint that is clear may be wrong for a moment, and the pageblock then looks full. `None`: it
    /// has no section.
    pub fn count_hinted(&self, pageblock: PageblockIndex) -> Option<u32> {
        let (section, at) = (self.section(pageblock.section())?, pageblock.in_section());
        let has_some = section.hints(at / 64).0 >> (at % 64) & 1 == 1;
        let is_free = has_some || section.is_as_one(at);
        Some(if is_free { section.count_free(at) } else { 0 })
    }

    /// Whether all of the frames `start..start + frames` are free now, in the words, entire, or
    /// reported and not refused; or, unless `is_free`, none is free.
    pub fn are_all(&self, start: Pfn, frames: u32, is_free: bool) -> bool {
        self.by_section(start, frames).all(|(_, section, at, count)| {
            section.map_or(!is_free, |section| section.are_all(at, count, is_free))
        })
    }

    /// The first of these pageblocks whose bit is set in its word of hints, which `word` looks up.
    pub fn next_of(
        &self,
        pageblocks: Range<u32>,
        word: impl Fn(&Section<'_>, usize) -> u64,
    ) -> Option<PageblockIndex> {
        let mut at = pageblocks.start;
        while at < pageblocks.end {
            let (section, bit) = (PageblockIndex(at).section(), PageblockIndex(at).in_section());
            let bits = self.section(section).map_or(0, |section| word(section, bit / 64));
            match bits >> (bit % 64) {
                0 => at += (64 - bit % 64).min(SECTION_PAGEBLOCKS - bit) as u32,
                bits => {
                    at += bits.trailing_zeros();
                    return (at < pageblocks.end).then_some(PageblockIndex(at));
                }
            }
        }
        None
    }

    /// The last of these pageblocks that is entire or hinted to be whole.
    pub fn last_whole(&self, pageblocks: Range<u32>) -> Option<PageblockIndex> {
        let mut end = pageblocks.end;
        while end > pageblocks.start {
            let last = PageblockIndex(end - 1);
            let (section, in_section) = (self.section(last.section()), last.in_section());
            let whole = section.map_or(0, |section| section.entirely_free(in_section / 64));
            // The bits up to that of the last one.
            let whole = whole << (63 - in_section % 64);
            if whole != 0 {
                let found = last.0 - whole.leading_zeros();
                return (found >= pageblocks.start).then_some(PageblockIndex(found));
            }
            end = last.0 - (in_section % 64) as u32;
        }
        None
    }

    /// Takes a block, smaller than a pageblock, from a pageblock of `zone`, unless that is
    /// isolated.
    ///
    /// # Panics
    /// If the order is higher.
    pub fn take_from(&self, pageblock: PageblockIndex, zone: ZoneId, order: Order) -> Option<Pfn> {
        assert!(order < Order::PAGEBLOCK, "a search finds blocks of order {order}");
        let section = self.section(pageblock.section())?;
        if !self.tags.raw(pageblock).serves(zone) {
            return None;
        }
        let first = PageblockIndex((pageblock.section() * SECTION_PAGEBLOCKS) as u32).first();
        let mut found = None;
        section.take(pageblock.in_section(), order, None, 1, |one| {
            found = Some(first.add(one.lowest()))
        });
        found
    }
}
