//! The last resort: what a request tries before it fails, and when it may fail.
//!
//! # Theory
//! A request goes down in steps. First it takes pages above the watermark `low`. Then it calls the
//! callbacks, once per episode, and takes pages above `min` (an atomic request also those of the
//! reserve). Last comes the last resort, which takes back what other CPUs cache, gently first. It
//! works in rounds: a quiet drain and a search, callbacks and a search, a handover and a full drain
//! and a search. A request that may not reclaim has the first drain and search alone. Before its
//! rounds it empties the fronts of its own CPU and context: that takes neither a fence nor a wait.
//!
//! The handover asks every CPU for its fronts and looks for some microseconds whether they have
//! come. CPUs that allocate at the moment hand over in that time, so that the full drain has fewer
//! CPUs to fence. Those without magazines in their fronts are neither asked nor fenced: when memory
//! is used up, a request that fails once more reads some words of each CPU. Isolated CPUs are not
//! fenced. Fronts behind a lock are taken by that lock, on isolated CPUs as on others. If an
//! isolated CPU without one has pages of the zone in its fronts, the request waits for it to hand
//! over, a few milliseconds in all, before it fails.
//!
//! A request fails only after a round that was *undisturbed*. From before its first drain until
//! after its last search, all of this must hold:
//! * On every CPU the in-flight word (see [`InFlight`](crate::sync::InFlight)) had nothing in
//!   flight, and only the searches' own moves changed it.
//! * No other drainer held a gate, and no owner the lock of its CPU for longer than a drain tries.
//! * No other caller ran a callback, and no callback said that it had freed pages. Such pages need
//!   not show in the in-flight words (a backing's do not), others may have taken them, and the
//!   callbacks behind that one may have been left out.
//!
//! Then every front was empty when it was drained and stayed empty (what comes into an empty front
//! is a move), and so was the store: callers held all pages. A drain that took pages is a
//! disturbance like any other. After a disturbed round the request cannot tell, because pages may
//! have moved to a place that the round had left already. What follows depends on the disturbance:
//!
//! | disturbance | a request that may reclaim | a request that may not |
//! |---|---|---|
//! | another caller runs a callback | sleeps until it ends, 1 s at most; 64 times | calls none |
//! | an isolated CPU that was asked has pages in its fronts | naps, 14 ms in all | asks none |
//! | pages in another caller's hands | naps, 126 ms in all | the round counts |
//! | pages in its own thread's hands | the round counts | the round counts |
//! | pages were moved | the round counts | the round counts |
//!
//! Pages in a caller's hands are in flight, or behind the gate of a drainer or a lock that the
//! caller holds. A signal handler may interrupt such a caller and request pages. As long as the
//! handler naps, the caller below cannot go on, so the request would nap in vain. It tells its own
//! thread by the [note](crate::sync::InFlight) beside the pages in flight, by the
//! [ticket](crate::front::gate) in the gate, and by the holder in the lock. Without
//! [names](Environment::caller) it cannot tell, and naps; so it does where a name is in doubt.
//!
//! After four rounds that count the request fails: a machine on which others keep moving pages
//! without end is out of memory for this request all the same. The other rounds do not count: the
//! caller that disturbs them may not be running, because it was preempted in a callback or with
//! pages in its hands. The environment decides how a request sleeps ([`Environment::wait`]); what
//! it waits for is in [`callbacks`](super::callbacks). A request that may not reclaim spins a few
//! thousand times at most and never sleeps.
//!
//! All this holds for blocks, contiguous ranges and frames at a given address alike: they differ
//! only in how a zone's store is searched ([`Search`]). All searches read the bits, each is one
//! move per zone, and frames that a claim takes and puts back, because another frame was missing,
//! are in flight meanwhile. So an undisturbed round says the same of each: no frame of these zones
//! was anywhere but in the store or in callers' hands, and the store had no such block or range.
//!
//! Frames at a given address may be isolated by a caller that removes or empties them. A round then
//! drains nothing and calls no callback, because what these bring back is no use. Such a round is
//! disturbed: the frames are announced as in flight from before they are isolated until after. The
//! request reads the in-flight words first, so it sees that announcement, or its end as a move.
//!
//! A block of one word goes between a caller and the store by one atomic operation, and so without
//! being announced. An allocation of one leads no search past other blocks: it clears no `some`
//! hint, and a `whole` hint only while the pageblock is not whole. A free of one is counted as a
//! move when the bits, the hints and the zone's count have it. A round that misses it and does not
//! see it counted ended before the free did, and may be said to have come first; every other block
//! that the round missed was held. An operation that takes more than it gives (a pageblock to
//! change its mobility), or that works in parts, is announced. So is a CPU's share of the free
//! count on its way to the zone's count: other callers' frees are in it.

