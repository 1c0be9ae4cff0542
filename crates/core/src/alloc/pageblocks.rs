//! Statistics on the pageblocks of a zone.

use core::fmt;
use core::ops::Range;

use super::allocator::Allocator;
use crate::cpus::Cpus;
use crate::frame::pageblock::{PAGEBLOCK_FRAMES, PageblockIndex, SECTION_PAGEBLOCKS};
use crate::frame::{Mobility, Pfn, ZoneId};
use crate::store::Store;

/// A pageblock (512 frames) with memory, as it was at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PageblockInfo {
    /// First frame of the pageblock.
    pub first: Pfn,
    /// The requests it serves; `None` while a caller adds, removes or empties it.
    pub mobility: Option<Mobility>,
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

#[cfg(test)]
impl<C: Cpus> Allocator<'_, C> {
    /// Moves the hand of this CPU, as a refill does.
    pub(crate) fn step_hand(&self, zone: ZoneId) {
        let here = self.caches.here().expect("tests run on CPUs with caches");
        self.caches.share(here.cpu, zone).step_hand(here);
    }
}

/// A zone's pageblocks with memory, ascending. Beside other callers each is as of the moment that
/// the iterator gets there.
///
/// ```
/// # use pagedepot::cpus::{CpuLock, Environment, Locked, WhichCpu};
/// # use pagedepot::{Allocator, Config, CpuId, FrameRange, NodeId, Pfn, ZoneConfig};
/// use pagedepot::{Pageblocks, ZoneId};
/// # struct First;
/// # impl Environment for First {}
/// # impl WhichCpu for First { fn cpu(&self) -> Option<CpuId> { Some(CpuId::new(0)) } }
/// # let ranges = [FrameRange::new(Pfn::new(0), 1 << 15)];
/// # let zones = [ZoneConfig {
/// #     name: "Normal", node: NodeId::new(0), level: 2, ranges: &ranges, watermarks: None,
/// # }];
/// # let config = Config::new(1, &zones);
/// # let locks = [CpuLock::new()];
/// # let bytes = Allocator::<Locked<'_, First>>::metadata_bytes(&config)?;
/// # let mut metadata = vec![std::mem::MaybeUninit::uninit(); bytes];
/// # let allocator = Allocator::new(&config, &mut metadata, Locked::new(&locks, First))?;
/// let mut pageblocks = Pageblocks::of(&allocator, ZoneId::new(0)).expect("there is a zone");
/// assert!(pageblocks.all(|pageblock| pageblock.is_whole()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Pageblocks<'a, 'm> {
    store: &'a Store<'m>,
    zone: ZoneId,
    left: Range<u32>,
}

impl<'a, 'm> Pageblocks<'a, 'm> {
    /// The pageblocks of a zone; `None` when there is no such zone. O(frames of the zone / 64) for
    /// all.
    pub fn of<C: Cpus>(allocator: &'a Allocator<'m, C>, zone: ZoneId) -> Option<Self> {
        let span = allocator.caches.zones.all().get(zone.index())?.span();
        let pageblocks = SECTION_PAGEBLOCKS as u32;
        let left = span.0 * pageblocks..span.1 * pageblocks;
        Some(Pageblocks { store: &allocator.caches.store, zone, left })
    }

    /// A pageblock, if it has memory of the zone.
    fn look_at(&self, pageblock: PageblockIndex) -> Option<PageblockInfo> {
        let tag = self.store.tags().raw(pageblock);
        if !tag.is_present() || tag.zone() != self.zone {
            return None;
        }
        let mut info = PageblockInfo {
            first: pageblock.first(),
            mobility: (!tag.is_isolated()).then(|| tag.of_the_rest().mobility()),
            free_frames: None,
            is_evacuating: tag.is_evacuating(),
            is_tainted: false,
            is_reported: false,
            is_carved: tag.is_carved(),
        };
        let bitmap = self.store.bitmap();
        if let Some(section) = bitmap.and_then(|bitmap| bitmap.section(pageblock.section())) {
            let at = pageblock.in_section();
            info.free_frames = Some(section.count_free(at));
            let is_movable = info.mobility == Some(Mobility::Movable);
            info.is_tainted = is_movable && section.is_mixed(at);
            info.is_reported = section.is_reported(at);
        }
        Some(info)
    }
}

impl Iterator for Pageblocks<'_, '_> {
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

impl fmt::Debug for Pageblocks<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pageblocks").field("zone", &self.zone).finish_non_exhaustive()
    }
}

impl<C: Cpus> Allocator<'_, C> {
    /// Counts a zone's [pageblocks](Pageblocks); `None` when there is no such zone. Beside
    /// other callers each count is as of some moment. Over a backing only `all` is known.
    ///
    /// O(frames of the zone / 64).
    pub fn pageblock_stats(&self, zone: ZoneId) -> Option<PageblockStats> {
        let mut stats = PageblockStats::default();
        // Of the section that the walk is in: its number, and whole pageblocks so far.
        let mut section = (usize::MAX, 0);
        for pageblock in Pageblocks::of(self, zone)? {
            let number = PageblockIndex::of(pageblock.first).section();
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
            section.1 += usize::from(is_whole);
            stats.whole_sections += u64::from(is_whole && section.1 == SECTION_PAGEBLOCKS);
        }
        Some(stats)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use core::mem::MaybeUninit;

    use crate::alloc::allocator::Allocator;
    use crate::alloc::config::Config;
    use crate::alloc::one_cpu::{On, sections, zone};
    use crate::cpus::{CpuLock, Locked};
    use crate::frame::ZoneId;
    use crate::zone::State;

    /// The hand of CPU 1 begins in the middle of the zone. What it has seen when it comes to the
    /// end is not the zone: counted as all there is, it would send the hands of all CPUs over all
    /// memory without rests.
    #[test]
    fn a_turn_that_begins_in_the_middle_is_no_count_of_the_zone() {
        let ranges = [sections(0..4)];
        let zones = [zone(&ranges)];
        let config = Config::new(2, &zones);
        let locks = [CpuLock::new(), CpuLock::new()];
        let mut metadata = vec![
            MaybeUninit::uninit();
            Allocator::<Locked<'_, On>>::metadata_bytes(&config).unwrap()
        ];
        let allocator = Allocator::new(&config, &mut metadata, Locked::new(&locks, On(1))).unwrap();
        let only = ZoneId::new(0);
        let pages = u64::from(ranges[0].frames);
        let state = State { free: pages, managed: pages, ..State::default() };
        let zone = allocator.caches.zones.get(only);
        assert!(!zone.evacuating.is_outdated(state) && !zone.evacuating.wants_more(pages));
        // Two sections and their rests, and all four.
        for step in 0..64 {
            allocator.step_hand(only);
            assert!(!zone.evacuating.is_outdated(state), "after {step} steps");
            assert!(!zone.evacuating.wants_more(pages), "after {step} steps");
        }
    }
}
