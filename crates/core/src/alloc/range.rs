//! Contiguous ranges, and memory at a given address.
//!
//! A range that is a block comes from the caches and goes there. All others bypass them. Cached
//! frames are in their way, so a request that finds no room takes the caches back before it fails,
//! as the last resort of [`reclaim`](crate::reclaim) has it.
//!
//! [`Residency`] tells which free memory is present, and takes ranges whose memory went back to
//! what provides it. The argument, and how searches use it, are in `store/hints.rs`.

use core::fmt;

use super::allocator::Allocator;
use super::error::{AllocError, FreeError};
use super::flags::Flags;
use super::pressure::SlowPath;
use super::walk::{Request, Want};
use super::zero_and_check::are_carved;
use crate::cpus::Cpus;
use crate::frame::pageblock::{PageblockIndex, SECTION_FRAMES, SECTION_PAGEBLOCKS, Tag};
use crate::frame::{Order, Pfn, ZoneId};
use crate::store::{DoubleFree, Store};
use crate::zone::Reserve;

/// Ranges of frames.
impl<'m, C: Cpus> SlowPath<'_, 'm, C> {
    /// Takes exactly these frames, and takes caches back for them if `is_patient`.
    fn alloc_range_at(
        &self,
        start: Pfn,
        frames: u32,
        flags: Flags,
        is_patient: bool,
    ) -> Result<(), AllocError> {
        let request = self.request_at(start, frames, flags)?;
        let found = self.caches.walk(request, request.reserve()).or_else(|| {
            self.caches.store.bitmap.forget_refusals();
            if is_patient { self.at_last(request).ok() } else { None }
        });
        self.hooks().end_call(frames, found.ok_or(AllocError::NotAvailable))?;
        Ok(self.hooks().on_alloc_range(start, frames, flags).map(drop)?)
    }

    /// A request for these frames, if there may be one.
    fn request_at(&self, start: Pfn, frames: u32, flags: Flags) -> Result<Request, AllocError> {
        if frames == 0 || frames > SECTION_FRAMES {
            return Err(AllocError::BadSize);
        }
        let caches = self.caches;
        self.check_usable()?;
        if !caches.store.has_ranges() {
            return Err(AllocError::Unsupported);
        }
        let tags = caches.store.tags;
        let zone = tags.zone_of_range(start, frames).ok_or(AllocError::NotAvailable)?;
        Ok(self.request(Want::At { zone, start, frames }, flags))
    }

    /// The zone of a range that may be freed, which is noted.
    fn check_free_range(&self, start: Pfn, frames: u32) -> Result<ZoneId, FreeError> {
        let caches = self.caches;
        self.check_usable()?;
        let zone = caches.store.tags.zone_of_range(start, frames).ok_or(FreeError::OutOfRange)?;
        if are_carved(caches, start, frames) {
            return Err(FreeError::NotAllocated);
        }
        self.hooks().note_range_free(start, frames)?;
        Ok(zone)
    }

    /// Returns so many frames to the store by `put`.
    fn put_range(
        &self,
        zone: ZoneId,
        frames: u32,
        put: impl FnOnce(&Store<'m>) -> DoubleFree,
    ) -> Result<(), FreeError> {
        let caches = self.caches;
        let direct = caches.direct(caches.here(), zone);
        let moving = direct.begin(u64::from(frames));
        let doubled = put(&caches.store);
        direct.count_put(frames, doubled);
        drop(moving);
        // Of two callers that free the same pageblock twice one may find the frames of both.
        direct.count_frees(0, frames.saturating_sub(doubled.frames).into());
        caches.store.end_call(|| ());
        if doubled.frames > 0 { Err(FreeError::NotAllocated) } else { Ok(()) }
    }
}

