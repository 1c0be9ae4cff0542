//! The slow path of requests, and its way down below a watermark: telling the callbacks, and the
//! last resort.
//!
//! # Relief
//! Here is also the seam between requests and what makes room for them by moving blocks of other
//! callers. A request knows neither movers nor compaction. It asks the registered relief at two
//! moments: on its slow path, before it would take a block from a pageblock of another mobility,
//! and before it fails. `pagedepot_contiguity::Compactor` is one.

use super::error::{AllocError, Refusal};
use super::flags::Flags;
use super::walk::{Request, Want};
use super::zero_and_check::{Hooks, Options};
use crate::cpus::{Cpus, Environment, Event, Unusable};
use crate::frame::pageblock::Tag;
use crate::frame::{Mobility, Pfn, ZoneId};
use crate::pcp::{Caches, Mode, Scope};
use crate::reclaim::{DrainRest, LastResort, Movement, NothingFound, Search};
use crate::sync::late_init::LateInit;
use crate::sync::model::bound;
use crate::sync::prim::spin_hint;
use crate::sync::{InFlight, count};
use crate::zone::Reserve;

/// Looks of a request for what owners hand over, and spins in between: a few microseconds in all.
const HANDOVER_LOOKS: u32 = bound(16, 1);
const LOOK_SPINS: u32 = bound(16, 1);

