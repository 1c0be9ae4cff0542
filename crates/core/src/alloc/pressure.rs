//! Watermarks, reclaim callbacks, and failing only when it must.
//!
//! # Theory
//! Watermarks are checked where pages leave the store, against an estimate; near a watermark the
//! CPUs' deltas are summed. A request goes down in steps: above `low`; then, after telling the
//! callbacks once per episode, above `min` (or into the reserve, for atomic requests); then the
//! last resort, which takes back what others cache, gently first.
//!
//! A request fails only after a round that was *undisturbed*: from before its first drain until
//! after its last scan, on every CPU the flux word (see [`Flux`]) had nothing in flight and did not
//! change but by the scans' own moves; no gate was in another drainer's hands; and no callback was
//! running for somebody else. Then every front was empty when it was drained and stayed empty
//! (what comes into an empty front is a move), and so was the store: all pages were in callers'
//! hands. A drain that took pages is a disturbance like any other. Otherwise pages may have moved
//! behind the round's back, and it is repeated, a few times at most: a machine on which others
//! keep moving pages without end is out of memory for this request all the same.
//!
//! That holds for blocks, contiguous ranges and frames at a given address alike (see
//! [`Request`]): what they differ in is how a zone's store is searched. All searches read the bits,
//! a scan of any of them is one move per zone, and frames that a claim takes and puts back, because
//! another one was missing, are in flight meanwhile. So an undisturbed round says the same of each:
//! no frame of these zones was anywhere but in the store or in callers' hands, and the store had no
//! such block or range.
//!
//! A block of one word goes between a caller and the store by one atomic operation, and so without
//! being announced. Allocated: it leads nobody past other blocks, for it clears no `some` hint, and a
//! `whole` hint only while the huge is not whole. Freed: the move is counted when the bits, the hints
//! and the zone's count have it. A round that misses it and does not see it counted ended before the
//! free did, and may be said to have come first; every other block that the round missed was out.
//! What takes more than it gives (a huge to change its mobility), or in parts, is announced, and so is
//! a CPU's share of the free count on its way to the zone's: others' frees are in it.

use core::cell::UnsafeCell;
use core::ops::ControlFlow;

use super::Allocator;
use super::drain::{Mode, Scope};
use super::request::Request;
use crate::cache::cpu_zone::{Counters, Flux};
use crate::cpus::{Cpus, Here};
use crate::error::AllocError;
#[cfg(all(loom, test))]
use crate::flags::Flags;
#[cfg(all(loom, test))]
use crate::frame::Order;
use crate::frame::{Pfn, ZoneId};
use crate::prim::{AtomicBool, AtomicU32, Ordering, spin_hint};

/// Undisturbed scans are tried for this often before a request fails.
const ROUNDS_MAX: u32 = 4;
/// Spins after the first round, for pages in flight to arrive.
const ROUND_SPINS: u32 = if cfg!(loom) { 1 } else { 1000 };
/// After each further round so much longer, for requests that may wait: what is in flight may be in
/// the hands of a thread that is not running.
const ROUND_SPINS_GROWTH: u32 = if cfg!(loom) { 1 } else { 8 };
/// Callbacks an allocator can have.
const CALLBACKS_MAX: usize = 8;

/// How far down a request may go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reserve {
    AboveLow,
    AboveMin,
    /// Everything: requests that may not wait.
    All,
}

/// What a reclaim callback is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pressure {
    /// The zone that runs short.
    pub zone: ZoneId,
    /// Pages that would end the shortage. Those of a contiguous range must lie side by side, which is
    /// why more may be asked for when as many have been freed.
    pub wanted_pages: u64,
    /// Whether a request is about to fail, rather than a watermark being passed.
    pub is_last_resort: bool,
}

/// Something that holds pages it can give up: a cache, a pool.
pub trait Reclaim: Sync {
    /// Frees pages back to the allocator; returns how many.
    ///
    /// Called from the slow path of whoever allocates, never in atomic requests, by one caller at
    /// a time. It may allocate, but its own requests call no callbacks. If it panics, the
    /// panic goes through to the one who allocates; the allocator stays sound and goes on.
    fn reclaim(&self, pressure: Pressure) -> u64;
}

/// All places for callbacks are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyCallbacks;

impl core::fmt::Display for TooManyCallbacks {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{CALLBACKS_MAX} reclaim callbacks are registered already: combine some into one")
    }
}

impl core::error::Error for TooManyCallbacks {}

