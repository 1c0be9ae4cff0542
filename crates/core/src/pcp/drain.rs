//! Taking back what CPUs cache.
//!
//! *Quiet*: takes every shelf, by one atomic operation each, and interrupts no CPU; what is in
//! fronts stays and is counted as unreachable. *Full*: closes the gate of each CPU that has
//! magazines in its fronts, fences it once, takes its fronts too; the argument is in
//! `front/gate.rs`. It leaves an isolated CPU alone, unless a fence of that CPU
//! [disturbs](Cpus::fence_disturbs) nothing.
//!
//! What a quiet drain cannot reach is bounded: per CPU, zone, context, order and mobility in use
//! two magazines of 63 blocks (order 0), 31, and 15 or fewer from order 2 up
//! (`Order::rounds`), in pages 126, 124, 120, 240, and so on to 14336 by order 10; one more for
//! frames of avoided pageblocks; and over all of them by `high`, beyond which a CPU's slow
//! path empties its coldest front, or by the one front in use where that alone is more.
//!
//! Magazines that a drain takes from fronts are linked ([`Part`]). They go to the store at once;
//! those of an owner that hands over go to a stack, for the next drain.
//!
//! *Handover*: a drain asks, the owner hands its fronts over, the drain collects. The theory is in
//! [`asks`](super::asks).

use core::mem::take;
use core::ops::Range;

use super::caches::{Caches, CpuZone};
use super::shelf::{Chain, Part, Parts, Shelf};
use super::state::{Front, Pcp};
use crate::cpus::{Change, Cpus, Environment, Event, FenceError};
use crate::frame::pageblock::Tag;
use crate::frame::{CpuId, Kind, Order, ZoneId};
use crate::front::gate::{
    self, AskOutcome, ClosedGate, DISABLED_AFTER, OPEN_AFTER, is_asked, is_held_by,
};
use crate::front::word::Word;
use crate::front::{Here, MagazineIndex};
use crate::sync::model::{IS_LOOM, Mutant, bound, is_mutant};
use crate::sync::prim::{Ordering, spin_hint};
use crate::sync::stack::Links;
use crate::sync::{InFlight, count, counts, prefetch_write};

/// The extent of a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Shelves only; interrupts no CPU.
    Quiet,
    /// Fronts too: one fence per CPU that is not isolated, not quiescent and has magazines there. A
    /// CPU that has done nothing since the last full drain has none. Fronts behind a lock are taken
    /// by that lock, without a fence, of isolated CPUs too.
    Full,
    /// Fronts too, without a fence: quiescent CPUs are taken at once, the others are asked. Each
    /// hands its fronts over at its next operation that needs one, by one bounded step, and caches
    /// on. [`Allocator::drain_handover`](crate::Allocator::drain_handover) tells when they have.
    Handover,
}

/// The CPUs and zones of a drain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    cpu: Option<CpuId>,
    zone: Option<ZoneId>,
}

impl Scope {
    /// The caches of all CPUs in all zones.
    pub const ALL: Scope = Scope { cpu: None, zone: None };

    /// The caches of one CPU.
    pub const fn cpu(cpu: CpuId) -> Self {
        Scope { cpu: Some(cpu), zone: None }
    }

    /// The caches of one zone.
    pub const fn zone(zone: ZoneId) -> Self {
        Scope { cpu: None, zone: Some(zone) }
    }

    /// The CPUs in it, of so many.
    pub(crate) fn cpus(self, count: u32) -> Range<u32> {
        places(self.cpu.map(CpuId::get), count)
    }

    /// The zones in it, of so many.
    pub(crate) fn zones(self, count: u32) -> Range<u32> {
        places(self.zone.map(ZoneId::get), count)
    }

    /// Restricted to one zone.
    #[must_use]
    pub const fn in_zone(self, zone: ZoneId) -> Self {
        Scope { zone: Some(zone), ..self }
    }
}

/// One place of so many, or all of them.
fn places(one: Option<u32>, count: u32) -> Range<u32> {
    match one {
        Some(one) => one.min(count)..one.saturating_add(1).min(count),
        None => 0..count,
    }
}

