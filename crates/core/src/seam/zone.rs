//! A zone as crates above the core see it: what its pageblocks are like, and its counts; the frames
//! and blocks that they take from its store, past the caches, and give back; and the pageblocks
//! that one caller has isolated.
//!
//! A pageblock is *isolated* while its tag says that a caller is adding, removing or emptying it
//! (see [`Tag`]). Searches pass it by, and frees of its frames go to the store. The
//! compare-and-swap of the tag elects one caller, which alone ends the isolation.

use crate::alloc::Allocator;
use crate::alloc::flags::Flags;
use crate::alloc::pressure::PendingRequest;
use crate::alloc::zero_and_check::{Hooks, are_carved};
use crate::cpus::{Cpus, Environment, Unusable};
use crate::frame::pageblock::{PAGEBLOCK_FRAMES, PageblockIndex, SECTION_PAGEBLOCKS, Tag};
use crate::frame::{CpuId, FrameRange, Kind, Mobility, Order, Pfn, ZoneId};
use crate::pcp::{Caches, DrainResult, Mode, PastCaches, Scope};
use crate::store::bitmap::Bitmap;
use crate::store::section::Section;
use crate::store::{DoubleFree, SearchRequest, SearchRules, Store};
use crate::sync::model::{Mutant, is_mutant};
use crate::sync::prim::Ordering;
use crate::sync::{Caller, InFlight, InFlightGuard};
use crate::zone::Zone;
use crate::zone::counts::Compactions;
use core::mem::ManuallyDrop;
use core::ops::Range;

/// One zone of an allocator, for work on its pageblocks. A borrow: it can be made at any time.
pub struct ZoneAccess<'a, 'm, C> {
    pub(super) hooks: Hooks<'a, 'm, C>,
    pub(super) id: ZoneId,
}

crate::sync::copied!(ZoneAccess<'_, '_, _>);

/// The reason why a zone cannot be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoAccess {
    /// This process is a fork of the one that made the allocator.
    Forked,
    /// No zone has this number.
    NoSuchZone,
}

impl From<Unusable> for NoAccess {
    fn from(Unusable::Forked: Unusable) -> Self {
        NoAccess::Forked
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
        allocator.caches.cpus.environment().check_usable()?;
        Self::to_look_at(allocator, id).ok_or(NoAccess::NoSuchZone)
    }

    /// A zone of an allocator, for looks alone: a fork of the process that made it may have them.
    /// `None`: no zone has this number.
    pub fn to_look_at(allocator: &'a Allocator<'m, C>, id: ZoneId) -> Option<Self> {
        let hooks = allocator.hooks();
        (id.index() < hooks.caches.zones.all().len()).then_some(ZoneAccess { hooks, id })
    }

    fn caches(&self) -> &'a Caches<'m, C> {
        self.hooks.caches
    }

