//! The drainer's side: switching lists, waiting for grace periods, collecting.

use pagedepot::cpus::Here;
use pagedepot::{CpuId, ZoneId};

use super::{Cell, Grace, GraceCondition, GraceWait, Rcu};
use crate::owned_lists::{ListCell, OwnedLists};
use pagedepot_designs::lock::Clock;
use pagedepot_designs::prim::{
    Ordering, count, fence, lock_mutex, spin_hint, try_lock_mutex, yield_now,
};
use pagedepot_designs::report::{DrainResult, Scope};
use pagedepot_designs::store::Store;

/// Number of spins for which a drainer waits for the operation that a fence found under way.
const WAIT_SPINS: u32 = if cfg!(loom) { 2 } else { 1 << 12 };

impl<S: Store> Rcu<S> {
    fn place(&self, cpu: CpuId, zone: ZoneId) -> usize {
        cpu.index() * self.store.zones().count() + zone.index()
    }

    pub(super) fn collect_cell(
        &self,
        pending: &mut [Option<GraceWait>],
        cpu: CpuId,
        zone: ZoneId,
        cell: &Cell,
        done: &mut DrainResult,
    ) {
        let Some(owner) = self.owners.get(cpu) else { return };
        let place = &mut pending[self.place(cpu, zone)];
        if let Some(switched) = place.take_if(|switched| switched.until.is_over(owner)) {
            done.taken_pages += cell.old().drain(&self.at(Here::task(cpu), zone, cell));
            cell.counters.note_collected(switched.since.elapsed_ns());
        }
    }

    pub(super) fn drain_by(&self, scope: Scope) -> DrainResult {
        count(&self.outside.drains, 1);
        let mut pending = match try_lock_mutex(&self.pending) {
            Some(pending) => pending,
            None if scope.zone.is_none() => {
                let mut skipped = DrainResult::default();
                skipped.skipped = 1;
                return skipped;
            }
            None => lock_mutex(&self.pending),
        };
        let mut done = DrainResult::default();
        if self.grace == Grace::Blocking {
            self.drain_at_once(&mut pending, scope, &mut done);
        } else {
            for cpu in scope.cpus(self.store.zones()) {
                let scope = Scope { cpu: Some(cpu), ..scope };
                self.collect_within(&mut pending, scope, &mut done);
                if self.switch_within(&mut pending, scope) {
                    let until = self.begin_period(cpu, &mut done);
                    self.set_until(&mut pending, scope, until);
                    self.collect_within(&mut pending, scope, &mut done);
                }
            }
        }
        for (_, _, cell) in self.cells.within(self.store.zones(), scope) {
            done.left_pages += u64::from(cell.pcp().lists.pages());
            done.pending_pages += u64::from(cell.old().lists.pages());
        }
        done
    }

    fn collect_within(
        &self,
        pending: &mut [Option<GraceWait>],
        scope: Scope,
        done: &mut DrainResult,
    ) {
        for (cpu, zone, cell) in self.cells.within(self.store.zones(), scope) {
            self.collect_cell(pending, cpu, zone, cell, done);
        }
    }

    /// Switches all lists, waits for one grace period and for the operations that it finds under
    /// way, and drains what was switched. Where the kernel has no such period for programs, fences
    /// take its place, one per CPU.
    fn drain_at_once(
        &self,
        pending: &mut [Option<GraceWait>],
        scope: Scope,
        done: &mut DrainResult,
    ) {
        if !self.switch_within(pending, scope) {
            return;
        }
        let has_ended = is_impatient() || self.owners.wait_for_grace_period().is_ok();
        for cpu in scope.cpus(self.store.zones()) {
            let scope = Scope { cpu: Some(cpu), ..scope };
            // A CPU whose lists were all empty has none that wait.
            if self
                .cells
                .within(self.store.zones(), scope)
                .any(|(cpu, zone, _)| pending[self.place(cpu, zone)].is_some())
            {
                let until = if has_ended || self.fence(cpu, done) {
                    self.wait_for_end(cpu);
                    GraceCondition::Over
                } else {
                    GraceCondition::Unbegun
                };
                self.set_until(pending, scope, until);
            }
        }
        self.collect_within(pending, scope, done);
    }

