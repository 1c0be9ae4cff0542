//! The choice of the section that the next whole pageblock is broken up in: one that cannot become
//! free as a whole.
//!
//! # Theory
//! A range of 1 GiB is the hardest request of all: one unmovable frame in each section prevents
//! all of them. So searches that break up a whole pageblock prefer, in this order:
//! 1. sections in which something is held;
//! 2. sections that have unmovable pageblocks already;
//! 3. sections with few whole pageblocks left.
//!
//! Then others stay free of unmovable frames, and the sparsest of them can be emptied: pageblock by
//! pageblock as they evacuate, or by compaction, which takes the window that holds least.
//!
//! Where all that the best section has whole is [cold](super::hints), the search goes to the
//! best of the sections that have warm pageblocks and unmovable ones, if there is any: it has
//! served such requests before, and its memory is present.
//!
//! A search for movable blocks compares the section where it is with the next that has whole
//! pageblocks. One for others compares many: what is unmovable stays, and a wrong choice with it.
//!
//! All that this reads are hints and a statistic: a choice that is wrong costs contiguity alone.

use core::ops::Range;

use super::bitmap::Bitmap;
use super::passes::SearchRequest;
use super::section::Section;
use super::summary::Sort;
use crate::frame::Mobility;
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
        (whole > 0).then(|| Rank { is_free, is_movable: section.unmovable() == 0, whole })
    }
}

impl Bitmap<'_> {
    /// Leads a search that is about to break up a whole pageblock to the best section.
    pub(super) fn choose_section(&self, wanted: &SearchRequest<'_>) {
        if IS_LOOM {
            // A policy; to a model each access would be one more place to switch.
            return;
        }
        let sections = wanted.sections();
        let own = wanted.hint.load(Ordering::Relaxed) as usize / SECTION_PAGEBLOCKS;
        let ranked = |number| Some((Rank::of(self.section(number)?)?, number));
        let own_ranked = if sections.contains(&own) { ranked(own) } else { None };
        let behind = own.clamp(sections.start, sections.end.saturating_sub(1)) + 1;
        let others =
            self.with_whole(behind..sections.end).chain(self.with_whole(sections.start..own));
        let best = match wanted.rules.mobility {
            Mobility::Movable => {
                let other = others.take(1).find_map(ranked);
                own_ranked.map_or(other, |own| Some(other.map_or(own, |other| own.min(other))))
            }
            _ => {
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
        let is_warm = |number| self.marks(number).is_set(Sort::Warm);
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
            let number = self.summary.next_of([Sort::Warm, Sort::Cold], from..range.end)?;
            from = number + 1;
            Some(number)
        })
    }

    /// Counts a pageblock whose tag was changed among the unmovable ones of its section, or not any
    /// more.
    pub(super) fn note_mobility(&self, pageblock: PageblockIndex, before: Tag, now: Tag) {
        let is_unmovable = |tag: Tag| tag.of_the_rest().mobility() != Mobility::Movable;
        if is_unmovable(before) != is_unmovable(now)
            && let Some(section) = self.section(pageblock.section())
        {
            section.count_unmovable(is_unmovable(now));
        }
    }
}
