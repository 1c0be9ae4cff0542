//! Watermarks: whether a zone may give pages, and what is done when it may not.
//!
//! Watermarks are checked where pages leave the store, against an estimate; near a watermark the
//! CPUs' shares of the count are summed.

use super::Allocator;
use super::drain::{Mode, Scope};
use super::error::AllocError;
#[cfg(all(loom, test))]
use super::flags::Flags;
use super::request::Request;
use crate::cpus::{Cpus, Here};
#[cfg(all(loom, test))]
use crate::frame::Order;
use crate::frame::{Pfn, ZoneId};
use crate::reclaim::{Left, Movement, Reclaim, Search, TooManyCallbacks};
use crate::sync::InFlight;
use crate::sync::prim::Ordering;
use crate::zone::counts::Counters;
use crate::zone::{Reserve, Watermarks};

impl<C: Cpus> Allocator<'_, C> {
    /// Whether the zone may give `pages` without going below what `reserve` protects.
    pub(super) fn zone_may_give(&self, zone: ZoneId, pages: u64, reserve: Reserve) -> bool {
        let zone_state = self.zone(zone);
        let marks = zone_state.watermarks();
        let floor = reserve.floor_pages(marks) as i64;
        let estimate = self.free_estimate(zone);
        if estimate > marks.high as i64 && zone_state.below_low.load(Ordering::Relaxed) {
            zone_state.below_low.store(false, Ordering::Relaxed);
        }
        let error = zone_state.estimate_error(self.blocks.cpus);
        // With no floor the bits decide; the counter is only a statistic.
        if floor == 0 || estimate - error >= floor + pages as i64 {
            return true;
        }
        self.free_pages(zone) as i64 >= floor + pages as i64
    }

    /// Free pages of a zone, but for what the CPUs have not yet reported.
    pub(super) fn free_estimate(&self, zone: ZoneId) -> i64 {
        match self.store.backed_free_pages(zone) {
            Some(pages) => pages as i64,
            None => self.zone(zone).free_estimate(),
        }
    }

    /// Free pages of a zone's store, the CPUs' deltas summed. O(CPUs).
    pub fn free_pages(&self, zone: ZoneId) -> u64 {
        if let Some(pages) = self.store.backed_free_pages(zone) {
            return pages;
        }
        let deltas: i64 =
            self.all_cpus().map(|cpu| self.pcp(cpu, zone).free_delta.load(Ordering::Acquire)).sum();
        (self.zone(zone).free_estimate() + deltas).max(0) as u64
    }

    pub(super) fn in_flight(&self, here: Option<Here>, zone: ZoneId) -> &InFlight {
        here.map_or(&self.zone(zone).in_flight, |here| &self.pcp(here.cpu, zone).in_flight)
    }

    /// Below `low` in every zone: tells the callbacks, then goes on down.
    pub(super) fn alloc_under_pressure(&self, request: Request) -> Result<Pfn, AllocError> {
        if request.flags.may_reclaim() {
            for zone in self.zones_of(request) {
                self.globals.last_resort.pass_low(&self.cpus, zone, self.zone(zone), || {
                    self.drain(Scope::zone(zone), Mode::Quiet);
                    self.free_pages(zone)
                });
            }
        }
        match self.attempt(request, request.reserve()) {
            Some(pfn) => Ok(pfn),
            None => self.last_resort(request),
        }
    }

    /// What can still be done, a few rounds of it, before the request fails and is counted.
    #[cold]
    pub(super) fn last_resort(&self, request: Request) -> Result<Pfn, AllocError> {
        let Some(first) = self.zones_of(request).next() else { return Err(AllocError::NoZone) };
        let search = OneRequest { allocator: self, request };
        self.globals.last_resort.find(&self.cpus, &search).ok_or_else(|| {
            self.count_failure(first);
            AllocError::Exhausted
        })
    }

    /// What is on its way, over all CPUs and the zones of a request.
    pub(super) fn movement(&self, request: Request) -> Movement {
        let zones = self.zones_of(request).flat_map(|zone| self.all_in_flight(zone));
        zones.fold(Movement::default(), |sum, (in_flight, counters)| {
            let word = in_flight.read();
            Movement {
                in_flight_pages: sum.in_flight_pages + InFlight::in_flight_pages(word),
                moves: sum
                    .moves
                    .wrapping_add(word >> 32)
                    .wrapping_add(counters.blocks_back.moves()),
            }
        })
    }

    /// What is on its way on every CPU, and for callers on none, with the counters beside it.
    fn all_in_flight(&self, zone: ZoneId) -> impl Iterator<Item = (&InFlight, &Counters)> {
        let cpus = self.all_cpus().map(move |cpu| {
            let pcp = self.pcp(cpu, zone);
            (&pcp.in_flight, &*pcp.counters)
        });
        cpus.chain([(&self.zone(zone).in_flight, &self.zone(zone).counters)])
    }

    /// Pages in flight of a zone.
    pub(super) fn in_flight_pages(&self, zone: ZoneId) -> u64 {
        self.all_in_flight(zone)
            .map(|(in_flight, _)| InFlight::in_flight_pages(in_flight.read()))
            .sum()
    }

    /// Changes a zone's watermarks. `false` for a zone that does not exist, or marks that do not
    /// ascend.
    pub fn set_watermarks(&self, zone: ZoneId, marks: Watermarks) -> bool {
        if zone.index() >= self.zones.len() || !marks.ascend() {
            return false;
        }
        self.zone(zone).set_watermarks(marks);
        true
    }
}

