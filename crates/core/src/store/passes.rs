//! The parts of a [search](super::search): its target, its passes, which each visit some of the
//! pageblocks, and the blocks that it has taken so far.

use core::ops::{ControlFlow, Range};

use super::bits::WordBlocks;
use super::entire::{entirely_free_or_wakeable, wakeable};
use super::hints::{Sort, pairs};
use super::section::Section;
use crate::frame::pageblock::{SECTION_PAGEBLOCKS, Tag};
use crate::frame::{Kind, Order, ZoneId};
use crate::sync::prim::{AtomicU32, Ordering};
use crate::zone::Reserve;

/// Fruitless looks at partly used pageblocks before a whole one is taken.
pub(super) const PARTIAL_LOOKS_MAX: u32 = 32;

/// The passes of a search for blocks smaller than a pageblock.
pub(super) const PASSES: [Pass; 15] = [
    Pass::Near(Sort::Partial),
    Pass::Near(Sort::Warm),
    Pass::Beyond,
    Pass::Near(Sort::Cold),
    Pass::Partial { which: PartialKind::Settled, looks_max: PARTIAL_LOOKS_MAX },
    Pass::Partial { which: PartialKind::Avoided, looks_max: PARTIAL_LOOKS_MAX },
    Pass::Chosen(Sort::Warm),
    Pass::Chosen(Sort::Cold),
    Pass::Whole(Walk::Warm),
    Pass::Whole(Walk::Cold),
    Pass::Reported,
    Pass::Partial { which: PartialKind::Both, looks_max: u32::MAX },
    Pass::Akin,
    Pass::Mixed,
    Pass::Any,
];

/// Passes for whole pageblocks.
pub(super) const PASSES_FOR_PAGEBLOCKS: [Pass; 4] =
    [Pass::Whole(Walk::Warm), Pass::Whole(Walk::Cold), Pass::Reported, Pass::Whole(Walk::All)];

/// Passes for pairs of whole pageblocks.
pub(super) const PASSES_FOR_PAIRS: [Pass; 4] =
    [Pass::Pair(Walk::Warm), Pass::Pair(Walk::Cold), Pass::ReportedPair, Pass::Pair(Walk::All)];

/// The pageblocks that a pass of a search visits.
#[derive(Clone, Copy)]
pub(super) enum Pass {
    /// Pageblocks in the section of the hint, for movable blocks, while most of it is whole and
    /// nothing is avoided: partly free and of the wanted mobility, or entirely free and warm or
    /// cold. CPUs whose hints lie in sections of their own then stay out of each other's, and write
    /// nothing to the summary. What is taken there breaks up few of many whole ones.
    Near(Sort),
    /// Entirely free and warm pageblocks of any section, for the same blocks. A search goes there
    /// before it touches new memory in its own section.
    Beyond,
    /// Entirely free pageblocks, warm or cold, of the section that suits a block best which is not
    /// movable, where pageblocks are avoided at all. What stays where it is must not be spread for
    /// the sake of what is present.
    Chosen(Sort),
    /// Partly free, of the wanted mobility, where the summary leads.
    Partial { which: PartialKind, looks_max: u32 },
    /// Entirely free, of any mobility.
    Whole(Walk),
    /// The first of two neighbours that are.
    Pair(Walk),
    /// Entirely free and reported, of any mobility, and not refused by the device of late.
    Reported,
    /// The first of two neighbours that are entirely free, of which one is so.
    ReportedPair,
    /// Partly free, and akin: the reclaimable ones for unmovable requests, and the reverse; those
    /// of movable classes that are kept apart for other movable requests, and the reverse.
    Akin,
    /// Pageblocks of any mobility that are mixed already.
    Mixed,
    /// Pageblocks of any mobility: the last resort (Linux: fallback, `mm_page_alloc_extfrag`).
    Any,
}

/// Mask of the pageblocks `64 * i ..` that are entire, or hinted to be whole and [warm].
///
/// [warm]: super::hints
#[inline]
pub(super) fn warm(section: &Section<'_>, i: usize) -> u64 {
    section.entire(i) | section.hints(i).1 & !section.presence.cold(i)
}