use super::callbacks::{CallOutcome, Callbacks, Pressure, Reclaim, TooManyCallbacks};
use crate::cpus::Environment;
use crate::frame::{Pfn, ZoneId};
use crate::sync::model::bound;
use crate::sync::prim::{Ordering, spin_hint};
use crate::zone::Zone;

/// Rounds that count, before a request fails.
const ROUNDS_MAX: u32 = 4;
/// Spins after a round that counts, for pages in flight to arrive.
const ROUND_SPINS: u32 = bound(1000, 1);
/// Turns of other callers that a request waits for.
const TURNS_MAX: u32 = bound(64, 4);
/// Milliseconds that a request waits for one turn to end: a caller that was stopped in a callback
/// must not stop others for good.
const TURN_MS_MAX: u32 = 1000;
/// Naps of a request beside pages in other callers' hands: 1, 1, 2, 2, 4, ... 32, 32 ms, 126 ms in
/// all. A thread that was preempted with pages in its hands runs again within that on all but the
/// busiest machines. Those of a thread that was stopped for good cost a request so much.
const NAPS_MAX: u32 = bound(12, 0);

/// Naps of a request whose pages isolated CPUs were asked for: 1, 1, 2, 2, 4, 4 ms, 14 ms in all.
/// An isolated CPU that allocates has handed over by then; one that does not must not stop others.
const ASKED_NAPS_MAX: u32 = bound(6, 0);

/// The part of the last resort that differs between requests: it drains caches and searches the
/// store.
pub trait Search {
    /// Pages that the request wants.
    fn pages(&self) -> u64;

    /// Whether the request may call callbacks, fence CPUs and sleep.
    fn may_reclaim(&self) -> bool;

    /// The zones that may serve the request, the best first.
    fn zones(&self) -> impl Iterator<Item = ZoneId>;

    /// Whether the wanted frames are isolated: no callback and no drain makes them the request's.
    fn is_isolated(&self) -> bool {
        false
    }

    /// Pages that the zone has in all, free or not.
    fn managed_pages(&self, zone: ZoneId) -> u64;

    /// Takes back the shelves of all CPUs.
    fn drain_shelves(&self, zone: ZoneId);

    /// Asks all CPUs for their fronts, and takes what they hand over within some microseconds.
    /// Returns the pages.
    fn hand_over(&self, zone: ZoneId) -> u64;

    /// Takes back the shelves and fronts of all CPUs; notes what was left.
    fn drain_fronts(&self, zone: ZoneId, left: &mut DrainRest);

    /// Searches the store of the zones, without a refill: that would take a magazine's worth for a
    /// request that needs one block. Adds to `own_moves` the moves that this search itself ends.
    fn scan(&self, own_moves: &mut u64) -> Option<Pfn>;

    /// Takes back what callbacks freed into this CPU's own caches. No other CPU is interrupted.
    fn regain(&self) -> Option<Pfn>;

    /// The pages in flight, over all CPUs and the zones of the request.
    fn movement(&self) -> Movement;
}

/// The fronts that a full drain could not take.
#[derive(Clone, Copy, Default)]
pub struct DrainRest {
    /// Some CPU's fronts were left: its gate was closed, or it could not be fenced.
    pub is_busy: bool,
    /// Another caller held some gate, or the lock of some CPU, and will drop it soon. A fence that
    /// was refused will not succeed for waiting, and what the calling thread holds below a handler
    /// stays held.
    pub is_held: bool,
    /// Some CPU that is isolated, or cannot be fenced, has pages in its fronts, for which it was
    /// asked.
    pub is_asked: bool,
}

/// Sums of in-flight words.
#[derive(Clone, Copy, Default)]
pub struct Movement {
    pub in_flight_pages: u64,
    /// Pages in flight of other callers than the one that asks.
    pub others_pages: u64,
    /// Moves that have ended; wraps around.
    pub moves: u64,
}

/// The reason why [`LastResort::find`] found nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NothingFound {
    /// A round was undisturbed: callers held all pages, or those left do not lie together.
    Proven,
    /// Other callers kept moving pages: some may be free now.
    Unproven,
}