/// One request's way through the last resort.
struct OneRequest<'a, 'm, C> {
    allocator: &'a Allocator<'m, C>,
    request: Request,
}

impl<C: Cpus> Search for OneRequest<'_, '_, C> {
    fn pages(&self) -> u64 {
        self.request.pages()
    }

    fn may_reclaim(&self) -> bool {
        self.request.flags.may_reclaim()
    }

    fn zones(&self) -> impl Iterator<Item = ZoneId> {
        self.allocator.zones_of(self.request)
    }

    fn managed_pages(&self, zone: ZoneId) -> u64 {
        self.allocator.zone(zone).managed()
    }

    fn drain_shelves(&self, zone: ZoneId) {
        self.allocator.drain(Scope::zone(zone), Mode::Quiet);
    }

    fn drain_fronts(&self, zone: ZoneId) -> Left {
        let mut left = Left::default();
        self.allocator.drain_each(Scope::zone(zone), Mode::Full, |_, drained| {
            left.is_busy |= drained.busy_cpus > 0;
            left.is_gate_held |= drained.busy_cpus > 0 && drained.fences == 0;
        });
        left
    }

    fn scan(&self, own_moves: &mut u64) -> Option<Pfn> {
        self.allocator.scan(self.request, self.request.reserve(), own_moves)
    }

    fn regain(&self) -> Option<Pfn> {
        self.allocator.regain(self.request)
    }

    fn movement(&self) -> Movement {
        self.allocator.movement(self.request)
    }
}

impl<'m, C: Cpus> Allocator<'m, C> {
    /// Registers a callback for memory pressure, for the allocator's life.
    ///
    /// # Errors
    /// At most 8 can be registered.
    pub fn register_reclaim(&self, callback: &'m dyn Reclaim) -> Result<(), TooManyCallbacks> {
        self.globals.last_resort.register(callback)
    }
}

#[cfg(all(loom, test))]
impl<C: Cpus> Allocator<'_, C> {
    /// The last resort alone: with an atomic request one search per round, and none before.
    pub(crate) fn last_resort_for_block(
        &self,
        order: Order,
        flags: Flags,
    ) -> Result<Pfn, AllocError> {
        self.last_resort(Request {
            want: super::request::Want::Block(order),
            flags,
            node: self.node_here(),
        })
    }
}
