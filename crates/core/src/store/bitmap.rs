//! All free frames of all zones as bits, shared by all CPUs, without a lock.
//!
//! # Vocabulary
//! [`Section`] and its words, hints and tags are in [`section`](super::section); a *pageblock* is
//! 512 frames, named by its [`PageblockIndex`] across sections; a *span* is the range of sections a
//! zone may have frames in.
//!
//! # Searching
//! A search for blocks smaller than a pageblock goes through, in this order:
//! 1. the pageblock where this CPU last found some;
//! 2. for movable blocks, while three quarters of that one's section are whole and nothing
//!    evacuates, its partly used and then its whole pageblocks, so that CPUs with sections of their
//!    own meet nowhere;
//! 3. partly used pageblocks of the wanted mobility, the densest of a few first;
//! 4. while some evacuate, those with carved frames, which can never be whole; then those that
//!    evacuate, which are then settled;
//! 5. whole ones, retagged if they were of another mobility (which needs a claim of all 512 frames,
//!    so that nobody can hold one of them);
//! 6. for unmovable and reclaimable blocks, partly used ones of each other's;
//! 7. anything of the zone, for these first what is mixed already; unless the search may not mix.
//!
//! Partly used pageblocks are looked at a bounded number of times before a whole one is taken, so
//! that fragmentation costs memory before it costs time; the bound falls only when there is no
//! other way. A search that has found an eighth of what it wants breaks no whole one for the rest,
//! but where most of them are whole. A search for pageblocks goes through whole ones alone, one for
//! pairs of them (the highest order) through pairs, and one for more through runs of them. What
//! begins or ends elsewhere is found by [`runs`](super::runs).
//!
//! Which section a whole pageblock is taken from is chosen by [`gibibytes`](super::gibibytes).
//!
//! Pageblocks that are [entire](super::entire) are found where whole ones are. Those that were
//! [reported](super::reported) are in no hint. A search comes to them when it has found no whole
//! one that was not.
//!
//! Partly used pageblocks that lack the wanted order are passed by: see [`lacks`](super::lacks).
//!
//! Where to look is read off the hints, and which sections' hints to read off the
//! [`summary`](super::summary): what is held is not walked over. Only the last pass of each search,
//! before it says that there is nothing, reads the hints of all sections.
#![allow(unsafe_code, reason = "finds sections by address")]

use core::ops::ControlFlow;

use super::bits::{self, HINT_WORDS, PAGEBLOCK_WORDS};
use super::device::Reports;
use super::doubled::Doubled;
use super::section::Section;
use super::summary::{Marks, Sort, Summary, note_step};
use super::tags::Tags;
use super::wanted::Wanted;
use crate::frame::pageblock::{
    PAGEBLOCK_FRAMES, PageblockIndex, SECTION_FRAMES, SECTION_PAGEBLOCKS, Tag, fills_pageblocks,
};
use crate::frame::{Mobility, Order, Pfn, ZoneId};
use crate::sync::model::{Mutant, is_mutant};
use crate::sync::prim::{AtomicU64, AtomicUsize, Ordering};

/// Fruitless looks at partly used pageblocks before a whole one is taken.
const PARTIAL_LOOKS_MAX: u32 = 32;

/// Partly used pageblocks of which the densest is taken from first.
const DENSEST_OF: u32 = 4;
/// How often, before what is met first is taken from. A search so reads at most 32 lines more.
const DENSEST_ROUNDS: u32 = 8;

/// The passes of a search for blocks smaller than a pageblock.
const PASSES: [Pass; 11] = [
    Pass::Near(Sort::Partial),
    Pass::Near(Sort::Whole),
    Pass::Partial { which: Which::Settled, looks_max: PARTIAL_LOOKS_MAX },
    Pass::Partial { which: Which::Carved, looks_max: PARTIAL_LOOKS_MAX },
    Pass::Partial { which: Which::Evacuating, looks_max: PARTIAL_LOOKS_MAX },
    Pass::Whole(Walk::Marked),
    Pass::Reported(Sort::Whole),
    Pass::Partial { which: Which::Both, looks_max: u32::MAX },
    Pass::Akin,
    Pass::Mixed,
    Pass::Any,
];

/// For whole ones.
const PASSES_FOR_PAGEBLOCKS: [Pass; 3] =
    [Pass::Whole(Walk::Marked), Pass::Reported(Sort::Whole), Pass::Whole(Walk::All)];

