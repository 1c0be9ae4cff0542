//! What the pageblocks of a zone are like.

use super::allocator::Allocator;
use crate::cpus::Cpus;
use crate::frame::ZoneId;
use crate::frame::pageblock::{PAGEBLOCK_FRAMES, PageblockIndex, SECTION_PAGEBLOCKS};

/// The pageblocks of a zone (512 frames each), counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PageblockStats {
    /// With memory of the zone.
    pub all: u64,
    /// All of whose frames are free in the store.
    pub whole: u64,
    /// Some of whose frames are.
    pub partial: u64,
    /// Of those that are not whole: frees of their frames go to the store, and allocations take
    /// from the others first.
    pub evacuating: u64,
    /// From which unmovable blocks were taken though they are of another mobility, since they were
    /// last whole (as in linux-mm's superpageblocks). Pageblocks that hold the allocator's own
    /// magazines count as unmovable.
    pub tainted: u64,
    /// Of those that are whole: reported to the device that provides the memory.
    pub reported: u64,
    /// Sections of 2^18 frames (1 GiB of 4 KiB pages) that are wholly free.
    pub whole_sections: u64,
}

#[cfg(all(test, any(loom, shuttle)))]
impl<C: Cpus> Allocator<'_, C> {
    /// Moves the hand of this CPU, as a refill does.
    pub(crate) fn step_hand(&self, zone: ZoneId) {
        let here = self.caches.here().expect("models run on CPUs with caches");
        self.caches.share(here.cpu, zone).step_hand(here);
    }
}

impl<C: Cpus> Allocator<'_, C> {
    /// Counts a zone's pageblocks; `None` when there is no such zone. Beside other callers each
    /// count is as of some moment. Over a backing only `all` is known.
    ///
    /// O(frames of the zone / 64).
    pub fn pageblock_stats(&self, zone: ZoneId) -> Option<PageblockStats> {
        let span = self.caches.zones.all().get(zone.index())?.span();
        let mut stats = PageblockStats::default();
        for number in span.0 as usize..span.1 as usize {
            let whole_before = stats.whole;
            for at in 0..SECTION_PAGEBLOCKS {
                let pageblock = PageblockIndex((number * SECTION_PAGEBLOCKS + at) as u32);
                let tag = self.caches.store.tags().raw(pageblock);
                if !tag.is_present() || tag.zone() != zone {
                    continue;
                }
                stats.all += 1;
                let section = self.caches.store.bitmap().and_then(|bitmap| bitmap.section(number));
                let Some(section) = section else { continue };
                let free = section.count_free(at);
                let is_whole = free == PAGEBLOCK_FRAMES;
                stats.whole += u64::from(is_whole);
                stats.reported += u64::from(section.is_reported(at));
                stats.partial += u64::from(free > 0 && !is_whole);
                stats.evacuating += u64::from(tag.is_evacuating() && !is_whole);
                stats.tainted += u64::from(section.is_tainted(at));
            }
            let is_whole = stats.whole - whole_before == SECTION_PAGEBLOCKS as u64;
            stats.whole_sections += u64::from(is_whole);
        }
        Some(stats)
    }
}
