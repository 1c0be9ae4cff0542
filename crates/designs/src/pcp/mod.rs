//! Per-CPU lists, and what moves between them and a store.
//!
//! Nothing here excludes other threads. Each design decides which code may touch a pcp, and the
//! designs differ in nothing else.

pub mod free_high;
pub mod policy;
#[cfg(all(test, not(loom)))]
mod tests;

use pagedepot::cpus::Here;
use pagedepot::{Mobility, Order, Pfn, ZoneId};

use crate::census::{Fault, agree};
use crate::counters::Counters;
use crate::frames::{Frames, List};
use crate::prim::PlainU32;
use crate::report::Volume;
use crate::seen::FrameSet;
use crate::store::Store;
use crate::zones::{Mark, Zones};
use policy::{Policy, Tuning};

/// Orders 0..=3 by mobility, then [`Order::PAGEBLOCK`] for others and for movable.
const LISTS: usize = 14;
const LOW_ORDERS: u32 = 4;

/// The number of a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListIndex(u8);

impl ListIndex {
    /// The list of blocks like this, if that order is cached (`order_to_pindex`).
    #[inline]
    pub fn of(order: Order, mobility: Mobility) -> Option<Self> {
        if order.get() < LOW_ORDERS {
            Some(ListIndex((order.get() * 3) as u8 + mobility as u8))
        } else if order == Order::PAGEBLOCK {
            Some(ListIndex(12 + u8::from(mobility == Mobility::Movable)))
        } else {
            None
        }
    }

    fn order(self) -> Order {
        let order = if self.0 < 12 { Order::new(u32::from(self.0) / 3) } else { None };
        order.unwrap_or(Order::PAGEBLOCK)
    }

    fn next(self) -> Self {
        ListIndex((self.0 + 1) % LISTS as u8)
    }

    /// The first list: where drains begin.
    pub const FIRST: ListIndex = ListIndex(0);
}

/// The lists of a CPU in a zone.
pub struct Lists {
    pages: PlainU32,
    lists: [List; LISTS],
}

impl Default for Lists {
    fn default() -> Self {
        Self::new()
    }
}

impl Lists {
    pub fn new() -> Self {
        Lists { pages: PlainU32::new(0), lists: std::array::from_fn(|_| List::new()) }
    }

    /// Pages in all lists at some moment; any thread may look.
    #[inline]
    pub fn pages(&self) -> u32 {
        self.pages.look()
    }

    #[inline]
    fn list(&self, index: ListIndex) -> &List {
        &self.lists[usize::from(index.0)]
    }

    /// Marks all frames.
    pub fn check(&self, zones: &Zones, zone: ZoneId, seen: &mut FrameSet) -> Result<u64, Fault> {
        let mut pages = 0;
        for index in (0..LISTS as u8).map(ListIndex) {
            let max = zones.zone(zone).managed_pages as usize + 1;
            for slot in self.list(index).iter(zones.frames(), max) {
                seen.mark(zones, zone, zones.frames().pfn(slot), index.order())?;
                pages += u64::from(index.order().frames());
            }
        }
        agree("pages of a pcp", u64::from(self.pages()), pages)?;
        Ok(pages)
    }

    /// The coldest blocks, `pages` pages of them: all of the list `first`, then the next list, and
    /// so on round (`free_pcppages_bulk`).
    fn coldest<'l>(&'l self, frames: &'l Frames, pages: u32, first: ListIndex) -> Coldest<'l> {
        Coldest { lists: self, frames, left: pages.min(self.pages.get()), at: first }
    }
}

struct Coldest<'l> {
    lists: &'l Lists,
    frames: &'l Frames,
    left: u32,
    at: ListIndex,
}

impl Iterator for Coldest<'_> {
    type Item = (Pfn, Order);

    #[inline]
    fn next(&mut self) -> Option<(Pfn, Order)> {
        if self.left == 0 {
            return None;
        }
        for _ in 0..LISTS {
            let order = self.at.order();
            if let Some(slot) = self.lists.list(self.at).pop_back(self.frames) {
                self.lists.pages.sub(order.frames());
                self.left = self.left.saturating_sub(order.frames());
                return Some((self.frames.pfn(slot), order));
            }
            self.at = self.at.next();
        }
        None
    }
}

/// The context of an operation on a pcp.
pub struct PcpContext<'a, S> {
    pub store: &'a S,
    pub policy: &'a Policy,
    pub counters: &'a Counters,
    pub here: Here,
    pub zone: ZoneId,
}

/// Lists and their limits, for a caller that may touch both.
#[derive(Clone, Copy)]
pub struct Pcp<'a> {
    pub lists: &'a Lists,
    pub tuning: &'a Tuning,
}

