//! Watermarks, reclaim callbacks, and failing only when it must.
//!
//! # Theory
//! Watermarks are checked where pages leave the store, against an estimate; near a watermark the
//! CPUs' deltas are summed. A request goes down in steps: above `low`; then, after telling the
//! callbacks once per episode, above `min` (or into the reserve, for atomic requests); then the
//! last resort, which takes back what others cache, gently first.
//!
//! A request fails only after a round that was *undisturbed*: from before its first drain until
//! after its last scan, on every CPU the in_flight word (see [`InFlight`]) had nothing in flight
//! and did not change but by the scans' own moves; no gate was in another drainer's hands; and no
//! callback was run by another caller. Then every front was empty when it was drained and stayed
//! empty (what comes into an empty front is a move), and so was the store: all pages were in
//! callers' hands. A drain that took pages is a disturbance like any other. Otherwise pages may
//! have moved behind the round's back, and it is repeated. What follows depends on the disturbance:
//!
//! | disturbance | a request that may reclaim | a request that may not |
//! |---|---|---|
//! | another caller runs a callback | sleeps until it ends, 1 s at most; 64 times | calls none |
//! | pages in flight, or behind a drainer's gate | naps, 126 ms in all | the round counts |
//! | pages were moved | the round counts | the round counts |
//!
//! After four rounds that count the request fails: a machine on which others keep moving pages
//! without end is out of memory for this request all the same. The other rounds do not count, for
//! the caller that disturbs them may not be running: preempted in a callback, or with pages in its
//! hands. How a request sleeps is the environment's affair ([`Cpus::wait`]); what it waits for is
//! in [`callbacks`](crate::reclaim). A request that may not reclaim spins a few thousand times at
//! most and never sleeps.
//!
//! That holds for blocks, contiguous ranges and frames at a given address alike (see
//! [`Request`]): what they differ in is how a zone's store is searched. All searches read the bits,
//! a scan of any of them is one move per zone, and frames that a claim takes and puts back, because
//! another one was missing, are in flight meanwhile. So an undisturbed round says the same of each:
//! no frame of these zones was anywhere but in the store or in callers' hands, and the store had no
//! such block or range.
//!
//! A block of one word goes between a caller and the store by one atomic operation, and so without
//! being announced. Allocated: it leads nobody past other blocks, for it clears no `some` hint, and
//! a `whole` hint only while the pageblock is not whole. Freed: the move is counted when the bits,
//! the hints and the zone's count have it. A round that misses it and does not see it counted ended
//! before the free did, and may be said to have come first; every other block that the round missed
//! was out. What takes more than it gives (a pageblock to change its mobility), or in parts, is
//! announced, and so is a CPU's share of the free count on its way to the zone's: others' frees are
//! in it.

use super::Allocator;
use super::drain::{Mode, Scope};
use super::request::Request;
use crate::alloc::error::AllocError;
#[cfg(all(loom, test))]
use crate::alloc::flags::Flags;
use crate::cpus::{Cpus, Here};
#[cfg(all(loom, test))]
use crate::frame::Order;
use crate::frame::{Pfn, ZoneId};
use crate::reclaim::callbacks::Called;
use crate::reclaim::{Pressure, Reclaim, TooManyCallbacks};
use crate::sync::InFlight;
use crate::sync::prim::{Ordering, spin_hint};
use crate::zone::counts::Counters;

/// Rounds that count, before a request fails.
const ROUNDS_MAX: u32 = 4;
/// Spins after a round that counts, for pages in flight to arrive.
const ROUND_SPINS: u32 = if cfg!(loom) { 1 } else { 1000 };
/// Turns of other callers that a request waits for.
const TURNS_MAX: u32 = if cfg!(loom) { 4 } else { 64 };
/// Milliseconds that a request waits for one turn to end: a caller that was stopped in a callback
/// must not stop others for good.
const TURN_MS_MAX: u32 = 1000;
/// Naps of a request beside pages in other callers' hands: 1, 1, 2, 2, 4, ... 32, 32 ms, 126 ms in
/// all. A thread that was preempted with pages in its hands runs again within that on all but the
/// busiest machines. Those of a thread that was stopped for good cost a request so much.
const NAPS_MAX: u32 = if cfg!(loom) { 0 } else { 12 };

/// How far down a request may go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reserve {
    AboveLow,
    AboveMin,
    /// Everything: requests that may not wait.
    All,
}

