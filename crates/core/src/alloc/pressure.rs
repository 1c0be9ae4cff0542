//! Requests below a watermark: telling the callbacks, and the last resort.

use super::allocator::Allocator;
use super::error::AllocError;
#[cfg(all(loom, test))]
use super::flags::Flags;
use super::request::Request;
use crate::cpus::Cpus;
#[cfg(all(loom, test))]
use crate::frame::Order;
use crate::frame::{Pfn, ZoneId};
use crate::pcp::{Mode, Scope};
use crate::reclaim::{Left, Movement, Reclaim, Search, TooManyCallbacks};
use crate::sync::InFlight;

impl<C: Cpus> Allocator<'_, C> {
    /// Free pages of a zone's store, the CPUs' shares of the count included. O(CPUs).
    pub fn free_pages(&self, zone: ZoneId) -> u64 {
        self.caches().free_pages(zone)
    }

    /// Below `low` in every zone: tells the callbacks, then goes on down.
    pub(super) fn alloc_under_pressure(&self, request: Request) -> Result<Pfn, AllocError> {
        if request.flags.may_reclaim() {
            for zone in self.zones_of(request) {
                self.globals.last_resort.pass_low(
                    self.cpus.environment(),
                    zone,
                    self.zones.get(zone),
                    || {
                        self.drain(Scope::zone(zone), Mode::Quiet);
                        self.free_pages(zone)
                    },
                );
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
        self.globals.last_resort.find(self.cpus.environment(), &search).ok_or_else(|| {
            self.count_failure(first);
            AllocError::Exhausted
        })
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
        self.allocator.zones.get(zone).managed()
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
        let in_flight = self.zones().flat_map(|zone| self.allocator.caches().all_in_flight(zone));
        in_flight.fold(Movement::default(), |sum, (in_flight, counters)| {
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
