//! The pageblocks of a zone, one by one and counted: how many are whole, and what keeps the others
//! from it.

use core::fmt;
use core::ops::Range;

use pagedepot::cpus::Cpus;
use pagedepot::seam::{
    PAGEBLOCK_FRAMES, PageblockIndex, PageblockState, SECTION_FRAMES, ZoneAccess,
};
use pagedepot::{Allocator, FrameRange, Mobility, Pfn, ZoneId};

/// A pageblock (512 frames) with memory, as it was at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PageblockInfo {
    /// First frame of the pageblock.
    pub first: Pfn,
    /// The requests it serves; `None` while a caller adds, removes or empties it.
    pub mobility: Option<Mobility>,
    /// It serves movable requests whose class is [kept apart](pagedepot::Classes).
    pub is_apart: bool,
    /// Frames that are free in the store, of 512. `None` over a backing, which does not tell.
    pub free_frames: Option<u32>,
    /// Frees of its frames go to the store, and allocations take from others first.
    pub is_evacuating: bool,
    /// Unmovable or reclaimable blocks were taken from it though it is movable, since it was last
    /// whole.
    pub is_tainted: bool,
    /// Reported as free to the device that provides the memory.
    pub is_reported: bool,
    /// Some of its frames hold the allocator's own magazines.
    pub is_carved: bool,
}

impl PageblockInfo {
    /// Whether all its frames are free in the store.
    pub fn is_whole(&self) -> bool {
        self.free_frames == Some(PAGEBLOCK_FRAMES)
    }
}

/// The pageblocks of a zone (512 frames each), counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PageblockStats {
    /// Number of pageblocks with memory of the zone.
    pub all: u64,
    /// All of whose frames are free in the store.
    pub whole: u64,
    /// Some of whose frames are.
    pub partial: u64,
    /// Number of those not whole that evacuate: frees of their frames go to the store, and
    /// allocations take from the others first.
    pub evacuating: u64,
    /// Number of movable pageblocks from which unmovable or reclaimable blocks were taken since
    /// they were last whole (as in linux-mm's superpageblocks). Pageblocks that hold the
    /// allocator's own magazines count as unmovable.
    pub tainted: u64,
    /// Number of the whole ones that are reported to the device that provides the memory.
    pub reported: u64,
    /// Sections of 2^18 frames (1 GiB of 4 KiB pages) that are wholly free.
    pub whole_sections: u64,
}

/// A zone's pageblocks with memory, ascending. Beside other callers each is as of the moment that
/// the iterator gets there.
///
/// ```
/// # use pagedepot::cpus::{CpuLock, Environment, LockedCpus, WhichCpu};
/// # use pagedepot::{Allocator, Config, CpuId, FrameRange, NodeId, Pfn, ZoneConfig};
/// use pagedepot::ZoneId;
/// use pagedepot_contiguity::Pageblocks;
/// # struct First;
/// # impl Environment for First {}
/// # impl WhichCpu for First { fn cpu(&self) -> Option<CpuId> { Some(CpuId::new(0)) } }
/// # let ranges = [FrameRange::new(Pfn::new(0), 1 << 15)];
/// # let zones = [ZoneConfig {
/// #     name: "Normal", node: NodeId::new(0), level: 2, ranges: &ranges, watermarks: None,
/// # }];
/// # let config = Config::new(1, &zones);
/// # let locks = [CpuLock::new()];
/// # let bytes = Allocator::<LockedCpus<'_, First>>::metadata_bytes(&config)?;
/// # let mut metadata = vec![std::mem::MaybeUninit::uninit(); bytes];
/// # let allocator = Allocator::new(&config, &mut metadata, LockedCpus::new(&locks, First))?;
/// let mut pageblocks = Pageblocks::of(&allocator, ZoneId::new(0)).expect("there is a zone");
/// assert!(pageblocks.all(|pageblock| pageblock.is_whole()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Pageblocks<'a, 'm, C> {
    zone: ZoneAccess<'a, 'm, C>,
    left: Range<u32>,
}

impl<'a, 'm, C: Cpus> Pageblocks<'a, 'm, C> {
    /// The pageblocks of a zone; `None` when there is no such zone. O(frames of the zone / 64) for
    /// all.
    pub fn of(allocator: &'a Allocator<'m, C>, zone: ZoneId) -> Option<Self> {
        let zone = ZoneAccess::to_look_at(allocator, zone)?;
        Some(Pageblocks { zone, left: zone.pageblocks() })
    }

    /// The pageblock that a frame lies in, and its zone; `None`: there is no memory. O(zones).
    pub fn at(allocator: &'a Allocator<'m, C>, pfn: Pfn) -> Option<(ZoneId, PageblockInfo)> {
        let mut zones = allocator.zone_ids().filter_map(|id| Self::of(allocator, id));
        zones.find_map(|all| Some((all.zone.id(), all.look_at(PageblockIndex::of(pfn))?)))
    }

    /// A pageblock, if it has memory of the zone.
    fn look_at(&self, pageblock: PageblockIndex) -> Option<PageblockInfo> {
        let (zone, first) = (self.zone, pageblock.first());
        if !zone.has(FrameRange::new(first, 1)) {
            return None;
        }
        let served = zone.served(pageblock);
        let mobility = served.map(|(mobility, _)| mobility);
        let is_mixed = zone.next_mixed(pageblock.0..pageblock.0 + 1).is_some();
        Some(PageblockInfo {
            first,
            mobility,
            is_apart: served.is_some_and(|(_, is_apart)| is_apart),
            free_frames: zone.has_own_store().then(|| zone.count_free(pageblock)),
            is_evacuating: zone.is_evacuating(pageblock),
            is_tainted: is_mixed && mobility == Some(Mobility::Movable),
            is_reported: zone.is_reported(pageblock),
            is_carved: matches!(zone.state(pageblock), PageblockState::Carved(_)),
        })
    }

    /// Counts the pageblocks that the iterator has not reached.
    pub(crate) fn stats(self) -> PageblockStats {
        let mut stats = PageblockStats::default();
        // Of the section that the walk is in: its number, and whole pageblocks so far.
        let mut section = (u32::MAX, 0);
        for pageblock in self {
            let number = pageblock.first.get() / SECTION_FRAMES;
            if section.0 != number {
                section = (number, 0);
            }
            let is_whole = pageblock.is_whole();
            stats.all += 1;
            stats.whole += u64::from(is_whole);
            stats.partial += u64::from(!is_whole && pageblock.free_frames > Some(0));
            stats.evacuating +=
                u64::from(pageblock.is_evacuating && !is_whole && pageblock.free_frames.is_some());
            stats.tainted += u64::from(pageblock.is_tainted);
            stats.reported += u64::from(pageblock.is_reported);
            section.1 += u32::from(is_whole);
            let is_last = section.1 == SECTION_FRAMES / PAGEBLOCK_FRAMES;
            stats.whole_sections += u64::from(is_whole && is_last);
        }
        stats
    }
}

impl<C: Cpus> Iterator for Pageblocks<'_, '_, C> {
    type Item = PageblockInfo;

    fn next(&mut self) -> Option<PageblockInfo> {
        loop {
            let pageblock = PageblockIndex(self.left.next()?);
            if let Some(info) = self.look_at(pageblock) {
                return Some(info);
            }
        }
    }
}

impl<C: Cpus> fmt::Debug for Pageblocks<'_, '_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pageblocks").field("zone", &self.zone.id()).finish_non_exhaustive()
    }
}