/// What came of a round.
enum Round {
    Found(Pfn),
    /// Nothing, and no page can have been missed.
    Undisturbed,
    Disturbed(Disturbance),
}

/// Why a round says nothing about the pages there are.
#[derive(Clone, Copy)]
enum Disturbance {
    /// Other callers moved pages meanwhile.
    Moved,
    /// Pages are in another caller's hands, between caches and store or behind a closed gate.
    InHands,
    /// Another caller runs a callback: `seen` turns had ended when the round began.
    Turn { seen: u32 },
}

/// Waits that a request still has: each replaces a round that would count.
struct Patience {
    turns: u32,
    naps: u32,
}

impl Patience {
    fn new(request: Request) -> Self {
        match request.flags.may_reclaim() {
            true => Patience { turns: TURNS_MAX, naps: NAPS_MAX },
            false => Patience { turns: 0, naps: 0 },
        }
    }
}

/// The in_flight of several CPUs and zones.
#[derive(Clone, Copy, Default)]
struct FluxSum {
    in_flight_pages: u64,
    moves: u64,
}

impl<C: Cpus> Allocator<'_, C> {
    /// Whether the zone may give `pages` without going below what `reserve` protects.
    pub(super) fn zone_may_give(&self, zone: ZoneId, pages: u64, reserve: Reserve) -> bool {
        let zone_state = self.zone(zone);
        let marks = zone_state.watermarks();
        let floor = match reserve {
            Reserve::AboveLow => marks.low,
            Reserve::AboveMin => marks.min,
            Reserve::All => 0,
        } as i64;
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

    /// Below `low` in every zone: tell the callbacks, then go on down.
    pub(super) fn alloc_under_pressure(&self, request: Request) -> Result<Pfn, AllocError> {
        if request.flags.may_reclaim() {
            for zone in self.zones_of(request) {
                self.note_below_low(zone);
            }
        }
        match self.attempt(request, request.reserve()) {
            Some(pfn) => Ok(pfn),
            None => self.last_resort(request),
        }
    }

    /// Once per episode below `low`: a quiet drain, and the callbacks.
    fn note_below_low(&self, zone: ZoneId) {
        let marks = self.zone(zone).watermarks();
        if self.zone(zone).managed() == 0 || self.zone(zone).below_low.swap(true, Ordering::Relaxed)
        {
            return;
        }
        self.drain(Scope::zone(zone), Mode::Quiet);
        let free = self.free_pages(zone);
        if free < marks.high {
            // What another caller runs already is not waited for: there are pages.
            self.call_callbacks(
                Pressure { zone, wanted_pages: marks.high - free, is_last_resort: false },
                false,
            );
        }
    }

    fn call_callbacks(&self, pressure: Pressure, all: bool) -> Called {
        self.globals.callbacks.call(&self.cpus, pressure, all)
    }

    /// What can still be done, a few rounds of it, before the request fails and is counted.
    #[cold]
    pub(super) fn last_resort(&self, request: Request) -> Result<Pfn, AllocError> {
        let Some(first) = self.zones_of(request).next() else { return Err(AllocError::NoZone) };
        // For more than a zone has, no cache needs to give up anything.
        let has_enough = |zone| self.zone(zone).managed() >= request.pages();
        let mut patience = Patience::new(request);
        let mut round = if self.zones_of(request).any(has_enough) { 0 } else { ROUNDS_MAX };
        while round < ROUNDS_MAX {
            match self.round(request, round) {
                Round::Found(pfn) => return Ok(pfn),
                Round::Undisturbed => break,
                Round::Disturbed(by) if self.wait_out(by, &mut patience) => {}
                Round::Disturbed(_) => {
                    round += 1;
                    if round < ROUNDS_MAX {
                        (0..ROUND_SPINS).for_each(|_| spin_hint());
                    }
                }
            }
        }
        self.count_failure(first);
        Err(AllocError::Exhausted)
    }

    /// Sleeps until what disturbed a round may be over; `false`: the request has no patience for
    /// that, and the round counts.
    fn wait_out(&self, by: Disturbance, patience: &mut Patience) -> bool {
        let callbacks = &self.globals.callbacks;
        match by {
            Disturbance::Turn { seen } if patience.turns > 0 => {
                let has_ended = callbacks.wait_for_turn(&self.cpus, seen, TURN_MS_MAX);
                // A caller that stays so long in a callback may be stopped: wait for no other.
                patience.turns = if has_ended { patience.turns - 1 } else { 0 };
                true
            }
            Disturbance::InHands if patience.naps > 0 => {
                let nap_ms = 1 << ((NAPS_MAX - patience.naps) / 2);
                patience.naps -= 1;
                callbacks.wait_for_turn(&self.cpus, callbacks.turns(), nap_ms);
                true
            }
            _ => false,
        }
    }

    /// One round, the gentlest first; the request is served as soon as it can be.
    fn round(&self, request: Request, round: u32) -> Round {
        let seen = self.globals.callbacks.turns();
        let before = self.flux_sum(request);
        let mut own_moves = 0;
        let (mut is_turn_awaited, mut is_busy, mut is_gate_held) = (false, false, false);
        let mut scan = || self.scan(request, request.reserve(), &mut own_moves);
        for zone in self.zones_of(request) {
            self.drain(Scope::zone(zone), Mode::Quiet);
        }
        let mut found = scan();
        if found.is_none() && request.flags.may_reclaim() {
            for zone in self.zones_of(request) {
                let pressure =
                    Pressure { zone, wanted_pages: request.pages(), is_last_resort: true };
                // What the first ones freed was of no use, or went to others: ask all.
                let called = self.call_callbacks(pressure, round > 0);
                is_turn_awaited |= called == Called::OneIsRunning && self.cpus.caller().is_some();
                is_busy |= matches!(called, Called::OneIsRunning | Called::Unknown);
            }
            found = self.regain(request).or_else(&mut scan);
        }
        if found.is_none() && request.flags.may_reclaim() {
            for zone in self.zones_of(request) {
                self.drain_each(Scope::zone(zone), Mode::Full, |_, drained| {
                    is_busy |= drained.busy_cpus > 0;
                    // A fence that failed will not do better for waiting; a drainer ends.
                    is_gate_held |= drained.busy_cpus > 0 && drained.fences == 0;
                });
            }
            found = scan();
        }
        if let Some(pfn) = found {
            return Round::Found(pfn);
        }
        let after = self.flux_sum(request);
        let is_still = after.moves == before.moves.wrapping_add(own_moves)
            && before.in_flight_pages == 0
            && after.in_flight_pages == 0;
        match () {
            () if is_turn_awaited => Round::Disturbed(Disturbance::Turn { seen }),
            () if is_gate_held || after.in_flight_pages > 0 => {
                Round::Disturbed(Disturbance::InHands)
            }
            () if is_still && !is_busy => Round::Undisturbed,
            () => Round::Disturbed(Disturbance::Moved),
        }
    }

    /// What is on its way, over all CPUs and the zones of a request.
    fn flux_sum(&self, request: Request) -> FluxSum {
        let zones = self.zones_of(request).flat_map(|zone| self.all_flux(zone));
        zones.fold(FluxSum::default(), |sum, (in_flight, counters)| {
            let word = in_flight.read();
            FluxSum {
                in_flight_pages: sum.in_flight_pages + InFlight::in_flight_pages(word),
                moves: sum
                    .moves
                    .wrapping_add(word >> 32)
                    .wrapping_add(counters.blocks_back.moves()),
            }
        })
    }

    /// What is on its way on every CPU, and for callers on none, with the counters beside it.
    fn all_flux(&self, zone: ZoneId) -> impl Iterator<Item = (&InFlight, &Counters)> {
        let cpus = self.all_cpus().map(move |cpu| {
            let pcp = self.pcp(cpu, zone);
            (&pcp.in_flight, &*pcp.counters)
        });
        cpus.chain([(&self.zone(zone).in_flight, &self.zone(zone).counters)])
    }

    /// Pages in flight of a zone.
    pub(super) fn in_flight_pages(&self, zone: ZoneId) -> u64 {
        self.all_flux(zone).map(|(in_flight, _)| InFlight::in_flight_pages(in_flight.read())).sum()
    }

    /// Changes a zone's watermarks. `false` for a zone that does not exist, or marks that do not
    /// ascend.
    pub fn set_watermarks(&self, zone: ZoneId, marks: crate::zone::Watermarks) -> bool {
        if zone.index() >= self.zones.len() || !marks.ascend() {
            return false;
        }
        self.zone(zone).set_watermarks(marks);
        true
    }
}

impl<'m, C: Cpus> Allocator<'m, C> {
    /// Registers a callback for memory pressure, for the allocator's life.
    ///
    /// # Errors
    /// At most 8 can be registered.
    pub fn register_reclaim(&self, callback: &'m dyn Reclaim) -> Result<(), TooManyCallbacks> {
        self.globals.callbacks.register(callback)
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
