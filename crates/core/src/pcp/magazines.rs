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
#![allow(unsafe_code, reason = "makes magazines of a page")]

use super::caches::CpuZone;
use super::pcps::Pcps;
use super::shelf::{Chain, spread};
use crate::cpus::Cpus;
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
            .empty_at_hand()
            .or_else(|| self.carve())
            .or_else(|| {
                let pcps = &self.caches.pcps;
                pcps.cpus_from(self.cpu).find_map(|other| pcps.steal(other))
            })
            .or_else(|| {
                self.spill_any_shelf(1);
                own.pop(self.blocks())
            })?;
        self.charge(i64::from(order.magazine_frames()));
        // A drainer had the next one last: by the time it is needed its lines will be here.
        let returned = &self.pcp.returned;
        if let Some(next) = own.peek(self.blocks()).or_else(|| returned.peek(self.blocks())) {
            prefetch_write(self.blocks().magazine(next));
        }
        Some(found)
    }

    /// Takes an empty magazine of this CPU's own, without carving a frame or taking one from
    /// another CPU. The caller charges this CPU with it.
    #[inline]
    pub fn empty_at_hand(&self) -> Option<MagazineIndex> {
        let own = &self.caches.pcps.shared(self.cpu).empties;
        own.pop(self.blocks())
            .or_else(|| self.pcp.returned.pop(self.blocks()))
            .or_else(|| self.caches.pcps.magazines().fresh())
    }

    /// Takes back a magazine that is empty now.
    pub fn release_magazine(&self, order: Order, magazine: MagazineIndex) {
        self.charge(-i64::from(order.magazine_frames()));
        self.push_empty(magazine);
    }

    /// Releases magazines like [`release_magazine`](Self::release_magazine): a chain that ends with
    /// `last`, by a drainer: beside the owner's own empties, whose lines stay where they are.
    pub fn release_chain(&self, order: Order, chain: Chain, last: MagazineIndex) {
        self.charge(-i64::from(chain.count * order.magazine_frames()));
        self.push_returned(chain, last);
    }

    /// Returns magazines like [`release_chain`](Self::release_chain), if they are charged to no
    /// CPU.
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

    /// Takes one frame within reach of a magazine index, cuts it into magazines, keeps the first
    /// and puts the others among the CPU's empties.
    ///
    /// Not below the zone's `low` watermark: the frame stays the allocator's, and a cache is no
    /// reason to come nearer to what is kept back from requests.
    #[cold]
    fn carve(&self) -> Option<MagazineIndex> {
        if IS_LOOM {
            return None;
        }
        let (map, page_size) = self.caches.pcps.magazines().linear_map?;
        let carved = self.caches.pcps.carved();
        let frames = carved.frames();
        if frames.is_empty() || !self.may_give(1, Reserve::AboveLow) {
            return None;
        }
        let _moving = self.caches.begin(self.pcp, 1);
        let pfn = self.store().take_among(self.zone_id, &frames)?;
        // Pageblocks reach further than indices: a frame beyond goes back.
        if !frames.contains(&pfn.get()) {
            self.store().note_doubled(self.store().put(pfn, 1));
            return None;
        }
        // Both before there is a magazine to protect.
        carved.note(pfn);
        if !self.store().note_carved(pfn, self.zone_id) {
            // A caller is removing this memory.
            carved.forget(pfn);
            self.store().note_doubled(self.store().put(pfn, 1));
            return None;
        }
        self.add_free(-1);
        count(&self.zone.carved, 1);
        Some(self.cut(map.address(pfn, page_size), page_size))
    }

    /// Makes magazines of the page at `address` and keeps the first.
    fn cut(&self, address: usize, page_size: PageSize) -> MagazineIndex {
        let magazines = page_size.bytes() / size_of::<Magazine>();
        let first = ((address - self.blocks().base().addr()) / size_of::<Magazine>()) as u32;
        let place = core::ptr::with_exposed_provenance_mut::<Magazine>(address);
        for i in 0..magazines {
            // SAFETY: the page is the allocator's for good, mapped at `address` and used by nothing
            // else (`LinearMap::new`), and page-aligned.
            unsafe { place.add(i).write(Magazine::new()) };
        }
        // All but the first; what `spread` names last goes to the bottom of the stack.
        for i in (1..magazines as u32).rev().map(|nth| spread(nth, magazines as u32)) {
            if let Some(magazine) = MagazineIndex::new(first + i) {
                self.push_empty(magazine);
            }
        }
        MagazineIndex::new(first).expect("a frame behind the gates has a positive index")
    }

    fn push_empty(&self, magazine: MagazineIndex) {
        let pushed = self.caches.pcps.shared(self.cpu).empties.push(self.blocks(), magazine);
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
