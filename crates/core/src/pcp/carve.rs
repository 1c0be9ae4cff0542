//! Carving: frames of the zones become magazines of the allocator's own.
//!
//! A carved frame keeps its pageblock from being whole for good. So all of them come from as few
//! pageblocks as can be: one that has carved frames already, one that is unmovable, a whole one,
//! and at last the emptiest of the others. When magazines run short, memory is often nearly full,
//! and that one has few free frames. So a zone of 1 GiB or more has its first frame carved early:
//! at the first refill by a CPU that may cache more than its part of the magazines in the caller's
//! memory holds. Whole pageblocks are within reach then, and searches leave the other frames of
//! the one that is taken to later carving.
#![allow(unsafe_code, reason = "makes magazines of a page")]

use super::caches::CpuZone;
use super::shelf::spread;
use crate::cpus::Cpus;
use crate::frame::PageSize;
use crate::frame::pageblock::SECTION_FRAMES;
use crate::front::{Magazine, MagazineIndex};
use crate::sync::count;
use crate::sync::model::IS_LOOM;
use crate::zone::Reserve;

/// The carver of a CPU in a zone.
pub struct Carver<'s, 'a, 'm, C>(pub &'s CpuZone<'a, 'm, C>);

impl<C: Cpus> Carver<'_, '_, '_, C> {
    /// Carves the first frame of a large zone while there are whole pageblocks.
    #[inline]
    pub fn carve_early(&self) {
        let pcps = &self.0.caches.pcps;
        if self.0.pcp.high.pages() > pcps.magazines.pages_per_cpu && !IS_LOOM {
            self.carve_first();
        }
    }

    #[cold]
    fn carve_first(&self) {
        let is_large = self.0.zone.managed() >= u64::from(SECTION_FRAMES);
        if is_large
            && self.0.caches.pcps.state.carved.begin(self.0.zone_id)
            && let Some(magazine) = self.carve()
        {
            self.0.push_empties(magazine.into());
        }
    }

    /// Takes one frame within reach of a magazine index, cuts it into magazines, keeps the first
    /// and puts the others among the CPU's empties.
    ///
    /// Not below the zone's `low` watermark: the frame stays the allocator's, and a cache is no
    /// reason to come nearer to what is kept back from requests.
    #[cold]
    pub fn carve(&self) -> Option<MagazineIndex> {
        if IS_LOOM {
            return None;
        }
        let (map, page_size) = self.0.caches.pcps.magazines.linear_map?;
        let carved = &self.0.caches.pcps.state.carved;
        let frames = carved.frames();
        if frames.is_empty() || !self.0.may_give(1, Reserve::AboveLow) {
            return None;
        }
        let _moving = self.0.caches.begin(self.0.pcp, 1);
        let pfn = self.0.store().take_among(self.0.zone_id, &frames)?;
        // Pageblocks reach further than indices.
        if frames.contains(&pfn.get()) {
            // Both before there is a magazine to protect.
            carved.note(pfn);
            if self.0.store().note_carved(pfn, self.0.zone_id) {
                self.0.add_free(-1);
                count(&self.0.zone.carved, 1);
                return Some(self.cut(map.address(pfn, page_size), page_size));
            }
            // A caller is removing this memory.
            carved.forget(pfn);
        }
        let doubled = self.0.store().put(pfn, 1);
        self.0.add_free(-i64::from(doubled.frames));
        self.0.store().note_doubled(doubled);
        None
    }

    /// Makes magazines of the page at `address` and keeps the first.
    fn cut(&self, address: usize, page_size: PageSize) -> MagazineIndex {
        let magazines = page_size.bytes() / size_of::<Magazine>();
        let first = ((address - self.0.blocks().base().addr()) / size_of::<Magazine>()) as u32;
        let place = core::ptr::with_exposed_provenance_mut::<Magazine>(address);
        for i in 0..magazines {
            // SAFETY: the page is the allocator's for good, mapped at `address` and used by nothing
            // else (`LinearMap::new`), and page-aligned.
            unsafe { place.add(i).write(Magazine::new()) };
        }
        // All but the first; what `spread` names last goes to the bottom of the stack.
        for i in (1..magazines as u32).rev().map(|nth| spread(nth, magazines as u32)) {
            if let Some(magazine) = MagazineIndex::new(first + i) {
                self.0.push_empties(magazine.into());
            }
        }
        MagazineIndex::new(first).expect("a frame behind the gates has a positive index")
    }
}
