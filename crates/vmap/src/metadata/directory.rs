//! The way from an address to its area.

use crate::kind::Kind;
use crate::metadata::area::{Area, AreaIndex, Areas, Word};
use crate::metadata::index::SegmentIndex;
use crate::units::{ManagedRange, VirtAddr, Vpn};

/// All areas, the index that leads to them, and the range of addresses they divide.
#[derive(Clone, Copy)]
pub struct Directory<'m> {
    areas: Areas<'m>,
    index: SegmentIndex<'m>,
    range: ManagedRange,
}

impl<'m> Directory<'m> {
    pub fn new(areas: Areas<'m>, index: SegmentIndex<'m>, range: ManagedRange) -> Self {
        Directory { areas, index, range }
    }

    #[inline]
    pub fn areas(&self) -> Areas<'m> {
        self.areas
    }

    #[inline]
    pub fn index(&self) -> SegmentIndex<'m> {
        self.index
    }

    #[inline]
    pub fn range(&self) -> &ManagedRange {
        &self.range
    }

    #[inline]
    pub fn area(&self, index: AreaIndex) -> &'m Area {
        self.areas.get(index)
    }

    /// The busy area of this kind that begins at `start`, and its word.
    #[inline]
    pub fn busy_at(&self, start: VirtAddr, kind: Kind) -> Option<(AreaIndex, Word)> {
        let page = self.range.page_at(start)?;
        let index = self.index.at(page)?;
        let area = self.area(index);
        let word = area.word();
        (word.is_busy(kind) && area.start() == page).then_some((index, word))
    }

    /// The only area that may contain `page`; its state and its pages are the caller's to check.
    pub fn candidate(&self, page: Vpn) -> Option<&'m Area> {
        self.index.candidate(page).map(|index| self.area(index))
    }

    /// Whether a page has an alignment of `align` bytes. Never for an `align` that is no power of
    /// two.
    #[inline]
    pub fn is_aligned(&self, page: Vpn, align: usize) -> bool {
        align == 1 || align.is_power_of_two() && self.range.addr(page).get() & (align - 1) == 0
    }
}
