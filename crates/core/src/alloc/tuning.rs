//! Watermarks and cache limits, changed while the allocator runs.

use super::allocator::Allocator;
use crate::cpus::Cpus;
use crate::frame::{CpuId, ZoneId};
use crate::sync::prim::Ordering;
use crate::zone::{CacheLimits, Watermarks};

impl<C: Cpus> Allocator<'_, C> {
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
