//! Pageblocks that one caller has isolated.
//!
//! A pageblock is *isolated* while its tag says that a caller is adding, removing or emptying it
//! (see [`Tag`](crate::frame::pageblock::Tag)). Searches pass it by, and frees of its frames go to
//! the store. The compare-and-swap of the tag elects one caller, which alone ends the isolation.

use core::mem::ManuallyDrop;
use core::ops::Range;

use super::zone::{PageblockState, ZoneAccess};
use crate::cpus::Cpus;
use crate::frame::pageblock::{PAGEBLOCK_FRAMES, PageblockIndex, Tag};
use crate::frame::{FrameRange, Mobility, ZoneId};
use crate::store::Store;
use crate::sync::model::{Mutant, is_mutant};

/// Pageblocks that this value's owner has isolated; they are as before when it is dropped.
pub struct Isolation<'a, 'm> {
    store: &'a Store<'m>,
    zone: ZoneId,
    pageblocks: Range<u32>,
}

impl PageblockState {
    pub(super) fn of(tag: Tag) -> Self {
        match tag {
            _ if !tag.is_present() => PageblockState::Absent,
            _ if tag.is_isolated() => PageblockState::Isolated,
            _ if tag.is_carved() => PageblockState::Carved(tag.zone()),
            _ => PageblockState::Serving(tag.zone()),
        }
    }
}

impl<'a, 'm, C: Cpus> ZoneAccess<'a, 'm, C> {
    /// Isolates the pageblocks of a range, all or none.
    ///
    /// # Errors
    /// The first that is not one of the zone with memory, carved, or isolated by another caller;
    /// and its state.
    pub fn isolate(
        &self,
        range: FrameRange,
    ) -> Result<Isolation<'a, 'm>, (PageblockIndex, PageblockState)> {
        Isolation::of(&self.caches().store, self.id, range.pageblocks())
    }

    /// Takes the memory of isolated pageblocks, all of whose frames the caller holds, from the
    /// zone. They are unknown to the allocator from now on, until they are added to it again.
    pub fn remove(&self, isolation: Isolation<'a, 'm>) {
        let isolation = ManuallyDrop::new(isolation);
        let pageblocks = isolation.pageblocks();
        let pages = pageblocks.len() as u64 * u64::from(PAGEBLOCK_FRAMES);
        pageblocks
            .map(PageblockIndex)
            .for_each(|pageblock| self.caches().store.note_removed(pageblock, self.id));
        self.caches().zones.get(self.id).remove_managed(pages);
    }

    /// Notes that an isolated pageblock has no blocks any more that mix it.
    pub fn note_unmixed(&self, pageblock: PageblockIndex) {
        if let Some(bitmap) = self.bitmap() {
            bitmap.note_unmixed(pageblock);
        }
    }
}

impl<'a, 'm> Isolation<'a, 'm> {
    fn of(
        store: &'a Store<'m>,
        zone: ZoneId,
        pageblocks: Range<u32>,
    ) -> Result<Self, (PageblockIndex, PageblockState)> {
        let first = pageblocks.start;
        let mut isolation = Isolation { store, zone, pageblocks: first..first };
        for pageblock in pageblocks.map(PageblockIndex) {
            if pageblock.0 as usize >= store.tags().len() {
                return Err((pageblock, PageblockState::Absent));
            }
            let isolated = store.isolate(pageblock, zone);
            isolated.map_err(|tag| (pageblock, PageblockState::of(tag)))?;
            isolation.pageblocks.end = pageblock.0 + 1;
        }
        Ok(isolation)
    }

    /// Isolates further pageblocks of the same zone, if it can have all of them.
    pub fn beside(&self, pageblocks: Range<u32>) -> Option<Self> {
        if is_mutant(Mutant::LeavesEdge) {
            return Some(Isolation { pageblocks, ..*self });
        }
        Self::of(self.store, self.zone, pageblocks).ok()
    }

    /// The pageblocks that are isolated.
    pub fn pageblocks(&self) -> Range<u32> {
        self.pageblocks.clone()
    }

    /// The requests that one of the pageblocks serves once the isolation ends.
    pub fn mobility(&self, pageblock: PageblockIndex) -> Option<Mobility> {
        self.store.tags().raw(pageblock).of_isolated().map(Tag::mobility)
    }

    /// Makes one of the pageblocks serve other requests once the isolation ends.
    pub fn set_mobility(&self, pageblock: PageblockIndex, mobility: Mobility) {
        self.store.retag_isolated(pageblock, mobility);
    }
}

impl Drop for Isolation<'_, '_> {
    fn drop(&mut self) {
        let pageblocks = self.pageblocks.clone().map(PageblockIndex);
        pageblocks.for_each(|pageblock| self.store.tags().end_isolation(pageblock));
    }
}