    fn zone(&self) -> &'a Zone {
        self.caches().zones.get(self.id)
    }

    fn bitmap(&self) -> Option<&'a Bitmap<'m>> {
        self.caches().store.bitmap()
    }

    fn section(&self, pageblock: PageblockIndex) -> Option<&'a Section<'m>> {
        self.bitmap()?.section(pageblock.section())
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

    /// Announces pages of the zone that are out of reach until the guard is dropped.
    pub fn announce(&self, pages: u64) -> InFlightGuard<'a> {
        self.zone().in_flight.begin(pages, self.caches().caller())
    }

    /// Hides pages of the zone until the guard is dropped: what is free in pageblocks that
    /// compaction isolates, and as much as it moves elsewhere.
    pub fn hide(&self, pages: u64) -> InFlightGuard<'a> {
        self.zone().hidden.begin(pages, Caller::NONE)
    }

    /// Whether the zone has as many free pages as are [hidden](Self::hide), as its `low` watermark,
    /// and these. O(CPUs).
    pub fn has_spare(&self, pages: u64) -> bool {
        let hidden_pages = InFlight::in_flight_pages(self.zone().hidden.read());
        self.caches().free_pages(self.id) >= hidden_pages + self.zone().watermarks().low + pages
    }

    /// Takes back what CPUs cache of the zone.
    pub fn drain(&self, mode: Mode) -> DrainResult {
        self.caches().drain(Scope::zone(self.id), mode)
    }

    /// Makes the reporting device be asked again for pageblocks that it has refused.
    pub fn forget_refusals(&self) {
        self.caches().store.bitmap.forget_refusals();
    }

    /// Adds a compaction to the zone's counts.
    pub fn count_compaction(&self, done: &Compactions) {
        self.zone().compactions.add(*done);
    }

    /// Ends a call that may have given frames back: reports misuse that was found.
    pub fn end_call(&self) {
        self.caches().store.end_call(|| ());
    }

    /// The state of a pageblock.
    pub fn state(&self, pageblock: PageblockIndex) -> PageblockState {
        PageblockState::of(self.caches().store.tags.raw(pageblock))
    }

    /// The requests that a pageblock of this zone serves, and whether these are those whose class
    /// is [kept apart](crate::Classes). `None`: it is isolated, or none of this zone.
    pub fn served(&self, pageblock: PageblockIndex) -> Option<(Mobility, bool)> {
        let tag = self.caches().store.tags.raw(pageblock);
        let kind = tag.serves(self.id).then(|| tag.of_the_rest().kind())?;
        Some((kind.mobility(), kind == Kind::APART))
    }

    /// Whether a pageblock evacuates: frees of its frames go to the store, and allocations take
    /// from others first.
    pub fn is_evacuating(&self, pageblock: PageblockIndex) -> bool {
        self.caches().store.tags.raw(pageblock).is_avoided()
    }

    /// The use of a pageblock. `None`: it is none of this zone that could be emptied,
    /// because it has no memory, is isolated, or has carved frames. Reads the hints alone where
    /// they say that nothing is free.
    pub fn usage(&self, pageblock: PageblockIndex) -> Option<PageblockUse> {
        let bitmap = self.bitmap()?;
        let tag = bitmap.tags.raw(pageblock);
        if !tag.serves(self.id) || tag.is_carved() {
            return None;
        }
        let held = PAGEBLOCK_FRAMES - bitmap.count_hinted(pageblock)?;
        Some(PageblockUse { pageblock, mobility: tag.kind().mobility(), held })
    }

    /// Free frames of a pageblock now, isolated or not. 0 over a backing.
    pub fn count_free(&self, pageblock: PageblockIndex) -> u32 {
        self.section(pageblock).map_or(0, |section| section.count_free(pageblock.in_section()))
    }

    /// Whether a pageblock may have a free block of an order, as far as hints say.
    pub fn may_have(&self, pageblock: PageblockIndex, order: Order) -> bool {
        let at = pageblock.in_section();
        self.section(pageblock)
            .is_some_and(|section| section.lacks.may_have(at / 64, order) >> (at % 64) & 1 == 1)
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
        self.bitmap()?.next_of(pageblocks, |section, at| section.mixed(at))
    }

    /// The last of these pageblocks that is whole, and not reported.
    pub fn last_whole(&self, pageblocks: Range<u32>) -> Option<PageblockIndex> {
        self.bitmap()?.last_whole(pageblocks)
    }

    /// Whether all these frames are memory of this zone.
    pub fn has(&self, range: FrameRange) -> bool {
        self.caches().store.tags.zone_of_range(range.start, range.frames) == Some(self.id)
    }

    /// Whether a frame is free in the store now.
    pub fn is_free(&self, pfn: Pfn) -> bool {
        self.caches().store.is_free(pfn)
    }

    /// Whether none of these frames is free now. `false` over a backing.
    pub fn are_held(&self, range: FrameRange) -> bool {
        self.bitmap().is_some_and(|bitmap| bitmap.are_all(range.start, range.frames, false))
    }

    /// Whether any of these frames, which are memory, holds the allocator's own magazines.
    pub fn are_carved(&self, range: FrameRange) -> bool {
        are_carved(self.caches(), range.start, range.frames)
    }

    /// The CPU that caches a frame, as far as can be seen from here. O(pages cached).
    pub fn caching_cpu(&self, pfn: Pfn) -> Option<CpuId> {
        let pcps = &self.caches().pcps;
        pcps.all_cpus().find(|&cpu| {
            pcps.cached(cpu, self.id).any(|(part, _)| {
                let (_, order, _) = part.unpack();
                let at = |block: Pfn| pfn.get().wrapping_sub(block.get());
                pcps.frames_of(part).any(|block| at(block) < order.frames())
            })
        })
    }
}

