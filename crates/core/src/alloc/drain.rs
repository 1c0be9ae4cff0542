//! Drains and decay on behalf of callers.

use core::ops::Range;

use super::allocator::Allocator;
use crate::cpus::{Cpus, Environment};
use crate::frame::CpuId;
use crate::front::gate;
use crate::pcp::{Drained, Mode, Scope};
use crate::sync::prim::Ordering;

impl<C: Cpus> Allocator<'_, C> {
    /// Drains the caches in `scope`. CPUs and zones that do not exist have nothing to drain.
    ///
    /// Quiet: O(shelves in scope + pages taken), about 1 us for a CPU with 250 cached pages. May
    /// be called from anywhere, also from interrupt handlers. Full: also a fence per CPU, so only
    /// from where the environment can fence.
    pub fn drain(&self, scope: Scope, mode: Mode) -> Drained {
        self.drain_each(scope, mode, |_, _| {})
    }

    /// As [`drain`](Self::drain), and calls `tell` with what it did for each CPU.
    pub fn drain_each(
        &self,
        scope: Scope,
        mode: Mode,
        mut tell: impl FnMut(CpuId, Drained),
    ) -> Drained {
        let mut sum = Drained::default();
        if self.cpus.environment().check_usable().is_err() {
            return sum;
        }
        let zones = scope.zones(self.zones.all().len() as u32);
        for cpu in scope.cpus(self.pcps.cpus()).map(CpuId::new) {
            let done = self.caches().drain_cpu(cpu, zones.clone(), mode);
            tell(cpu, done);
            sum += done;
        }
        self.end_call();
        sum
    }

    /// Takes the caches of all CPUs away until [`enable_caches`](Self::enable_caches): every
    /// request goes to the store, and nothing is cached once this returns with no busy CPU and
    /// nothing in flight (Linux: `zone_pcp_disable`). Isolated CPUs are fenced too: the promise
    /// that no page is hidden has no exceptions.
    pub fn disable_caches(&self) -> Drained {
        self.disable(0..self.pcps.cpus())
    }

    /// Gives the caches back to every CPU.
    pub fn enable_caches(&self) {
        for cpu in self.pcps.all_cpus() {
            gate::enable(self.pcps.blocks(), cpu);
        }
    }

    /// Takes the caches of a CPU that went away; it has none until
    /// [`restore_cpu`](Self::restore_cpu). The CPU is fenced, unless the environment says that it
    /// is quiescent.
    pub fn retire_cpu(&self, cpu: CpuId) -> Drained {
        self.disable(Scope::cpu(cpu).cpus(self.pcps.cpus()))
    }

    /// Lets a CPU cache again. `false`: it was not retired.
    pub fn restore_cpu(&self, cpu: CpuId) -> bool {
        cpu.get() < self.pcps.cpus() && gate::enable(self.pcps.blocks(), cpu)
    }

    /// Whether a CPU has caches now.
    pub fn has_caches(&self, cpu: CpuId) -> bool {
        cpu.get() < self.pcps.cpus()
            && gate::is_enabled(self.pcps.blocks().gate(cpu).load(Ordering::Relaxed))
    }

    fn disable(&self, cpus: Range<u32>) -> Drained {
        let mut sum = Drained::default();
        if self.cpus.environment().check_usable().is_err() {
            return sum;
        }
        let zones = 0..self.zones.all().len() as u32;
        for cpu in cpus.map(CpuId::new) {
            sum += self.caches().disable_cpu(cpu, zones.clone());
        }
        self.end_call();
        sum
    }

    /// Decays the caches of all CPUs once: for embedders with a timer, and for what idle CPUs hold
    /// (they run no slow paths of their own). An idle CPU's shelf empties over some calls; its
    /// fronts stay. No CPU is interrupted. Returns pages moved to the store.
    ///
    /// The kernel's rhythm is once a second. O(CPUs * zones), at most 32 magazines each.
    pub fn decay_caches(&self) -> u64 {
        if self.cpus.environment().check_usable().is_err() {
            return 0;
        }
        let now_ms = self.cpus.environment().now_ms();
        let mut pages = 0;
        for cpu in self.pcps.all_cpus() {
            for zone in self.pcps.all_zones() {
                pages += self.caches().share(cpu, zone).decay_at(now_ms);
            }
        }
        self.end_call();
        pages
    }
}