const SLOT_EMPTY: u32 = 0;
const SLOT_WRITING: u32 = 1;
const SLOT_READY: u32 = 2;

/// A place for a callback: goes from empty over writing to ready, once.
type Place<'m> = (AtomicU32, UnsafeCell<Option<&'m dyn Reclaim>>);

/// Registered callbacks.
pub(super) struct Callbacks<'m> {
    places: [Place<'m>; CALLBACKS_MAX],
    /// Set while somebody calls them. One for all zones: with one each, a callback that allocates
    /// would call callbacks for every other zone, and those for all that are left.
    are_running: AtomicBool,
}

impl<'m> Callbacks<'m> {
    pub fn new() -> Self {
        Callbacks {
            places: core::array::from_fn(|_| (AtomicU32::new(SLOT_EMPTY), UnsafeCell::new(None))),
            are_running: AtomicBool::new(false),
        }
    }

    fn register(&self, callback: &'m dyn Reclaim) -> Result<(), TooManyCallbacks> {
        for (state, place) in &self.places {
            let free = state.compare_exchange(SLOT_EMPTY, SLOT_WRITING, Ordering::Relaxed, Ordering::Relaxed);
            if free.is_ok() {
                // SAFETY: the exchange made this caller the only writer, and nobody reads before
                // the state is ready.
                unsafe { *place.get() = Some(callback) };
                // Release: pairs with the Acquire in `ready`.
                state.store(SLOT_READY, Ordering::Release);
                return Ok(());
            }
        }
        Err(TooManyCallbacks)
    }

    fn ready(&self) -> impl Iterator<Item = &'m dyn Reclaim> {
        self.places
            .iter()
            .filter(|(state, _)| state.load(Ordering::Acquire) == SLOT_READY)
            // SAFETY: ready places are never written again.
            .filter_map(|(_, place)| unsafe { *place.get() })
    }
}

/// The flux of several CPUs and zones.
#[derive(Clone, Copy, Default)]
struct FluxSum {
    in_flight_pages: u64,
    moves: u64,
}

/// The right to call callbacks; given up also when one of them unwinds.
struct Reclaiming<'c>(&'c AtomicBool);

impl<'c> Reclaiming<'c> {
    fn begin(are_running: &'c AtomicBool) -> Option<Self> {
        // Acquire and Release order one caller's reclaim after another's.
        let is_mine = !are_running.swap(true, Ordering::Acquire);
        // Not `then_some`: dropping the right of a caller that never had it would end another's.
        is_mine.then(|| Reclaiming(are_running))
    }
}

