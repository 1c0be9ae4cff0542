//! The choice of what a [search](super::search) takes from first: the section that the next whole
//! pageblock is broken up in, and the partly used pageblock.
//!
//! # The section
//! It should be one that cannot become free as a whole. A range of 1 GiB is the hardest request of
//! all: one unmovable frame in each section prevents all of them. So searches that break up a whole
//! pageblock prefer, in this order:
//! 1. sections in which something is held;
//! 2. sections that have unmovable pageblocks already;
//! 3. sections with few whole pageblocks left.
//!
//! Then others stay free of unmovable frames, and the sparsest of them can be emptied: pageblock by
//! pageblock as they are avoided, or by compaction, which takes the window that holds least.
//!
//! Where all that the best section has whole is [cold](super::hints), the search goes to the
//! best of the sections that have warm pageblocks and unmovable ones, if there is any: it has
//! served such requests before, and its memory is present.
//!
//! A search for movable blocks compares the section where it is with the next that has whole
//! pageblocks. One for others compares many: what is unmovable stays, and a wrong choice with it.
//!
//! All that this reads are hints and a statistic: a choice that is wrong costs contiguity alone.
//!
//! # The densest pageblock
//! A dense pageblock becomes whole last. So a search takes from the densest of the next few.
//!
//! # The best fit
//! A buddy allocator has a list per order, and splits a larger block only when the smaller ones are
//! gone. A bitmap sees free frames. Taken as they come, single frames come out of blocks that
//! larger requests then lack, and those break up whole pageblocks although enough is free. So while
//! pageblocks are avoided, which says that whole ones are short, a search for less than a block of
//! order [`COSTLY`] first takes what lies in no free block of the next order, then what lies in no
//! free one of `COSTLY`. A search that has an eighth of what it wants by then leaves larger blocks
//! alone. Where all requests are for single frames there is nothing to spare, and none of this is
//! done: searches for larger blocks note themselves, and hands forget it after each turn. Decision
//! 0012 has what was tried.
//!
//! Each of the two looks at [`PARTIAL_LOOKS_MAX`] pageblocks at most, so such a search reads at
//! most 64 lines more.

use core::ops::{ControlFlow, Range};

use super::bitmap::Bitmap;
use super::bits::{WORD_ORDER_MAX, WordBlocks};
use super::hints::Sort;
use super::passes::{Harvest, PARTIAL_LOOKS_MAX, PartialKind, Pass, SearchRequest};
use super::search::Search;
use super::section::Section;
use crate::frame::Order;
use crate::frame::pageblock::{PageblockIndex, SECTION_PAGEBLOCKS, Tag};
use crate::sync::model::IS_LOOM;
use crate::sync::prim::Ordering;

/// Sections that a search for unmovable or reclaimable blocks compares with its own.
const COMPARED: usize = 64;

/// The cost of breaking up a pageblock in a section; lower is better.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Rank {
    /// No frame of the section is held.
    is_free: bool,
    /// All of it could be moved elsewhere.
    is_movable: bool,
    whole: u32,
}

impl Rank {
    /// `None`: the section has no whole pageblock.
    fn of(section: &Section<'_>) -> Option<Self> {
        let whole = section.count_whole();
        let is_free = whole == SECTION_PAGEBLOCKS as u32;
        (whole > 0).then(|| Rank {
            is_free,
            is_movable: section.unmovable.load(Ordering::Relaxed) == 0,
            whole,
        })
    }
}

impl Bitmap<'_> {
    /// Leads a search that is about to break up a whole pageblock to the best section.
    pub(super) fn choose_section(&self, wanted: &SearchRequest<'_>) {
        let sections = wanted.sections();
        let own = wanted.hint.load(Ordering::Relaxed) as usize / SECTION_PAGEBLOCKS;
        let ranked = |number| Some((Rank::of(self.section(number)?)?, number));
        let own_ranked = if sections.contains(&own) { ranked(own) } else { None };
        let behind = sections.end.min(own + 1).max(sections.start);
        let others =
            self.with_whole(behind..sections.end).chain(self.with_whole(sections.start..own));
        let best = match wanted.rules.kind.is_movable() {
            true => {
                let other = others.take(1).find_map(ranked);
                own_ranked.map_or(other, |own| Some(other.map_or(own, |other| own.min(other))))
            }
            false => {
                self.best_of(own_ranked.into_iter().chain(others.take(COMPARED).filter_map(ranked)))
            }
        };
        if let Some((_, number)) = best.filter(|&(_, number)| number != own) {
            wanted.hint.store((number * SECTION_PAGEBLOCKS) as u32, Ordering::Relaxed);
        }
    }

    /// Finds the best of some sections for a block that stays where it is, if possible one that
    /// needs no new memory.
    fn best_of(&self, sections: impl Iterator<Item = (Rank, usize)>) -> Option<(Rank, usize)> {
        let is_warm = |number| self.summary.marks(number).is_set(Sort::Warm);
        let (mut best, mut warmest) = (None, None);
        for section in sections {
            let lower = |of: Option<_>| Some(of.map_or(section, |best| section.min(best)));
            best = lower(best);
            if !section.0.is_movable && is_warm(section.1) {
                warmest = lower(warmest);
            }
        }
        best.filter(|&(_, number)| is_warm(number)).or(warmest).or(best)
    }

    /// The sections of a range that are marked to have whole pageblocks.
    fn with_whole(&self, range: Range<usize>) -> impl Iterator<Item = usize> {
        let mut from = range.start;
        core::iter::from_fn(move || {
            let number = self.summary.next([Sort::Warm, Sort::Cold], from..range.end)?;
            from = number + 1;
            Some(number)
        })
    }

    /// Counts a pageblock whose tag was changed among the unmovable ones of its section, or not any
    /// more.
    pub(super) fn note_mobility(&self, pageblock: PageblockIndex, before: Tag, now: Tag) {
        let is_unmovable = |tag: Tag| !tag.of_the_rest().kind().is_movable();
        if is_unmovable(before) != is_unmovable(now)
            && let Some(section) = self.section(pageblock.section())
        {
            // Relaxed: the number is all there is to it.
            match is_unmovable(now) {
                true => section.unmovable.fetch_add(1, Ordering::Relaxed),
                false => section.unmovable.fetch_sub(1, Ordering::Relaxed),
            };
        }
    }
}

