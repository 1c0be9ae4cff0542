//! The flat segment index: from an address to its area without a tree.
//!
//! A segment is 16 pages, whose 16 entries share a cache line. An area has an entry at its first
//! page and one at each segment boundary inside it. So one load finds the area that begins at an
//! address. For an address inside an area, a walk back over at most 16 entries of one line finds
//! it: the first entry that is set names the only area that can reach that far.
//!
//! The owner of pages writes their entries, after the pages left the free address space and before
//! they return to it; the space's lock orders one owner's stores before the next owner's. Areas in
//! pools and lazy lists keep their entries. Readers hold no lock: an entry is a hint until the
//! descriptor confirms it (`area.rs`).

use crate::metadata::area::AreaIndex;
use crate::units::{PageRange, Vpn};
use pagedepot::sync::prim::{AtomicU32, Ordering};

/// Pages per segment.
pub const SEGMENT_PAGES: u32 = 16;

/// The entries, one per page.
#[derive(Clone, Copy)]
pub struct SegmentIndex<'m>(pub &'m [AtomicU32]);

impl SegmentIndex<'_> {
    /// The area that begins at `page`, if there is one; otherwise possibly one that contains it.
    #[inline]
    pub fn at(&self, page: Vpn) -> Option<AreaIndex> {
        // Relaxed: a caller that frees an address got it after the entry was written. For other
        // callers the entry is a hint.
        AreaIndex::new(self.0[page.index()].load(Ordering::Relaxed))
    }

    /// The only area that may contain `page`.
    pub fn candidate(&self, page: Vpn) -> Option<AreaIndex> {
        let segment = page.0 - page.0 % SEGMENT_PAGES;
        (segment..=page.0).rev().find_map(|at| self.at(Vpn(at)))
    }

    /// Writes the entries of an area. For the owner of its pages.
    pub fn set(&self, run: PageRange, area: AreaIndex) {
        self.write(run, area.get());
    }

    /// Removes the entries of an area. For the owner of its pages.
    pub fn clear(&self, run: PageRange) {
        self.write(run, 0);
    }

    fn write(&self, run: PageRange, value: u32) {
        self.0[run.start.index()].store(value, Ordering::Relaxed);
        let first = run.start.0.next_multiple_of(SEGMENT_PAGES);
        for page in (first..run.end.0).step_by(SEGMENT_PAGES as usize) {
            self.0[page as usize].store(value, Ordering::Relaxed);
        }
    }
}
