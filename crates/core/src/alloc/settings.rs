//! Settings of a zone that callers change while the allocator runs: watermarks, cache limits,
//! evacuation.

use core::fmt;

use super::allocator::Allocator;
use crate::cpus::Cpus;
use crate::frame::{CpuId, ZoneId};
use crate::pcp::Caches;
use crate::sync::prim::Ordering;
use crate::zone::{CacheLimits, Evacuation, Watermarks, Zone};

impl<'m, C: Cpus> Allocator<'m, C> {
    /// The settings of a zone, to read and to change; `None` when there is no such zone.
    pub fn settings(&self, zone: ZoneId) -> Option<ZoneSettings<'_, 'm, C>> {
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

    /// Changes the watermarks. `false`: they do not ascend, and nothing has changed.
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
            self.caches.share(cpu, self.zone).clamp_high(limits);
        }
    }

    /// The most pages that a CPU may cache now, between the limits; `None` when there is no such
    /// CPU.
    pub fn high(&self, cpu: CpuId) -> Option<u64> {
        let pcps = &self.caches.pcps;
        let high = pcps.has(cpu, self.zone).then(|| &pcps.pcp(cpu, self.zone).accounts.high_pages);
        // Relaxed: a report.
        high.map(|pages| pages.load(Ordering::Relaxed).max(0) as u64)
    }

    /// Whether sparsely used pageblocks are emptied.
    pub fn evacuation(&self) -> Evacuation {
        self.state().evacuating.policy()
    }

    /// Changes whether sparsely used pageblocks are emptied. CPUs follow at their slow paths: with
    /// [`Evacuation::Off`] pageblocks that evacuate are settled as CPUs come by.
    ///
    /// `false`: the allocator was made with [`Evacuation::Off`] or over a backing, and stays so.
    pub fn set_evacuation(&self, policy: Evacuation) -> bool {
        let evacuates = self.caches.pcps.evacuates();
        if evacuates {
            self.state().evacuating.set_policy(policy);
        }
        evacuates
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
