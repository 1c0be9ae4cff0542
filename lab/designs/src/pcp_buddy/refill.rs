//! Refills, in four phases under one hold of the zone lock.

use pagedepot::{Mobility, Order, Pfn};

use super::{Cell, PcpBuddy};
use pagedepot_designs::pcp::PcpContext;
use pagedepot_designs::prim::count;
use pagedepot_designs::report::Volume;
use pagedepot_designs::store::buddy::held::{BuddyGuard, BuddyStore};
use pagedepot_designs::zones::Mark;

/// A refill on its way: the number of pages asked for, and of those that came so far. `got` and
/// `wanted` are pages.
struct Refill<'a, S> {
    at: &'a PcpContext<'a, S>,
    cell: &'a Cell,
    order: Order,
    mobility: Mobility,
    wanted: u32,
    got: u32,
    moved: Volume,
}

impl<S: BuddyStore> PcpBuddy<S> {
    /// Takes a block from a CPU's lists, whose lock is held; refills them from the store unless the
    /// zone is at its watermark.
    #[inline]
    pub(super) fn take(
        &self,
        at: &PcpContext<'_, S>,
        cell: &Cell,
        order: Order,
        mobility: Mobility,
        mark: Mark,
    ) -> Option<Pfn> {
        cell.tuning.on_alloc();
        let frames = at.store.zones().frames();
        let found = cell.lists.take(frames, order, mobility);
        let slot = found.or_else(|| {
            self.refill(at, cell, order, mobility, mark);
            cell.lists.take(frames, order, mobility)
        })?;
        Some(frames.pfn(slot))
    }

    #[cold]
    fn refill(
        &self,
        at: &PcpContext<'_, S>,
        cell: &Cell,
        order: Order,
        mobility: Mobility,
        mark: Mark,
    ) {
        let zone = at.store.zones().zone(at.zone);
        if !zone.may_take(at.store.free_pages(at.zone), order, mark) {
            return;
        }
        let blocks = cell.tuning.refill_blocks(at.policy, zone, order, cell.lists.pages());
        let mut refill = Refill {
            at,
            cell,
            order,
            mobility,
            wanted: blocks * order.frames(),
            got: 0,
            moved: Volume::default(),
        };
        let held = at.store.buddy().hold(at.zone);
        self.recover_fragments(&held, &mut refill);
        self.claim_blocks(&held, &mut refill);
        refill.take_chunks(&held, self.blocks.order());
        refill.take_any(&held);
        drop(held);
        count(&at.counters.refills, 1);
        at.counters.refilled.add(refill.moved);
    }

    /// Phase 0: fragments of the CPU's own pageblocks that drains left in the store.
    fn recover_fragments(&self, held: &BuddyGuard<'_>, refill: &mut Refill<'_, S>) {
        let (zones, cpu) = (refill.at.store.zones(), refill.at.here.cpu);
        let wish = (refill.order, refill.mobility, refill.wanted);
        refill.got +=
            self.blocks.recover(held, zones, cpu, wish, |pfn, size| refill.push(pfn, size, true));
    }

    /// Phase 1: whole pageblocks, which are the CPU's from now on.
    fn claim_blocks(&self, held: &BuddyGuard<'_>, refill: &mut Refill<'_, S>) {
        let (at, cell, block) = (refill.at, refill.cell, self.blocks.order());
        let zone = at.store.zones().zone(at.zone);
        while refill.got < refill.wanted && refill.order <= block {
            let after = cell.lists.pages() + block.frames();
            let free = at.store.free_pages(at.zone);
            if !cell.tuning.has_room(at.policy, zone, after)
                || !zone.may_take(free, block, Mark::Low)
                || zone.is_below_high()
            {
                return;
            }
            let Some(pfn) = held.take_or_claim(block, refill.mobility) else { return };
            self.blocks.own(held, pfn, at.here.cpu);
            refill.push(pfn, block, true);
            refill.got += block.frames();
            cell.tuning.raise_high(at.policy, zone, block.frames());
        }
    }
}

impl<S: BuddyStore> Refill<'_, S> {
    fn push(&mut self, pfn: Pfn, size: Order, merges: bool) {
        let frames = self.at.store.zones().frames();
        self.cell.lists.push_cold(frames, frames.slot(pfn), (size, self.mobility), merges);
        self.moved.add(size);
    }

    /// Phase 2: blocks smaller than a pageblock, of the same mobility, the largest first.
    fn take_chunks(&mut self, held: &BuddyGuard<'_>, block: Order) {
        while self.got < self.wanted {
            // No larger than what is still wanted, but large enough.
            let most = (self.wanted - self.got).ilog2().max(self.order.get());
            let most = Order::new(most.min(block.get().saturating_sub(1)));
            let chunk = most.and_then(|most| held.take_chunk(self.order, most, self.mobility));
            let Some((pfn, size)) = chunk else { return };
            self.push(pfn, size, false);
            self.got += size.frames();
        }
    }

    /// Phase 3: as mainline, from other mobilities too.
    fn take_any(&mut self, held: &BuddyGuard<'_>) {
        let blocks = (self.wanted - self.got.min(self.wanted)).div_ceil(self.order.frames());
        let order = self.order;
        let taken = held.take(order, self.mobility, blocks, |pfn| self.push(pfn, order, false));
        self.got += taken * order.frames();
    }
}