impl<C: Cpus> Allocator<'_, C> {
    /// Allocates `frames` contiguous frames (1 to 2^18, 1 GiB of 4 KiB pages), the first a
    /// multiple of `align` frames (a power of two, at most 2^18). Neither has to be a block's: of
    /// 5 frames exactly 5 are taken.
    ///
    /// The range is freed whole by [`free_contiguous`](Self::free_contiguous), in parts by the
    /// same, or as blocks of order 0.
    ///
    /// # Search
    /// A power of two up to 1024 frames with an alignment of at most as many is a block, and costs
    /// what [`alloc`](Self::alloc) costs. For other ranges the zones in turn, nearest
    /// first; in each the store alone, past the caches:
    /// 1. what is longer than the range but quick to find: below 512 frames (alignment included)
    ///    the smallest naturally aligned block that contains it, else whole aligned runs of 512
    ///    frames. What is too much goes back at once. O(zone's frames / 2^15) loads, and one per
    ///    512 frames looked at;
    /// 2. the lowest run of free frames of this length and alignment, wherever it begins and ends:
    ///    O(zone's frames / 64) loads, 1 to 2 ms per 64 GiB. It is claimed whole or not at all, and
    ///    where another caller was faster the search goes on behind it.
    ///
    /// Watermarks, reserves and flags are heeded as by [`alloc`](Self::alloc). A request that finds
    /// no run goes the same way down: a quiet drain of its zones, reclaim callbacks, a full drain,
    /// with a search after each, in up to four rounds until one was undisturbed. One that is atomic
    /// or may not reclaim does without callbacks and full drains, and empties its own CPU's fronts
    /// first. What a failing request costs is thus up to 18 searches of its zones, and up to 4 more
    /// each time that it waits for another caller; one for more frames than a zone has fails at
    /// once. Callbacks are told how many frames are wanted, but not where. With [`Flags::compact`]
    /// held blocks are then moved out of the way, if the embedder has registered a mover: a few
    /// candidates are emptied at most, and 4 blocks moved for each frame wanted, of 512 frames at
    /// least.
    ///
    /// Over a [`Backing`](crate::Backing) the second search is the backing's
    /// [`take_contiguous`](crate::BackingRanges::take_contiguous); without ranges there is none, so
    /// that only blocks are found.
    ///
    /// # Errors
    /// [`AllocError::BadSize`]; [`AllocError::BadAlignment`]; [`AllocError::Unsupported`] for more
    /// than 1024 frames, or such an alignment, over a [`Backing`](crate::Backing) without ranges;
    /// [`AllocError::NoZone`]; [`AllocError::Exhausted`], counted as a failure, if no zone that the
    /// request may use has such a run above its watermark, frames taken back included, or others
    /// moved frames in every round.
    pub fn alloc_contiguous(
        &self,
        frames: u32,
        align: u32,
        flags: Flags,
    ) -> Result<Pfn, AllocError> {
        if frames == 0 || frames > SECTION_FRAMES {
            return Err(AllocError::BadSize);
        }
        if !align.is_power_of_two() || align > SECTION_FRAMES {
            return Err(AllocError::BadAlignment);
        }
        let (slow, hooks) = (self.slow(), self.hooks());
        slow.check_usable()?;
        if let Some(order) = cached_block(frames).filter(|_| align <= frames) {
            let start = self.alloc(order, flags)?;
            hooks.note_block_as_range(start, frames);
            return Ok(start);
        }
        if !self.caches.store.has_ranges() && frames.max(align) > Order::MAX.frames() {
            return Err(AllocError::Unsupported);
        }
        let request = slow.request(Want::Run { frames, align }, flags);
        let found = self.caches.walk(request, Reserve::AboveLow);
        let found = found.map_or_else(|| slow.alloc_below_low(request), Ok);
        let start = hooks.end_call(frames, found)?;
        Ok(hooks.on_alloc_range(start, frames, flags)?)
    }

    /// Allocates exactly the `frames` frames from `start` (1 to 2^18, all of one zone): memory at
    /// a given address. Freed like a range of [`alloc_contiguous`](Self::alloc_contiguous).
    ///
    /// One claim, O(frames / 64); if frames are missing, the caches of that zone are drained
    /// quietly, callbacks called and the caches drained fully, in rounds and by flags as for
    /// [`alloc_contiguous`](Self::alloc_contiguous), with a claim after each; with
    /// [`Flags::compact`] held blocks are moved away at last. Watermarks and the
    /// flags' choice of zones do not apply: nothing else will do for this caller. While another
    /// caller removes or empties the pageblocks it only waits; it fails once they are removed.
    ///
    /// # Errors
    /// [`AllocError::NotAvailable`] when part of it is absent, in use, or cached where the request
    /// may not take it back; `pagedepot_contiguity` says which part, and why
    /// (`Contiguity::obstacle`). Counted as a
    /// failure if the aligned runs of 512 frames that it lies in have memory, all of one zone.
    /// [`AllocError::Unsupported`] over a [`Backing`](crate::Backing) without ranges;
    /// [`AllocError::BadSize`].
    pub fn alloc_at(&self, start: Pfn, frames: u32, flags: Flags) -> Result<(), AllocError> {
        self.slow().alloc_range_at(start, frames, flags, true)
    }

    /// Allocates a range like [`alloc_at`](Self::alloc_at), by one claim alone: frames that are
    /// cached or in use are left where they are, no callback is called, and a refusal counts as no
    /// failure. For callers that want what happens to be free, such as a scan that gives memory
    /// back. O(frames / 64).
    ///
    /// # Errors
    /// Fails like [`alloc_at`](Self::alloc_at), and where another caller takes frames of the same
    /// pageblocks at that moment.
    pub fn try_alloc_at(&self, start: Pfn, frames: u32, flags: Flags) -> Result<(), AllocError> {
        self.slow().alloc_range_at(start, frames, flags, false)
    }

    /// Frees `frames` frames from `start` that came from
    /// [`alloc_contiguous`](Self::alloc_contiguous), [`alloc_at`](Self::alloc_at) or
    /// [`add_memory_held`](Self::add_memory_held), or any part of such a range, or neighbouring
    /// ranges of one zone at once. A power of two up to 1024, aligned to itself, is a block and
    /// goes to the caches, as by [`free`](Self::free); others go to the store.
    ///
    /// # Errors
    /// [`FreeError`]; nothing is freed then, except when a double free is found on the way
    /// ([`FreeError::NotAllocated`] without `checked`): then the others are.
    pub fn free_contiguous(&self, start: Pfn, frames: u32) -> Result<(), FreeError> {
        let slow = self.slow();
        let zone = slow.check_free_range(start, frames)?;
        if let Some(order) = cached_block(frames).filter(|&order| start.is_aligned(order))
            && let Some(tag) = self.caches.store.tags.of_block(start, order)
        {
            return slow.free_checked(start, order, tag);
        }
        slow.put_range(zone, frames, |store| store.put(start, frames))
    }
}

