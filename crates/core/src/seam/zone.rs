//! A zone as crates above the core see it: what its pageblocks are like, and its counts.

use core::ops::{ControlFlow, Range};

use crate::alloc::Allocator;
use crate::alloc::hooks::{Hooks, are_carved};
use crate::alloc::validate::CachedBlocks;
use crate::cpus::{Cpus, Environment, Unusable};
use crate::frame::pageblock::{PAGEBLOCK_FRAMES, PageblockIndex, SECTION_PAGEBLOCKS};
use crate::frame::{CpuId, FrameRange, Mobility, Pfn, ZoneId};
use crate::pcp::{Caches, DrainResult, Mode, Scope};
use crate::store::bitmap::Bitmap;
use crate::sync::InFlightGuard;
use crate::zone::Zone;
use crate::zone::counts::Compactions;

/// One zone of an allocator, for work on its pageblocks. A borrow: it can be made at any time.
pub struct ZoneAccess<'a, 'm, C> {
    pub(super) hooks: Hooks<'a, 'm, C>,
    pub(super) id: ZoneId,
}

impl<C> Clone for ZoneAccess<'_, '_, C> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<C> Copy for ZoneAccess<'_, '_, C> {}

/// The reason why a zone cannot be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoAccess {
    /// This process is a fork of the one that made the allocator.
    Forked,
    /// No zone has this number.
    NoSuchZone,
}

impl From<Unusable> for NoAccess {
    fn from(why: Unusable) -> Self {
        match why {
            Unusable::Forked => NoAccess::Forked,
        }
    }
}

/// The state of a pageblock, as its tag has it at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageblockState {
    /// The allocator has no memory there, or no more.
    Absent,
    /// A caller is adding, removing or emptying the pageblock.
    Isolated,
    /// Some of its frames hold the allocator's own magazines, for good.
    Carved(ZoneId),
    /// It serves the requests of this zone.
    Serving(ZoneId),
}

/// The use of a pageblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageblockUse {
    /// The pageblock.
    pub pageblock: PageblockIndex,
    /// The requests that it serves.
    pub mobility: Mobility,
    /// Frames that are not free in the store: callers hold them, or CPUs cache them.
    pub held: u32,
}

impl PageblockUse {
    /// Whether all its frames are free in the store.
    pub fn is_whole(self) -> bool {
        self.held == 0
    }
}

impl<'a, 'm, C: Cpus> ZoneAccess<'a, 'm, C> {
    /// A zone of an allocator.
    ///
    /// # Errors
    /// [`NoAccess`].
    pub fn of(allocator: &'a Allocator<'m, C>, id: ZoneId) -> Result<Self, NoAccess> {
        Self::of_hooks(allocator.hooks(), id)
    }

    pub(crate) fn of_hooks(hooks: Hooks<'a, 'm, C>, id: ZoneId) -> Result<Self, NoAccess> {
        hooks.caches.cpus.environment().check_usable()?;
        match id.index() < hooks.caches.zones.all().len() {
            true => Ok(ZoneAccess { hooks, id }),
            false => Err(NoAccess::NoSuchZone),
        }
    }

    pub(super) fn caches(&self) -> &'a Caches<'m, C> {
        self.hooks.caches
    }