/// Partly used pageblocks of which the densest is taken from first.
const DENSEST_OF: u32 = 4;
/// Comparisons of a search. Afterwards it takes from the first candidate that it meets, so it reads
/// at most 32 lines more.
const DENSEST_ROUNDS: u32 = 8;
/// Up to this order requests should not fail (`PAGE_ALLOC_COSTLY_ORDER`).
const COSTLY: Order = Order::new(3).unwrap();
const _: () = assert!(COSTLY.get() <= WORD_ORDER_MAX);

impl Search<'_, '_> {
    /// Takes blocks of partly used pageblocks that lie in no larger free block, while whole
    /// pageblocks are short.
    pub(super) fn take_fitting(&self, taken: &mut Harvest<impl FnMut(WordBlocks)>) {
        let (tags, zone) = (&self.bitmap.tags, self.wanted.zone);
        // To a model each look would be one more place to switch, and this is a policy.
        if IS_LOOM || tags.avoided(zone) == 0 {
            return;
        }
        if self.order > Order::BASE {
            tags.note_larger(zone);
        }
        let next = Order::new(self.order.get() + 1).filter(|&next| next <= COSTLY);
        let Some(next) = next.filter(|_| tags.has_larger(zone)) else { return };
        let is_any = self.take_sparing(next, taken);
        if is_any && next < COSTLY && !taken.is_an_eighth() {
            self.take_sparing(COSTLY, taken);
        }
    }

    /// Takes blocks that lie in no free block of the order `spared`, from the next few pageblocks.
    /// Returns whether there was one.
    fn take_sparing(&self, spared: Order, taken: &mut Harvest<impl FnMut(WordBlocks)>) -> bool {
        let settled = Pass::Partial { which: PartialKind::Settled, looks_max: PARTIAL_LOOKS_MAX };
        let mut looks = 0;
        self.visit_words(settled, |section, base, candidates| {
            self.visit_each(settled, base, candidates, &mut looks, |pageblock| {
                if self.take_in(section, pageblock, Some(spared), taken) > 0 {
                    self.wanted.hint.store(pageblock.0, Ordering::Relaxed);
                }
                taken.flow()
            })
        });
        looks > 0
    }

    /// Takes blocks from partly used pageblocks, each time from the densest of the next few.
    /// Returns whether there was any such pageblock at the last look.
    pub(super) fn take_densest(
        &self,
        which: PartialKind,
        taken: &mut Harvest<impl FnMut(WordBlocks)>,
    ) -> bool {
        let mut is_any = false;
        for _ in 0..DENSEST_ROUNDS {
            let mut densest: Option<(u32, &Section<'_>, PageblockIndex)> = None;
            is_any = false;
            let (pass, mut looks) = (Pass::Partial { which, looks_max: DENSEST_OF }, 0);
            self.visit_words(pass, |section, base, candidates| {
                self.visit_each(pass, base, candidates, &mut looks, |pageblock| {
                    is_any = true;
                    let free = section.count_in_words(pageblock.in_section());
                    if free > 0 && densest.is_none_or(|(least, ..)| free < least) {
                        densest = Some((free, section, pageblock));
                    }
                    ControlFlow::Continue(())
                })
            });
            let Some((_, section, pageblock)) = densest else { break };
            if which == PartialKind::Avoided {
                self.bitmap.settle(section, pageblock);
            }
            let got = self.take_in(section, pageblock, None, taken);
            if got > 0 {
                self.wanted.hint.store(pageblock.0, Ordering::Relaxed);
            }
            if taken.is_done() || got == 0 {
                break;
            }
        }
        is_any
    }
}
