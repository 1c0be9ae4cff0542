//! Handovers: a drain asks, the owner hands its fronts over, the drain collects. The theory is in
//! [`asks`](super::asks).

use core::ops::Range;

use super::asks::HandoverCount;
use super::caches::Caches;
use super::drain::{DrainResult, Force};
use crate::cpus::{Cpus, Environment};
use crate::frame::{CpuId, ZoneId};
use crate::front::Here;
use crate::front::gate::{self, AskOutcome, ClosedGate, is_asked};
use crate::sync::InFlight;
use crate::sync::model::{IS_LOOM, Mutant, is_mutant};
use crate::sync::prim::Ordering;

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
        let claim = |asked, held| self.cpus.claim_gate(self.pcps.blocks(), here, asked, held);
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
        asks.tell(HandoverCount::Handed, 1);
        asks.tell(HandoverCount::HandedPages, pages);
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
        if let Some(word) = self.pcps.sleepers().end() {
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
        if IS_LOOM {
            // As in `drain_cpu`, no protocol reads the rest.
            done.pending_cpus = u64::from(is_pending);
            return done;
        }
        for zone in zones.map(ZoneId::new) {
            let pcp = self.pcps.pcp(cpu, zone);
            let in_flight_pages = InFlight::in_flight_pages(pcp.in_flight.read());
            let in_fronts = pcp.unshelved_pages().saturating_sub(in_flight_pages);
            done.left_pages += pcp.shelved_pages();
            done.in_flight_pages += in_flight_pages;
            *(if is_pending { &mut done.pending_pages } else { &mut done.unreachable_pages }) +=
                in_fronts;
        }
        done.pending_cpus = u64::from(is_pending);
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
            asks.tell(HandoverCount::Asked, 1);
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
        let (force, told) = match () {
            () if is_quiescent => (Force::Quiescence, HandoverCount::Quiescent),
            () if !fences => return,
            () if self.is_left_alone(cpu) => {
                done.isolated_cpus += 1;
                return;
            }
            () => (Force::Fence, HandoverCount::Escalated),
        };
        let Some(closed) = ClosedGate::close(self.gate(cpu), self.caller()) else { return };
        if self.drain_fronts(closed, cpu, zones, force, done) {
            self.pcps.shared(cpu).asks.tell(told, 1);
        }
    }
}
