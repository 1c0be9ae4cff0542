//! The drainer's side: switching lists, waiting for grace periods, collecting.

use pagedepot::cpus::Here;
use pagedepot::{CpuId, ZoneId};

use super::{Cell, Grace, Pending, Rcu, Until};
use crate::lock::Clock;
use crate::prim::{Ordering, count, fence, lock_mutex, spin_hint, try_lock_mutex, yield_now};
use crate::report::{Drained, Scope};
use crate::store::Store;

/// How long a drainer waits for the operation that a fence found under way.
const WAIT_SPINS: u32 = if cfg!(loom) { 2 } else { 1 << 12 };

impl<S: Store> Rcu<S> {
    fn place(&self, cpu: CpuId, zone: ZoneId) -> usize {
        cpu.index() * self.store.zones().count() + zone.index()
    }

    pub(super) fn collect_cell(
        &self,
        pending: &mut [Option<Pending>],
        cpu: CpuId,
        zone: ZoneId,
        cell: &Cell,
        done: &mut Drained,
    ) {
        let Some(owner) = self.owners.get(cpu) else { return };
        let place = &mut pending[self.place(cpu, zone)];
        if let Some(switched) = place.take_if(|switched| switched.until.is_over(owner)) {
            done.taken_pages += cell.old().drain(&self.at(Here::task(cpu), zone, cell));
            cell.counters.note_collected(switched.since.elapsed_ns());
        }
    }

    pub(super) fn drain_by(&self, scope: Scope) -> Drained {
        count(&self.outside.drains, 1);
        let mut pending = match try_lock_mutex(&self.pending) {
            Some(pending) => pending,
            None if scope.zone.is_none() => return Drained { skipped: 1, ..Drained::default() },
            None => lock_mutex(&self.pending),
        };
        let mut done = Drained::default();
        for cpu in scope.cpus(self.store.zones()) {
            let scope = Scope { cpu: Some(cpu), ..scope };
            self.collect_within(&mut pending, scope, &mut done);
            if self.switch_cpu(&mut pending, cpu, scope, &mut done) {
                self.collect_within(&mut pending, scope, &mut done);
            }
        }
        for (_, _, cell) in self.cells.within(self.store.zones(), scope) {
            done.left_pages += u64::from(cell.pcp().lists.pages());
            done.pending_pages += u64::from(cell.old().lists.pages());
        }
        done
    }

    fn collect_within(&self, pending: &mut [Option<Pending>], scope: Scope, done: &mut Drained) {
        for (cpu, zone, cell) in self.cells.within(self.store.zones(), scope) {
            self.collect_cell(pending, cpu, zone, cell, done);
        }
    }

    /// Switches those of a CPU's lists that hold pages and whose other set is free, and begins
    /// their grace period. Begins it again for lists whose fence was refused. `false`: there were
    /// none.
    fn switch_cpu(
        &self,
        pending: &mut [Option<Pending>],
        cpu: CpuId,
        scope: Scope,
        done: &mut Drained,
    ) -> bool {
        let mut begin = 0u32;
        for (_, zone, cell) in self.cells.within(self.store.zones(), scope) {
            match &pending[self.place(cpu, zone)] {
                Some(old) if old.until != Until::Fenced => continue,
                None if cell.pcp().lists.pages() == 0 => continue,
                None => cell.switch(),
                Some(_) => {}
            }
            begin |= 1 << zone.get();
        }
        if begin == 0 {
            return false;
        }
        let until = self.begin_period(cpu, done);
        for zone in scope.zones(self.store.zones()).filter(|zone| begin >> zone.get() & 1 == 1) {
            let place = &mut pending[self.place(cpu, zone)];
            match place {
                Some(old) => old.until = until,
                None => *place = Some(Pending { until, since: Clock::now() }),
            }
        }
        true
    }

    fn begin_period(&self, cpu: CpuId, done: &mut Drained) -> Until {
        if self.grace == Grace::Qsbr {
            // Pairs with the fence in `go_online`.
            fence(Ordering::SeqCst);
            // Release: pairs with the Acquire loads of the period: a thread that has seen it also
            // sees the switch.
            return Until::Period(self.period.fetch_add(1, Ordering::Release) + 1);
        }
        let Ok(interrupted) = self.owners.fence_cpu(cpu) else {
            done.busy_cpus += 1;
            return Until::Fenced;
        };
        done.fences += u64::from(interrupted);
        done.interruptions += u64::from(interrupted);
        count(&self.outside.interruptions, u64::from(interrupted));
        self.wait_for_operation(cpu)
    }

    /// After the fence: the operation under way, if there is one, is the last that may use the old
    /// lists. Waits a while for its end.
    fn wait_for_operation(&self, cpu: CpuId) -> Until {
        let Some(owner) = self.owners.get(cpu) else { return Until::Over };
        let state = owner.state();
        if state.is_multiple_of(2) {
            return Until::Over;
        }
        for spin in 0..WAIT_SPINS {
            if owner.state() != state {
                return Until::Over;
            }
            if spin % 1024 == 1023 { yield_now() } else { spin_hint() }
        }
        Until::StateNot(state)
    }
}