impl<'a, 'm, C: Cpus> ZoneAccess<'a, 'm, C> {
    pub(super) fn past_caches(&self) -> PastCaches<'a, 'm> {
        self.caches().direct(self.caches().here(), self.id)
    }

    /// Takes all frames of a range from the store, or none. O(frames / 64).
    pub fn claim(&self, range: FrameRange) -> bool {
        let is_ours = self.caches().store.claim(self.id, range.start, range.frames);
        if is_ours {
            self.past_caches().add_free(-i64::from(range.frames));
        }
        is_ours
    }

    /// Gives frames back that were [claimed](Self::claim).
    fn put(&self, range: FrameRange) {
        if range.frames > 0 {
            let doubled = self.caches().store.put(range.start, range.frames);
            self.past_caches().count_put(range.frames, doubled);
        }
    }

    /// Makes a range of whole pageblocks, which was [claimed](Self::claim) and whose isolation has
    /// ended, the range that a request gets: as many frames as it is for are counted as allocated,
    /// the others go back. The caller has announced them all since before it claimed them.
    pub fn hand_out(&self, claimed: FrameRange, request: &PendingRequest<'_, '_, C>) -> Pfn {
        let (tag, frames) =
            (Tag::new(self.id, request.request.flags.kind()), request.pages() as u32);
        self.caches().store.note_run(tag, claimed.start, claimed.frames);
        self.put(FrameRange::new(claimed.start.add(frames), claimed.frames - frames));
        self.past_caches().count_allocs(0, u64::from(frames));
        claimed.start
    }

    /// Allocates a movable block wherever a search of the zone finds one, past the watermarks;
    /// `is_unmixed`: in movable pageblocks alone.
    pub fn take(&self, order: Order, is_unmixed: bool) -> Option<Pfn> {
        let any = SearchRules::any(Kind::MOVABLE);
        let rules = if is_unmixed { any.unmixed() } else { any };
        let found = self
            .past_caches()
            .search(order, rules, |wanted| self.caches().store.take_block(wanted, order))?;
        self.count_taken(found, order);
        Some(found)
    }

    /// Allocates a movable block, smaller than a pageblock, from a pageblock of the zone, past the
    /// watermarks; `None` also where that is isolated.
    ///
    /// # Panics
    /// If the order is higher.
    pub fn take_from(&self, pageblock: PageblockIndex, order: Order) -> Option<Pfn> {
        let found = self.bitmap()?.take_from(pageblock, self.id, order)?;
        self.count_taken(found, order);
        Some(found)
    }

    fn count_taken(&self, pfn: Pfn, order: Order) {
        self.past_caches().count_taken(order);
        self.hooks.note_alloc(pfn, order);
    }

    /// Frees a block past the caches. One that has been freed already, as far as can be told, is
    /// left alone, and noted as misuse.
    pub fn free(&self, pfn: Pfn, order: Order) {
        let caches = self.caches();
        let range = FrameRange::new(pfn, order.frames());
        let is_ours = self.are_held(range) && self.hooks.note_free(pfn, order).is_ok();
        match caches.store.tags.of_block(pfn, order) {
            Some(tag) if is_ours => {
                caches.direct(caches.here(), tag.zone()).put(pfn, order);
            }
            _ => caches.store.note_doubled(DoubleFree { first: Some(pfn), frames: order.frames() }),
        }
    }

    /// Makes the next search of this CPU for single frames of this mobility begin at a pageblock.
    pub fn lead_to(&self, pageblock: PageblockIndex, mobility: Mobility) {
        let lead = |wanted: &SearchRequest<'_>| wanted.hint.store(pageblock.0, Ordering::Relaxed);
        self.past_caches().search(Order::BASE, SearchRules::any(Kind::of(mobility)), lead);
    }