/// The result of a round.
enum Round {
    Found(Pfn),
    /// The round found nothing, and can have missed no page.
    Undisturbed,
    Disturbed(Disturbance),
}

/// The reason why a round says nothing about the pages there are.
#[derive(Clone, Copy)]
enum Disturbance {
    /// Other callers moved pages meanwhile.
    Moved,
    /// Pages are in another caller's hands: between caches and store, behind a closed gate, or
    /// behind a lock.
    InHands,
    /// Pages are in the fronts of isolated CPUs, which were asked for them.
    Asked,
    /// Another caller runs a callback: `seen` turns had ended when the round began.
    Turn { seen: u32 },
}

/// Waits that a request still has: each replaces a round that would count.
struct Patience {
    turns: u32,
    naps: u32,
    asked_naps: u32,
}

impl Patience {
    fn new(may_reclaim: bool) -> Self {
        match may_reclaim {
            true => Patience { turns: TURNS_MAX, naps: NAPS_MAX, asked_naps: ASKED_NAPS_MAX },
            false => Patience { turns: 0, naps: 0, asked_naps: 0 },
        }
    }
}

/// The callbacks for memory pressure, and the rounds that a request goes through before it fails.
#[derive(Default)]
pub struct LastResort<'m> {
    callbacks: Callbacks<'m>,
}

impl<'m> LastResort<'m> {
    /// Registers a callback, for good.
    pub fn register(&self, callback: &'m dyn Reclaim) -> Result<(), TooManyCallbacks> {
        self.callbacks.register(callback)
    }

    /// Called for a zone below `low`. Once per episode, drains the zone's shelves and calls the
    /// callbacks; `drain` does the former and returns the zone's free pages.
    pub fn pass_low<E: Environment>(
        &self,
        environment: &E,
        id: ZoneId,
        zone: &Zone,
        drain: impl FnOnce() -> u64,
    ) {
        let marks = zone.watermarks();
        // A request that calls none leaves the episode to another.
        let may_call = zone.managed() > 0 && self.callbacks.caller(environment).is_ok();
        if !may_call || zone.below_low.swap(true, Ordering::Relaxed) {
            return;
        }
        let free = drain();
        if free < marks.high {
            let wanted_pages = marks.high - free;
            let pressure = Pressure { zone: id, wanted_pages, is_last_resort: false };
            // A callback that another caller runs already is not waited for: there are pages.
            self.callbacks.call(environment, pressure, false);
        }
    }

    /// Tries for a few rounds to serve a request that found no pages.
    #[cold]
    pub fn find<E: Environment>(
        &self,
        environment: &E,
        search: &impl Search,
    ) -> Result<Pfn, NothingFound> {
        // For more than a zone has, no cache needs to give up anything.
        let has_enough = |zone| search.managed_pages(zone) >= search.pages();
        let mut patience = Patience::new(search.may_reclaim());
        if !search.zones().any(has_enough) {
            return Err(NothingFound::Proven);
        }
        let mut round = 0;
        while round < ROUNDS_MAX {
            match self.round(environment, search, round, &patience) {
                Round::Found(pfn) => return Ok(pfn),
                Round::Undisturbed => return Err(NothingFound::Proven),
                Round::Disturbed(by) if self.wait_out(environment, by, &mut patience) => {}
                Round::Disturbed(_) => {
                    round += 1;
                    if round < ROUNDS_MAX {
                        (0..ROUND_SPINS).for_each(|_| spin_hint());
                    }
                }
            }
        }
        Err(NothingFound::Unproven)
    }

    /// Sleeps until what disturbed a round may be over; `false`: the request has no patience for
    /// that, and the round counts.
    fn wait_out<E: Environment>(
        &self,
        environment: &E,
        by: Disturbance,
        patience: &mut Patience,
    ) -> bool {
        let (naps, naps_max) = match by {
            Disturbance::Turn { seen } if patience.turns > 0 => {
                let has_ended = self.callbacks.wait_for_turn(environment, seen, TURN_MS_MAX);
                // A caller that stays so long in a callback may be stopped: wait for no other.
                patience.turns = if has_ended { patience.turns - 1 } else { 0 };
                return true;
            }
            Disturbance::InHands => (&mut patience.naps, NAPS_MAX),
            Disturbance::Asked => (&mut patience.asked_naps, ASKED_NAPS_MAX),
            _ => return false,
        };
        let Some(rest) = naps.checked_sub(1) else { return false };
        // 1, 1, 2, 2, 4, ... milliseconds.
        let nap_ms = 1 << ((naps_max - *naps) / 2);
        *naps = rest;
        self.callbacks.wait_for_turn(environment, self.callbacks.turns(), nap_ms);
        true
    }

