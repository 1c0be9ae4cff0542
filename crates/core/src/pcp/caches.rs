//! The caches of all CPUs in all zones, with what their slow paths work against; and the watermarks
//! that pages pass on their way out of the store.
//!
//! Watermarks are checked against an estimate, or, far above them, against the drift mark alone;
//! near a watermark the CPUs' shares of the free count are summed.
//!
//! [`CpuZone`] is one CPU's caches of one zone, at work: what refill, spill, drain and the policies
//! have in hand.

use super::direct::PastCaches;
use super::pcps::Pcps;
use super::state::{Front, Pcp, Step};
use crate::cpus::{Cpus, Environment, Event, Transfer};
use crate::frame::{CpuId, Kind, NodeId, Order, Pfn, ZoneId};
use crate::front::gate::Gate;
use crate::front::gate::is_enabled;
use crate::front::word::Word;
use crate::front::{BlockArray, Here, MagazineIndex, WordOffset, is_open};
use crate::store::{SearchRequest, SearchRules, Store};
use crate::sync::prim::Ordering;
use crate::sync::{Caller, InFlight, InFlightGuard, count};
use crate::zone::counts::Counters;
use crate::zone::{Reserve, Zone, Zones, delta};

/// The caches of all CPUs in all zones, with the parts that their slow paths work against.
///
/// One value, to which slow paths hold one reference: a view with a reference to each part would be
/// written to the stack and copied for each call, by loads that wait for stores of half their size.
pub struct Caches<'m, C> {
    pub cpus: C,
    pub pcps: Pcps<'m>,
    pub store: Store<'m>,
    pub zones: Zones<'m>,
}

impl<'m, C: Cpus> Caches<'m, C> {
    /// The CPU and context of this code, if that CPU has caches.
    #[inline]
    pub fn here(&self) -> Option<Here> {
        self.cpus.here().filter(|here| here.cpu.get() < self.pcps.cpus())
    }

    /// The thread that calls.
    #[inline]
    pub fn caller(&self) -> Caller {
        Caller::of(self.cpus.environment().caller())
    }