/// The order of the block that so many frames are, if they are one.
fn cached_block(frames: u32) -> Option<Order> {
    let is_block = frames.is_power_of_two();
    Order::new(frames.trailing_zeros())?.cached().filter(|_| is_block)
}

/// Tells an allocator which of its memory is not present, so that it hands out what is present
/// first: pageblocks (512 frames each) that were in use before such as were never touched or were
/// given back. A program's footprint is then its peak, and memory that is used again costs no page
/// faults.
///
/// New memory counts as not present. An embedder whose memory is always present has nothing to do.
///
/// ```
/// # use pagedepot::cpus::{CpuLock, Environment, LockedCpus, WhichCpu};
/// # use pagedepot::{
/// #     Allocator, Config, CpuId, Flags, FrameRange, NodeId, Pfn, ZoneConfig,
/// # };
/// # struct First;
/// # impl Environment for First {}
/// # impl WhichCpu for First {
/// #     fn cpu(&self) -> Option<CpuId> { Some(CpuId::new(0)) }
/// # }
/// # let ranges = [FrameRange::new(Pfn::new(0), 1 << 15)];
/// # let zones = [ZoneConfig {
/// #     name: "Normal", node: NodeId::new(0), level: 2, ranges: &ranges, watermarks: None,
/// # }];
/// # let config = Config::new(1, &zones);
/// # let locks = [CpuLock::new()];
/// # type Depot<'m> = Allocator<'m, LockedCpus<'m, First>>;
/// # let mut metadata = vec![std::mem::MaybeUninit::uninit(); Depot::metadata_bytes(&config)?];
/// # let depot = Depot::new(&config, &mut metadata, LockedCpus::new(&locks, First))?;
/// use pagedepot::Residency;
///
/// let residency = Residency::of(&depot);
/// let used = depot.alloc_contiguous(1536, 512, Flags::default())?; // and written to
/// assert_eq!(residency.counts().first_touches, 3);
/// depot.free_contiguous(used, 1536)?;
///
/// // A scan takes free memory, gives it back to the system, and returns it.
/// depot.try_alloc_at(used, 512, Flags::default())?;
/// residency.free_absent(used, 512)?;
///
/// // What is still present is handed out first.
/// let again = depot.alloc_contiguous(512, 512, Flags::default())?;
/// assert_eq!(again, used.add(512));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Residency<'a, 'm, C>(&'a Allocator<'m, C>);

