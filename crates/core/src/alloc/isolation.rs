//! Pageblocks that one caller has isolated, and claims of all their frames.
//!
//! A pageblock is *isolated* while its tag says that a caller is adding, removing or emptying it
//! (see [`Tag`](crate::frame::pageblock::Tag)). [`remove`](super::remove) and
//! [`evacuate`](super::evacuate) have the arguments.

use core::ops::Range;

use crate::cpus::Cpus;
use crate::frame::pageblock::{PAGEBLOCK_FRAMES, PageblockIndex, SECTION_FRAMES, Tag};
use crate::frame::{FrameRange, Pfn, ZoneId};
use crate::pcp::Caches;
use crate::store::Store;
use crate::sync::model::{Mutant, is_mutant};

/// The pageblocks that a range touches.
pub(crate) fn pageblocks(range: FrameRange) -> Range<u32> {
    range.start.get() / PAGEBLOCK_FRAMES..range.end().div_ceil(u64::from(PAGEBLOCK_FRAMES)) as u32
}

/// Pageblocks that this value's owner has isolated; they are as before when it is dropped.
pub(crate) struct Isolation<'a, 'm> {
    store: &'a Store<'m>,
    zone: ZoneId,
    pageblocks: Range<u32>,
}

impl<'a, 'm> Isolation<'a, 'm> {
    /// Isolates the pageblocks of a range, all or none.
    ///
    /// # Errors
    /// The first that is not one of the zone with memory, carved, or isolated by another caller;
    /// its tag, which is absent beyond the limit.
    pub fn of(
        store: &'a Store<'m>,
        zone: ZoneId,
        range: FrameRange,
    ) -> Result<Self, (PageblockIndex, Tag)> {
        Self::of_pageblocks(store, zone, pageblocks(range))
    }

    fn of_pageblocks(
        store: &'a Store<'m>,
        zone: ZoneId,
        pageblocks: Range<u32>,
    ) -> Result<Self, (PageblockIndex, Tag)> {
        let first = pageblocks.start;
        let mut isolation = Isolation { store, zone, pageblocks: first..first };
        for pageblock in pageblocks.map(PageblockIndex) {
            if pageblock.0 as usize >= store.tags().len() {
                return Err((pageblock, Tag::ABSENT));
            }
            store.isolate(pageblock, zone).map_err(|tag| (pageblock, tag))?;
            isolation.pageblocks.end = pageblock.0 + 1;
        }
        Ok(isolation)
    }

    /// Isolates further pageblocks of the same zone, if it can have all of them.
    pub fn beside(&self, pageblocks: Range<u32>) -> Option<Self> {
        if is_mutant(Mutant::LeavesEdge) {
            return Some(Isolation { pageblocks, ..*self });
        }
        Self::of_pageblocks(self.store, self.zone, pageblocks).ok()
    }

    /// The pageblocks that are isolated.
    pub fn pageblocks(&self) -> Range<u32> {
        self.pageblocks.clone()
    }
}

impl Drop for Isolation<'_, '_> {
    fn drop(&mut self) {
        let pageblocks = self.pageblocks.clone().map(PageblockIndex);
        pageblocks.for_each(|pageblock| self.store.tags().end_isolation(pageblock));
    }
}

/// Claims of ranges that may span sections.
pub(crate) struct Claims<'a, 'm, C>(pub &'a Caches<'m, C>);

impl<C: Cpus> Claims<'_, '_, C> {
    /// Takes all frames of a range from the store, or none.
    pub fn claim(&self, zone: ZoneId, range: FrameRange) -> bool {
        let mut done = 0;
        while done < range.frames {
            let start = range.start.add(done);
            let to_next_section = SECTION_FRAMES - start.get() % SECTION_FRAMES;
            let frames = to_next_section.min(range.frames - done);
            if !self.0.store.claim(zone, start, frames) {
                let done = if is_mutant(Mutant::KeepsClaims) { 0 } else { done };
                self.put(zone, range.start, done);
                return false;
            }
            self.0.direct(self.0.here(), zone).add_free(-i64::from(frames));
            done += frames;
        }
        true
    }

    /// Gives `frames` frames from `start`, which were claimed, back.
    pub fn put(&self, zone: ZoneId, start: Pfn, frames: u32) {
        if frames > 0 {
            let doubled = self.0.store.put(start, frames);
            let freed = i64::from(frames) - i64::from(doubled.frames);
            self.0.direct(self.0.here(), zone).add_free(freed);
            self.0.store.note_doubled(doubled);
        }
    }
}
