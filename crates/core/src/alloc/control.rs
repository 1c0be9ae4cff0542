//! What callers change while the allocator runs: caches, watermarks, limits, callbacks.

use super::allocator::Allocator;
use super::drain::Drains;
use super::handover::Handover;
use super::mover::Mover;
use super::registered_mover::MoverRegistered;
use crate::cpus::{Cpus, Environment};
use crate::frame::{CpuId, ZoneId};
use crate::front::gate;
use crate::pcp::{Drained, HandoverCounts, Mode, Scope};
use crate::reclaim::{Reclaim, TooManyCallbacks};
use crate::sync::prim::Ordering;
use crate::zone::{CacheLimits, Watermarks};

impl<'m, C: Cpus> Allocator<'m, C> {
    fn drains(&self) -> Drains<'_, 'm, C> {
        Drains(self.caches())
    }

    /// Drains the caches in `scope`. CPUs and zones that do not exist have nothing to drain.
    ///
    /// Quiet: O(shelves in scope + pages taken), about 1 us for a CPU with 250 cached pages. May
    /// be called from anywhere, also from interrupt handlers. Full: also a fence per CPU, so only
    /// from where the environment can fence. Handover: as quiet, and asks each CPU that is not
    /// quiescent; [`drain_handover`](Self::drain_handover) also tells when they have handed over.
    pub fn drain(&self, scope: Scope, mode: Mode) -> Drained {
        self.drains().drain(scope, mode)
    }