counts! {
    /// The result of a drain, in pages. Sums over CPUs by `+=`.
    DrainResult {
        /// Returned to the store.
        taken_pages,
        /// Cached within reach again by the time it ended: the owner goes on meanwhile.
        left_pages,
        /// Pages in other callers' hands at the end: refills, spills, other drains.
        in_flight_pages,
        /// Pages in fronts that this drain did not take. After a full drain exact, else an upper
        /// bound, every magazine in a front counted in full; after a handover what the owner has
        /// cached since. At most, per CPU, zone, context and mobility in use, 126 pages by order 0,
        /// 124 by order 1, 120 by order 2, 240 by order 3, twice as many by each order up to 6,
        /// 3072 by order 7, 4096 by order 8, 7168 by order 9 and 14336 by order 10; as many more
        /// while the owner moves two magazines at once.
        unreachable_pages,
        /// Fences that took place. Taking a lock is none.
        fences,
        /// CPUs whose gate another drain held, whose lock a thread held for too long, or that could
        /// not be fenced.
        busy_cpus,
        /// Number of the busy CPUs that the environment refused to fence.
        unfenced_cpus,
        /// CPUs left alone because they are isolated, and no lock guards their fronts.
        isolated_cpus,
        /// CPUs that were asked and have not handed over yet.
        pending_cpus,
        /// Pages in their fronts, every magazine counted in full: on their way.
        pending_pages,
    }
}

/// The means by which a drainer that closed a gate makes sure that no sequence can commit behind
/// it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Force {
    /// Fronts are taken only if the CPU is quiescent.
    Quiescence,
    /// The CPU is fenced unless it is quiescent.
    Fence,
}

/// Number of times that a disabler looks again at a gate that a drainer holds.
const DISABLE_SPINS: u32 = bound(1 << 20, 2);