impl<C: Cpus> fmt::Debug for Residency<'_, '_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Residency").field(&self.counts()).finish()
    }
}

/// Counts of memory that was handed out and not present, in pageblocks (512 frames each).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ResidencyCounts {
    /// Pageblocks of which a frame was taken for the first time: by a request, to be removed, or
    /// for a report, also if the device refused it. The memory of the others was never handed out.
    pub first_touches: u64,
    /// Pageblocks of which a frame was handed out after their memory had been given back. A count
    /// that rises says that memory is given back which is needed again.
    pub refaults: u64,
}

impl<'a, 'm, C: Cpus> Residency<'a, 'm, C> {
    /// The residency of an allocator's memory. A borrow: it can be made whenever it is needed.
    pub fn of(allocator: &'a Allocator<'m, C>) -> Self {
        Residency(allocator)
    }

    /// Frees frames as [`Allocator::free_contiguous`] does, whose memory the caller has given back
    /// to what provides it. They go to the store, past the caches. Pageblocks that they fill are
    /// handed out after those whose memory is present.
    ///
    /// # Errors
    /// Fails like [`Allocator::free_contiguous`].
    pub fn free_absent(&self, start: Pfn, frames: u32) -> Result<(), FreeError> {
        let slow = self.0.slow();
        let zone = slow.check_free_range(start, frames)?;
        slow.put_range(zone, frames, |store| store.put_cold(start, frames))
    }

    /// Frees frames as [`Allocator::free_contiguous`] does, whose memory is present. They go to the
    /// store, past the caches, also where they are a block: so a scan that took them finds them
    /// again. Pageblocks that they fill are handed out before those that are
    /// [absent](Self::free_absent).
    ///
    /// # Errors
    /// Fails like [`Allocator::free_contiguous`].
    pub fn free_present(&self, start: Pfn, frames: u32) -> Result<(), FreeError> {
        let slow = self.0.slow();
        let zone = slow.check_free_range(start, frames)?;
        slow.put_range(zone, frames, |store| store.put(start, frames))
    }

    /// Counts what was handed out so far that was not present. Over a [`Backing`](crate::Backing)
    /// nothing is counted. O(sections).
    pub fn counts(&self) -> ResidencyCounts {
        self.sum(|_| true)
    }

    /// Counts as [`counts`](Self::counts) does, for one zone. A section (2^18 frames) that two
    /// zones share is counted for the first of them.
    pub fn counts_of(&self, zone: ZoneId) -> ResidencyCounts {
        let tags = self.0.caches.store.tags;
        self.sum(|number| {
            let pageblocks = number * SECTION_PAGEBLOCKS..(number + 1) * SECTION_PAGEBLOCKS;
            let mut tags = pageblocks.map(|pageblock| tags.raw(PageblockIndex(pageblock as u32)));
            tags.find(|&tag| tag != Tag::ABSENT).is_some_and(|tag| tag.zone() == zone)
        })
    }