/// And for pairs of them.
const PASSES_FOR_PAIRS: [Pass; 3] =
    [Pass::Pair(Walk::Marked), Pass::Reported(Sort::Pair), Pass::Pair(Walk::All)];

/// Which pageblocks a pass of a search visits.
#[derive(Clone, Copy)]
enum Pass {
    /// For movable blocks in the section of the hint, while most of it is whole and nothing
    /// evacuates: partly free and of the wanted mobility, or entirely free. CPUs whose hints lie in
    /// sections of their own then stay out of each other's, and out of the summary. What is taken
    /// there breaks up few of many whole ones.
    Near(Sort),
    /// Partly free, of the wanted mobility, where the summary leads.
    Partial { which: Which, looks_max: u32 },
    /// Entirely free, of any mobility.
    Whole(Walk),
    /// The first of two neighbours that are.
    Pair(Walk),
    /// Entirely free and reported, of any mobility: a pageblock, or the first of two neighbours
    /// that are entirely free, of which one is.
    Reported(Sort),
    /// Partly free, and akin: the reclaimable ones for unmovable requests, and the reverse.
    Akin,
    /// Of any mobility, and mixed already.
    Mixed,
    /// Of any mobility: the last resort (Linux: fallback, `mm_page_alloc_extfrag`).
    Any,
}

/// Which partly used pageblocks a pass visits.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    /// Those that do not evacuate.
    Settled,
    /// Those with carved frames, of any mobility: they can never be whole.
    Carved,
    /// Those that do.
    Evacuating,
    Both,
}

/// Which sections a pass goes through.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Walk {
    /// Those that the summary marks.
    Marked,
    /// All of the zone's: what is there throughout is found.
    All,
}

impl Pass {
    /// Of the 64 pageblocks of a word of hints, those that may be of use.
    #[inline]
    fn candidates(self, section: &Section<'_>, i: usize) -> u64 {
        match self {
            Pass::Reported(Sort::Pair) => {
                let (free, reported) = (section.entirely_free_or_reported(i), section.reported(i));
                Sort::Pair.of_hints((0, free)) & (reported | reported >> 1)
            }
            Pass::Reported(_) => section.reported(i),
            Pass::Near(Sort::Partial) | Pass::Partial { .. } => {
                Sort::Partial.of_hints(section.hints(i))
            }
            Pass::Near(_) | Pass::Whole(_) => section.entirely_free(i),
            Pass::Pair(_) => Sort::Pair.of_hints((0, section.entirely_free(i))),
            Pass::Akin | Pass::Mixed => section.hints(i).0,
            Pass::Any => section.hints(i).0 | section.entire(i),
        }
    }

    /// Of the 64 pageblocks of a word of hints, those that the pass is about at all.
    #[inline]
    fn scope(self, section: &Section<'_>, i: usize) -> u64 {
        match self {
            Pass::Near(_) | Pass::Partial { which: Which::Settled | Which::Carved, .. } => {
                !section.evacuating(i)
            }
            Pass::Partial { which: Which::Evacuating, .. } => section.evacuating(i),
            Pass::Mixed => section.mixed(i),
            _ => !0,
        }
    }

    /// Of the 64 pageblocks of a word of hints, those that may have a block of `order`.
    #[inline]
    fn fitting(self, section: &Section<'_>, i: usize, order: Order) -> u64 {
        match self {
            Pass::Near(Sort::Partial)
            | Pass::Partial { .. }
            | Pass::Akin
            | Pass::Mixed
            | Pass::Any => section.may_have(i, order),
            // What is whole has all orders.
            Pass::Near(_) | Pass::Whole(_) | Pass::Pair(_) | Pass::Reported(_) => !0,
        }
    }

    /// Whether a search goes through this pass.
    fn is_due(self, wanted: Wanted<'_>, bitmap: &Bitmap<'_>) -> bool {
        match self {
            Pass::Near(_) => {
                wanted.mobility == Mobility::Movable
                    && bitmap.tags.evacuating(wanted.zone) == 0
                    && wanted.near().is_some_and(|section| bitmap.is_mostly_whole(section))
            }
            Pass::Partial { which: Which::Evacuating, .. } => {
                bitmap.tags.evacuating(wanted.zone) > 0
            }
            // Unmovable blocks have come from these before.
            Pass::Partial { which: Which::Carved, .. } => {
                bitmap.tags.evacuating(wanted.zone) > 0 && wanted.mobility != Mobility::Unmovable
            }
            Pass::Reported(_) => bitmap.reports.is_any(),
            Pass::Akin => wanted.mobility != Mobility::Movable && !cfg!(loom),
            Pass::Mixed => {
                wanted.manner.may_mix && wanted.mobility != Mobility::Movable && !cfg!(loom)
            }
            Pass::Any => wanted.manner.may_mix,
            _ => true,
        }
    }