    fn zone(&self) -> &'a Zone {
        self.caches().zones.get(self.id)
    }

    pub(super) fn bitmap(&self) -> Option<&'a Bitmap<'m>> {
        self.caches().store.bitmap()
    }

    /// The number of the zone.
    pub fn id(&self) -> ZoneId {
        self.id
    }

    /// Whether the allocator's own store keeps the free frames. Over a
    /// [`Backing`](crate::Backing) no pageblock has a [usage](Self::usage).
    pub fn has_own_store(&self) -> bool {
        self.bitmap().is_some()
    }

    /// Whether given frames can be taken, see [`claim`](Self::claim): not over a
    /// [`Backing`](crate::Backing) without ranges.
    pub fn has_ranges(&self) -> bool {
        self.caches().store.has_ranges()
    }

    /// The pageblocks that the zone may have memory in.
    pub fn pageblocks(&self) -> Range<u32> {
        let (start, end) = self.zone().span();
        start * SECTION_PAGEBLOCKS as u32..end * SECTION_PAGEBLOCKS as u32
    }

    /// Pages of the zone.
    pub fn managed_pages(&self) -> u64 {
        self.zone().managed()
    }

    /// Free pages in the zone's store. O(CPUs).
    pub fn free_pages(&self) -> u64 {
        self.caches().free_pages(self.id)
    }

    /// The zone's `low` watermark, in pages.
    pub fn low_pages(&self) -> u64 {
        self.zone().watermarks().low
    }

    /// Announces pages of the zone that are out of reach until the guard is dropped.
    pub fn announce(&self, pages: u64) -> InFlightGuard<'a> {
        self.zone().in_flight.begin(pages, self.caches().caller())
    }

    /// Takes back what CPUs cache of the zone.
    pub fn drain(&self, mode: Mode) -> DrainResult {
        self.caches().drain(Scope::zone(self.id), mode)
    }

    /// Makes the reporting device be asked again for pageblocks that it has refused.
    pub fn forget_refusals(&self) {
        self.caches().store.forget_refusals();
    }

    /// Adds a compaction to the zone's counts.
    pub fn count_compaction(&self, done: &Compactions) {
        self.zone().compactions.count(done);
    }

    /// Ends a call that may have given frames back: reports misuse that was found.
    pub fn end_call(&self) {
        self.caches().store.end_call(|| ());
    }

    /// The state of a pageblock.
    pub fn state(&self, pageblock: PageblockIndex) -> PageblockState {
        PageblockState::of(self.caches().store.tags().raw(pageblock))
    }

    /// The use of a pageblock. `None`: it is none of this zone that could be emptied,
    /// because it has no memory, is isolated, or has carved frames. Reads the hints alone where
    /// they say that nothing is free.
    pub fn usage(&self, pageblock: PageblockIndex) -> Option<PageblockUse> {
        let bitmap = self.bitmap()?;
        let tag = bitmap.tags().raw(pageblock);
        if !tag.serves(self.id) || tag.is_carved() {
            return None;
        }
        let free = bitmap.count_hinted(pageblock)?;
        Some(PageblockUse { pageblock, mobility: tag.mobility(), held: PAGEBLOCK_FRAMES - free })
    }

    /// Free frames of a pageblock now, isolated or not. 0 over a backing.
    pub fn count_free(&self, pageblock: PageblockIndex) -> u32 {
        let section = self.bitmap().and_then(|bitmap| bitmap.section(pageblock.section()));
        section.map_or(0, |section| section.count_free(pageblock.in_section()))
    }

    /// Whether a pageblock is reported to the device now.
    pub fn is_reported(&self, pageblock: PageblockIndex) -> bool {
        self.bitmap().is_some_and(|bitmap| bitmap.is_reported(pageblock))
    }

    /// Whether the device has of late refused to give a pageblock back.
    pub fn is_refused(&self, pageblock: PageblockIndex) -> bool {
        self.bitmap().is_some_and(|bitmap| bitmap.is_refused(pageblock))
    }

    /// The first of these pageblocks that is mixed: blocks of another mobility than its own lie
    /// there.
    pub fn next_mixed(&self, pageblocks: Range<u32>) -> Option<PageblockIndex> {
        self.bitmap()?.next_mixed(pageblocks)
    }

    /// The last of these pageblocks that is whole, and not reported.
    pub fn last_whole(&self, pageblocks: Range<u32>) -> Option<PageblockIndex> {
        self.bitmap()?.last_whole(pageblocks)
    }

    /// Whether all these frames are memory of this zone.
    pub fn has(&self, range: FrameRange) -> bool {
        self.caches().store.tags().zone_of_range(range.start, range.frames) == Some(self.id)
    }

    /// Whether a frame is free in the store now.
    pub fn is_free(&self, pfn: Pfn) -> bool {
        self.caches().store.is_free(pfn)
    }

    /// Whether none of these frames is free now. `false` over a backing.
    pub fn are_held(&self, range: FrameRange) -> bool {
        self.bitmap().is_some_and(|bitmap| bitmap.are_held(range.start, range.frames))
    }

    /// Whether any of these frames, which are memory, holds the allocator's own magazines.
    pub fn are_carved(&self, range: FrameRange) -> bool {
        are_carved(self.caches(), range.start, range.frames)
    }

    /// The CPU that caches a frame, as far as can be seen from here. O(pages cached).
    pub fn caching_cpu(&self, pfn: Pfn) -> Option<CpuId> {
        let cached = CachedBlocks(&self.caches().pcps);
        self.caches().pcps.all_cpus().find(|&cpu| {
            let walk = cached.visit(cpu, self.id, |visited| {
                let size = visited.order.frames();
                let has_it = |block: Pfn| (0..size).contains(&pfn.get().wrapping_sub(block.get()));
                match cached.frames_of(visited.magazine, visited.rounds).any(has_it) {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                }
            });
            walk.is_break()
        })
    }
}
