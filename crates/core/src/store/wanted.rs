//! What a search looks for.

use core::ops::Range;

use crate::frame::pageblock::{SECTION_PAGEBLOCKS, Tag};
use crate::frame::{Mobility, ZoneId};
use crate::sync::prim::{AtomicU32, Ordering};

/// What a search looks for.
#[derive(Clone, Copy)]
pub struct Wanted<'h> {
    pub zone: ZoneId,
    pub mobility: Mobility,
    /// What the request says to a backing.
    pub bits: u16,
    /// Sections the zone has frames in.
    pub span: (u32, u32),
    /// Where to begin; updated when blocks are found elsewhere. Relaxed everywhere: a pageblock's
    /// index, and the search claims what it finds there.
    pub hint: &'h AtomicU32,
}

impl Wanted<'_> {
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
