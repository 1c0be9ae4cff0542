//! Looks at pageblocks of the bitmap for crates above the core, and frames from a given one.

use core::ops::Range;

use super::bitmap::Bitmap;
use crate::frame::pageblock::{PageblockIndex, SECTION_PAGEBLOCKS};
use crate::frame::{Order, Pfn, ZoneId};

impl Bitmap<'_> {
    /// Free frames of a pageblock now. Reads no word of one whose hints say that nothing is free: a
    /// hint that is clear may be wrong for a moment, and the pageblock then looks full. `None`: it
    /// has no section.
    pub fn count_hinted(&self, pageblock: PageblockIndex) -> Option<u32> {
        let (section, at) = (self.section(pageblock.section())?, pageblock.in_section());
        let has_some = section.hints(at / 64).0 >> (at % 64) & 1 == 1;
        let is_free = has_some || section.is_as_one(at);
        Some(if is_free { section.count_free(at) } else { 0 })
    }

    /// Whether none of the frames `start..start + frames` is free now.
    pub fn are_held(&self, start: Pfn, frames: u32) -> bool {
        self.by_section(start, frames).all(|(section, at, count)| {
            section.is_none_or(|section| section.are_all(at, count, false))
        })
    }

    /// The first of these pageblocks that is mixed.
    pub fn next_mixed(&self, pageblocks: Range<u32>) -> Option<PageblockIndex> {
        let mut at = pageblocks.start;
        while at < pageblocks.end {
            let pageblock = PageblockIndex(at);
            let (section, in_section) = (self.section(pageblock.section()), pageblock.in_section());
            let mixed = section.map_or(0, |section| section.mixed(in_section / 64));
            let mixed = mixed >> (in_section % 64);
            if mixed != 0 {
                at += mixed.trailing_zeros();
                return (at < pageblocks.end).then_some(PageblockIndex(at));
            }
            at += (64 - in_section % 64).min(SECTION_PAGEBLOCKS - in_section) as u32;
        }
        None
    }

    /// The last of these pageblocks that is entire or hinted to be whole.
    pub fn last_whole(&self, pageblocks: Range<u32>) -> Option<PageblockIndex> {
        let mut end = pageblocks.end;
        while end > pageblocks.start {
            let last = PageblockIndex(end - 1);
            let (section, in_section) = (self.section(last.section()), last.in_section());
            let whole = section.map_or(0, |section| section.entirely_free(in_section / 64));
            // The bits up to that of the last one.
            let whole = whole << (63 - in_section % 64);
            if whole != 0 {
                let found = last.0 - whole.leading_zeros();
                return (found >= pageblocks.start).then_some(PageblockIndex(found));
            }
            end = last.0 - (in_section % 64) as u32;
        }
        None
    }

    /// Takes a block, smaller than a pageblock, from a pageblock of `zone`, unless that is
    /// isolated.
    ///
    /// # Panics
    /// If the order is higher.
    pub fn take_from(&self, pageblock: PageblockIndex, zone: ZoneId, order: Order) -> Option<Pfn> {
        assert!(order < Order::PAGEBLOCK, "a search finds blocks of order {order}");
        let section = self.section(pageblock.section())?;
        if !self.tags.raw(pageblock).serves(zone) {
            return None;
        }
        let first = PageblockIndex((pageblock.section() * SECTION_PAGEBLOCKS) as u32).first();
        let mut found = None;
        section.take(pageblock.in_section(), order, None, 1, |one| {
            found = Some(first.add(one.lowest()))
        });
        found
    }
}
