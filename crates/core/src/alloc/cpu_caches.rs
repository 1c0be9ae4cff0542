//! Calls on the caches of CPUs besides draining them: take them away and give them back, let them
//! decay, hand over.

use core::fmt;
use core::mem::MaybeUninit;
use core::ops::Range;
use core::ptr::NonNull;

use super::allocator::Allocator;
use super::config::ConfigError;
use super::drain::Drains;
use crate::cpus::{Cpus, Environment};
use crate::frame::CpuId;
use crate::front::gate;
use crate::pcp::{Caches, DrainResult, HandoverCounts, Scope};
use crate::sync::prim::Ordering;

impl<'m, C: Cpus> Allocator<'m, C> {
    /// The caches of all CPUs: to take them away and give them back, to let them decay, and to hand
    /// over what a drain asked for.
    #[inline]
    pub fn cpu_caches(&self) -> CpuCaches<'_, 'm, C> {
        CpuCaches(&self.caches)
    }
}

/// The caches of all CPUs; see [`Allocator::cpu_caches`].
pub struct CpuCaches<'a, 'm, C>(&'a Caches<'m, C>);

impl<'m, C: Cpus> CpuCaches<'_, 'm, C> {
    /// Takes the caches of all CPUs away until [`enable`](Self::enable): every request goes to the
    /// store, and nothing is cached once this returns with no busy CPU and nothing in flight
    /// (Linux: `zone_pcp_disable`). Isolated CPUs are fenced too: the promise that no page is
    /// hidden has no exceptions.
    pub fn disable(&self) -> DrainResult {
        self.disable_each(0..self.0.pcps.cpus())
    }

    /// Gives the caches back to every CPU.
    pub fn enable(&self) {
        for cpu in self.0.pcps.all_cpus() {
            gate::enable(self.0.gate(cpu));
        }
    }

    /// Takes the caches of a CPU that went away; it has none until [`restore`](Self::restore). The
    /// CPU is fenced, unless the environment says that it is quiescent.
    pub fn retire(&self, cpu: CpuId) -> DrainResult {
        self.disable_each(Scope::cpu(cpu).cpus(self.0.pcps.cpus()))
    }

    /// Lets a CPU cache again. `false`: it was not retired.
    pub fn restore(&self, cpu: CpuId) -> bool {
        cpu.get() < self.0.pcps.cpus() && gate::enable(self.0.gate(cpu))
    }

    /// Whether a CPU has caches now.
    pub fn are_enabled(&self, cpu: CpuId) -> bool {
        // Relaxed: a report.
        cpu.get() < self.0.pcps.cpus()
            && gate::is_enabled(self.0.pcps.blocks().gate(cpu).load(Ordering::Relaxed))
    }

    /// Decays the caches of all CPUs once: for embedders with a timer, and for what idle CPUs hold
    /// (they run no slow paths of their own). An idle CPU's shelf empties over some calls; its
    /// fronts stay. No CPU is interrupted. Returns pages moved to the store.
    ///
    /// The kernel's rhythm is once a second. O(CPUs * zones), at most 32 magazines each.
    pub fn decay(&self) -> u64 {
        self.decay_each(0..self.0.pcps.cpus())
    }

    /// Decays one CPU's caches like [`decay`](Self::decay): for kernels whose timer comes to each
    /// CPU, as `refresh_cpu_vm_stats` of Linux does. 0: there is no such CPU.
    pub fn decay_cpu(&self, cpu: CpuId) -> u64 {
        self.decay_each(Scope::cpu(cpu).cpus(self.0.pcps.cpus()))
    }

    fn decay_each(&self, cpus: Range<u32>) -> u64 {
        let environment = self.0.cpus.environment();
        if environment.check_usable().is_err() {
            return 0;
        }
        let now_ms = environment.now_ms();
        let mut pages = 0;
        for cpu in cpus.map(CpuId::new) {
            for zone in self.0.pcps.all_zones() {
                pages += self.0.share(cpu, zone).decay_at(now_ms);
            }
        }
        self.0.store.end_call(|| ());
        pages
    }

    /// Hands over what this CPU has in its fronts, if a drain asked for it; `true`: it has. For a
    /// kernel's tick, its way into idle and user mode, and threads that are about to sleep: CPUs
    /// that do not allocate answer there. One load where nothing was asked.
    pub fn hand_over(&self) -> bool {
        self.0.cpus.environment().check_usable().is_ok()
            && self.0.here().is_some_and(|here| self.0.hand_over(here))
    }

    /// Counts of a CPU's handovers since construction; `None` when there is no such CPU.
    pub fn handover_counts(&self, cpu: CpuId) -> Option<HandoverCounts> {
        (cpu.get() < self.0.pcps.cpus()).then(|| self.0.pcps.shared(cpu).asks.counts())
    }

    /// Address of a CPU's part of the metadata, and its bytes; `None` when there is no such CPU.
    /// With [`Config::cpu_pages`](crate::Config::cpu_pages) these are whole pages, which may be
    /// moved to the CPU's node. Only the allocator accesses them.
    pub fn metadata(&self, cpu: CpuId) -> Option<(NonNull<u8>, usize)> {
        self.0.pcps.blocks().block(cpu)
    }

    /// Makes further magazines (of 256 bytes) of `memory`, for all CPUs; returns how many. Memory
    /// that is too small for one, aligned, gives none.
    ///
    /// [`HighPolicy`](crate::HighPolicy) says how many there are at first: enough for every CPU at
    /// its `high_min`. An allocator with a [`LinearMap`](crate::LinearMap) carves more from its own
    /// frames when it needs them. One without goes past the caches then, so a kernel that raises
    /// [limits](crate::ZoneSettings::set_cache_limits) once it knows its memory adds magazines
    /// here: one for 63 pages.
    ///
    /// May be called at any time, O(bytes).
    ///
    /// # Errors
    /// [`ConfigError::OutOfReach`]: the memory does not lie within 512 MiB of the metadata, behind
    /// its start.
    pub fn add_magazines(&self, memory: &'m mut [MaybeUninit<u8>]) -> Result<u32, ConfigError> {
        self.0.pcps.add_magazines(memory).ok_or(ConfigError::OutOfReach)
    }

    fn disable_each(&self, cpus: Range<u32>) -> DrainResult {
        let zones = 0..self.0.zones.all().len() as u32;
        Drains(self.0).on_each(cpus, |cpu| self.0.disable_cpu(cpu, zones.clone()))
    }
}

impl<C> fmt::Debug for CpuCaches<'_, '_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CpuCaches").finish_non_exhaustive()
    }
}