    /// Sums up the counts of the sections whose number `is_meant`.
    fn sum(&self, is_meant: impl Fn(usize) -> bool) -> ResidencyCounts {
        let store = &self.0.caches.store;
        let Some(bitmap) = store.bitmap() else { return ResidencyCounts::default() };
        let numbers = (0..store.bitmap.sections_max()).filter(|&number| is_meant(number));
        let sections = numbers.filter_map(|number| bitmap.section(number));
        sections.fold(ResidencyCounts::default(), |sum, section| ResidencyCounts {
            first_touches: sum.first_touches + section.presence.first_touches(),
            refaults: sum.refaults + section.presence.refaults(),
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use core::mem::MaybeUninit;

    use crate::alloc::Allocator;
    use crate::alloc::config::Config;
    use crate::alloc::error::FreeError;
    use crate::alloc::flags::Flags;
    use crate::alloc::tests::{On, sections, zone};
    use crate::cpus::{CpuLock, LockedCpus};
    use crate::frame::{Order, Pfn, ZoneId};
    use crate::pcp::{Mode, Scope};

    type Depot<'m> = Allocator<'m, LockedCpus<'m, On>>;

    /// Calls `test` with an allocator and a pageblock that is free by its bit, and not by its
    /// words.
    fn with_entire(test: impl FnOnce(&mut Depot<'_>, Pfn)) {
        let ranges = [sections(0..1)];
        let zones = [zone(&ranges)];
        let config = Config { on_misuse: Some(|_| ()), ..Config::new(1, &zones) };
        let locks = [CpuLock::new()];
        let mut metadata = vec![MaybeUninit::uninit(); Depot::metadata_bytes(&config).unwrap()];
        let mut depot = Depot::new(&config, &mut metadata, LockedCpus::new(&locks, On(0))).unwrap();
        let pageblock = depot.alloc(Order::PAGEBLOCK, Flags::default()).unwrap();
        depot.free(pageblock, Order::PAGEBLOCK).unwrap();
        depot.drain(Scope::ALL, Mode::Full);
        test(&mut depot, pageblock);
        let census = depot.validate().unwrap();
        assert_eq!(census.free_pages, census.managed_pages);
    }

    #[test]
    fn a_double_free_leaves_an_entire_pageblock_as_it_was() {
        with_entire(|depot, pageblock| {
            let freed = depot.free_contiguous(pageblock.add(10), 3);
            assert_eq!(freed, Err(FreeError::NotAllocated));
        });
    }

    /// Frames that were taken in parts and come back as one are found when they are freed again.
    #[test]
    fn a_double_free_of_what_was_taken_in_parts_is_found() {
        with_entire(|depot, pageblock| {
            let half = Order::new(8).unwrap().frames();
            for start in [pageblock, pageblock.add(half)] {
                depot.alloc_at(start, half, Flags::default()).unwrap();
            }
            depot.free_contiguous(pageblock, 2 * half).unwrap();
            depot.drain(Scope::ALL, Mode::Full);
            let freed = depot.free_contiguous(pageblock.add(10), 3);
            assert_eq!(freed, Err(FreeError::NotAllocated));
        });
    }

    /// Frees frames for the second time while another caller, which frees frames of the same
    /// pageblock for the second time, too, has put its own into the words.
    #[test]
    fn of_two_double_frees_one_finds_the_frames_of_both() {
        with_entire(|depot, pageblock| {
            let section = depot.caches.store.bitmap.section(0).unwrap();
            assert_eq!(section.put_mask(pageblock.get() as usize / 64, 0x3ff << 20), 0);
            let freed = depot.free_contiguous(pageblock.add(10), 3);
            assert_eq!(freed, Err(FreeError::NotAllocated));
            // The other caller finds nothing, and has counted its frames as free.
            depot.caches.direct(depot.caches.here(), ZoneId::new(0)).add_free(10);
        });
    }
}
