//! The passes of a [search](super::search): which pageblocks each visits.

use super::entire::{entirely_free_or_wakeable, wakeable};
use super::section::Section;
use super::summary::Sort;
use super::wanted::Wanted;
use crate::frame::Order;
use crate::frame::pageblock::Tag;

/// Fruitless looks at partly used pageblocks before a whole one is taken.
pub(super) const PARTIAL_LOOKS_MAX: u32 = 32;

/// The passes of a search for blocks smaller than a pageblock.
pub(super) const PASSES: [Pass; 11] = [
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

/// Passes for whole pageblocks.
pub(super) const PASSES_FOR_PAGEBLOCKS: [Pass; 3] =
    [Pass::Whole(Walk::Marked), Pass::Reported(Sort::Whole), Pass::Whole(Walk::All)];

/// Passes for pairs of whole pageblocks.
pub(super) const PASSES_FOR_PAIRS: [Pass; 3] =
    [Pass::Pair(Walk::Marked), Pass::Reported(Sort::Pair), Pass::Pair(Walk::All)];

/// The pageblocks that a pass of a search visits.
#[derive(Clone, Copy)]
pub(super) enum Pass {
    /// Pageblocks in the section of the hint, for movable blocks, while most of it is whole and
    /// nothing evacuates: partly free and of the wanted mobility, or entirely free. CPUs whose
    /// hints lie in sections of their own then stay out of each other's, and out of the summary.
    /// What is taken there breaks up few of many whole ones.
    Near(Sort),
    /// Partly free, of the wanted mobility, where the summary leads.
    Partial { which: Which, looks_max: u32 },
    /// Entirely free, of any mobility.
    Whole(Walk),
    /// The first of two neighbours that are.
    Pair(Walk),
    /// Entirely free and reported, of any mobility, and not refused by the device of late: a
    /// pageblock, or the first of two neighbours that are entirely free, of which one is.
    Reported(Sort),
    /// Partly free, and akin: the reclaimable ones for unmovable requests, and the reverse.
    Akin,
    /// Pageblocks of any mobility that are mixed already.
    Mixed,
    /// Pageblocks of any mobility: the last resort (Linux: fallback, `mm_page_alloc_extfrag`).
    Any,
}

/// The partly used pageblocks that a pass visits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    /// Pageblocks that do not evacuate.
    Settled,
    /// Pageblocks with carved frames, of any mobility: they can never be whole.
    Carved,
    /// Pageblocks that evacuate.
    Evacuating,
    Both,
}

/// The sections that a pass goes through.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Walk {
    /// Sections that the summary marks.
    Marked,
    /// All of the zone's: what is there throughout is found.
    All,
}

impl Pass {
    /// Mask of the 64 pageblocks of a word of hints that may be of use.
    #[inline]
    pub fn candidates(self, section: &Section<'_>, i: usize) -> u64 {
        match self {
            Pass::Reported(Sort::Pair) => {
                let (free, wakeable) =
                    (entirely_free_or_wakeable(section, i), wakeable(section, i));
                Sort::Pair.of_hints((0, free)) & (wakeable | wakeable >> 1)
            }
            Pass::Reported(_) => wakeable(section, i),
            Pass::Near(Sort::Partial) | Pass::Partial { .. } => {
                Sort::Partial.of_hints(section.hints(i))
            }
            Pass::Near(_) | Pass::Whole(_) => section.entirely_free(i),
            Pass::Pair(_) => Sort::Pair.of_hints((0, section.entirely_free(i))),
            Pass::Akin | Pass::Mixed => section.hints(i).0,
            Pass::Any => section.hints(i).0 | section.entire(i),
        }
    }

    /// Mask of the 64 pageblocks of a word of hints that the pass is about at all.
    #[inline]
    pub fn scope(self, section: &Section<'_>, i: usize) -> u64 {
        match self {
            Pass::Near(_) | Pass::Partial { which: Which::Settled | Which::Carved, .. } => {
                !section.evacuating(i)
            }
            Pass::Partial { which: Which::Evacuating, .. } => section.evacuating(i),
            Pass::Mixed => section.mixed(i),
            _ => !0,
        }
    }

    /// Mask of the 64 pageblocks of a word of hints that may have a block of `order`.
    #[inline]
    pub fn fitting(self, section: &Section<'_>, i: usize, order: Order) -> u64 {
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

    /// The sort whose marks the pass follows, if it does.
    #[inline]
    pub fn marked(self) -> Option<Sort> {
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

    /// Whether a search of this pass takes frames from pageblocks with this tag.
    pub fn selects(self, tag: Tag, wanted: &Wanted<'_>) -> bool {
        let is_ours = tag.serves(wanted.zone);
        match self {
            Pass::Partial { which: Which::Carved, .. } => is_ours && tag.is_carved(),
            // The bits have told those that evacuate from the others.
            Pass::Near(Sort::Partial) | Pass::Partial { .. } => {
                tag.of_the_rest().settled() == wanted.tag()
            }
            Pass::Akin => is_ours && tag.of_the_rest().mobility().is_akin(wanted.mobility),
            // The last pass also takes from pageblocks of the wanted mobility: one may have been
            // whole when the pass for partly used pageblocks came by, and partly used when the pass
            // for whole ones did.
            Pass::Near(_)
            | Pass::Whole(_)
            | Pass::Pair(_)
            | Pass::Reported(_)
            | Pass::Mixed
            | Pass::Any => is_ours,
        }
    }
}