    /// Takes all frames of a pageblock that is whole, and not reported. `false`: it is not, or is
    /// isolated or carved.
    pub fn take_whole(&self, pageblock: PageblockIndex) -> bool {
        let Some(section) = self.section(pageblock) else { return false };
        let tag = self.caches().store.tags.raw(pageblock);
        let is_ours = tag.serves(self.id)
            && !tag.is_carved()
            && section.claim(pageblock.in_section() as u32 * PAGEBLOCK_FRAMES, PAGEBLOCK_FRAMES);
        if is_ours {
            self.past_caches().add_free(-i64::from(PAGEBLOCK_FRAMES));
        }
        is_ours
    }

    /// Gives all frames of a pageblock back that were [taken](Self::take_whole): as reported to the
    /// device, or as free as they were.
    pub fn put_whole(&self, pageblock: PageblockIndex, is_reported: bool) {
        let Some(bitmap) = self.bitmap() else { return };
        let doubled = match bitmap.section(pageblock.section()) {
            Some(section) if is_reported => bitmap.put_reported(section, pageblock),
            _ => bitmap.put(pageblock.first(), PAGEBLOCK_FRAMES),
        };
        self.past_caches().count_put(PAGEBLOCK_FRAMES, doubled);
    }
}

/// Pageblocks that this value's owner has isolated; they are as before when it is dropped.
pub struct Isolation<'a, 'm> {
    store: &'a Store<'m>,
    zone: ZoneId,
    pageblocks: Range<u32>,
}

impl PageblockState {
    fn of(tag: Tag) -> Self {
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
        let note_removed = |pageblock| self.caches().store.note_removed(pageblock, self.id);
        pageblocks.map(PageblockIndex).for_each(note_removed);
        self.zone().remove_managed(pages);
    }

    /// Makes an isolated pageblock serve requests with such flags once the isolation ends.
    pub fn reassign(&self, pageblock: PageblockIndex, flags: Flags) {
        self.caches().store.retag_isolated(pageblock, self.hooks.options.classes.of(flags).kind());
    }

    /// Notes that an isolated pageblock has no blocks any more that mix it.
    pub fn note_unmixed(&self, pageblock: PageblockIndex) {
        if let Some(section) = self.section(pageblock) {
            section.note_unmixed(pageblock.in_section());
        }
    }

    /// Notes that movable blocks lie in a pageblock, of which the caller holds a frame.
    pub fn note_guests(&self, pageblock: PageblockIndex) {
        if let (Some(bitmap), Some(section)) = (self.bitmap(), self.section(pageblock)) {
            bitmap.note_mixed(section, pageblock, Kind::MOVABLE);
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
            if pageblock.0 as usize >= store.tags.len() {
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
        self.store.tags.raw(pageblock).of_isolated().map(|tag| tag.kind().mobility())
    }
}

impl Drop for Isolation<'_, '_> {
    fn drop(&mut self) {
        let pageblocks = self.pageblocks.clone().map(PageblockIndex);
        pageblocks.for_each(|pageblock| self.store.tags.end_isolation(pageblock));
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
    use crate::sync::prim::Ordering;

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
            let unmovable = || {
                let section = allocator.caches.store.bitmap.section(0).unwrap();
                section.unmovable.load(Ordering::Relaxed)
            };
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
            // Whole pageblocks are left at 5 and at 200 alone. Of those beside them, and beside the
            // edge of a word, a frame is taken, of others all: single frames would take Miri long.
            let ends = [0, 5, 6, 63, 64, 65, 199, 200, 201, 511, 512];
            for run in ends.windows(2).filter(|run| ![5, 200].contains(&run[0])) {
                let first = crate::seam::PageblockIndex(run[0]).first();
                let pageblocks = run[1] - run[0];
                let frames = if pageblocks == 1 { 1 } else { pageblocks * PAGEBLOCK_FRAMES };
                allocator.alloc_at(first, frames, Flags::default()).unwrap();
            }
            assert_eq!((last(0..512), last(0..200), last(0..201)), (Some(200), Some(5), Some(200)));
            assert_eq!((last(6..200), last(5..6), last(0..5)), (None, Some(5), None));
        });
    }
}
