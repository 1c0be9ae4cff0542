//! The search of the bitmap for free blocks.
//!
//! A search for blocks smaller than a pageblock goes through, in this order:
//! 1. while some are avoided, and larger blocks are wanted, too, for orders 0 to 2 what
//!    [fits best](super::best_fit) in a few partly used pageblocks of the wanted mobility; an
//!    eighth of what the search wants is enough;
//! 2. the pageblock where this CPU last found some;
//! 3. for movable blocks, while three quarters of that one's section are whole and none is avoided,
//!    its partly used and then its whole pageblocks, so that CPUs with sections of their own meet
//!    nowhere; but [warm](super::hints) ones of other sections before cold ones there;
//! 4. partly used pageblocks of the wanted mobility, the [densest](super::best_fit) of a few first;
//! 5. while some are avoided, those, which are then settled;
//! 6. whole ones, warm before cold, retagged if they were of another mobility (which needs a claim
//!    of all 512 frames, so that no caller can hold one of them);
//! 7. partly used ones of akin requests ([`Kind::is_movable`](crate::frame::Kind::is_movable)): for
//!    unmovable blocks those of reclaimable ones, for movable blocks those of other classes, and
//!    the reverse;
//! 8. anything of the zone, for these first what is mixed already; unless the search may not mix.
//!
//! Pageblocks with carved frames serve unmovable blocks, and others only in the last passes: what
//! is free there is for the next frames that are carved, which would else break up another one.
//!
//! Partly used pageblocks are looked at a bounded number of times before a whole one is taken, so
//! that fragmentation costs memory before it costs time; the bound falls only when there is no
//! other way. A search that has found an eighth of what it wants breaks no whole one for the rest,
//! but where most of them are whole. A search for pageblocks goes through whole ones alone, one for
//! pairs of them (the highest order) through pairs, and one for more through runs of them. What
//! begins or ends elsewhere is found by [`runs`](super::runs).
//!
//! Which section a whole pageblock is taken from is chosen by [`gibibytes`](super::best_fit), for
//! unmovable and reclaimable blocks before it is asked whether it is warm. A search for pageblocks
//! stays where it took the last, as long as the word of hints there has warm ones.
//!
//! Pageblocks that are [entire](super::entire) are found where whole ones are. Those that were
//! [reported](super::reported) are in no hint. A search comes to them when it has found no whole
//! one that was not.
//!
//! Partly used pageblocks that lack the wanted order are passed by: see [`lacks`](super::hints).
//!
//! Where to look is read off the hints, and which sections' hints to read off the
//! [summary](super::hints): what is held is not walked over. Only the last pass of each search,
//! before it says that there is nothing, reads the hints of all sections.

use core::ops::ControlFlow;

use super::bitmap::Bitmap;
use super::bits::{self, HINT_WORDS, WordBlocks};
use super::hints::{Sort, note_step, pairs};
use super::passes::{
    Harvest, PARTIAL_LOOKS_MAX, PASSES, PASSES_FOR_PAGEBLOCKS, PASSES_FOR_PAIRS, PartialKind, Pass,
    SearchRequest, Walk, warm,
};
use super::section::Section;
use crate::frame::pageblock::{
    PAGEBLOCK_FRAMES, PageblockIndex, SECTION_FRAMES, SECTION_PAGEBLOCKS,
};
use crate::frame::{Order, Pfn};
use crate::sync::model::IS_LOOM;
use crate::sync::prim::Ordering;

impl<'m> Bitmap<'m> {
    /// Takes up to `want` blocks of any order and passes those of each word to `give`. Returns how
    /// many: 0 only when a whole pass over the zone found none. A search that has at least an
    /// eighth leaves the rest where the pageblocks that are left to take from are whole, avoided
    /// or reported.
    ///
    /// O(want) plus the search: one load per 64 sections of the zone and pass, up to 16 per section
    /// it is led to, one per pageblock looked at. The last pass alone is O(zone): one load per
    /// 128 MiB.
    pub fn take_blocks(
        &self,
        wanted: &SearchRequest<'_>,
        order: Order,
        want: u32,
        give: impl FnMut(WordBlocks),
    ) -> u32 {
        Search { bitmap: self, wanted, order }.take(Harvest::new(want, give))
    }

    /// Takes one block of any order.
    pub fn take_block(&self, wanted: &SearchRequest<'_>, order: Order) -> Option<Pfn> {
        let mut found = None;
        self.take_blocks(wanted, order, 1, |one| found = Some(Pfn::new(one.lowest())));
        found
    }

