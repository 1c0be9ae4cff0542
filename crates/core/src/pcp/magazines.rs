//! The sources of empty magazines, and their return.
//!
//! In this order: the CPU's own stack of empties (where memory that the caller added lies at
//! first), those that drains brought back, magazines of the caller's memory that were never
//! used, a frame carved from a zone that is above its `low` watermark (16 magazines with 4 KiB
//! pages; it stays the allocator's), the empties of other CPUs, and a shelved magazine of the
//! CPU's own, spilled: without it the orders that came first would keep all magazines. When all
//! fail, the caller does without.
//!
//! A magazine outside every stack of empties is charged to the CPU that took it, in full, until it
//! is back: `charged_pages` counts every magazine in fronts, shelves and hands.
//!
//! # Carving
//! Frames of the zones become magazines of the allocator's own.
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
use super::pcps::Pcps;
use super::shelf::{Chain, PoppedMagazines, spread};
use crate::cpus::Cpus;
use crate::frame::pageblock::SECTION_FRAMES;
use crate::frame::{CpuId, Order, PageSize};
use crate::front::{Magazine, MagazineIndex};
use crate::sync::model::{IS_LOOM, Mutant, is_mutant};
use crate::sync::prim::Ordering;
use crate::sync::{count, prefetch_write};
use crate::zone::Reserve;

impl<C: Cpus> CpuZone<'_, '_, C> {
    /// An empty magazine, charged to this CPU.
    pub fn acquire_magazine(&self, order: Order) -> Option<MagazineIndex> {
        let own = &self.caches.pcps.shared(self.cpu).empties;
        let found = self
            .empties_at_hand(1)
            .map(|empty| empty.first)
            .or_else(|| Carver(self).carve())
            .or_else(|| {
                let pcps = &self.caches.pcps;
                // From this CPU on: CPUs that look for something begin at different ones.
                let others = pcps.all_cpus().cycle().skip(self.cpu.index());
                others.take(pcps.cpus() as usize).find_map(|other| pcps.steal(other))
            })
            .or_else(|| {
                self.spill_any_shelf(1);
                own.pop(self.blocks())
            })?;
        self.charge(i64::from(order.magazine_frames()));
        Some(found)
    }

    /// Asks for the lines of the magazine that this CPU will fill next. A drainer had it last: by
    /// the time it is needed they will be here.
    pub fn prefetch_next_empty(&self) {
        let (own, returned) = (&self.caches.pcps.shared(self.cpu).empties, &self.pcp.returned);
        if let Some(next) = own.peek(self.blocks()).or_else(|| returned.peek(self.blocks())) {
            prefetch_write(self.blocks().magazine(next));
        }
    }

    /// Takes up to `most` empty magazines of this CPU's own, without carving a frame or taking one
    /// from another CPU. The caller charges this CPU with them.
    #[inline]
    pub fn empties_at_hand(&self, most: u32) -> Option<PoppedMagazines> {
        let own = &self.caches.pcps.shared(self.cpu).empties;
        own.pop_chain(self.blocks(), most)
            .or_else(|| self.pcp.returned.pop_chain(self.blocks(), most))
            .or_else(|| self.caches.pcps.magazines.fresh().map(Into::into))
    }

    /// Takes back magazines that are empty now.
    pub fn release(&self, order: Order, empties: PoppedMagazines) {
        self.charge(-i64::from(empties.count * order.magazine_frames()));
        self.push_empties(empties);
    }

    /// Returns a chain of empty magazines that ends with `last` and is charged to no CPU, for a
    /// drainer: beside the owner's own empties, whose lines stay where they are.
    pub fn push_returned(&self, chain: Chain, last: MagazineIndex) {
        let pushed = self.pcp.returned.push_chain(self.blocks(), chain.first, last, chain.count);
        debug_assert!(pushed.is_ok(), "a stack of empties has no limit");
    }

    /// Charges this CPU with magazines, in pages.
    pub fn charge(&self, pages: i64) {
        if is_mutant(Mutant::Uncharged) {
            return;
        }
        // Release: pairs with the Acquire of a drain that leaves out CPUs which are charged with
        // nothing, and then finds what was handed over. To policies it is a limit.
        self.pcp.charged_pages.fetch_add(pages, Ordering::Release);
    }

    /// Puts empty magazines that are charged to no CPU on this CPU's stack.
    pub fn push_empties(&self, PoppedMagazines { first, last, count }: PoppedMagazines) {
        let own = &self.caches.pcps.shared(self.cpu).empties;
        let pushed = own.push_chain(self.blocks(), first, last, count);
        debug_assert!(pushed.is_ok(), "a stack of empties has no limit");
    }
}

impl<'m> Pcps<'m> {
    /// Takes an empty magazine from another CPU.
    fn steal(&self, cpu: CpuId) -> Option<MagazineIndex> {
        let (blocks, own) = (self.blocks(), &self.shared(cpu).empties);
        let mut returned = self.all_zones().map(|zone| &self.pcp(cpu, zone).returned);
        if is_mutant(Mutant::LeavesStolen) {
            return own.peek(blocks).or_else(|| returned.find_map(|stack| stack.peek(blocks)));
        }
        own.pop(blocks).or_else(|| returned.find_map(|stack| stack.pop(blocks)))
    }
}

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
