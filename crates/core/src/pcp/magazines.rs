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

use super::caches::CpuZone;
use super::carve::Carver;
use super::pcps::Pcps;
use super::shelf::{Chain, PoppedMagazines};
use crate::cpus::Cpus;
use crate::frame::{CpuId, Order};
use crate::front::MagazineIndex;
use crate::sync::model::{Mutant, is_mutant};
use crate::sync::prefetch_write;
use crate::sync::prim::Ordering;

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