    /// Announces a move of up to `pages` pages on a CPU.
    #[inline]
    pub fn begin<'p>(&self, pcp: &'p Pcp, pages: u64) -> InFlightGuard<'p> {
        pcp.in_flight.begin(pages, self.caller())
    }

    /// The gate of a CPU.
    pub fn gate(&self, cpu: CpuId) -> Gate<'_> {
        Gate::of(self.pcps.blocks(), cpu, self.cpus.is_behind_lock(cpu))
    }

    /// Takes the newest block of a front of this CPU, whether a lock guards it or not.
    #[inline(always)]
    pub fn pop(&self, word: WordOffset) -> Option<u32> {
        let blocks = self.pcps.blocks();
        self.cpus.pop(blocks, word).or_else(|| self.cpus.pop_locked(blocks, word))
    }

    /// Puts a block into a front of this CPU, whether a lock guards it or not.
    #[inline]
    pub fn push(&self, word: WordOffset, order: Order, pfn: Pfn) -> bool {
        let (blocks, rounds_max) = (self.pcps.blocks(), order.rounds());
        self.cpus.push(blocks, word, rounds_max, pfn.get())
            || self.cpus.push_locked(blocks, word, rounds_max, pfn.get())
    }

    /// One push to this CPU's front, of a block about which its tag says enough
    /// ([`Store::simple_tag`]). `false`: nothing has changed.
    #[inline]
    pub fn push_simple(&self, pfn: Pfn, order: Order) -> bool {
        self.simple_front(pfn, order).is_some_and(|(word, order)| {
            self.cpus.push(self.pcps.blocks(), word, order.rounds(), pfn.get())
        })
    }

    /// Pushes a block like [`push_simple`](Self::push_simple), where a lock guards this CPU's
    /// front.
    #[inline]
    pub fn push_simple_locked(&self, pfn: Pfn, order: Order) -> bool {
        self.simple_front(pfn, order).is_some_and(|(word, order)| {
            self.cpus.push_locked(self.pcps.blocks(), word, order.rounds(), pfn.get())
        })
    }

    #[inline(always)]
    fn simple_front(&self, pfn: Pfn, order: Order) -> Option<(WordOffset, Order)> {
        let (order, tag) = (order.cached()?, self.store.simple_tag(pfn, order)?);
        pfn.is_aligned(order).then(|| (WordOffset::expected(tag, order), order))
    }

    /// The front word, if the gate is open.
    #[inline(always)]
    pub fn read_front(&self, front: &Front) -> Option<Word> {
        // Acquire: pairs with the Release of `ClosedGate::drop`.
        let open = is_open(self.pcps.blocks().gate(front.here.cpu).load(Ordering::Acquire));
        open.then(|| {
            Word(self.pcps.blocks().word(front.here, front.offset()).load(Ordering::Relaxed))
        })
    }

    /// Whether a CPU has caches now.
    pub fn has_caches(&self, cpu: CpuId) -> bool {
        // Relaxed: a hint and a report. What acts on it reads the gate again.
        is_enabled(self.pcps.blocks().gate(cpu).load(Ordering::Relaxed))
    }

    /// The node of a caller that runs `here`; node 0 for callers on a CPU without caches.
    pub fn node_of(&self, here: Option<Here>) -> NodeId {
        here.map_or(NodeId::new(0), |here| self.pcps.shared(here.cpu).node)
    }

    /// The way past the caches, for a caller that runs `here`.
    pub fn direct(&self, here: Option<Here>, zone: ZoneId) -> PastCaches<'_, 'm> {
        let pcp = here.map(|here| self.pcps.pcp(here.cpu, zone));
        let cpu = here.map(|here| here.cpu);
        let (store, pcps) = (&self.store, &self.pcps);
        let caller = self.caller();
        PastCaches { store, zone: self.zones.get(zone), zone_id: zone, pcps, cpu, pcp, caller }
    }

    /// Whether the zone may give `pages` without going below what `reserve` protects.
    pub fn may_give(&self, id: ZoneId, pages: u64, reserve: Reserve) -> bool {
        let zone = self.zones.get(id);
        if zone.is_above_drift(pages) {
            end_pressure(zone);
            return true;
        }
        let marks = zone.watermarks();
        let (high, floor) = (marks.high as i64, reserve.floor_pages(marks) as i64);
        // With no floor the bits decide; the counter is only a statistic.
        let is_enough = |free: i64| floor == 0 || free >= floor + pages as i64;
        let least = self.free_estimate(id) - zone.estimate_error();
        // Only the sum over CPUs says whether an episode has ended (`zone_watermark_ok_safe`).
        let is_known =
            is_enough(least) && (least > high || !zone.below_low.load(Ordering::Relaxed));
        let free = if is_known { least } else { self.free_pages(id) as i64 };
        if free > high {
            end_pressure(zone);
        }
        is_enough(free)
    }

    /// A block from the store, past the caches, if the watermarks allow it.
    pub fn alloc_direct(
        &self,
        here: Option<Here>,
        zone: ZoneId,
        order: Order,
        rules: SearchRules,
    ) -> Option<Pfn> {
        let allowed = self.may_give(zone, u64::from(order.frames()), rules.reserve);
        allowed.then(|| self.direct(here, zone).take(order, rules)).flatten()
    }

    /// Whether a zone has more free pages than its high watermark.
    pub fn is_above_high(&self, id: ZoneId) -> bool {
        let zone = self.zones.get(id);
        zone.is_above_drift(0) || self.free_estimate(id) > zone.watermarks().high as i64
    }

    /// Free pages of a zone, without what the CPUs have not yet reported.
    pub fn free_estimate(&self, zone: ZoneId) -> i64 {
        match self.store.backed_free_pages(zone) {
            Some(pages) => pages as i64,
            None => self.zones.get(zone).free_estimate(),
        }
    }

    /// Free pages of a zone's store, the CPUs' and groups' shares of the count included. O(CPUs).
    pub fn free_pages(&self, zone: ZoneId) -> u64 {
        if let Some(pages) = self.store.backed_free_pages(zone) {
            return pages;
        }
        let count = || self.zones.get(zone).free_estimate();
        delta::sum(count, || self.pcps.free_deltas(zone)).max(0) as u64
    }

    /// The in-flight word of every CPU, and of callers on none, with the counters beside it.
    pub fn all_in_flight(&self, id: ZoneId) -> impl Iterator<Item = (&InFlight, &Counters)> {
        let zone = self.zones.get(id);
        let cpus = self.pcps.all_cpus().map(move |cpu| {
            let pcp = self.pcps.pcp(cpu, id);
            (&pcp.in_flight, &*pcp.counters)
        });
        cpus.chain([(&zone.in_flight, &zone.counters)])
    }

    /// Pages in flight of a zone.
    pub fn in_flight_pages(&self, zone: ZoneId) -> u64 {
        let pages = |in_flight: &InFlight| InFlight::in_flight_pages(in_flight.read());
        self.all_in_flight(zone).map(|(in_flight, _)| pages(in_flight)).sum()
    }
}

