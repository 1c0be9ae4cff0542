//! The slow path of requests, and its way down below a watermark: telling the callbacks, and the
//! last resort.

use super::error::{AllocError, Refusal};
use super::flags::Flags;
use super::hooks::{Hooks, Options};
use super::relief::{PendingRequest, ReliefSlot};
use super::walk::{Request, Want};
use crate::cpus::{Cpus, Environment, Event, Unusable};
use crate::frame::{Pfn, ZoneId};
use crate::pcp::{Caches, Mode, Scope};
use crate::reclaim::{DrainRest, LastResort, Movement, NothingFound, Search};
use crate::sync::model::bound;
use crate::sync::prim::spin_hint;
use crate::sync::{InFlight, count};

/// Looks of a request for what owners hand over, and spins in between: a few microseconds in all.
const HANDOVER_LOOKS: u32 = bound(16, 1);
const LOOK_SPINS: u32 = bound(16, 1);

/// What requests and frees do that a front does not serve: single blocks in `allocator.rs`, many at
/// once in `bulk.rs`, ranges in `range.rs`, and here all of them below a watermark.
pub(super) struct SlowPath<'a, 'm, C> {
    pub caches: &'a Caches<'m, C>,
    pub options: &'a Options,
    pub last_resort: &'a LastResort<'m>,
    pub relief: &'m ReliefSlot<'m, C>,
}

impl<'a, 'm, C: Cpus> SlowPath<'a, 'm, C> {
    pub fn hooks(&self) -> Hooks<'a, 'm, C> {
        Hooks { caches: self.caches, options: self.options }
    }

    pub fn check_usable(&self) -> Result<(), Unusable> {
        self.caches.cpus.environment().check_usable()
    }

    /// A request of a caller that runs here.
    pub fn request(&self, want: Want, flags: Flags) -> Request {
        Request { want, flags, node: self.caches.node_of(self.caches.here()) }
    }

    /// Tells the callbacks, then goes on down.
    pub fn alloc_below_low(&self, request: Request) -> Result<Pfn, AllocError> {
        let caches = self.caches;
        caches.store.forget_refusals();
        if request.flags.may_reclaim() {
            for zone in caches.zones_of(request) {
                let state = caches.zones.get(zone);
                self.last_resort.pass_low(caches.cpus.environment(), zone, state, || {
                    caches.drain(Scope::zone(zone), Mode::Quiet);
                    caches.free_pages(zone)
                });
            }
        }
        match caches.walk(request, request.reserve()) {
            Some(pfn) => Ok(pfn),
            None => self.at_last(request),
        }
    }

    /// Tries the last resort, a few rounds of it, before the request fails and is counted. The
    /// caller has forgotten the refusals of the reporting device.
    #[cold]
    pub fn at_last(&self, request: Request) -> Result<Pfn, AllocError> {
        let first = self.first_zone(request)?;
        let found = self.search(request).ok();
        let relieved = || {
            let relief = self.relief.get()?;
            relief.before_failing(&PendingRequest::at_last(self.hooks(), request))
        };
        found.or_else(relieved).ok_or_else(|| {
            let caches = self.caches;
            count(&caches.direct(caches.here(), first).counters().failures, 1);
            let event = Event::Fail { zone: first, pages: request.pages() };
            caches.cpus.environment().event(event);
            AllocError::Exhausted
        })
    }

    /// A look for a caller that waits for pages: neither a failure nor counted as one.
    #[cold]
    pub fn look_below_low(&self, request: Request) -> Result<Pfn, Refusal> {
        self.first_zone(request).map_err(|error| Refusal { error, is_proven: true })?;
        self.caches.store.forget_refusals();
        if let Some(pfn) = self.caches.walk(request, request.reserve()) {
            return Ok(pfn);
        }
        self.search(request).map_err(|nothing| Refusal {
            error: AllocError::Exhausted,
            is_proven: nothing == NothingFound::Proven,
        })
    }

    fn first_zone(&self, request: Request) -> Result<ZoneId, AllocError> {
        self.caches.zones_of(request).next().ok_or(AllocError::NoZone)
    }

    /// The rounds of the last resort.
    fn search(&self, request: Request) -> Result<Pfn, NothingFound> {
        let search = LastSearch { caches: self.caches, request };
        self.last_resort.find(self.caches.cpus.environment(), &search)
    }
}

/// One request's way through the last resort.
struct LastSearch<'a, 'm, C> {
    caches: &'a Caches<'m, C>,
    request: Request,
}

impl<C: Cpus> Search for LastSearch<'_, '_, C> {
    fn pages(&self) -> u64 {
        self.request.pages()
    }

    fn may_reclaim(&self) -> bool {
        self.request.flags.may_reclaim()
    }

    fn zones(&self) -> impl Iterator<Item = ZoneId> {
        self.caches.zones_of(self.request)
    }

    fn managed_pages(&self, zone: ZoneId) -> u64 {
        self.caches.zones.get(zone).managed()
    }

    fn drain_shelves(&self, zone: ZoneId) {
        self.caches.drain(Scope::zone(zone), Mode::Quiet);
    }

    fn hand_over(&self, zone: ZoneId) -> u64 {
        let mut handover = self.caches.handover(Scope::zone(zone), None);
        for _ in 0..HANDOVER_LOOKS {
            if handover.poll() {
                break;
            }
            (0..LOOK_SPINS).for_each(|_| spin_hint());
        }
        handover.drained().taken_pages
    }

    fn drain_fronts(&self, zone: ZoneId) -> DrainRest {
        let mut left = DrainRest::default();
        let caches = self.caches;
        caches.drain_each(Scope::zone(zone), Mode::Full, |cpu, drained| {
            left.is_busy |= drained.busy_cpus > 0;
            left.is_held |= drained.busy_cpus > drained.unfenced_cpus && !caches.is_held_below(cpu);
            // Left alone because they are isolated, or because they cannot be fenced.
            let is_unfenced = drained.isolated_cpus > 0 || drained.unfenced_cpus > 0;
            left.is_asked |= is_unfenced && drained.unreachable_pages > 0;
        });
        left
    }

    fn scan(&self, own_moves: &mut u64) -> Option<Pfn> {
        self.caches.scan(self.request, self.request.reserve(), own_moves)
    }

    fn regain(&self) -> Option<Pfn> {
        self.caches.regain(self.request)
    }

    fn movement(&self) -> Movement {
        let caller = self.caches.caller();
        let in_flight = self.zones().flat_map(|zone| self.caches.all_in_flight(zone));
        in_flight.fold(Movement::default(), |sum, (in_flight, counters)| {
            let word = in_flight.read();
            Movement {
                in_flight_pages: sum.in_flight_pages + InFlight::in_flight_pages(word),
                others_pages: sum.others_pages + in_flight.others_pages(word, caller),
                moves: sum
                    .moves
                    .wrapping_add(word >> 32)
                    .wrapping_add(counters.blocks_back.moves()),
            }
        })
    }
}