    /// One round, the gentlest first; the request is served as soon as it can be.
    fn round<E: Environment>(
        &self,
        environment: &E,
        search: &impl Search,
        round: u32,
        patience: &Patience,
    ) -> Round {
        let seen = self.callbacks.turns();
        let before = search.movement();
        // After the look at the movement.
        let is_isolated = search.is_isolated();
        let may_reclaim = search.may_reclaim() && !is_isolated;
        let (mut own_moves, mut is_turn_awaited, mut left) = (0, false, DrainRest::default());
        if !is_isolated {
            search.zones().for_each(|zone| search.drain_shelves(zone));
        }
        let mut found = search.scan(&mut own_moves);
        if found.is_none() && may_reclaim {
            for zone in search.zones() {
                let pressure =
                    Pressure { zone, wanted_pages: search.pages(), is_last_resort: true };
                // What the first callbacks freed was of no use, or went to others: call all.
                let called = self.callbacks.call(environment, pressure, round > 0);
                is_turn_awaited |=
                    called == CallOutcome::OneIsRunning && environment.caller().is_some();
                left.is_busy |= !matches!(called, CallOutcome::Done | CallOutcome::FromWithin);
            }
            found = search.regain().or_else(|| search.scan(&mut own_moves));
        }
        let hand_over = || search.zones().map(|zone| search.hand_over(zone)).sum::<u64>();
        if found.is_none() && may_reclaim && hand_over() > 0 {
            found = search.scan(&mut own_moves);
        }
        if found.is_none() && may_reclaim {
            search.zones().for_each(|zone| search.drain_fronts(zone, &mut left));
            found = search.scan(&mut own_moves);
        }
        if let Some(pfn) = found {
            return Round::Found(pfn);
        }
        let after = search.movement();
        let is_still = after.moves == before.moves.wrapping_add(own_moves)
            && before.in_flight_pages == 0
            && after.in_flight_pages == 0;
        match () {
            () if is_turn_awaited => Round::Disturbed(Disturbance::Turn { seen }),
            () if left.is_held || after.others_pages > 0 => Round::Disturbed(Disturbance::InHands),
            () if left.is_asked && patience.asked_naps > 0 => Round::Disturbed(Disturbance::Asked),
            () if is_still && !left.is_busy => Round::Undisturbed,
            () => Round::Disturbed(Disturbance::Moved),
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::cell::Cell;

    use super::*;

    const FOUND: Pfn = Pfn::new(7);

    struct Anywhere;

    impl Environment for Anywhere {}

    /// A zone of 8 pages, one of which the scan with this number finds.
    #[derive(Default)]
    struct Script {
        found_at: Option<u32>,
        /// Moves that other callers end during each scan.
        others_moves: u64,
        in_flight_pages: u64,
        /// Pages in flight that this caller moves below.
        own_pages: u64,
        pages: u64,
        may_reclaim: bool,
        is_isolated: bool,
        scans: Cell<u32>,
        moves: Cell<u64>,
        quiet_drains: Cell<u32>,
        full_drains: Cell<u32>,
        /// Pages that owners hand over when first asked.
        handed_pages: Cell<u64>,
        /// Full drains that leave pages in the fronts of isolated CPUs.
        asked_rounds: u32,
    }

    impl Search for Script {
        fn pages(&self) -> u64 {
            self.pages
        }

        fn may_reclaim(&self) -> bool {
            self.may_reclaim
        }

        fn zones(&self) -> impl Iterator<Item = ZoneId> {
            [ZoneId::new(0)].into_iter()
        }

        fn managed_pages(&self, _: ZoneId) -> u64 {
            8
        }

        fn is_isolated(&self) -> bool {
            self.is_isolated
        }

        fn drain_shelves(&self, _: ZoneId) {
            self.quiet_drains.set(self.quiet_drains.get() + 1);
        }

        fn drain_fronts(&self, _: ZoneId, left: &mut DrainRest) {
            self.full_drains.set(self.full_drains.get() + 1);
            left.is_asked = self.full_drains.get() <= self.asked_rounds;
        }

        fn hand_over(&self, _: ZoneId) -> u64 {
            self.handed_pages.take()
        }

        fn scan(&self, own_moves: &mut u64) -> Option<Pfn> {
            *own_moves += 1;
            self.moves.set(self.moves.get() + 1 + self.others_moves);
            self.scans.set(self.scans.get() + 1);
            (self.found_at == Some(self.scans.get())).then_some(FOUND)
        }

        fn regain(&self) -> Option<Pfn> {
            None
        }

        fn movement(&self) -> Movement {
            let others_pages = self.in_flight_pages - self.own_pages;
            let in_flight_pages = self.in_flight_pages;
            Movement { in_flight_pages, others_pages, moves: self.moves.get() }
        }
    }

    /// Runs the last resort; returns the frame that it finds, and the number of scans.
    fn find(script: &Script) -> (Option<Pfn>, u32) {
        let found = LastResort::default().find(&Anywhere, script);
        let is_proven = found == Err(NothingFound::Proven);
        let is_disturbed = script.others_moves + script.in_flight_pages > 0;
        assert!(!(is_proven && is_disturbed), "proven, although pages moved");
        assert!(found.is_ok() || is_proven || is_disturbed, "unproven, and nothing moved");
        let found = found.ok();
        (found, script.scans.get())
    }

    #[test]
    fn an_undisturbed_round_is_the_last() {
        assert_eq!(find(&Script::default()), (None, 1));
        let script = Script { may_reclaim: true, ..Script::default() };
        // After the quiet drain, after the callbacks, after the full drain.
        assert_eq!((find(&script), script.full_drains.get()), ((None, 3), 1));
    }

    #[test]
    fn a_round_beside_others_moves_is_repeated() {
        assert_eq!(find(&Script { others_moves: 1, ..Script::default() }), (None, ROUNDS_MAX));
        assert_eq!(find(&Script { in_flight_pages: 1, ..Script::default() }), (None, ROUNDS_MAX));
    }

    #[test]
    fn pages_in_others_hands_are_waited_for() {
        let script = Script { in_flight_pages: 1, may_reclaim: true, ..Script::default() };
        assert_eq!(find(&script), (None, 3 * (ROUNDS_MAX + NAPS_MAX)));
    }

    #[test]
    fn pages_in_a_requests_own_hands_are_not_waited_for() {
        let script = |in_flight_pages| Script {
            in_flight_pages,
            own_pages: 63,
            may_reclaim: true,
            ..Script::default()
        };
        assert_eq!(find(&script(63)), (None, 3 * ROUNDS_MAX));
        assert_eq!(find(&script(64)), (None, 3 * (ROUNDS_MAX + NAPS_MAX)));
    }

    #[test]
    fn what_owners_hand_over_is_searched_before_others_are_fenced() {
        let script = || Script { may_reclaim: true, ..Script::default() };
        let handed = Script { handed_pages: Cell::new(1), found_at: Some(3), ..script() };
        assert_eq!((find(&handed), handed.full_drains.get()), ((Some(FOUND), 3), 0));
        let of_no_use = Script { handed_pages: Cell::new(1), ..script() };
        assert_eq!((find(&of_no_use), of_no_use.full_drains.get()), ((None, 4), 1));
        let may_not = Script { handed_pages: Cell::new(1), ..Script::default() };
        assert_eq!((find(&may_not), may_not.handed_pages.get()), ((None, 1), 1));
    }

    #[test]
    fn isolated_cpus_that_were_asked_are_waited_for_a_few_times() {
        let script = |asked_rounds| Script { asked_rounds, may_reclaim: true, ..Script::default() };
        assert_eq!(find(&script(2)), (None, 3 * 3));
        assert_eq!(find(&script(u32::MAX)), (None, 3 * (ASKED_NAPS_MAX + 1)));
    }

    #[test]
    fn what_a_scan_finds_ends_the_search() {
        for found_at in [1, 2, 3, 5] {
            let others_moves = u64::from(found_at > 3);
            let script = Script {
                found_at: Some(found_at),
                others_moves,
                may_reclaim: true,
                ..Script::default()
            };
            assert_eq!(find(&script), (Some(FOUND), found_at));
        }
    }

    #[test]
    fn nothing_is_drained_for_isolated_frames() {
        let script = Script { is_isolated: true, may_reclaim: true, ..Script::default() };
        assert_eq!((find(&script), script.full_drains.get()), ((None, 1), 0));
        assert_eq!(script.quiet_drains.get(), 0);
    }

    #[test]
    fn nothing_is_drained_for_more_than_a_zone_has() {
        assert_eq!(find(&Script { pages: 9, may_reclaim: true, ..Script::default() }), (None, 0));
    }
}
