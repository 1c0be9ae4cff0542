//! Drains on behalf of callers.

use core::ops::Range;

use crate::cpus::{Cpus, Environment};
use crate::frame::CpuId;
use crate::pcp::{Caches, DrainResult, Mode, Scope};

/// Takes pages out of the caches. In a forked child there is nothing to take.
pub(crate) struct Drains<'a, 'm, C>(pub &'a Caches<'m, C>);

impl<C: Cpus> Drains<'_, '_, C> {
    fn is_usable(&self) -> bool {
        self.0.cpus.environment().check_usable().is_ok()
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
        let zones = scope.zones(self.0.zones.all().len() as u32);
        self.on_each(scope.cpus(self.0.pcps.cpus()), |cpu| {
            let done = self.0.drain_cpu(cpu, zones.clone(), mode);
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
            self.0.store.end_call(|| ());
        }
        sum
    }
}