    /// Drains the caches in `scope` without interrupting a CPU, fronts included: takes shelves and
    /// the fronts of quiescent CPUs, and asks all other CPUs for theirs. The owner hands them over
    /// at its next operation that needs one (at most 2 magazines for each, by one step without
    /// waiting), and caches on. [`Handover`] has what was taken, and tells when the rest has come.
    ///
    /// CPUs that have not handed over after `fence_after_ms` milliseconds are fenced by the next
    /// look, as by a full drain, unless they are isolated. `None`: never. Without a
    /// [clock](crate::cpus::Environment::now_ms) each look counts as a millisecond.
    ///
    /// O(CPUs in scope), besides what a quiet drain does. May be called from anywhere, also from
    /// interrupt handlers; looks after the deadline only from where the environment can fence.
    ///
    /// ```
    /// # use pagedepot::cpus::{CpuLock, Environment, Locked, WhichCpu};
    /// # use pagedepot::{Allocator, Config, CpuId, Flags, FrameRange, NodeId, Order, Pfn, Scope, ZoneConfig};
    /// # struct First;
    /// # impl Environment for First {}
    /// # impl WhichCpu for First {
    /// #     fn cpu(&self) -> Option<CpuId> { Some(CpuId::new(0)) }
    /// # }
    /// # let ranges = [FrameRange::new(Pfn::new(0x100), 1 << 15)];
    /// # let zones = [ZoneConfig { name: "Normal", node: NodeId::new(0), level: 2, ranges: &ranges, watermarks: None }];
    /// # let config = Config::new(1, &zones);
    /// # let locks = [CpuLock::new()];
    /// # type Depot<'m> = Allocator<'m, Locked<'m, First>>;
    /// # let mut metadata = vec![std::mem::MaybeUninit::uninit(); Depot::metadata_bytes(&config)?];
    /// # let depot = Depot::new(&config, &mut metadata, Locked::new(&locks, First))?;
    /// let pfn = depot.alloc(Order::BASE, Flags::default())?;
    /// depot.free(pfn, Order::BASE)?;
    /// let mut handover = depot.drain_handover(Scope::ALL, Some(10));
    /// let at_once = handover.drained();
    /// if !handover.wait(100) {
    ///     println!("{} CPUs have not handed over", handover.drained().pending_cpus);
    /// }
    /// assert!(at_once.taken_pages + handover.drained().taken_pages > 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn drain_handover(&self, scope: Scope, fence_after_ms: Option<u32>) -> Handover<'_, 'm, C> {
        self.drains().handover(scope, fence_after_ms)
    }

    /// Hands over what this CPU has in its fronts, if a drain asked for it; `true`: it has. For a
    /// kernel's tick, its way into idle and user mode, and threads that are about to sleep: CPUs that
    /// do not allocate answer there. One load where nothing was asked.
    pub fn hand_over(&self) -> bool {
        let caches = self.caches();
        caches.cpus.environment().check_usable().is_ok()
            && caches.here().is_some_and(|here| caches.hand_over(here))
    }

    /// What came of handovers of a CPU since construction; `None` when there is no such CPU.
    pub fn handover_counts(&self, cpu: CpuId) -> Option<HandoverCounts> {
        (cpu.get() < self.pcps.cpus()).then(|| self.pcps.shared(cpu).asks.counts())
    }

    /// As [`drain`](Self::drain), and calls `tell` with what it did for each CPU.
    pub fn drain_each(
        &self,
        scope: Scope,
        mode: Mode,
        tell: impl FnMut(CpuId, Drained),
    ) -> Drained {
        self.drains().drain_each(scope, mode, tell)
    }

    /// Takes the caches of all CPUs away until [`enable_caches`](Self::enable_caches): every
    /// request goes to the store, and nothing is cached once this returns with no busy CPU and
    /// nothing in flight (Linux: `zone_pcp_disable`). Isolated CPUs are fenced too: the promise
    /// that no page is hidden has no exceptions.
    pub fn disable_caches(&self) -> Drained {
        self.drains().disable(0..self.pcps.cpus())
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
        self.drains().disable(Scope::cpu(cpu).cpus(self.pcps.cpus()))
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

    /// Decays the caches of all CPUs once: for embedders with a timer, and for what idle CPUs hold
    /// (they run no slow paths of their own). An idle CPU's shelf empties over some calls; its
    /// fronts stay. No CPU is interrupted. Returns pages moved to the store.
    ///
    /// The kernel's rhythm is once a second. O(CPUs * zones), at most 32 magazines each.
    pub fn decay_caches(&self) -> u64 {
        self.drains().decay()
    }

    /// Registers a callback for memory pressure, for the allocator's life.
    ///
    /// # Errors
    /// At most 8 can be registered.
    pub fn register_reclaim(&self, callback: &'m dyn Reclaim) -> Result<(), TooManyCallbacks> {
        self.globals.last_resort.register(callback)
    }

    /// Registers the mover for requests with [`Flags::compact`](crate::Flags::compact), for the
    /// allocator's life. It is called by one request at a time, from the slow path of a request
    /// that may reclaim, on the thread of that request: it must not wait for a lock that callers
    /// hold while they make such requests.
    ///
    /// # Errors
    /// [`MoverRegistered`]: there is one already, or another call registers one at this moment.
    pub fn register_mover(&self, mover: &'m (dyn Mover + Sync)) -> Result<(), MoverRegistered> {
        self.globals.mover.register(mover)
    }

    /// Changes a zone's watermarks. `false` for a zone that does not exist, or marks that do not
    /// ascend.
    pub fn set_watermarks(&self, zone: ZoneId, marks: Watermarks) -> bool {
        if zone.index() >= self.zones.all().len() || !marks.ascend() {
            return false;
        }
        self.zones.get(zone).set_watermarks(marks);
        true
    }

    /// Changes how much each CPU may cache of a zone (`percpu_pagelist_high_fraction`, or what a
    /// tool that tunes wants). Takes effect at each CPU's next slow path.
    ///
    /// `batch` is at least 1. Returns `false` for a zone that does not exist.
    pub fn set_cache_limits(&self, zone: ZoneId, limits: CacheLimits) -> bool {
        if zone.index() >= self.zones.all().len() {
            return false;
        }
        let high_max = limits.high_max.max(limits.high_min);
        self.zones.get(zone).set_limits(CacheLimits {
            batch: limits.batch.max(1),
            high_max,
            ..limits
        });
        let limits = self.zones.get(zone).limits();
        for cpu in self.pcps.all_cpus() {
            self.caches().share(cpu, zone).clamp_high(limits);
        }
        true
    }

    /// The limits in force for a zone, and `high` of one CPU in it.
    pub fn cache_limits(&self, zone: ZoneId, cpu: CpuId) -> Option<(CacheLimits, u64)> {
        if !self.pcps.has(cpu, zone) {
            return None;
        }
        let high = self.pcps.pcp(cpu, zone).accounts.high_pages.load(Ordering::Relaxed);
        Some((self.zones.get(zone).limits(), high.max(0) as u64))
    }
}

#[cfg(all(loom, test))]
impl<C: Cpus> Allocator<'_, C> {
    /// The last resort alone: with an atomic request one search per round, and none before.
    pub(crate) fn last_resort_for_block(
        &self,
        order: crate::frame::Order,
        flags: super::flags::Flags,
    ) -> Result<crate::frame::Pfn, super::error::AllocError> {
        let caches = self.caches();
        let request = super::request::Request {
            want: super::request::Want::Block(order),
            flags,
            node: caches.node_of(caches.here()),
        };
        self.blocks().under_pressure().at_last(request)
    }
}