impl<C: Cpus> Caches<'_, C> {
    /// Drains a CPU's caches of these zones, quietly or fully.
    pub fn drain_cpu(&self, cpu: CpuId, zones: Range<u32>, mode: Mode) -> DrainResult {
        let mut done = DrainResult::default();
        done.taken_pages += self.drain_shelves(cpu, zones.clone());
        // Without zones there is nothing to take, and no reason to interrupt the CPU.
        if mode == Mode::Full && !zones.is_empty() {
            if self.is_left_alone(cpu) {
                done.isolated_cpus = 1;
            } else if !self.has_magazines(cpu, zones.clone()) {
                // Its fronts are empty, or it has handed them over since the line above.
                done.taken_pages += self.drain_handed(cpu, zones.clone());
            } else if let Some(closed) =
                ClosedGate::close(self.gate(cpu), self.caller(), OPEN_AFTER)
            {
                self.drain_fronts(closed, cpu, zones.clone(), Force::Fence, &mut done);
            } else {
                done.busy_cpus = 1;
            }
        }
        self.count_left(cpu, zones, mode, &mut done);
        done
    }

    /// Counts the pages that a drain has left.
    fn count_left(&self, cpu: CpuId, zones: Range<u32>, mode: Mode, done: &mut DrainResult) {
        if IS_LOOM {
            // No protocol reads what follows; to a model each load would be two executions.
            return;
        }
        for zone in zones.map(ZoneId::new) {
            let pcp = self.pcps.pcp(cpu, zone);
            let (charged, shelved_pages) = (pcp.charged(), pcp.shelved_pages());
            done.left_pages += shelved_pages;
            let in_flight_pages = InFlight::in_flight_pages(pcp.in_flight.read());
            done.in_flight_pages += in_flight_pages;
            // Only a full drain reads the owner's words: that takes their line away.
            done.unreachable_pages += match mode {
                Mode::Full => self.pcps.front_pages(cpu, zone),
                // The lower charge: it may have changed since, or just before, shelves were read.
                _ => charged.min(pcp.charged()).saturating_sub(shelved_pages + in_flight_pages),
            };
        }
    }

    /// Whether drains fence no such CPU.
    pub fn is_left_alone(&self, cpu: CpuId) -> bool {
        self.cpus.environment().is_isolated(cpu) && self.cpus.fence_disturbs(cpu)
    }

    /// Whether the calling thread itself holds the gate or the lock of a CPU: this is a handler
    /// above it, and neither is given back while it runs.
    pub fn is_held_below(&self, cpu: CpuId) -> bool {
        // Relaxed: a thread finds its own ticket because it wrote it itself.
        let gate = self.pcps.blocks().gate(cpu).load(Ordering::Relaxed);
        is_held_by(gate, self.caller()) || self.cpus.is_locked_by_caller(cpu)
    }

    /// Takes all shelves of a CPU, and what it handed over; returns pages.
    pub fn drain_shelves(&self, cpu: CpuId, zones: Range<u32>) -> u64 {
        let shares = zones.map(|zone| self.share(cpu, ZoneId::new(zone)));
        shares.map(|share| share.drain_shelves() + share.drain_handed()).sum()
    }

    /// Takes what a CPU handed over; returns pages.
    pub fn drain_handed(&self, cpu: CpuId, zones: Range<u32>) -> u64 {
        zones.map(|zone| self.share(cpu, ZoneId::new(zone)).drain_handed()).sum()
    }

    /// Takes the fronts of a CPU whose gate is closed, reopens it, then returns the frames.
    /// `false`: the CPU's fronts were left alone.
    pub fn drain_fronts(
        &self,
        closed: ClosedGate<'_>,
        cpu: CpuId,
        zones: Range<u32>,
        force: Force,
        done: &mut DrainResult,
    ) -> bool {
        if !self.fence_closed(cpu, force, done) {
            closed.give_up();
            return false;
        }
        let ask = self.pcps.shared(cpu).asks.open();
        let mut taken: [_; Tag::ZONES_MAX] = core::array::from_fn(|_| None);
        for zone in self.pcps.all_zones() {
            let share = self.share(cpu, zone);
            if zones.contains(&zone.get()) {
                // A drain that finds nothing moves nothing: requests that are about to fail drain
                // too.
                let pages = self.pcps.front_pages(cpu, zone);
                let moving = (pages > 0).then(|| self.begin(share.pcp, pages));
                taken[zone.index()] = Some((moving, share.take_parts()));
            } else if ask.is_some() {
                // The drain that asked may want them.
                share.hand_fronts();
            }
        }
        self.reopen(closed, cpu, ask);
        for zone in zones {
            if let Some((moving, parts)) = taken[zone as usize].take() {
                done.taken_pages += self.share(cpu, ZoneId::new(zone)).return_parts(parts);
                drop(moving);
            }
        }
        true
    }

    /// Waits until no sequence can commit on the CPU any more; `false`: that cannot be had.
    fn fence_closed(&self, cpu: CpuId, force: Force, done: &mut DrainResult) -> bool {
        if self.cpus.is_quiescent(cpu) || is_mutant(Mutant::TakesUnquiet) {
            return true;
        }
        if force == Force::Quiescence {
            return false;
        }
        let fenced = self.cpus.fence(self.pcps.blocks(), cpu);
        match fenced {
            Ok(()) => done.fences += u64::from(self.cpus.fence_disturbs(cpu)),
            Err(why) => {
                done.busy_cpus += 1;
                done.unfenced_cpus += u64::from(why == FenceError::Refused);
            }
        }
        fenced.is_ok()
    }

    /// Takes a CPU's caches away until they are enabled again.
    pub fn disable_cpu(&self, cpu: CpuId, zones: Range<u32>) -> DrainResult {
        let mut done = DrainResult::default();
        match self.close_patiently(cpu) {
            Some(closed) => {
                self.drain_fronts(closed, cpu, zones.clone(), Force::Fence, &mut done);
            }
            None => done.busy_cpus = 1,
        }
        // After the gate: see `CpuZone::shelve`.
        done += self.drain_cpu(cpu, zones, Mode::Quiet);
        done
    }

    fn close_patiently(&self, cpu: CpuId) -> Option<ClosedGate<'_>> {
        // A handler above the drainer would look in vain.
        let looks = if self.is_held_below(cpu) { 1 } else { DISABLE_SPINS };
        (0..looks).find_map(|_| {
            let closed = ClosedGate::close(self.gate(cpu), self.caller(), DISABLED_AFTER);
            if closed.is_none() {
                spin_hint();
            }
            closed
        })
    }
}

