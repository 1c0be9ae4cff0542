//! Drains on behalf of callers, and handovers: the pages that such a drain has, and the CPUs that
//! it waits for.

use core::fmt;
use core::ops::Range;

use crate::cpus::{Cpus, Environment};
use crate::frame::CpuId;
use crate::pcp::{Ask, Caches, DrainResult, Mode, Scope};
use crate::sync::model::bound;

/// Drains on behalf of callers. In a forked child there is nothing to take.
impl<'m, C: Cpus> Caches<'m, C> {
    fn is_usable(&self) -> bool {
        self.cpus.environment().check_usable().is_ok()
    }

    /// Drains the caches in `scope`.
    pub fn drain(&self, scope: Scope, mode: Mode) -> DrainResult {
        self.drain_each(scope, mode, |_, _| {})
    }

    /// Drains like [`drain`](Self::drain), and calls `tell` with the result for each CPU.
    pub fn drain_each(
        &self,
        scope: Scope,
        mode: Mode,
        mut tell: impl FnMut(CpuId, DrainResult),
    ) -> DrainResult {
        if mode == Mode::Handover {
            return self.handover_each(scope, None, tell).drained();
        }
        let zones = scope.zones(self.zones.all().len() as u32);
        self.on_each(scope.cpus(self.pcps.cpus()), |cpu| {
            let done = self.drain_cpu(cpu, zones.clone(), mode);
            tell(cpu, done);
            done
        })
    }

    /// Sums what `drain` does to each CPU.
    pub fn on_each(
        &self,
        cpus: Range<u32>,
        mut drain: impl FnMut(CpuId) -> DrainResult,
    ) -> DrainResult {
        let mut sum = DrainResult::default();
        if self.is_usable() {
            cpus.map(CpuId::new).for_each(|cpu| sum += drain(cpu));
            self.store.end_call(|| ());
        }
        sum
    }
}

/// Longest sleep between two looks, in milliseconds: a CPU that becomes quiescent wakes no sleeper.
const LOOK_MS_MAX: u32 = 32;
/// Looks of one wait, whatever the clock says.
const LOOKS_MAX: u32 = bound(1 << 20, 100);

/// A drain that asked CPUs to hand over their fronts: what it took so far, and which CPUs it waits
/// for. Made by
/// [`Allocator::drain_handover`](crate::Allocator::drain_handover).
///
/// [`poll`](Self::poll), [`wait`](Self::wait) and every other drain of a CPU bring the pages that
/// it handed over to the store. Dropping this value withdraws no ask: the owners hand over all the
/// same, and later drains, decays and requests that run short find the pages.
pub struct Handover<'a, 'm, C> {
    caches: &'a Caches<'m, C>,
    scope: Scope,
    number: u64,
    fence_after_ms: Option<u32>,
    began_ms: u64,
    /// Looks so far: milliseconds, where there is no clock.
    looks: u32,
    drained: DrainResult,
}

impl<'m, C: Cpus> Caches<'m, C> {
    /// Implements [`Allocator::drain_handover`](super::allocator::Allocator::drain_handover).
    pub fn handover(&self, scope: Scope, fence_after_ms: Option<u32>) -> Handover<'_, 'm, C> {
        self.handover_each(scope, fence_after_ms, |_, _| {})
    }

    /// Asks for a handover like [`handover`](Self::handover), and calls `tell` with the result for
    /// each CPU.
    pub fn handover_each(
        &self,
        scope: Scope,
        fence_after_ms: Option<u32>,
        mut tell: impl FnMut(CpuId, DrainResult),
    ) -> Handover<'_, 'm, C> {
        let caches = self;
        let number = caches.pcps.ask_numbers().next();
        let zones = scope.zones(caches.zones.all().len() as u32);
        let drained = self.on_each(scope.cpus(caches.pcps.cpus()), |cpu| {
            let taken_pages = caches.drain_shelves(cpu, zones.clone());
            let mut done = caches.look_at(cpu, zones.clone(), Ask { number, fences: false });
            done.taken_pages += taken_pages;
            tell(cpu, done);
            done
        });
        let began_ms = caches.cpus.environment().now_ms();
        Handover { caches, scope, number, fence_after_ms, began_ms, looks: 0, drained }
    }
}