impl Pcp<'_> {
    /// Takes a block; refills an empty list from the store unless the zone is at its watermark.
    #[inline]
    pub fn take<S: Store>(
        self,
        at: &PcpContext<'_, S>,
        order: Order,
        mobility: Mobility,
        index: ListIndex,
        mark: Mark,
    ) -> Option<Pfn> {
        self.tuning.on_alloc();
        let frames = at.store.zones().frames();
        let list = self.lists.list(index);
        if list.is_empty() && !self.refill(at, order, mobility, index, mark) {
            return None;
        }
        let slot = list.pop_front(frames)?;
        self.lists.pages.sub(order.frames());
        Some(frames.pfn(slot))
    }

    #[cold]
    fn refill<S: Store>(
        self,
        at: &PcpContext<'_, S>,
        order: Order,
        mobility: Mobility,
        index: ListIndex,
        mark: Mark,
    ) -> bool {
        let zone = at.store.zones().zone(at.zone);
        if !zone.may_take(at.store.free_pages(at.zone), order, mark) {
            return false;
        }
        let wanted = self.tuning.refill_blocks(at.policy, zone, order, self.lists.pages.get());
        self.fill(at, order, mobility, index, wanted) > 0
    }

    /// Moves up to `blocks` blocks from the store to the cold end of a list.
    pub fn fill<S: Store>(
        self,
        at: &PcpContext<'_, S>,
        order: Order,
        mobility: Mobility,
        index: ListIndex,
        blocks: u32,
    ) -> u32 {
        let frames = at.store.zones().frames();
        let list = self.lists.list(index);
        let got = at.store.take(at.here, at.zone, order, mobility, blocks, |pfn| {
            list.push_back(frames, frames.slot(pfn));
            true
        });
        self.lists.pages.add(got * order.frames());
        let volume = Volume { blocks: u64::from(got), pages: u64::from(got * order.frames()) };
        crate::prim::count(&at.counters.refills, 1);
        at.counters.refilled.add(volume);
        got
    }

    /// Puts a block at the hot end; returns how many pages should be spilled.
    #[inline]
    pub fn put<S: Store>(
        self,
        at: &PcpContext<'_, S>,
        pfn: Pfn,
        order: Order,
        index: ListIndex,
    ) -> u32 {
        let zones = at.store.zones();
        self.lists.list(index).push_front(zones.frames(), zones.frames().slot(pfn));
        let held = self.lists.pages.get() + order.frames();
        self.lists.pages.set(held);
        self.tuning.on_free(at.policy, zones.zone(at.zone), order, held)
    }

    /// Spills one chunk of at most `pages` pages, the coldest first, by one hold of the zone lock.
    /// Returns the pages that are still to be spilled.
    pub fn spill_chunk<S: Store>(
        self,
        at: &PcpContext<'_, S>,
        pages: u32,
        first: ListIndex,
    ) -> u32 {
        let zone = at.store.zones().zone(at.zone);
        let chunk = pages.min(Tuning::chunk_pages(at.policy, zone));
        at.counters.spilled.add(self.return_pages(at, chunk, first));
        zone.note_freed(at.store.free_pages(at.zone));
        if self.lists.pages.get() == 0 { 0 } else { pages - chunk }
    }

    /// Spills `pages` pages in chunks, for a design that has no lock to drop in between.
    pub fn spill<S: Store>(self, at: &PcpContext<'_, S>, mut pages: u32, first: ListIndex) {
        while pages > 0 {
            pages = self.spill_chunk(at, pages, first);
        }
    }

    /// Drains one chunk; returns its pages, 0 when there are none left.
    pub fn drain_chunk<S: Store>(self, at: &PcpContext<'_, S>) -> u64 {
        if self.lists.pages.get() == 0 {
            return 0;
        }
        let chunk = Tuning::drain_chunk_pages(at.policy, at.store.zones().zone(at.zone));
        let volume = self.return_pages(at, chunk, ListIndex::FIRST);
        at.counters.drained.add(volume);
        volume.pages
    }

    /// Drains all; returns pages.
    pub fn drain<S: Store>(self, at: &PcpContext<'_, S>) -> u64 {
        std::iter::repeat_with(|| self.drain_chunk(at)).take_while(|&pages| pages > 0).sum()
    }

    fn return_pages<S: Store>(
        self,
        at: &PcpContext<'_, S>,
        pages: u32,
        first: ListIndex,
    ) -> Volume {
        let frames = at.store.zones().frames();
        at.store.give(at.here, at.zone, self.lists.coldest(frames, pages, first))
    }

    /// A CPU's work once a second. Returns pages to spill.
    pub fn tick<S: Store>(self, at: &PcpContext<'_, S>) -> u32 {
        let zones = at.store.zones();
        let (zone, held) = (zones.zone(at.zone), self.lists.pages.get());
        let excess = self.tuning.decay(at.policy, zone, held);
        let remote = zones.node_of(at.here.cpu) != zone.node;
        let idle = self.tuning.expire(zone, remote, held - excess, at.counters.activity());
        excess + idle
    }
}