impl<C: Cpus> CpuZone<'_, '_, C> {
    /// Takes all shelves of a CPU in a zone back to the store; returns pages.
    pub fn drain_shelves(&self) -> u64 {
        let pcp = self.pcp;
        prefetch_write(&pcp.in_flight);
        Kind::all().filter_map(|kind| pcp.listed(Order::BASE, kind)).for_each(prefetch_write);
        // Most are empty. Not by `is_empty`: whoever has disabled this CPU's caches looks here.
        let used = pcp.shelves().filter(|(_, _, shelf)| shelf.count() > 0);
        used.map(|(order, kind, shelf)| self.drain_shelf(order, kind, shelf)).sum()
    }

    fn drain_shelf(&self, order: Order, kind: Kind, shelf: &Shelf) -> u64 {
        let (pcp, shelved) = (self.pcp, shelf.count());
        if let Some(listed) = pcp.listed(order, kind) {
            listed
                .top_down(shelved)
                .for_each(|magazine| prefetch_write(self.blocks().magazine(magazine)));
        }
        // Announced before they are taken, one at least: who sees no page in flight believes that
        // none is. More may have come meanwhile, then fewer pages are announced than moved, for as
        // long as it takes to announce the others.
        let in_pages = |magazines| u64::from(magazines) * u64::from(order.magazine_frames());
        let announced = shelved.max(1);
        let _moving = self.caches.begin(pcp, in_pages(announced));
        let Some(chain) = shelf.take_all(self.blocks()) else { return 0 };
        let more = chain.count.saturating_sub(announced);
        let _rest = (more > 0).then(|| self.caches.begin(pcp, in_pages(more)));
        self.return_chain(self.task_front(order, kind), chain);
        in_pages(chain.count)
    }

    /// Counts what a drain took back.
    pub fn count_drained(&self, order: Order, blocks: u32) {
        self.pcp.count_drained(order, blocks);
        self.tell(Event::Drain, order, blocks);
    }

    /// Empties the full magazines of a chain that the caller owns into the store, then gives the
    /// magazines back to the CPU they came from by one operation.
    fn return_chain(&self, front: Front, chain: Chain) {
        let order = front.order;
        let mut pages = 0;
        let mut last = chain.first;
        let mut at = Some(chain.first);
        while let Some(magazine) = at {
            at = self.blocks().next(magazine);
            if let Some(next) = at {
                prefetch_write(self.blocks().magazine(next));
            }
            pages += self.empty_magazine(order, magazine, order.rounds());
            last = magazine;
        }
        self.add_free(pages);
        self.count_drained(order, chain.count * order.rounds());
        self.charge(-i64::from(chain.count * order.magazine_frames()));
        self.push_returned(chain, last);
    }
}

impl<C: Cpus> CpuZone<'_, '_, C> {
    /// Empties all front words of a CPU in a zone, and calls `with` with each magazine of these
    /// fronts, which the caller owns from then on. Only the holder of the closed gate may call
    /// this, after the fence.
    pub fn take_fronts(&self, mut with: impl FnMut(Part)) {
        self.caches.pcps.used_fronts(self.cpu, self.zone_id).for_each(|(front, cell, word)| {
            count(&self.pcp.counters.hits, word.operations());
            // Relaxed: published by the Release that reopens the gate.
            cell.store(Word::EMPTY.0, Ordering::Relaxed);
            front.parts(word).for_each(&mut with);
        });
    }

    /// Takes all fronts, linked.
    pub fn take_parts(&self) -> Option<Part> {
        let mut parts = None;
        self.take_fronts(|part| {
            self.link(part, parts);
            parts = Some(part);
        });
        parts
    }