/// Ends the zone's episode below `low`, if there is one: it is above `high`.
#[inline]
fn end_pressure(zone: &Zone) {
    if zone.below_low.load(Ordering::Relaxed) {
        zone.below_low.store(false, Ordering::Relaxed);
    }
}

/// The caches of one CPU in one zone, at work. A few references: made for each slow path.
pub struct CpuZone<'a, 'm, C> {
    pub caches: &'a Caches<'m, C>,
    pub cpu: CpuId,
    pub zone_id: ZoneId,
    pub pcp: &'a Pcp,
    pub zone: &'m Zone,
}

impl<'a, 'm, C> CpuZone<'a, 'm, C> {
    /// A front of tasks on this CPU.
    pub fn task_front(&self, order: Order, kind: Kind) -> Front {
        self.front(Here::task(self.cpu), order, kind)
    }

    /// The front that blocks are popped from here.
    pub fn front(&self, here: Here, order: Order, kind: Kind) -> Front {
        Front { here, zone: self.zone_id, order, kind, avoided: false }
    }

    pub fn blocks(&self) -> &'a BlockArray {
        self.caches.pcps.blocks()
    }

    pub fn store(&self) -> &'a Store<'m> {
        &self.caches.store
    }
}

impl<C: Cpus> CpuZone<'_, '_, C> {
    /// Records `pages` more (or fewer) free pages of the zone.
    #[inline]
    pub fn add_free(&self, pages: i64) {
        let group = || self.caches.pcps.group_delta(self.cpu, self.zone_id);
        self.pcp.add_free(self.zone, pages, self.caches.caller(), group);
    }

    /// Hands over where the gate is closed, if a drain asks for it; the caller then goes on.
    pub fn at_closed_gate(&self, front: Front) -> Step {
        if self.caches.hand_over(front.here) { Step::Again } else { Step::Store }
    }

    /// Installs `new` in place of `old`, keeping the count of operations.
    #[inline]
    pub fn replace(&self, front: &Front, old: Word, new: Word) -> bool {
        let new = new.with_operations(old.operations());
        let change = front.word_change(old, new);
        let done = self.caches.cpus.commit(self.blocks(), front.here, change);
        if !done {
            count(&self.pcp.counters.lost_races, 1);
        }
        done
    }

    /// Installs `new` in place of `old`, with the same magazines, and counts it.
    #[inline(always)]
    pub fn exchange(&self, front: &Front, old: Word, new: Word) -> bool {
        let change = front.word_change(old, new);
        let done = self.caches.cpus.commit(self.blocks(), front.here, change);
        if done {
            self.pcp.count_exchange(old, new);
        }
        done
    }

    /// Writes frames to the slots of a magazine that the caller owns.
    pub fn fill(&self, magazine: MagazineIndex, frames: &[Pfn]) {
        let slots = &self.blocks().magazine(magazine).slots;
        for (slot, &frame) in slots.iter().zip(frames) {
            // Relaxed: published by whatever hands the magazine on.
            slot.store(frame.get(), Ordering::Relaxed);
        }
    }

    /// Tells tracers that `blocks` blocks moved between this CPU and the store.
    #[inline]
    pub fn tell(&self, event: fn(Transfer) -> Event, order: Order, blocks: u32) {
        let transfer = Transfer { cpu: self.cpu, zone: self.zone_id, order, blocks };
        self.caches.cpus.environment().event(event(transfer));
    }

    /// A search of the store from where this CPU last found such blocks.
    pub fn wanted(&self, order: Order, rules: SearchRules) -> SearchRequest<'_> {
        self.pcp.wanted(self.zone_id, self.zone.span(), order, rules)
    }

    /// Whether the zone may give `pages` without going below what `reserve` protects.
    pub fn may_give(&self, pages: u64, reserve: Reserve) -> bool {
        self.caches.may_give(self.zone_id, pages, reserve)
    }
}

impl<'m, C: Cpus> Caches<'m, C> {
    /// The caches of a CPU in a zone.
    ///
    /// # Panics
    /// When there is no such CPU or zone.
    pub fn share(&self, cpu: CpuId, zone: ZoneId) -> CpuZone<'_, 'm, C> {
        let pcp = self.pcps.pcp(cpu, zone);
        CpuZone { caches: self, cpu, zone_id: zone, pcp, zone: self.zones.get(zone) }
    }
}