/// Mask of the pageblocks `64 * i ..` that are hinted to be whole in their words, and cold.
#[inline]
pub(super) fn cold(section: &Section<'_>, i: usize) -> u64 {
    section.hints(i).1 & section.presence.cold(i) & !section.entire(i)
}

/// The partly used pageblocks that a pass visits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum PartialKind {
    /// Pageblocks that are not avoided.
    Settled,
    /// Avoided pageblocks.
    Avoided,
    Both,
}

/// The whole pageblocks that a pass goes to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Walk {
    /// Pageblocks that are [warm](super::hints), in sections that the summary marks.
    Warm,
    /// Pageblocks that are cold, in sections that the summary marks.
    Cold,
    /// All of them, in all sections of the zone: what is there throughout is found.
    All,
}

impl Pass {
    /// Whether the pass goes to pageblocks that are entirely free, for blocks smaller than two.
    #[inline]
    pub fn is_for_whole(self) -> bool {
        matches!(
            self,
            Pass::Near(Sort::Warm | Sort::Cold) | Pass::Beyond | Pass::Chosen(_) | Pass::Whole(_)
        )
    }

    /// Mask of the 64 pageblocks of a word of hints that may be of use.
    #[inline]
    pub fn candidates(self, section: &Section<'_>, i: usize) -> u64 {
        match self {
            Pass::ReportedPair => {
                let (free, wakeable) =
                    (entirely_free_or_wakeable(section, i), wakeable(section, i));
                pairs(free) & (wakeable | wakeable >> 1)
            }
            Pass::Reported => wakeable(section, i),
            Pass::Near(Sort::Partial) | Pass::Partial { .. } => {
                let (some, whole) = section.hints(i);
                some & !whole
            }
            Pass::Near(Sort::Cold) | Pass::Chosen(Sort::Cold) | Pass::Whole(Walk::Cold) => {
                cold(section, i)
            }
            Pass::Near(_) | Pass::Beyond | Pass::Chosen(_) | Pass::Whole(Walk::Warm) => {
                warm(section, i)
            }
            Pass::Whole(Walk::All) => section.entirely_free(i),
            Pass::Pair(Walk::Warm) => pairs(warm(section, i)),
            Pass::Pair(Walk::Cold) => pairs(section.entirely_free(i)) & !pairs(warm(section, i)),
            Pass::Pair(Walk::All) => pairs(section.entirely_free(i)),
            Pass::Akin | Pass::Mixed => section.hints(i).0,
            Pass::Any => section.hints(i).0 | section.entire(i),
        }
    }

    /// Mask of the 64 pageblocks of a word of hints that the pass is about at all.
    #[inline]
    pub fn scope(self, section: &Section<'_>, i: usize) -> u64 {
        match self {
            Pass::Near(_) | Pass::Partial { which: PartialKind::Settled, .. } => {
                !section.avoided(i)
            }
            Pass::Partial { which: PartialKind::Avoided, .. } => section.avoided(i),
            Pass::Mixed => section.mixed(i),
            _ => !0,
        }
    }

    /// Mask of the 64 pageblocks of a word of hints that may have a block of `order`.
    #[inline]
    pub fn fitting(self, section: &Section<'_>, i: usize, order: Order) -> u64 {
        match self {
            Pass::Near(Sort::Partial) | Pass::Partial { .. } | Pass::Akin | Pass::Mixed => {
                section.lacks.may_have(i, order)
            }
            // An entire one may be noted to lack what it lacked before.
            Pass::Any => section.lacks.may_have(i, order) | section.entire(i),
            // What is whole has all orders.
            _ => !0,
        }
    }