    /// Takes all fronts for the next drain: empty magazines stay with the CPU, the others go to
    /// `handed` by one operation and are charged to no CPU any more. Returns the pages. O(fronts),
    /// at most 2 magazines each.
    pub fn hand_fronts(&self) -> u64 {
        let pages = self.caches.pcps.front_pages(self.cpu, self.zone_id);
        // What finds nothing moves nothing.
        let moving = (pages > 0).then(|| self.caches.begin(self.pcp, pages));
        let (mut chain, mut charged) = (None, 0);
        self.take_fronts(|part| {
            let (magazine, order, rounds) = part.unpack();
            if rounds == 0 {
                return self.release(order, magazine.into());
            }
            charged += i64::from(order.magazine_frames());
            let (first, last) = chain.unwrap_or((part, part));
            if chain.is_some() {
                self.link(part, Some(first));
            }
            chain = Some((part, last));
        });
        if let Some((first, last)) = chain {
            let pushed = self.pcp.handed.push_chain(&Parts(self.blocks()), first, last, 0);
            debug_assert!(pushed.is_ok(), "what is not counted has no limit");
            // Not before it is there: a CPU that is charged with nothing is not waited for.
            self.charge(-charged);
        }
        drop(moving);
        pages
    }

    fn link(&self, part: Part, rest: Option<Part>) {
        // Relaxed: the magazine is this caller's alone.
        Parts(self.blocks()).link(part).store(rest.map_or(0, Parts::number), Ordering::Relaxed);
    }

    /// Returns what `take_parts` took to the store; the number of pages.
    pub fn return_parts(&self, mut parts: Option<Part>) -> u64 {
        let mut pages = 0;
        while let Some(part) = parts {
            parts = Parts(self.blocks()).next(part);
            let (magazine, order, _) = part.unpack();
            let grown = self.empty_part(part);
            self.add_free(grown);
            self.release(order, magazine.into());
            pages += part.pages();
        }
        pages
    }

    /// Returns what was handed over to the store; the number of pages.
    pub fn drain_handed(&self) -> u64 {
        let (pcp, parts) = (self.pcp, Parts(self.blocks()));
        let Some(first) = pcp.handed.peek(&parts) else { return 0 };
        // Announced before it is taken. How much follows is not known yet: readers of the word ask
        // whether there is anything.
        let moving = self.caches.begin(self.pcp, first.pages());
        let Some(chain) = pcp.handed.take_all(&parts) else { return 0 };
        let (mut pages, mut grown, mut magazines) = (0, 0, 0);
        let (mut at, mut last) = (Some(chain.first), chain.first.unpack().0);
        while let Some(part) = at {
            at = parts.next(part);
            let next = at.map(|next| next.unpack().0);
            if let Some(next) = next {
                prefetch_write(self.blocks().magazine(next));
            }
            grown += self.empty_part(part);
            pages += part.pages();
            magazines += 1;
            last = part.unpack().0;
            // From here on a link of empty magazines. Relaxed: published by the push below.
            let number = next.map_or(0, MagazineIndex::get);
            self.blocks().link(last).store(number, Ordering::Relaxed);
        }
        self.add_free(grown);
        self.push_returned(Chain { first: chain.first.unpack().0, count: magazines }, last);
        drop(moving);
        pages
    }

    /// Empties a magazine that the caller owns into the store, for a drain. Returns by how many
    /// pages the store grew.
    fn empty_part(&self, part: Part) -> i64 {
        let (magazine, order, rounds) = part.unpack();
        self.count_drained(order, rounds);
        self.empty_magazine(order, magazine, rounds)
    }
}

impl Pcp {
    /// Pages on all shelves.
    pub fn shelved_pages(&self) -> u64 {
        self.shelves()
            .map(|(order, _, shelf)| u64::from(shelf.count()) * u64::from(order.magazine_frames()))
            .sum()
    }
}

/// A drain that asks.
#[derive(Clone, Copy)]
pub struct Ask {
    pub number: u64,
    /// Whether it fences CPUs, but for those that are [left alone](Caches::is_left_alone).
    pub fences: bool,
}