impl<C: Cpus> Handover<'_, '_, C> {
    /// The pages so far, and those on their way: `taken_pages` and `fences` are sums, the others
    /// are as of the last look.
    pub fn drained(&self) -> DrainResult {
        self.drained
    }

    /// Whether each CPU in scope has handed over, was taken, or has nothing to hand over, as of the
    /// last look.
    pub fn is_complete(&self) -> bool {
        self.drained.pending_cpus == 0
    }

    /// Looks again: collects what was handed over, takes CPUs that are quiescent now, and fences
    /// the others if the deadline has passed. `true`: it is complete. Does not wait.
    ///
    /// O(CPUs in scope + pages taken).
    pub fn poll(&mut self) -> bool {
        let caches = self.caches;
        if self.is_complete() {
            return true;
        }
        if caches.cpus.environment().check_usable().is_err() {
            // A forked child: its CPUs have no caches.
            self.drained.pending_cpus = 0;
            return true;
        }
        self.looks = self.looks.saturating_add(1);
        let ask = Ask { number: self.number, fences: self.remaining_ms() == Some(0) };
        let mut sum = DrainResult {
            taken_pages: self.drained.taken_pages,
            fences: self.drained.fences,
            ..DrainResult::default()
        };
        let zones = self.scope.zones(caches.zones.all().len() as u32);
        for cpu in self.scope.cpus(caches.pcps.cpus()).map(CpuId::new) {
            sum += caches.look_at(cpu, zones.clone(), ask);
        }
        caches.store.end_call(|| ());
        self.drained = sum;
        self.is_complete()
    }

    /// Looks until it is complete, about `limit_ms` milliseconds at most, and sleeps in between by
    /// [`Environment::wait`]. `true`: it is complete.
    ///
    /// An owner that hands over wakes sleepers; CPUs that become quiescent are found within 32 ms.
    /// Where the environment does not sleep, or has no clock, each look counts as a millisecond.
    pub fn wait(&mut self, limit_ms: u32) -> bool {
        let environment = self.caches.cpus.environment();
        if self.poll() {
            return true;
        }
        let sleeping = self.caches.pcps.sleepers().begin();
        let began_ms = environment.now_ms();
        let mut nap_ms = 1;
        for looks in 0..LOOKS_MAX {
            let (word, seen) = sleeping.seen();
            if self.poll() {
                return true;
            }
            let waited_ms = since(began_ms, environment.now_ms(), looks);
            if waited_ms >= limit_ms {
                break;
            }
            let deadline_ms = self.remaining_ms().filter(|&ms| ms > 0).unwrap_or(LOOK_MS_MAX);
            environment.wait(word, seen, nap_ms.min(limit_ms - waited_ms).min(deadline_ms));
            nap_ms = (2 * nap_ms).min(LOOK_MS_MAX);
        }
        false
    }

    /// Milliseconds until the deadline, if there is one.
    fn remaining_ms(&self) -> Option<u32> {
        let now_ms = self.caches.cpus.environment().now_ms();
        let gone_ms = since(self.began_ms, now_ms, self.looks);
        self.fence_after_ms.map(|after_ms| after_ms.saturating_sub(gone_ms))
    }
}

/// Milliseconds that have gone by; `looks`, where there is no clock.
fn since(began_ms: u64, now_ms: u64, looks: u32) -> u32 {
    match now_ms {
        0 => looks,
        now_ms => u32::try_from(now_ms.saturating_sub(began_ms)).unwrap_or(u32::MAX),
    }
}

impl<C> fmt::Debug for Handover<'_, '_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handover").field("drained", &self.drained).finish_non_exhaustive()
    }
}