    /// Takes a block of at most a word from the pageblock of the hint, or one of entire pageblocks
    /// from the section of the hint.
    #[inline]
    pub fn take_at_once(&self, wanted: &SearchRequest<'_>, order: Order) -> Option<Pfn> {
        if order >= Order::PAGEBLOCK {
            return Search { bitmap: self, wanted, order }.take_entire_at_once();
        }
        let pageblock = PageblockIndex(wanted.hint.load(Ordering::Relaxed));
        let section = self.section(pageblock.section())?;
        if self.tags.of(pageblock) != wanted.tag() {
            return None;
        }
        let at = section.take_at_once(pageblock.in_section(), order)?;
        Some(Pfn::new(pageblock.section() as u32 * SECTION_FRAMES + at))
    }
}

/// One search; see the module.
#[derive(Clone, Copy)]
pub(super) struct Search<'s, 'm> {
    pub(super) bitmap: &'s Bitmap<'m>,
    pub(super) wanted: &'s SearchRequest<'s>,
    pub(super) order: Order,
}

impl<'m> Search<'_, 'm> {
    /// Takes blocks, of the highest order as aligned pairs of pageblocks. Returns how many.
    fn take(&self, mut taken: Harvest<impl FnMut(WordBlocks)>) -> u32 {
        let passes = match self.order {
            Order::MAX => &PASSES_FOR_PAIRS[..],
            Order::PAGEBLOCK => &PASSES_FOR_PAGEBLOCKS,
            _ => &PASSES,
        };
        let is_small = self.order < Order::PAGEBLOCK;
        if is_small {
            self.take_fitting(&mut taken);
            if taken.is_an_eighth() {
                return taken.blocks();
            }
            self.take_at_hint(&mut taken);
        }
        let mut is_near = None;
        for &pass in passes {
            if taken.is_done() {
                break;
            }
            let is_due = match pass {
                // They ask for the same, where none has moved the hint.
                Pass::Near(Sort::Partial | Sort::Warm) | Pass::Beyond if !IS_LOOM => {
                    *is_near.get_or_insert_with(|| self.is_due(pass))
                }
                _ => self.is_due(pass),
            };
            if self.suffices(pass, &taken) || !is_due {
                continue;
            }
            if let Pass::Partial { which, looks_max: PARTIAL_LOOKS_MAX } = pass
                && self.bitmap.avoids
            {
                let is_any = self.take_densest(which, &mut taken);
                if taken.is_done() {
                    break;
                }
                if !is_any {
                    // What comes meanwhile is found by the last passes.
                    continue;
                }
            }
            let chooses = match self.wanted.rules.kind.is_movable() {
                true => matches!(pass, Pass::Whole(Walk::Warm)),
                false => matches!(pass, Pass::Chosen(Sort::Warm)),
            };
            if chooses && self.bitmap.avoids && !IS_LOOM && (is_small || !self.is_at_warm()) {
                self.bitmap.choose_section(self.wanted);
            }
            match self.order {
                Order::MAX => self.take_pairs_by(pass, &mut taken),
                _ => self.take_by(pass, &mut taken),
            }
        }
        taken.blocks()
    }

    /// Takes blocks where one pass leads.
    fn take_by(&self, pass: Pass, taken: &mut Harvest<impl FnMut(WordBlocks)>) {
        let is_for_whole = pass.is_for_whole();
        let mut looks = 0;
        self.visit_words(pass, |section, base, mut candidates| {
            if is_for_whole {
                let entire = candidates & section.entire(base.in_section() / 64);
                self.take_entire(section, base, entire, taken);
                taken.flow()?;
                candidates &= !entire;
            }
            self.visit_each(pass, base, candidates, &mut looks, |pageblock| {
                self.take_from(pass, section, pageblock, taken);
                if matches!(pass, Pass::Reported) && self.suffices(pass, taken) {
                    return ControlFlow::Break(());
                }
                taken.flow()
            })
        });
    }

    /// Takes blocks from a pageblock that a pass came to.
    fn take_from(
        &self,
        pass: Pass,
        section: &Section<'_>,
        pageblock: PageblockIndex,
        taken: &mut Harvest<impl FnMut(WordBlocks)>,
    ) {
        let Search { bitmap, wanted, .. } = *self;
        // One that is reported, entire or of another mobility is taken as a whole.
        let at = pageblock.in_section();
        let claim = || Some(section.claim(at as u32 * PAGEBLOCK_FRAMES, PAGEBLOCK_FRAMES));
        let is_owned = match pass {
            Pass::Reported => Some(bitmap.wake(section, pageblock)),
            pass if pass.is_for_whole()
                && (section.is_entire(at) || bitmap.tags.of(pageblock) != wanted.tag()) =>
            {
                claim()
            }
            Pass::Any if section.is_entire(at) => claim(),
            _ => None,
        };
        let got = match is_owned {
            Some(true) => self.take_owned(section, pageblock, taken),
            Some(false) => 0,
            None => self.take_in(section, pageblock, None, taken),
        };
        if got == 0 {
            return;
        }
        if !matches!(pass, Pass::Mixed | Pass::Any) {
            wanted.hint.store(pageblock.0, Ordering::Relaxed);
        }
        match pass {
            Pass::Partial { which: PartialKind::Avoided | PartialKind::Both, .. } => {
                bitmap.settle(section, pageblock);
            }
            Pass::Mixed | Pass::Any => bitmap.note_mixed(section, pageblock, wanted.rules.kind),
            _ => {}
        }
    }

    /// Takes pairs like [`take_by`](Self::take_by).
    fn take_pairs_by(&self, pass: Pass, taken: &mut Harvest<impl FnMut(WordBlocks)>) {
        let mut looks = 0;
        self.visit_words(pass, |section, base, mut candidates| {
            if matches!(pass, Pass::Pair(_)) {
                let entire = section.entire(base.in_section() / 64);
                self.take_entire(section, base, entire & (candidates | candidates << 1), taken);
                taken.flow()?;
                candidates &= !(entire & entire >> 1);
            }
            self.visit_each(pass, base, candidates, &mut looks, |pageblock| {
                let (at, frames) = (pageblock.in_section() as u32, Order::MAX.frames());
                let claim = || match pass {
                    Pass::ReportedPair => self.bitmap.claim(pageblock.first(), frames),
                    _ => section.claim(at * PAGEBLOCK_FRAMES, frames),
                };
                if self.serves(PageblockIndex(pageblock.0 + 1)) && claim() {
                    self.wanted.hint.store(pageblock.0, Ordering::Relaxed);
                    self.take_owned(section, pageblock, taken);
                }
                taken.flow()
            })
        });
    }

    /// Whether the search goes through a pass.
    fn is_due(&self, pass: Pass) -> bool {
        let Search { bitmap, wanted, .. } = *self;
        match pass {
            Pass::Beyond if IS_LOOM => false,
            Pass::Near(_) | Pass::Beyond => {
                wanted.rules.kind.is_movable()
                    && bitmap.tags.avoided(wanted.zone) == 0
                    && wanted.near().is_some_and(|section| self.is_mostly_whole(section))
            }
            Pass::Partial { which: PartialKind::Avoided, .. } => {
                bitmap.tags.avoided(wanted.zone) > 0
            }
            Pass::Chosen(_) => !wanted.rules.kind.is_movable() && bitmap.avoids && !IS_LOOM,
            // To a model a policy, each look one more place to switch: the last passes find all.
            Pass::Whole(Walk::Cold) | Pass::Pair(Walk::Cold) => !IS_LOOM,
            Pass::Reported | Pass::ReportedPair => bitmap.reports.is_any(),
            Pass::Akin => !IS_LOOM,
            Pass::Mixed => wanted.rules.may_mix && !wanted.rules.kind.is_movable() && !IS_LOOM,
            Pass::Any => wanted.rules.may_mix,
            _ => true,
        }
    }

    /// Whether the word of the hint has warm pageblocks from the hint on, and something of it is
    /// held. A search for pageblocks goes on there: each that it takes makes the section a better
    /// choice.
    fn is_at_warm(&self) -> bool {
        let hint = PageblockIndex(self.wanted.hint.load(Ordering::Relaxed));
        let at = hint.in_section() / 64;
        self.wanted.near().and_then(|number| self.bitmap.section(number)).is_some_and(|section| {
            warm(section, at) >> (hint.in_section() % 64) != 0 && section.entirely_free(at) != !0
        })
    }

    /// Whether three quarters of a section's pageblocks are whole.
    fn is_mostly_whole(&self, number: usize) -> bool {
        self.bitmap.section(number).is_some_and(|section| {
            section.count_whole() as usize >= SECTION_PAGEBLOCKS - SECTION_PAGEBLOCKS / 4
        })
    }

    /// Whether a search that has so many blocks leaves what this pass would find to others.
    fn suffices<F: FnMut(WordBlocks)>(&self, pass: Pass, taken: &Harvest<F>) -> bool {
        let gives_up = !matches!(
            pass,
            Pass::Near(_) | Pass::Beyond | Pass::Partial { which: PartialKind::Settled, .. }
        );
        let keeps_whole = self.bitmap.avoids || matches!(pass, Pass::Reported | Pass::ReportedPair);
        keeps_whole && gives_up && taken.is_an_eighth()
    }

    fn take_at_hint(&self, taken: &mut Harvest<impl FnMut(WordBlocks)>) {
        let pageblock = PageblockIndex(self.wanted.hint.load(Ordering::Relaxed));
        if let Some(section) = self.bitmap.section(pageblock.section())
            && self.bitmap.tags.of(pageblock) == self.wanted.tag()
        {
            self.take_in(section, pageblock, None, taken);
        }
    }

    /// Takes blocks from a pageblock, but from no free block of the order `spared`; returns how
    /// many.
    pub(super) fn take_in(
        &self,
        section: &Section<'_>,
        pageblock: PageblockIndex,
        spared: Option<Order>,
        taken: &mut Harvest<impl FnMut(WordBlocks)>,
    ) -> u32 {
        let base = pageblock.section() as u32 * SECTION_FRAMES;
        section.take(pageblock.in_section(), self.order, spared, taken.left(), |found| {
            taken.give(found.behind(base));
        })
    }

    /// Frames of what is taken as one: of a pageblock, or of a pair.
    fn unit_frames(&self) -> u32 {
        self.order.frames().max(PAGEBLOCK_FRAMES)
    }

    /// Makes a unit that the caller owns, which begins with this pageblock, one of the wanted
    /// mobility, takes blocks from it, and gives the rest back. Returns how many blocks.
    fn take_owned(
        &self,
        section: &Section<'_>,
        pageblock: PageblockIndex,
        taken: &mut Harvest<impl FnMut(WordBlocks)>,
    ) -> u32 {
        let (block, owned) = (self.order.frames(), self.unit_frames());
        self.bitmap.retag(pageblock, owned, self.wanted);
        let got = taken.left().min(owned / block);
        for i in (0..got).rev() {
            taken.give(WordBlocks::one(pageblock.first().get() + i * block));
        }
        let used = got * block;
        if used < owned {
            section.put(pageblock.in_section() as u32 * PAGEBLOCK_FRAMES + used, owned - used);
        }
        got
    }

    /// Takes blocks from [entire](super::entire) units of the word of hints that begins with
    /// `base`; `entire` are the pageblocks that may be entire.
    ///
    /// Units that suffice are taken together, by one operation. If another caller was faster with
    /// one of them, each is tried alone.
    fn take_entire(
        &self,
        section: &Section<'_>,
        base: PageblockIndex,
        entire: u64,
        taken: &mut Harvest<impl FnMut(WordBlocks)>,
    ) {
        let frames = self.unit_frames();
        let units = taken.left().div_ceil(frames / self.order.frames());
        let firsts = self
            .units_of(base, entire)
            .take(units as usize)
            .fold(0, |firsts, bit| firsts | 1 << bit);
        if firsts == 0 {
            return;
        }
        let at = base.in_section() as u32;
        let all = firsts | firsts << (frames / PAGEBLOCK_FRAMES - 1);
        let are_taken = section.take_entire_of(at as usize / 64, all);
        let are_blocks = are_taken && self.order >= Order::PAGEBLOCK;
        for bit in bits::each(firsts) {
            let pageblock = PageblockIndex(base.0 + bit);
            if are_blocks {
                self.bitmap.retag(pageblock, frames, self.wanted);
                taken.give(WordBlocks::one(pageblock.first().get()));
            } else if are_taken || section.claim((at + bit) * PAGEBLOCK_FRAMES, frames) {
                self.wanted.hint.store(pageblock.0, Ordering::Relaxed);
                self.take_owned(section, pageblock, taken);
            }
        }
        if are_blocks {
            self.wanted.hint.store(base.0 + firsts.ilog2(), Ordering::Relaxed);
        }
    }

    /// Takes a block of entire pageblocks from the section of the hint, by one operation.
    fn take_entire_at_once(&self) -> Option<Pfn> {
        let Search { bitmap, wanted, order } = *self;
        let (number, frames) = (wanted.near()?, order.frames());
        let section = bitmap.section(number)?;
        let unit = bits::range_mask(0, frames / PAGEBLOCK_FRAMES);
        let hint = PageblockIndex(wanted.hint.load(Ordering::Relaxed));
        for i in 0..HINT_WORDS {
            let at = (hint.in_section() / 64 + i) % HINT_WORDS;
            let base = PageblockIndex((number * SECTION_PAGEBLOCKS + at * 64) as u32);
            let taken = self
                .units_of(base, section.entire(at))
                .find(|bit| section.take_entire_of(at, unit << bit));
            if let Some(bit) = taken {
                let pageblock = PageblockIndex(base.0 + bit);
                if pageblock != hint {
                    wanted.hint.store(pageblock.0, Ordering::Relaxed);
                }
                bitmap.retag(pageblock, frames, wanted);
                return Some(pageblock.first());
            }
        }
        None
    }

    /// The first bits of the units that serve the zone, of the pageblocks of `mask` in the word of
    /// hints that begins with `base`.
    #[inline]
    fn units_of(&self, base: PageblockIndex, mask: u64) -> impl Iterator<Item = u32> {
        let is_pair = self.order > Order::PAGEBLOCK;
        let firsts = if is_pair { pairs(mask) } else { mask };
        bits::each(firsts).filter(move |bit| {
            let first = base.0 + bit;
            self.serves(PageblockIndex(first))
                && (!is_pair || self.serves(PageblockIndex(first + 1)))
        })
    }

    /// Whether a pageblock that is free as a whole can be taken. Most are of the wanted mobility,
    /// which is soon seen.
    #[inline]
    fn serves(&self, pageblock: PageblockIndex) -> bool {
        let tag = self.bitmap.tags.with_carved(pageblock);
        tag == self.wanted.tag() || tag.serves(self.wanted.zone)
    }

    /// Calls `visit` for each word of hints with pageblocks that a pass goes to and that may have a
    /// block of the order, with the first pageblock of the word and the bits of those; beginning at
    /// the hint, once around. Not all of them are selected by their tags.
    pub(super) fn visit_words(
        &self,
        pass: Pass,
        mut visit: impl FnMut(&'m Section<'m>, PageblockIndex, u64) -> ControlFlow<()>,
    ) {
        let Search { bitmap, wanted, order } = *self;
        let sections = match pass {
            Pass::Near(_) | Pass::Chosen(_) => {
                wanted.near().map_or(0..0, |section| section..section + 1)
            }
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
        for (words, mask) in around {
            let mut from = words.start;
            while let Some(number) = self.next_section(pass, from, words.end) {
                let part = from.max(number * HINT_WORDS)..words.end.min((number + 1) * HINT_WORDS);
                from = part.end;
                let Some(section) = bitmap.section(number) else { continue };
                let mut has_some = false;
                for at in part {
                    note_step();
                    let candidates = pass.candidates(section, at % HINT_WORDS);
                    has_some |= candidates != 0;
                    let mut candidates = candidates & mask;
                    if candidates != 0 && (bitmap.avoids || matches!(pass, Pass::Mixed)) {
                        candidates &= pass.scope(section, at % HINT_WORDS);
                    }
                    if candidates != 0 {
                        candidates &= pass.fitting(section, at % HINT_WORDS, order);
                    }
                    let base = (number * SECTION_PAGEBLOCKS + at % HINT_WORDS * 64) as u32;
                    if candidates != 0
                        && visit(section, PageblockIndex(base), candidates).is_break()
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
            Some(sort) => {
                self.bitmap.summary.next([sort], from / HINT_WORDS..end.div_ceil(HINT_WORDS))
            }
            None => Some(from / HINT_WORDS),
        }
    }

    /// Calls `visit` for each pageblock that a pass selects, of the candidates in the word of hints
    /// that begins with `base`.
    #[inline]
    pub(super) fn visit_each(
        &self,
        pass: Pass,
        base: PageblockIndex,
        candidates: u64,
        looks: &mut u32,
        mut visit: impl FnMut(PageblockIndex) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        for bit in bits::each(candidates) {
            let pageblock = PageblockIndex(base.0 + bit);
            note_step();
            if !pass.selects(self.bitmap.tags.with_carved(pageblock), self.wanted) {
                continue;
            }
            visit(pageblock)?;
            *looks += 1;
            if matches!(pass, Pass::Partial { looks_max, .. } if *looks >= looks_max) {
                // The next search goes on from here rather than over the same pageblocks again.
                self.wanted.hint.store(pageblock.0, Ordering::Relaxed);
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    }
}

#[cfg(all(test, not(loom)))]
#[path = "search_tests.rs"]
mod tests;
