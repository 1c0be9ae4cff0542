//! Blocks between callers and the store, past the caches: what such a move is announced and counted
//! by, whether its caller runs on a CPU with caches or not.

use super::pcps::Pcps;
use super::state::Pcp;
use crate::frame::{CpuId, Order, Pfn, ZoneId};
use crate::store::{DoubleFree, SearchRequest, SearchRules, Store};
use crate::sync::prim::AtomicU32;
use crate::sync::{Caller, InFlight, InFlightGuard, count};
use crate::zone::Zone;
use crate::zone::counts::Counters;

/// The store of a zone, and what a caller's moves are accounted to: its CPU's share of the zone, or
/// the zone itself for callers on no CPU of ours.
#[derive(Clone, Copy)]
pub struct PastCaches<'a, 'm> {
    pub store: &'a Store<'m>,
    pub zone: &'m Zone,
    pub zone_id: ZoneId,
    pub pcps: &'a Pcps<'m>,
    pub cpu: Option<CpuId>,
    pub pcp: Option<&'a Pcp>,
    pub caller: Caller,
}

impl<'a, 'm: 'a> PastCaches<'a, 'm> {
    /// Announces a move of up to `pages` pages.
    pub fn begin(&self, pages: u64) -> InFlightGuard<'a> {
        let in_flight: &InFlight = self.pcp.map_or(&self.zone.in_flight, |pcp| &pcp.in_flight);
        in_flight.begin(pages, self.caller)
    }

    pub fn counters(&self) -> &'a Counters {
        self.pcp.map_or(&self.zone.counters, |pcp| &pcp.counters)
    }

    /// Records `pages` more (or fewer) free pages.
    pub fn add_free(&self, pages: i64) {
        match (self.pcp, self.cpu) {
            (Some(pcp), Some(cpu)) => {
                let group = || self.pcps.group_delta(cpu, self.zone_id);
                pcp.add_free(self.zone, pages, self.caller, group);
            }
            _ => self.zone.add_free(pages),
        }
    }

    pub fn count_allocs(&self, blocks: u64, pages: u64) {
        count(&self.counters().direct_allocs, blocks);
        count(&self.counters().direct_alloc_pages, pages);
    }

    pub fn count_frees(&self, blocks: u64, pages: u64) {
        count(&self.counters().direct_frees, blocks);
        count(&self.counters().direct_free_pages, pages);
    }

    /// Calls `search` with this CPU's hint for blocks of an order, or without one.
    pub fn search<R>(
        self,
        order: Order,
        rules: SearchRules,
        search: impl FnOnce(&SearchRequest<'_>) -> R,
    ) -> R {
        let (zone, span) = (self.zone_id, self.zone.span());
        match self.pcp {
            Some(pcp) => search(&pcp.wanted(zone, span, order, rules)),
            None => search(&SearchRequest { zone, rules, span, hint: &AtomicU32::new(0) }),
        }
    }

    /// Takes a block from the store, whatever the watermarks say. If there is none, this ends one
    /// move on this CPU.
    pub fn take(&self, order: Order, rules: SearchRules) -> Option<Pfn> {
        let pages = u64::from(order.frames());
        let pfn = self.search(order, rules, |wanted| {
            self.store.take_at_once(wanted, order).or_else(|| {
                // A claim of several words holds some of them before it has all, a change of
                // mobility a whole pageblock; and a hint is cleared a moment before it is known to
                // be right.
                let _moving = self.begin(pages);
                self.store.take_block(wanted, order)
            })
        })?;
        self.count_taken(order);
        Some(pfn)
    }

    /// Counts a block that went from the store to a caller.
    #[inline]
    pub fn count_taken(&self, order: Order) {
        self.add_free(-i64::from(order.frames()));
        self.counters().blocks_out.count_out(order);
    }

    /// Puts a block into the store. Returns how many of its frames were free there, which is noted.
    pub fn put(&self, pfn: Pfn, order: Order) -> u32 {
        // With a reserve, a block that is in the bits and not in the count yet may be taken and
        // subtracted: the count is then too low for requests that may not use the last pages.
        let is_seen_late = self.zone.watermarks().min > 0;
        let is_announced = is_seen_late || !self.store.puts_at_once(order);
        let moving = is_announced.then(|| self.begin(u64::from(order.frames())));
        let doubled = self.store.put_block(pfn, order);
        self.count_put(order.frames(), doubled);
        // Not before they are counted as free: until then a watermark may hide them.
        self.counters().blocks_back.count_back(order);
        drop(moving);
        doubled.frames
    }

    /// Counts pages that were put into the store as free, and notes those that were free before.
    #[inline]
    pub fn count_put(&self, pages: u32, doubled: DoubleFree) {
        self.add_free(i64::from(pages) - i64::from(doubled.frames));
        self.store.note_doubled(doubled);
    }

    /// Takes up to `out.len()` blocks into `out`, in no order of address. Returns how many.
    pub fn take_many(&self, order: Order, rules: SearchRules, out: &mut [Pfn]) -> usize {
        let pages = u64::from(order.frames()) * out.len() as u64;
        let _moving = self.begin(pages);
        let mut got = 0;
        self.search(order, rules, |wanted| {
            self.store.take_blocks(wanted, order, out.len() as u32, |found| {
                got += found.write_to(&mut out[got..]);
            })
        });
        let taken = got as i64 * i64::from(order.frames());
        self.add_free(-taken);
        self.count_allocs(got as u64, taken as u64);
        got
    }

    /// Puts blocks of one order into the store.
    pub fn put_many(&self, order: Order, blocks: &[Pfn]) {
        let pages = order.frames() * blocks.len() as u32;
        let moving = self.begin(pages.into());
        self.count_put(pages, self.store.put_blocks(order, blocks.iter().copied()));
        drop(moving);
        self.count_frees(blocks.len() as u64, pages.into());
    }
}
