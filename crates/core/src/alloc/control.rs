//! Calls of the embedder's control plane: drains and callbacks; the settings of a zone, which
//! change while the allocator runs (watermarks, cache limits, evacuation); and the caches of CPUs,
//! which are taken away and given back, decay, and are handed over. A [`Handover`] has the pages of
//! a drain that asks owners, and the CPUs that it waits for.

use core::fmt;
use core::mem::MaybeUninit;
use core::ops::Range;
use core::ptr::NonNull;

use super::allocator::Allocator;
use super::config::ConfigError;
use crate::cpus::{Cpus, Environment, elapsed_ms};
use crate::evacuation::{Evacuation, ZonePolicy};
use crate::frame::{CpuId, ZoneId};
use crate::front::gate;
use crate::pcp::{Ask, Caches, DrainResult, HandoverCounts, Mode, Scope};
use crate::reclaim::{Reclaim, TooManyCallbacks};
use crate::sync::model::bound;
use crate::sync::prim::Ordering;
use crate::zone::{CacheLimits, Watermarks, Zone};

impl<'m, C: Cpus> Allocator<'m, C> {
    /// Drains the caches in `scope`. CPUs and zones that do not exist have nothing to drain.
    ///
    /// Quiet: O(shelves in scope + pages taken), about 1 us for a CPU with 250 cached pages. May
    /// be called from anywhere, also from interrupt handlers. Full: also a fence per CPU that has
    /// magazines in its fronts, so only from where the environment can fence. Handover: as quiet,
    /// and asks each CPU that is not quiescent; [`drain_handover`](Self::drain_handover) also tells
    /// when they have handed over.
    pub fn drain(&self, scope: Scope, mode: Mode) -> DrainResult {
        self.caches.drain(scope, mode)
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
    /// # use pagedepot::cpus::{CpuLock, Environment, LockedCpus, WhichCpu};
    /// # use pagedepot::{
    /// #     Allocator, Config, CpuId, Flags, FrameRange, NodeId, Order, Pfn, Scope, ZoneConfig,
    /// # };
    /// # struct First;
    /// # impl Environment for First {}
    /// # impl WhichCpu for First {
    /// #     fn cpu(&self) -> Option<CpuId> { Some(CpuId::new(0)) }
    /// # }
    /// # let ranges = [FrameRange::new(Pfn::new(0x100), 1 << 15)];
    /// # let zones = [ZoneConfig {
    /// #     name: "Normal", node: NodeId::new(0), level: 2, ranges: &ranges, watermarks: None,
    /// # }];
    /// # let config = Config::new(1, &zones);
    /// # let locks = [CpuLock::new()];
    /// # type Depot<'m> = Allocator<'m, LockedCpus<'m, First>>;
    /// # let mut metadata = vec![std::mem::MaybeUninit::uninit(); Depot::metadata_bytes(&config)?];
    /// # let depot = Depot::new(&config, &mut metadata, LockedCpus::new(&locks, First))?;
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
        self.caches.handover(scope, fence_after_ms)
    }

    /// Drains like [`drain`](Self::drain), and calls `tell` with the result for each CPU.
    pub fn drain_each(
        &self,
        scope: Scope,
        mode: Mode,
        tell: impl FnMut(CpuId, DrainResult),
    ) -> DrainResult {
        self.caches.drain_each(scope, mode, tell)
    }

    /// Registers a callback for memory pressure, for the allocator's life.
    ///
    /// # Errors
    /// At most 8 can be registered.
    pub fn register_reclaim(&self, callback: &'m dyn Reclaim) -> Result<(), TooManyCallbacks> {
        self.globals.last_resort.register(callback)
    }
}

/// The last resort alone: with an atomic request one search per round, and none before.
#[cfg(all(loom, test))]
pub(crate) fn last_resort_for_block<C: Cpus>(
    allocator: &Allocator<'_, C>,
    order: crate::frame::Order,
    flags: super::flags::Flags,
) -> Result<crate::frame::Pfn, super::error::AllocError> {
    let caches = &allocator.caches;
    let request = super::walk::Request {
        want: super::walk::Want::Block(order),
        flags,
        node: caches.node_of(caches.here()),
    };
    allocator.slow().at_last(request)
}

impl<'m, C: Cpus> Allocator<'m, C> {
    /// The settings of a zone, to read and to change; `None` when there is no such zone, and in a
    /// fork of the process that made the allocator.
    pub fn settings(&self, zone: ZoneId) -> Option<ZoneSettings<'_, 'm, C>> {
        self.slow().check_usable().ok()?;
        let exists = zone.index() < self.caches.zones.all().len();
        exists.then_some(ZoneSettings { caches: &self.caches, zone })
    }
}

/// The settings of a zone; see [`Allocator::settings`]. Every change takes effect for requests that
/// come later, on any CPU.
pub struct ZoneSettings<'a, 'm, C> {
    caches: &'a Caches<'m, C>,
    zone: ZoneId,
}

impl<C: Cpus> ZoneSettings<'_, '_, C> {
    fn state(&self) -> &Zone {
        self.caches.zones.get(self.zone)
    }

    /// The watermarks in force.
    pub fn watermarks(&self) -> Watermarks {
        self.state().watermarks()
    }

    /// Changes the watermarks. `false`: they do not ascend, and nothing has changed. A request that
    /// runs while `min` rises from 0 may not count a page that is freed at that moment, and fail as
    /// if it had come before the free.
    pub fn set_watermarks(&self, marks: Watermarks) -> bool {
        if marks.ascend() {
            self.state().set_watermarks(marks);
        }
        marks.ascend()
    }