    /// The sort whose marks the pass follows, if it does.
    #[inline]
    fn marked(self) -> Option<Sort> {
        match self {
            Pass::Partial { .. } => Some(Sort::Partial),
            Pass::Whole(Walk::Marked) => Some(Sort::Whole),
            Pass::Pair(Walk::Marked) => Some(Sort::Pair),
            Pass::Whole(Walk::All)
            | Pass::Pair(Walk::All)
            | Pass::Near(_)
            | Pass::Reported(_)
            | Pass::Akin
            | Pass::Mixed
            | Pass::Any => None,
        }
    }

    /// Whether pageblocks with this tag are.
    fn selects(self, tag: Tag, wanted: Wanted<'_>) -> bool {
        let is_ours = tag.serves(wanted.zone);
        match self {
            Pass::Partial { which: Which::Carved, .. } => is_ours && tag.is_carved(),
            // The bits have told those that evacuate from the others.
            Pass::Near(Sort::Partial) | Pass::Partial { .. } => {
                tag.of_the_rest().settled() == wanted.tag()
            }
            Pass::Akin => is_ours && tag.of_the_rest().mobility().is_akin(wanted.mobility),
            // The last of all takes those of the wanted mobility, too: one that was whole when the
            // pass for partly used ones came by is not when the one for whole ones does.
            Pass::Near(_)
            | Pass::Whole(_)
            | Pass::Pair(_)
            | Pass::Reported(_)
            | Pass::Mixed
            | Pass::Any => is_ours,
        }
    }
}

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
    evacuates: bool,
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

    /// Takes up to `want` blocks of `order` (at most [`Order::PAGEBLOCK`]) and passes each to
    /// `give`, those of one word in descending order of address. Returns how many: 0 only when a
    /// whole pass over the zone found none. A search that has at least an eighth leaves the rest
    /// where the pageblocks that are left to take from are whole, evacuate or are reported.
    ///
    /// O(want) plus the search: one load per 64 sections of the zone and pass, up to 16 per section
    /// it is led to, one per pageblock looked at. The last pass alone is O(zone): one load per
    /// 128 MiB.
    fn take(&self, wanted: Wanted<'_>, order: Order, want: u32, mut give: impl FnMut(Pfn)) -> u32 {
        let is_pageblock = order == Order::PAGEBLOCK;
        let mut taken =
            if is_pageblock { 0 } else { self.take_at_hint(wanted, order, want, &mut give) };
        for pass in if is_pageblock { &PASSES_FOR_PAGEBLOCKS[..] } else { &PASSES } {
            if taken == want {
                break;
            }
            if self.suffices(*pass, taken, want) || !pass.is_due(wanted, self) {
                continue;
            }
            if let Pass::Partial { which, looks_max: PARTIAL_LOOKS_MAX } = *pass
                && self.evacuates
            {
                let (got, is_any) =
                    self.take_densest(wanted, which, order, want - taken, &mut give);
                taken += got;
                if taken == want {
                    break;
                }
                if !is_any {
                    // What comes meanwhile is found by the last passes.
                    continue;
                }
            }
            if matches!(pass, Pass::Whole(Walk::Marked)) && self.evacuates {
                self.choose_section(wanted);
            }
            self.visit(wanted, order, *pass, |section, pageblock| {
                // One that is reported, entire or of another mobility is taken as a whole.
                let at = pageblock.in_section();
                let claim = || Some(section.claim(at as u32 * PAGEBLOCK_FRAMES, PAGEBLOCK_FRAMES));
                let is_owned = match pass {
                    Pass::Reported(_) => Some(self.wake(section, pageblock)),
                    Pass::Near(Sort::Whole) | Pass::Whole(_)
                        if section.is_entire(at) || self.tags.of(pageblock) != wanted.tag() =>
                    {
                        claim()
                    }
                    Pass::Any if section.is_entire(at) => claim(),
                    _ => None,
                };
                let left = want - taken;
                let got = match is_owned {
                    Some(true) => {
                        self.take_owned(section, pageblock, wanted, order, left, &mut give)
                    }
                    Some(false) => 0,
                    None => self.take_in(section, pageblock, order, left, &mut give),
                };
                // Where a pageblock was taken there is nothing left for smaller blocks.
                if got > 0 && !is_pageblock && !matches!(pass, Pass::Mixed | Pass::Any) {
                    wanted.hint.store(pageblock.0, Ordering::Relaxed);
                }
                match pass {
                    Pass::Partial { which: Which::Evacuating | Which::Both, .. } if got > 0 => {
                        self.settle(section, pageblock);
                    }
                    Pass::Mixed | Pass::Any if got > 0 => {
                        self.note_mixed(section, pageblock, wanted.mobility);
                    }
                    _ => {}
                }
                taken += got;
                let wakes = matches!(pass, Pass::Reported(_));
                if taken == want || wakes && self.suffices(*pass, taken, want) {
                    return ControlFlow::Break(());
                }
                ControlFlow::Continue(())
            });
        }
        taken
    }

    /// Whether three quarters of a section's pageblocks are whole.
    fn is_mostly_whole(&self, number: usize) -> bool {
        self.section(number).is_some_and(|section| {
            section.count_whole() as usize >= SECTION_PAGEBLOCKS - SECTION_PAGEBLOCKS / 4
        })
    }

    /// Whether a search that has so many blocks leaves what this pass would find to others.
    fn suffices(&self, pass: Pass, taken: u32, want: u32) -> bool {
        let gives_up = !matches!(
            pass,
            Pass::Near(_) | Pass::Partial { which: Which::Settled | Which::Carved, .. }
        );
        let keeps_whole = self.evacuates || matches!(pass, Pass::Reported(_));
        keeps_whole && gives_up && 8 * taken >= want
    }

    /// Takes blocks from partly used pageblocks, each time from the densest of the next few.
    /// Returns how many, and whether there was any such pageblock at the last look.
    fn take_densest(
        &self,
        wanted: Wanted<'_>,
        which: Which,
        order: Order,
        want: u32,
        give: &mut impl FnMut(Pfn),
    ) -> (u32, bool) {
        let (mut taken, mut is_any) = (0, false);
        for _ in 0..DENSEST_ROUNDS {
            let mut densest: Option<(u32, &Section<'_>, PageblockIndex)> = None;
            is_any = false;
            let pass = Pass::Partial { which, looks_max: DENSEST_OF };
            self.visit(wanted, order, pass, |section, pageblock| {
                is_any = true;
                let free = section.count_in_words(pageblock.in_section());
                if free > 0 && densest.is_none_or(|(least, ..)| free < least) {
                    densest = Some((free, section, pageblock));
                }
                ControlFlow::Continue(())
            });
            let Some((_, section, pageblock)) = densest else { break };
            if which == Which::Evacuating {
                self.settle(section, pageblock);
            }
            let got = self.take_in(section, pageblock, order, want - taken, give);
            taken += got;
            if got > 0 {
                wanted.hint.store(pageblock.0, Ordering::Relaxed);
            }
            if taken == want || got == 0 {
                break;
            }
        }
        (taken, is_any)
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
        if self.evacuates && self.tags.heal(pageblock) {
            self.note_tag(section, pageblock);
        }
    }

    /// Copies to the section whether the pageblock evacuates. Call after its tag was changed.
    pub fn note_tag(&self, section: &Section<'_>, pageblock: PageblockIndex) {
        section.note_evacuating(pageblock.in_section(), || self.tags.is_evacuating(pageblock));
    }

    /// Gives a pageblock that the caller owns another tag, unless it is isolated.
    pub(super) fn retag_one(&self, pageblock: PageblockIndex, tag: Tag) {
        // One that has the tag needs no write. What begins to evacuate now does so after this.
        if self.tags.raw(pageblock) == tag {
            return;
        }
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

    fn take_at_hint(
        &self,
        wanted: Wanted<'_>,
        order: Order,
        want: u32,
        give: &mut impl FnMut(Pfn),
    ) -> u32 {
        let pageblock = PageblockIndex(wanted.hint.load(Ordering::Relaxed));
        match self.section(pageblock.section()) {
            Some(section) if self.tags.of(pageblock) == wanted.tag() => {
                self.take_in(section, pageblock, order, want, give)
            }
            _ => 0,
        }
    }

    /// Takes a block of at most a word from the pageblock of the hint.
    #[inline]
    pub fn take_at_once(&self, wanted: Wanted<'_>, order: Order) -> Option<Pfn> {
        let pageblock = PageblockIndex(wanted.hint.load(Ordering::Relaxed));
        let section = self.section(pageblock.section())?;
        if self.tags.of(pageblock) != wanted.tag() {
            return None;
        }
        let at = section.take_at_once(pageblock.in_section(), order)?;
        Some(Pfn::new(pageblock.section() as u32 * SECTION_FRAMES + at))
    }

    /// Gives a block of at most a word back; returns which of its frames were free already.
    #[inline]
    pub fn put_at_once(&self, pfn: Pfn, order: Order) -> Doubled {
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

    fn take_in(
        &self,
        section: &Section<'_>,
        pageblock: PageblockIndex,
        order: Order,
        want: u32,
        give: &mut impl FnMut(Pfn),
    ) -> u32 {
        let base = pageblock.section() as u32 * SECTION_FRAMES;
        section.take(pageblock.in_section(), order, want, |at| give(Pfn::new(base + at)))
    }

    /// Makes a pageblock that the caller owns one of the wanted mobility, takes blocks from it, and
    /// gives the rest back.
    fn take_owned(
        &self,
        section: &Section<'_>,
        pageblock: PageblockIndex,
        wanted: Wanted<'_>,
        order: Order,
        want: u32,
        give: &mut impl FnMut(Pfn),
    ) -> u32 {
        let start = pageblock.in_section() as u32 * PAGEBLOCK_FRAMES;
        self.retag_one(pageblock, wanted.tag());
        let got = want.min(PAGEBLOCK_FRAMES / order.frames());
        let used = got * order.frames();
        for block in (0..got).rev() {
            give(pageblock.first().add(block * order.frames()));
        }
        section.put(start + used, PAGEBLOCK_FRAMES - used);
        got
    }

    /// As [`take`](Self::take), for blocks of any order: fewer than wanted may come, though more
    /// are free. 0 means that there is none.
    pub fn take_blocks(
        &self,
        wanted: Wanted<'_>,
        order: Order,
        want: u32,
        give: impl FnMut(Pfn),
    ) -> u32 {
        match order {
            Order::MAX => self.take_pairs(wanted, want, give),
            _ => self.take(wanted, order, want, give),
        }
    }

    /// Asks for the line of the bitmap where a search would begin.
    #[inline]
    pub fn prefetch(&self, wanted: Wanted<'_>) {
        let pageblock = PageblockIndex(wanted.hint.load(Ordering::Relaxed));
        if let Some(section) = self.section(pageblock.section()) {
            section.prefetch(pageblock.in_section());
        }
    }

    /// Takes one block of any order.
    pub fn take_block(&self, wanted: Wanted<'_>, order: Order) -> Option<Pfn> {
        let mut found = None;
        self.take_blocks(wanted, order, 1, |pfn| found = Some(pfn));
        found
    }

    /// Takes `frames` contiguous frames of one zone, the first a multiple of `align` (a power of
    /// two); `frames` is at least a pageblock. The pageblocks become ones of the wanted mobility.
    ///
    /// A pageblock and an aligned pair are searched for as blocks of that order are. Others
    /// O(zone): one load per 128 MiB in use, one per free pageblock that has a neighbour in
    /// use.
    pub fn take_contiguous(&self, wanted: Wanted<'_>, frames: u32, align: u32) -> Option<Pfn> {
        let step = align.max(PAGEBLOCK_FRAMES) / PAGEBLOCK_FRAMES;
        let pageblocks = frames.div_ceil(PAGEBLOCK_FRAMES);
        match (pageblocks, step) {
            (1, 1) => return self.take_block(wanted, Order::PAGEBLOCK),
            (2, 2) => return self.take_block(wanted, Order::MAX),
            _ => {}
        }
        let sections = wanted.sections();
        let end = (sections.end * SECTION_PAGEBLOCKS) as u32;
        let mut first = (sections.start * SECTION_PAGEBLOCKS) as u32;
        loop {
            let start = self.next_whole(first, end)?.0.checked_next_multiple_of(step)?;
            if u64::from(start) + u64::from(pageblocks) > u64::from(end) {
                return None;
            }
            let in_use =
                |&pageblock: &u32| !self.is_whole_of(PageblockIndex(pageblock), wanted.zone);
            first = match (start..start + pageblocks).rev().find(in_use) {
                None if self.claim(PageblockIndex(start).first(), frames) => {
                    self.retag(PageblockIndex(start), frames, wanted);
                    return Some(PageblockIndex(start).first());
                }
                None => start + step,
                Some(pageblock) => pageblock + 1,
            };
        }
    }

    /// Takes up to `want` aligned pairs of pageblocks: blocks of the highest order. Returns how
    /// many.
    fn take_pairs(&self, wanted: Wanted<'_>, want: u32, mut give: impl FnMut(Pfn)) -> u32 {
        let mut taken = 0;
        for pass in PASSES_FOR_PAIRS {
            if taken == want {
                break;
            }
            if self.suffices(pass, taken, want) || !pass.is_due(wanted, self) {
                continue;
            }
            self.visit(wanted, Order::MAX, pass, |section, pageblock| {
                let second = PageblockIndex(pageblock.0 + 1);
                let start = pageblock.in_section() as u32 * PAGEBLOCK_FRAMES;
                let claim = || match pass {
                    Pass::Reported(_) => self.claim(pageblock.first(), Order::MAX.frames()),
                    _ => section.claim(start, Order::MAX.frames()),
                };
                if pass.selects(self.tags.of(second), wanted) && claim() {
                    self.retag(pageblock, Order::MAX.frames(), wanted);
                    give(pageblock.first());
                    taken += 1;
                }
                if taken == want { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
        }
        taken
    }

    /// The first pageblock from `first` on and before `end` that is hinted to be whole, or
    /// reported.
    fn next_whole(&self, mut first: u32, end: u32) -> Option<PageblockIndex> {
        while first < end {
            let pageblock = PageblockIndex(first);
            let (section, at) = (self.section(pageblock.section()), pageblock.in_section());
            let whole = section.map_or(0, |section| section.entirely_free_or_reported(at / 64))
                >> (at % 64);
            if whole != 0 {
                return Some(PageblockIndex(first + whole.trailing_zeros()));
            }
            first += (64 - at % 64).min(SECTION_PAGEBLOCKS - at) as u32;
        }
        None
    }

    fn is_whole_of(&self, pageblock: PageblockIndex, zone: ZoneId) -> bool {
        self.section(pageblock.section()).is_some_and(|section| {
            let at = pageblock.in_section();
            let tag = self.tags.of(pageblock);
            section.entirely_free_or_reported(at / 64) >> (at % 64) & 1 == 1 && tag.serves(zone)
        })
    }

    fn retag(&self, start: PageblockIndex, frames: u32, wanted: Wanted<'_>) {
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
            done += count;
            if let Some(section) = section {
                let tell_doubled = |word, mask| {
                    doubled.add(Doubled::in_word(first + word as u32, mask));
                };
                let index =
                    |pageblock| PageblockIndex(first / PAGEBLOCK_WORDS as u32 + pageblock as u32);
                if fills_pageblocks(at, count) {
                    section.put_pageblocks(at, count, tell_doubled, |pageblock| {
                        self.end_evacuation(section, index(pageblock));
                    });
                    continue;
                }
                let mut stripped = Doubled::NONE;
                section.put_each(at, count, tell_doubled, |pageblock| {
                    stripped.add(self.heal(section, index(pageblock)));
                });
                doubled.add(stripped);
            }
        }
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
    pub fn put_blocks(&self, order: Order, blocks: impl Iterator<Item = Pfn>) -> Doubled {
        if order.get() > bits::WORD_ORDER_MAX {
            return self.put_large(order, blocks);
        }
        let mut doubled = Doubled::NONE;
        let mut run =
            Run { bitmap: self, word: u32::MAX, mask: 0, section: None, doubled: &mut doubled };
        for pfn in blocks {
            run.add(pfn, order);
        }
        run.flush();
        doubled
    }

    /// As [`put_blocks`](Self::put_blocks), of blocks of several words. Neighbours in the list that
    /// make up a pageblock go back as one.
    fn put_large(&self, order: Order, blocks: impl Iterator<Item = Pfn>) -> Doubled {
        let (mut doubled, mut run) = (Doubled::NONE, None::<(Pfn, u32)>);
        for pfn in blocks {
            run = match run {
                Some((first, frames)) if joins(first, frames, pfn, order) => {
                    Some((first.min(pfn), frames + order.frames()))
                }
                run => {
                    run.inspect(|&(first, frames)| doubled.add(self.put(first, frames)));
                    Some((pfn, order.frames()))
                }
            };
        }
        run.inspect(|&(first, frames)| doubled.add(self.put(first, frames)));
        doubled
    }

    /// Calls `visit` for each pageblock that `pass` selects and that may have a block of `order`,
    /// beginning at the hint, once around.
    fn visit(
        &self,
        wanted: Wanted<'_>,
        order: Order,
        pass: Pass,
        mut visit: impl FnMut(&'m Section<'m>, PageblockIndex) -> ControlFlow<()>,
    ) {
        let sections = match pass {
            Pass::Near(_) => wanted.near().map_or(0..0, |section| section..section + 1),
            _ => wanted.sections(),
        };
        let all = sections.start * HINT_WORDS..sections.end * HINT_WORDS;
        if all.is_empty() {
            return;
        }
        let hint = wanted.hint.load(Ordering::Relaxed) as usize;
        // The word of the hint comes first from the hint on, and last up to it: on a small zone
        // CPUs would otherwise all begin at its first pageblock.
        let first = (hint / 64).clamp(all.start, all.end - 1);
        let from_hint = if first == hint / 64 { !0 << (hint % 64) } else { !0 };
        let around = [
            (first..first + 1, from_hint),
            (first + 1..all.end, !0),
            (all.start..first, !0),
            (first..first + 1, !from_hint),
        ];
        let mut looks = 0;
        for (words, mask) in around {
            let mut from = words.start;
            while let Some(number) = self.next_section(pass, from, words.end) {
                let part = from.max(number * HINT_WORDS)..words.end.min((number + 1) * HINT_WORDS);
                from = part.end;
                let Some(section) = self.section(number) else { continue };
                let mut has_some = false;
                for at in part {
                    note_step();
                    let candidates = pass.candidates(section, at % HINT_WORDS);
                    has_some |= candidates != 0;
                    let mut candidates = candidates & mask;
                    if candidates != 0 && (self.evacuates || matches!(pass, Pass::Mixed)) {
                        candidates &= pass.scope(section, at % HINT_WORDS);
                    }
                    if candidates != 0 {
                        candidates &= pass.fitting(section, at % HINT_WORDS, order);
                    }
                    let visit = |pageblock| visit(section, pageblock);
                    if candidates != 0
                        && self
                            .visit_word(wanted, pass, at, candidates, &mut looks, visit)
                            .is_break()
                    {
                        return;
                    }
                }
                if let Some(sort) = pass.marked().filter(|_| !has_some) {
                    section.clear_mark(sort);
                }
            }
        }
    }

    /// The next section with words of hints from `from` on and before `end` that a pass goes
    /// through.
    #[inline]
    fn next_section(&self, pass: Pass, from: usize, end: usize) -> Option<usize> {
        if from >= end {
            return None;
        }
        match pass.marked() {
            Some(sort) => self.summary.next(sort, from / HINT_WORDS..end.div_ceil(HINT_WORDS)),
            None => Some(from / HINT_WORDS),
        }
    }

    /// [`visit`](Self::visit) for the pageblocks of one word of hints.
    #[inline]
    fn visit_word(
        &self,
        wanted: Wanted<'_>,
        pass: Pass,
        at: usize,
        mut candidates: u64,
        looks: &mut u32,
        mut visit: impl FnMut(PageblockIndex) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        while candidates != 0 {
            let bit = candidates.trailing_zeros();
            candidates &= candidates - 1;
            let pageblock = PageblockIndex(
                (at / HINT_WORDS * SECTION_PAGEBLOCKS + at % HINT_WORDS * 64) as u32 + bit,
            );
            note_step();
            if !pass.selects(self.tags.with_carved(pageblock), wanted) {
                continue;
            }
            visit(pageblock)?;
            *looks += 1;
            if matches!(pass, Pass::Partial { looks_max, .. } if *looks >= looks_max) {
                // The next search goes on from here rather than over the same pageblocks again.
                wanted.hint.store(pageblock.0, Ordering::Relaxed);
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
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

#[cfg(all(test, not(loom)))]
#[path = "bitmap_tests.rs"]
mod tests;