    /// The sort whose marks the pass follows, if it does.
    #[inline]
    pub fn marked(self) -> Option<Sort> {
        match self {
            Pass::Partial { .. } => Some(Sort::Partial),
            Pass::Chosen(sort) => Some(sort),
            Pass::Beyond | Pass::Whole(Walk::Warm) => Some(Sort::Warm),
            Pass::Whole(Walk::Cold) => Some(Sort::Cold),
            Pass::Pair(Walk::Warm) => Some(Sort::WarmPair),
            Pass::Pair(Walk::Cold) => Some(Sort::ColdPair),
            _ => None,
        }
    }

    /// Whether a search of this pass takes frames from pageblocks with this tag.
    pub fn selects(self, tag: Tag, wanted: &SearchRequest<'_>) -> bool {
        let (is_ours, is_movable) = (tag.serves(wanted.zone), wanted.rules.kind.is_movable());
        match self {
            // The bits have told avoided ones from the others.
            Pass::Near(Sort::Partial) | Pass::Partial { .. } => {
                tag.of_the_rest().settled() == wanted.tag()
            }
            Pass::Akin => is_ours && tag.of_the_rest().kind().is_movable() == is_movable,
            // The last pass also takes from pageblocks of the wanted mobility: one may have been
            // whole when the pass for partly used pageblocks came by, and partly used when the pass
            // for whole ones did.
            _ => is_ours,
        }
    }
}

/// The blocks that a search for up to `want` blocks has taken.
pub(super) struct Harvest<F> {
    want: u32,
    blocks: u32,
    give: F,
}

impl<F: FnMut(WordBlocks)> Harvest<F> {
    /// Makes the list of a search that has taken nothing yet. Blocks are passed to `give`.
    pub fn new(want: u32, give: F) -> Self {
        Harvest { want, blocks: 0, give }
    }

    /// Number of blocks taken.
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Number of blocks that are still wanted.
    pub fn left(&self) -> u32 {
        self.want - self.blocks
    }

    pub fn is_done(&self) -> bool {
        self.blocks == self.want
    }

    /// Whether an eighth of what is wanted is there.
    pub fn is_an_eighth(&self) -> bool {
        8 * self.blocks >= self.want
    }

    /// Whether the search goes on.
    pub fn flow(&self) -> ControlFlow<()> {
        if self.is_done() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Takes some more.
    #[inline]
    pub fn give(&mut self, found: WordBlocks) {
        self.blocks += found.blocks();
        (self.give)(found);
    }
}

/// The rules of a request for the search of its frames.
#[derive(Clone, Copy)]
pub struct SearchRules {
    pub kind: Kind,
    /// The watermark that the zone is left with.
    pub reserve: Reserve,
    /// Bits of the request for a backing.
    pub bits: u16,
    /// Whether blocks may come from pageblocks that serve requests which are not
    /// [akin](Kind::is_movable).
    pub may_mix: bool,
}

impl SearchRules {
    /// Anything that the zone has, whatever its watermarks.
    pub const fn any(kind: Kind) -> Self {
        SearchRules { kind, reserve: Reserve::All, bits: 0, may_mix: true }
    }

    /// Returns the same, but for mixed pageblocks.
    pub const fn unmixed(self) -> Self {
        SearchRules { may_mix: false, ..self }
    }
}

/// The target of a search.
pub struct SearchRequest<'h> {
    pub zone: ZoneId,
    pub rules: SearchRules,
    /// Sections the zone has frames in.
    pub span: (u32, u32),
    /// Pageblock at which to begin; updated when blocks are found elsewhere. Relaxed everywhere: a
    /// pageblock's index, and the search claims what it finds there.
    pub hint: &'h AtomicU32,
}

impl SearchRequest<'_> {
    pub fn tag(&self) -> Tag {
        Tag::new(self.zone, self.rules.kind)
    }

    /// The section of the hint, if the zone has frames there.
    pub fn near(&self) -> Option<usize> {
        let section = self.hint.load(Ordering::Relaxed) as usize / SECTION_PAGEBLOCKS;
        self.sections().contains(&section).then_some(section)
    }

    pub fn sections(&self) -> Range<usize> {
        self.span.0 as usize..self.span.1 as usize
    }
}