impl Drop for Reclaiming<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
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

    /// Whether the zone may give `pages` without going below what `reserve` protects.
    pub(super) fn zone_may_give(&self, zone: ZoneId, pages: u64, reserve: Reserve) -> bool {
        let books = self.zone(zone);
        let marks = books.watermarks();
        let floor = match reserve {
            Reserve::AboveLow => marks.low,
            Reserve::AboveMin => marks.min,
            Reserve::All => 0,
        } as i64;
        let estimate = self.free_estimate(zone);
        if estimate > marks.high as i64 && books.below_low.load(Ordering::Relaxed) {
            books.below_low.store(false, Ordering::Relaxed);
        }
        let error = books.estimate_error(self.blocks.cpus);
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
            self.all_cpus().map(|cpu| self.cpu_zone(cpu, zone).free_delta.load(Ordering::Acquire)).sum();
        (self.zone(zone).free_estimate() + deltas).max(0) as u64
    }

    pub(super) fn flux(&self, here: Option<Here>, zone: ZoneId) -> &Flux {
        here.map_or(&self.zone(zone).flux, |here| &self.cpu_zone(here.cpu, zone).flux)
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
        if self.zone(zone).managed() == 0 || self.zone(zone).below_low.swap(true, Ordering::Relaxed) {
            return;
        }
        self.drain(Scope::zone(zone), Mode::Quiet);
        let free = self.free_pages(zone);
        if free < marks.high {
            self.call_callbacks(
                Pressure { zone, wanted_pages: marks.high - free, is_last_resort: false },
                false,
            );
        }
    }

    /// Calls callbacks until they have freed what is wanted, or all of them. `false`: another caller
    /// is at it.
    fn call_callbacks(&self, pressure: Pressure, all: bool) -> bool {
        let Some(_reclaiming) = Reclaiming::begin(&self.globals.callbacks.are_running) else { return false };
        let mut wanted_pages = pressure.wanted_pages;
        for callback in self.globals.callbacks.ready() {
            let freed = callback.reclaim(Pressure { wanted_pages, ..pressure });
            if !all {
                wanted_pages = wanted_pages.saturating_sub(freed);
                if wanted_pages == 0 {
                    break;
                }
            }
        }
        true
    }

    /// What can still be done, a few rounds of it, before the request fails and is counted.
    #[cold]
    pub(super) fn last_resort(&self, request: Request) -> Result<Pfn, AllocError> {
        let Some(first) = self.zones_of(request).next() else { return Err(AllocError::NoZone) };
        // For more than a zone has, nobody needs to give up anything.
        let has_enough = |zone| self.zone(zone).managed() >= request.pages();
        let rounds = if self.zones_of(request).any(has_enough) { ROUNDS_MAX } else { 0 };
        for round in 0..rounds {
            match self.round(request, round) {
                ControlFlow::Break(Some(pfn)) => return Ok(pfn),
                ControlFlow::Break(None) => break,
                ControlFlow::Continue(()) if round + 1 < ROUNDS_MAX => {
                    let growth = if request.flags.may_reclaim() { ROUND_SPINS_GROWTH.pow(round) } else { 1 };
                    (0..ROUND_SPINS * growth).for_each(|_| spin_hint());
                }
                ControlFlow::Continue(()) => {}
            }
        }
        self.count_failure(first);
        Err(AllocError::Exhausted)
    }

    /// One round, the gentlest first; the request is served as soon as it can be. Breaks with what
    /// was found, or with nothing if the round was undisturbed.
    fn round(&self, request: Request, round: u32) -> ControlFlow<Option<Pfn>> {
        let before = self.flux_sum(request);
        let mut own_moves = 0;
        let mut is_busy = false;
        let mut scan = || self.scan(request, request.reserve(), &mut own_moves);
        for zone in self.zones_of(request) {
            self.drain(Scope::zone(zone), Mode::Quiet);
        }
        let mut found = scan();
        if found.is_none() && request.flags.may_reclaim() {
            for zone in self.zones_of(request) {
                let pressure = Pressure { zone, wanted_pages: request.pages(), is_last_resort: true };
                // What the first ones freed was of no use, or went to others: ask everybody.
                is_busy |= !self.call_callbacks(pressure, round > 0);
            }
            found = self.regain(request).or_else(&mut scan);
        }
        if found.is_none() && request.flags.may_reclaim() {
            for zone in self.zones_of(request) {
                is_busy |= self.drain(Scope::zone(zone), Mode::Full).busy_cpus > 0;
            }
            found = scan();
        }
        if found.is_some() {
            return ControlFlow::Break(found);
        }
        let after = self.flux_sum(request);
        let is_still = after.moves == before.moves.wrapping_add(own_moves)
            && before.in_flight_pages == 0
            && after.in_flight_pages == 0;
        if is_still && !is_busy { ControlFlow::Break(None) } else { ControlFlow::Continue(()) }
    }

    /// What is on its way, over all CPUs and the zones of a request.
    fn flux_sum(&self, request: Request) -> FluxSum {
        let zones = self.zones_of(request).flat_map(|zone| self.all_flux(zone));
        zones.fold(FluxSum::default(), |sum, (flux, counters)| {
            let word = flux.read();
            FluxSum {
                in_flight_pages: sum.in_flight_pages + Flux::in_flight_pages(word),
                moves: sum.moves.wrapping_add(word >> 32).wrapping_add(counters.blocks_back.moves()),
            }
        })
    }

    /// What is on its way on every CPU, and for callers on none, with the counters beside it.
    fn all_flux(&self, zone: ZoneId) -> impl Iterator<Item = (&Flux, &Counters)> {
        let cpus = self.all_cpus().map(move |cpu| {
            let books = self.cpu_zone(cpu, zone);
            (&books.flux, &*books.counters)
        });
        cpus.chain([(&self.zone(zone).flux, &self.zone(zone).counters)])
    }

    /// Pages in flight of a zone.
    pub(super) fn in_flight_pages(&self, zone: ZoneId) -> u64 {
        self.all_flux(zone).map(|(flux, _)| Flux::in_flight_pages(flux.read())).sum()
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

#[cfg(all(loom, test))]
impl<C: Cpus> Allocator<'_, C> {
    /// The last resort alone: with an atomic request one search per round, and none before.
    pub(crate) fn last_resort_for_block(&self, order: Order, flags: Flags) -> Result<Pfn, AllocError> {
        self.last_resort(Request { want: super::request::Want::Block(order), flags, node: self.node_here() })
    }
}
