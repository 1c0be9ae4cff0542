//! What a search looks for.

use core::ops::Range;

use crate::frame::pageblock::Tag;
use crate::frame::{Mobility, ZoneId};
use crate::sync::prim::AtomicU32;

/// What a search looks for.
#[derive(Clone, Copy)]
pub struct Wanted<'h> {
    pub zone: ZoneId,
    pub mobility: Mobility,
    /// Sections the zone has frames in.
    pub span: (u32, u32),
    /// Where to begin; updated when blocks are found elsewhere.
    pub hint: &'h AtomicU32,
}

impl Wanted<'_> {
    pub fn tag(&self) -> Tag {
        Tag::new(self.zone, self.mobility)
    }

    pub fn sections(&self) -> Range<usize> {
        self.span.0 as usize..self.span.1 as usize
    }
}