    /// Switches the lists that hold pages and whose other set is free. Whether lists wait for their
    /// grace period to begin: these, and those that the kernel refused one.
    fn switch_within(&self, pending: &mut [Option<GraceWait>], scope: Scope) -> bool {
        let mut any = false;
        for (cpu, zone, cell) in self.cells.within(self.store.zones(), scope) {
            let place = &mut pending[self.place(cpu, zone)];
            if place.is_none() && cell.pcp().lists.pages() > 0 {
                cell.switch();
                *place = Some(GraceWait { until: GraceCondition::Unbegun, since: Clock::now() });
            }
            any |= place.as_ref().is_some_and(|old| old.until == GraceCondition::Unbegun);
        }
        any
    }

    /// Says when the periods end that have not begun yet.
    fn set_until(&self, pending: &mut [Option<GraceWait>], scope: Scope, until: GraceCondition) {
        for (cpu, zone, _) in self.cells.within(self.store.zones(), scope) {
            if let Some(old) = &mut pending[self.place(cpu, zone)]
                && old.until == GraceCondition::Unbegun
            {
                old.until = until;
            }
        }
    }

    fn begin_period(&self, cpu: CpuId, done: &mut DrainResult) -> GraceCondition {
        if self.grace == Grace::Qsbr {
            // Pairs with the fence in `go_online`.
            fence(Ordering::SeqCst);
            // Release: pairs with the Acquire loads of the period: a thread that has seen it also
            // sees the switch.
            return GraceCondition::Period(self.period.fetch_add(1, Ordering::Release) + 1);
        }
        if self.fence(cpu, done) { self.wait_for_operation(cpu) } else { GraceCondition::Unbegun }
    }

    /// Fences a CPU; `false`: the kernel refused.
    fn fence(&self, cpu: CpuId, done: &mut DrainResult) -> bool {
        let Ok(interrupted) = self.owners.fence_cpu(cpu) else {
            done.busy_cpus += 1;
            return false;
        };
        done.fences += u64::from(interrupted);
        done.interruptions += u64::from(interrupted);
        count(&self.outside.interruptions, u64::from(interrupted));
        true
    }

    /// Waits, after a grace period, for the end of the operation under way, if there is one, which
    /// is the last that may use the old lists.
    fn wait_for_end(&self, cpu: CpuId) {
        let Some(owner) = self.owners.get(cpu) else { return };
        let state = owner.state();
        let mut spin = 0_u32;
        while !is_impatient() && !state.is_multiple_of(2) && owner.state() == state {
            spin += 1;
            // The owner's thread may have been preempted in the middle of the operation.
            if spin.is_multiple_of(1024) { yield_now() } else { spin_hint() }
        }
    }

    /// Returns the condition after a fence: the operation under way, if there is one, is the last
    /// that may use the old lists. Waits a while for its end.
    fn wait_for_operation(&self, cpu: CpuId) -> GraceCondition {
        let Some(owner) = self.owners.get(cpu) else { return GraceCondition::Over };
        let state = owner.state();
        if state.is_multiple_of(2) {
            return GraceCondition::Over;
        }
        for spin in 0..WAIT_SPINS {
            if owner.state() != state {
                return GraceCondition::Over;
            }
            if spin % 1024 == 1023 { yield_now() } else { spin_hint() }
        }
        GraceCondition::StateNot(state)
    }
}

/// A mutant for models: drainers wait neither for the grace period nor for operations under way.
#[cfg(loom)]
pub fn with_impatient_drainers<R>(work: impl FnOnce() -> R) -> R {
    IMPATIENT.set(true);
    let result = work();
    IMPATIENT.set(false);
    result
}

#[cfg(loom)]
std::thread_local!(static IMPATIENT: std::cell::Cell<bool> = const { std::cell::Cell::new(false) });

#[inline]
fn is_impatient() -> bool {
    #[cfg(loom)]
    return IMPATIENT.get();
    #[cfg(not(loom))]
    false
}