    /// The limits on the pages that each CPU may cache.
    pub fn cache_limits(&self) -> CacheLimits {
        self.state().limits()
    }

    /// Changes how much each CPU may cache (`percpu_pagelist_high_fraction`, or what a tool that
    /// tunes wants). Takes effect at each CPU's next slow path. `batch` is at least 1, and
    /// `high_max` at least `high_min`: what is less is raised. O(CPUs).
    pub fn set_cache_limits(&self, limits: CacheLimits) {
        self.state().set_limits(CacheLimits {
            batch: limits.batch.max(1),
            high_max: limits.high_max.max(limits.high_min),
            ..limits
        });
        // As they are kept: at most 2^40 pages each.
        let limits = self.cache_limits();
        for cpu in self.caches.pcps.all_cpus() {
            self.caches.pcps.pcp(cpu, self.zone).high.clamp(limits);
        }
    }

    /// The most pages that a CPU may cache now, between the limits; `None` when there is no such
    /// CPU.
    pub fn high(&self, cpu: CpuId) -> Option<u64> {
        let pcps = &self.caches.pcps;
        pcps.has(cpu, self.zone).then(|| pcps.pcp(cpu, self.zone).high.pages())
    }

    /// Whether sparsely used pageblocks are emptied.
    pub fn evacuation(&self) -> Evacuation {
        self.caches.pcps.policy(self.zone).map_or(Evacuation::Off, ZonePolicy::get)
    }

    /// Changes whether sparsely used pageblocks are emptied. CPUs follow at their slow paths: with
    /// [`Evacuation::Off`] pageblocks that evacuate are settled as CPUs come by.
    ///
    /// `false`: the allocator was made with [`Evacuation::Off`] or over a backing, and stays so.
    pub fn set_evacuation(&self, policy: Evacuation) -> bool {
        self.caches.pcps.policy(self.zone).map(|zone| zone.set(policy)).is_some()
    }
}

impl<C: Cpus> fmt::Debug for ZoneSettings<'_, '_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZoneSettings")
            .field("zone", &self.zone)
            .field("watermarks", &self.watermarks())
            .field("cache_limits", &self.cache_limits())
            .field("evacuation", &self.evacuation())
            .finish()
    }
}

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
        cpu.get() < self.0.pcps.cpus() && self.0.has_caches(cpu)
    }

    /// Decays the caches of all CPUs once: for embedders with a timer, and for what idle CPUs hold
    /// (they run no slow paths of their own). An idle CPU's shelf empties over some calls; its
    /// fronts stay. No CPU is interrupted. Returns pages moved to the store.
    ///
    /// The kernel's rhythm is once a second. O(CPUs * zones), at most 32 magazines each.
    pub fn decay(&self) -> u64 {
        let environment = self.0.cpus.environment();
        if environment.check_usable().is_err() {
            return 0;
        }
        let now_ms = environment.now_ms();
        let mut pages = 0;
        for cpu in self.0.pcps.all_cpus() {
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
        (cpu.get() < self.0.pcps.cpus()).then(|| self.0.pcps.shared(cpu).asks.counts.read())
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
    /// its `high_min`. An allocator with a [`LinearMap`](crate::LinearMap) carves more when it
    /// needs them, from frames of the zone whose blocks it caches that lie within 512 MiB behind
    /// the metadata. One without such frames goes past the caches then, so a kernel that raises
    /// [limits](crate::ZoneSettings::set_cache_limits) once it knows its memory adds magazines
    /// here: one for 63 pages.
    ///
    /// May be called at any time, O(bytes).
    ///
    /// # Errors
    /// [`ConfigError::OutOfReach`]: the memory does not lie within 512 MiB of the metadata, behind
    /// its start. [`ConfigError::Forked`].
    pub fn add_magazines(&self, memory: &'m mut [MaybeUninit<u8>]) -> Result<u32, ConfigError> {
        self.0.cpus.environment().check_usable().map_err(|_| ConfigError::Forked)?;
        self.0.pcps.add_magazines(memory).ok_or(ConfigError::OutOfReach)
    }

    fn disable_each(&self, cpus: Range<u32>) -> DrainResult {
        let zones = 0..self.0.zones.all().len() as u32;
        self.0.on_each(cpus, |cpu| self.0.disable_cpu(cpu, zones.clone()))
    }
}

impl<C> fmt::Debug for CpuCaches<'_, '_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CpuCaches").finish_non_exhaustive()
    }
}

/// Drains on behalf of callers. In a forked child there is nothing to take.
impl<'m, C: Cpus> Caches<'m, C> {
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
        if self.cpus.environment().check_usable().is_ok() {
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
        // Relaxed: only the number is handed out.
        let number = caches.pcps.state.ask_number.fetch_add(1, Ordering::Relaxed) + 1;
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
        let sleeping = self.caches.pcps.state.sleepers.begin();
        let began_ms = environment.now_ms();
        let mut nap_ms = 1;
        for looks in 0..LOOKS_MAX {
            let (word, seen) = sleeping.seen();
            if self.poll() {
                return true;
            }
            let waited_ms = elapsed_ms(environment, began_ms, looks);
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
        let gone_ms = elapsed_ms(self.caches.cpus.environment(), self.began_ms, self.looks);
        self.fence_after_ms.map(|after_ms| after_ms.saturating_sub(gone_ms))
    }
}

impl<C> fmt::Debug for Handover<'_, '_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handover").field("drained", &self.drained).finish_non_exhaustive()
    }
}
