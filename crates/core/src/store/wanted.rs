//! The target of a search.

use core::ops::Range;

use crate::frame::pageblock::{SECTION_PAGEBLOCKS, Tag};
use crate::frame::{Mobility, ZoneId};
use crate::sync::prim::{AtomicU32, Ordering};

/// The rules of a search.
#[derive(Clone, Copy)]
pub struct SearchManner {
    /// Bits of the request for a backing.
    pub bits: u16,
    /// Whether blocks may come from pageblocks that serve requests which are not
    /// [akin](Mobility::is_akin).
    pub may_mix: bool,
}

impl SearchManner {
    /// Anything that the zone has.
    pub const ANY: SearchManner = SearchManner { bits: 0, may_mix: true };
    /// No mixed pageblocks.
    pub const UNMIXED: SearchManner = SearchManner { bits: 0, may_mix: false };
}

/// The target of a search.
pub struct SearchRequest<'h> {
    pub zone: ZoneId,
    pub mobility: Mobility,
    pub manner: SearchManner,
    /// Sections the zone has frames in.
    pub span: (u32, u32),
    /// Pageblock at which to begin; updated when blocks are found elsewhere. Relaxed everywhere: a
    /// pageblock's index, and the search claims what it finds there.
    pub hint: &'h AtomicU32,
}

impl SearchRequest<'_> {
    pub fn tag(&self) -> Tag {
        Tag::new(self.zone, self.mobility)
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