impl<C: Cpus> Caches<'_, C> {
    /// The owner's part: if its gate is asked, takes its fronts and hands them over. `true`: it
    /// has, and the gate is open again.
    pub fn hand_over(&self, here: Here) -> bool {
        let (gate, cpu) = (self.gate(here.cpu), here.cpu);
        // Relaxed: the claim decides.
        if !is_asked(gate.word.load(Ordering::Relaxed)) {
            return false;
        }
        let claim =
            |old, new| self.cpus.commit(self.pcps.blocks(), here, Change::Gate { old, new });
        let Some(closed) = ClosedGate::claim(gate, self.caller(), claim) else { return false };
        let asks = &self.pcps.shared(cpu).asks;
        let ask = asks.open();
        if let Some(ask) = ask.filter(|_| is_mutant(Mutant::AnswersEarly)) {
            asks.answer(ask);
        }
        let mut pages = 0;
        for zone in self.pcps.all_zones() {
            pages += self.share(cpu, zone).hand_fronts();
        }
        count(&asks.counts.handed, 1);
        count(&asks.counts.handed_pages, pages);
        self.reopen(closed, cpu, ask);
        true
    }

    /// Ends a taking of fronts: answers, reopens, tells.
    pub fn reopen(&self, closed: ClosedGate<'_>, cpu: CpuId, ask: Option<u64>) {
        if let Some(ask) = ask {
            self.pcps.shared(cpu).asks.answer(ask);
        }
        drop(closed);
        if ask.is_none() {
            return;
        }
        let environment = self.cpus.environment();
        if let Some(word) = self.pcps.state.sleepers.end() {
            environment.wake_all(word);
        }
        environment.handed_over(cpu);
    }

    /// A drain's look at a CPU: asks if it has to, takes the fronts if it can, and collects what
    /// was handed over.
    pub fn look_at(&self, cpu: CpuId, zones: Range<u32>, ask: Ask) -> DrainResult {
        let mut done = DrainResult::default();
        let is_pending = self.has_magazines(cpu, zones.clone())
            && !self.pcps.shared(cpu).asks.is_answered(ask.number)
            && self.is_pending(cpu, zones.clone(), ask, &mut done);
        done.taken_pages += self.drain_handed(cpu, zones.clone());
        self.count_left(cpu, zones, Mode::Handover, &mut done);
        if is_pending {
            done.pending_cpus = 1;
            done.pending_pages = take(&mut done.unreachable_pages);
        }
        done
    }

    /// Whether there may be something in the fronts: the shelves, which count, were drained before.
    /// If not, neither an ask nor a fence would find anything.
    ///
    /// A magazine is charged before it gets into a front, and until what it held is in the store or
    /// handed over. One that is charged after this look gets there by a slow path, which is a move:
    /// a request that is about to fail sees it, as it would after it had emptied the front.
    pub fn has_magazines(&self, cpu: CpuId, zones: Range<u32>) -> bool {
        let mut pcps = zones.map(|zone| self.pcps.pcp(cpu, ZoneId::new(zone)));
        // Acquire: pairs with the Release in `CpuZone::charge`.
        pcps.any(|pcp| pcp.charged_pages.load(Ordering::Acquire) > 0)
    }

    /// Asks, or asks again. `false`: there is an answer now, or never will be one.
    fn is_pending(&self, cpu: CpuId, zones: Range<u32>, ask: Ask, done: &mut DrainResult) -> bool {
        let asks = &self.pcps.shared(cpu).asks;
        if asks.note(ask.number) {
            count(&asks.counts.asked, 1);
        }
        match gate::ask(self.gate(cpu)) {
            AskOutcome::Disabled => return false,
            AskOutcome::Held => done.busy_cpus += 1,
            AskOutcome::Stands => self.take_asked(cpu, zones, ask.fences, done),
        }
        !asks.is_answered(ask.number)
    }

    /// Takes the fronts of a CPU that was asked, where that needs no handover.
    fn take_asked(&self, cpu: CpuId, zones: Range<u32>, fences: bool, done: &mut DrainResult) {
        if self.cpus.here().is_some_and(|here| here.cpu == cpu && self.hand_over(here)) {
            return;
        }
        // Asked before it takes the gate, so that looks do not keep the owner from it; and again
        // afterwards, which is what counts.
        let is_quiescent = self.cpus.is_quiescent(cpu) || is_mutant(Mutant::TakesUnquiet);
        let counts = &self.pcps.shared(cpu).asks.counts;
        let (force, told) = match () {
            () if is_quiescent => (Force::Quiescence, &counts.quiescent),
            () if !fences => return,
            () if self.is_left_alone(cpu) => {
                done.isolated_cpus += 1;
                return;
            }
            () => (Force::Fence, &counts.escalated),
        };
        let Some(closed) = ClosedGate::close(self.gate(cpu), self.caller(), OPEN_AFTER) else {
            return;
        };
        if self.drain_fronts(closed, cpu, zones, force, done) {
            count(told, 1);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use core::num::NonZeroUsize;
    use std::boxed::Box;
    use std::cell::Cell;
    use std::mem::MaybeUninit;
    use std::vec;
    use std::vec::Vec;

    use super::*;
    use crate::cpus::{CpuLock, LockedCpus, WhichCpu};
    use crate::{Allocator, Config, Flags, FrameRange, HighPolicy, NodeId, Pfn, ZoneConfig};

    /// A caller that others interrupt where its name is asked for.
    struct Interrupted;
    type Depot<'m> = Allocator<'m, LockedCpus<'m, Interrupted>>;

    std::thread_local! {
        static DEPOT: Cell<Option<&'static Depot<'static>>> = const { Cell::new(None) };
        static HELD: Cell<Vec<Pfn>> = const { Cell::new(Vec::new()) };
    }

    impl WhichCpu for Interrupted {
        fn cpu(&self) -> Option<CpuId> {
            Some(CpuId::new(0))
        }
    }

    impl Environment for Interrupted {
        fn caller(&self) -> Option<NonZeroUsize> {
            // None also within.
            let depot = DEPOT.take()?;
            let held = HELD.take();
            if held.is_empty() {
                let in_flight = &depot.caches.share(CpuId::new(0), ZoneId::new(0)).pcp.in_flight;
                assert_ne!(InFlight::in_flight_pages(in_flight.read()), 0, "of the drain");
            }
            held.into_iter().for_each(|pfn| depot.free(pfn, Order::BASE).unwrap());
            DEPOT.set(Some(depot));
            None
        }
    }

    /// The owner shelves a magazine between a drain's look at the empty shelf and its take.
    #[test]
    #[cfg_attr(miri, ignore = "leaks a depot, for a name that is asked for where none is borrowed")]
    fn what_comes_to_an_empty_shelf_is_announced_before_it_is_taken() {
        let ranges = &[FrameRange::new(Pfn::new(0), 1 << 12)];
        let (node, watermarks) = (NodeId::new(0), None);
        let zones = [ZoneConfig { name: "a", node, level: 0, ranges, watermarks }];
        let config = Config { high: HighPolicy::Fixed(1 << 12), ..Config::new(1, &zones) };
        let locks = Box::leak(Box::new([CpuLock::new()]));
        let memory = vec![MaybeUninit::uninit(); Depot::metadata_bytes(&config).unwrap()].leak();
        let cpus = LockedCpus::new(locks, Interrupted);
        let depot: &Depot<'_> = Box::leak(Box::new(Allocator::new(&config, memory, cpus).unwrap()));
        let flags = Flags::default();
        HELD.set((0..300).map(|_| depot.alloc(Order::BASE, flags).unwrap()).collect());
        let share = depot.caches.share(CpuId::new(0), ZoneId::new(0));
        let kind = Kind::of(flags.mobility());
        let shelf = share.pcp.shelves().find(|at| (at.0, at.1) == (Order::BASE, kind)).unwrap().2;
        assert!(shelf.is_empty());
        DEPOT.set(Some(depot));
        let drained = share.drain_shelf(Order::BASE, kind, shelf);
        DEPOT.set(None);
        assert!(drained > 0, "the owner has shelved a magazine");
    }
}
