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

#[cfg(all(test, not(loom)))]
mod tests {
    use core::mem::MaybeUninit;

    use crate::alloc::Allocator;
    use crate::alloc::config::Config;
    use crate::alloc::flags::Flags;
    use crate::alloc::tests::{On, sections, zone};
    use crate::cpus::{CpuLock, LockedCpus};
    use crate::frame::pageblock::PAGEBLOCK_FRAMES;
    use crate::frame::{FrameRange, Mobility, Order, ZoneId};
    use crate::pcp::Mode;
    use crate::seam::ZoneAccess;

    /// Calls `test` with an allocator for one CPU over one section.
    fn with_allocator(test: impl FnOnce(&Allocator<'_, LockedCpus<'_, On>>)) {
        let ranges = [sections(0..1)];
        let zones = [zone(&ranges)];
        let config = Config::new(1, &zones);
        let locks = [CpuLock::new()];
        let mut metadata = vec![
            MaybeUninit::uninit();
            Allocator::<LockedCpus<'_, On>>::metadata_bytes(&config).unwrap()
        ];
        let cpus = LockedCpus::new(&locks, On(0));
        test(&Allocator::new(&config, &mut metadata, cpus).unwrap());
    }

    /// Checks, for every mobility, that a pageblock which is allocated, freed and removed counts as
    /// unmovable no more, and can be added again.
    #[test]
    fn a_removed_pageblock_counts_as_unmovable_no_more() {
        with_allocator(|allocator| {
            let zone = ZoneId::new(0);
            let unmovable = || allocator.caches.store.section(0).unwrap().unmovable();
            for mobility in Mobility::ALL {
                let block = allocator.alloc(Order::PAGEBLOCK, Flags::new(mobility)).unwrap();
                allocator.free(block, Order::PAGEBLOCK).unwrap();
                let left = unmovable() - u32::from(mobility != Mobility::Movable);
                let range = FrameRange::new(block, PAGEBLOCK_FRAMES);
                let access = ZoneAccess::of(allocator, zone).unwrap();
                let Ok(isolation) = access.isolate(range) else { panic!("memory of the zone") };
                access.drain(Mode::Full);
                assert!(access.claim(range), "all of it is free");
                access.remove(isolation);
                assert_eq!(unmovable(), left, "{mobility:?}, removed");
                allocator.add_memory(zone, range, &mut []).unwrap();
                assert_eq!(unmovable(), left, "{mobility:?}, added again");
            }
        });
    }

    /// Checks the looks at hints on both sides of the words and the section they lie in.
    #[test]
    fn the_last_whole_pageblock_is_found_across_words() {
        with_allocator(|allocator| {
            let zone = ZoneAccess::of(allocator, ZoneId::new(0)).unwrap();
            let last = |range| zone.last_whole(range).map(|pageblock| pageblock.0);
            assert_eq!(zone.pageblocks(), 0..512);
            assert_eq!(
                (last(0..512), last(0..64), last(3..65), last(7..7)),
                (Some(511), Some(63), Some(64), None)
            );
            // Whole pageblocks are left at 5 and at 200 alone.
            for pageblock in (0..512).filter(|pageblock| ![5, 200].contains(pageblock)) {
                let first = crate::seam::PageblockIndex(pageblock).first();
                allocator.alloc_at(first, 1, Flags::default()).unwrap();
            }
            assert_eq!((last(0..512), last(0..200), last(0..201)), (Some(200), Some(5), Some(200)));
            assert_eq!((last(6..200), last(5..6), last(0..5)), (None, Some(5), None));
        });
    }
}