/// The work of requests and frees that a front does not serve: single blocks in `allocator.rs`,
/// many at once in `bulk.rs`, ranges in `range.rs`, and here all of them below a watermark.
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

    /// A request of a caller that runs here, for the pageblocks that its class has.
    pub fn request(&self, want: Want, flags: Flags) -> Request {
        let flags = self.options.classes.of(flags);
        Request { want, flags, node: self.caches.node_of(self.caches.here()) }
    }

    /// Tells the callbacks, then goes on down.
    pub fn alloc_below_low(&self, request: Request) -> Result<Pfn, AllocError> {
        let caches = self.caches;
        caches.store.bitmap.forget_refusals();
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
            let relief = self.relief.get().filter(|_| request.flags.may_compact())?;
            let (hooks, reserve) = (self.hooks(), request.reserve());
            let room = relief.before_failing(&PendingRequest { hooks, request, reserve });
            // It may have freed enough around blocks that stay; other callers have had time to.
            room.or_else(|| self.caches.walk(request, reserve))
        };
        found.or_else(relieved).ok_or_else(|| {
            let caches = self.caches;
            count(&caches.direct(caches.here(), first).counters().failures, 1);
            caches.cpus.environment().event(Event::Fail { zone: first, pages: request.pages() });
            AllocError::Exhausted
        })
    }

    /// A look for a caller that waits for pages: neither a failure nor counted as one.
    #[cold]
    pub fn look_below_low(&self, request: Request) -> Result<Pfn, Refusal> {
        self.first_zone(request).map_err(|error| Refusal { error, is_proven: true })?;
        self.caches.store.bitmap.forget_refusals();
        if let Some(pfn) = self.caches.walk(request, request.reserve()) {
            return Ok(pfn);
        }
        // A pageblock that the device has refused is free, and no free tells when it can be had.
        // Another request may have forgotten the refusal since.
        let is_refused = || self.caches.store.bitmap.reports.may_be_refused();
        self.search(request).map_err(|nothing| Refusal {
            error: AllocError::Exhausted,
            is_proven: nothing == NothingFound::Proven && !is_refused(),
        })
    }

    fn first_zone(&self, request: Request) -> Result<ZoneId, AllocError> {
        self.caches.zones_of(request).next().ok_or(AllocError::NoZone)
    }

    /// The rounds of the last resort. A request that may not fence has its own CPU's fronts emptied
    /// before they begin: no round takes that for another caller's move.
    fn search(&self, request: Request) -> Result<Pfn, NothingFound> {
        let caches = self.caches;
        if let (false, Some(here)) = (request.flags.may_reclaim(), caches.here()) {
            // Another caller may wait for them at their gate.
            caches.hand_over(here);
            let shares = caches.zones_of(request).map(|zone| caches.share(here.cpu, zone));
            shares
                .filter(|share| share.pcp.charged() > 0 && share.zone.managed() >= request.pages())
                .for_each(|share| _ = share.return_fronts(here, 0));
        }
        self.last_resort.find(caches.cpus.environment(), &LastSearch { caches, request })
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

    fn is_isolated(&self) -> bool {
        let tags = self.caches.store.tags;
        matches!(self.request.want, Want::At { start, frames, .. }
            if tags.is_any_near(start, frames, Tag::is_isolated))
    }

    fn zones(&self) -> impl Iterator<Item = ZoneId> {
        // Frames that have been removed meanwhile are of none.
        self.caches.zones_of(self.request).filter(|&zone| match self.request.want {
            Want::At { start, frames, .. } => {
                self.caches.store.tags.zone_of_range(start, frames) == Some(zone)
            }
            _ => true,
        })
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

    fn drain_fronts(&self, zone: ZoneId, left: &mut DrainRest) {
        let caches = self.caches;
        caches.drain_each(Scope::zone(zone), Mode::Full, |cpu, drained| {
            left.is_busy |= drained.busy_cpus > 0;
            left.is_held |= drained.busy_cpus > drained.unfenced_cpus && !caches.is_held_below(cpu);
            // Left alone because they are isolated, or because they cannot be fenced.
            let is_unfenced = drained.isolated_cpus > 0 || drained.unfenced_cpus > 0;
            left.is_asked |= is_unfenced && drained.unreachable_pages > 0;
        });
    }

    fn scan(&self, own_moves: &mut u64) -> Option<Pfn> {
        self.zones().next()?;
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

/// Makes room for requests. `None` from either call: the request goes on as without a relief.
///
/// Both are called on the thread of the request, above the locks that its caller holds, and may
/// allocate: they must end when a request of their own comes back to them.
pub trait Relief<C>: Sync {
    /// Finds a block for a request above the `low` watermark without mixing mobilities in a
    /// pageblock. Called for every request that its front does not serve, so the answer to a
    /// request that does not want relief costs a few instructions.
    fn before_mixing(&self, request: &PendingRequest<'_, '_, C>) -> Option<Pfn>;

    /// Finds the frames for a request that [may compact](PendingRequest::may_compact), for which
    /// the last resort has found none. Where this finds none either, the request looks once more
    /// at what is free, then fails.
    fn before_failing(&self, request: &PendingRequest<'_, '_, C>) -> Option<Pfn>;
}

/// A request that asks for relief.
pub struct PendingRequest<'a, 'm, C> {
    pub(crate) hooks: Hooks<'a, 'm, C>,
    pub(crate) request: Request,
    pub(super) reserve: Reserve,
}

impl<C: Cpus> PendingRequest<'_, '_, C> {
    /// The frames that satisfy the request.
    pub fn want(&self) -> Want {
        self.request.want
    }

    /// Number of pages that the request is for.
    pub fn pages(&self) -> u64 {
        self.request.pages()
    }

    /// The mobility of the request.
    pub fn mobility(&self) -> Mobility {
        self.request.flags.mobility()
    }

    /// Whether held blocks may be moved for the request: it says [`Flags::compact`], and may
    /// reclaim.
    pub fn may_compact(&self) -> bool {
        self.request.flags.may_compact()
    }

    /// The zones that may serve the request, the best first.
    pub(crate) fn zone_ids(&self) -> impl Iterator<Item = ZoneId> {
        let (caches, pages, reserve) = (self.hooks.caches, self.pages(), self.reserve);
        caches.zones_of(self.request).filter(move |&zone| caches.may_give(zone, pages, reserve))
    }

    /// Tries once more to serve a request for a block, and mixes no pageblock.
    pub fn attempt_unmixed(&self) -> Option<Pfn> {
        let Want::Block(order) = self.request.want else { return None };
        let flags = self.request.flags.unmixed();
        self.hooks.caches.walk_for_block(order, flags, self.reserve)
    }
}

/// The relief of an allocator, once one is registered; it stays for the allocator's life.
pub(crate) type ReliefSlot<'m, C> = LateInit<&'m dyn Relief<C>>;
