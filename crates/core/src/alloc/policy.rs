//! How much a CPU may cache: `high`, how it grows, shrinks and is kept.

use super::Allocator;
use super::front::Front;
use crate::cpus::Cpus;
use crate::frame::Class;
use crate::frame::{CpuId, Mobility, ZoneId};
use crate::pcp::free_high::Moved;
use crate::sync::prim::Ordering;
use crate::zone::CacheLimits;

/// Magazines moved out per slow path to come back under `high`.
const ROOM_STEPS_MAX: u32 = 4;
/// Magazines moved out per decay of a CPU's zone.
const DECAY_MAGAZINES_MAX: u32 = 32;
/// Between decays, on the coarse clock (the kernel's vmstat interval).
const DECAY_INTERVAL_MS: u64 = 1000;
/// Pages that a CPU which only frees spills at once, and that a decay may leave above an eighth
/// less: `batch << 5`, the kernel's default scale.
const BATCH_SCALE: u32 = 5;

impl<C: Cpus> Allocator<'_, C> {
    /// Whether the CPU's magazines are charged with more than `high`.
    pub(super) fn above_high(&self, cpu: CpuId, zone: ZoneId) -> bool {
        let pcp = self.pcp(cpu, zone);
        pcp.charged_pages.load(Ordering::Relaxed) > pcp.accounts.high_pages.load(Ordering::Relaxed)
    }

    /// Whether `high` may grow: it adapts, and the zone is above its high watermark.
    fn may_raise_high(&self, zone: ZoneId, limits: CacheLimits) -> bool {
        limits.adapts() && self.free_estimate(zone) > self.zone(zone).watermarks().high as i64
    }

    /// Raises `high` by a batch or more, so that `pages` more fit under it, if it may grow and
    /// `most` allows as many.
    fn raise_high(&self, cpu: CpuId, zone: ZoneId, pages: u64, most: u64) -> bool {
        let limits = self.zone(zone).limits();
        let pcp = self.pcp(cpu, zone);
        let high = &pcp.accounts.high_pages;
        let needed = pcp.charged_pages.load(Ordering::Relaxed) + pages as i64;
        let most = most.min(limits.high_max) as i64;
        if needed > most || !self.may_raise_high(zone, limits) {
            return false;
        }
        let raised = (high.load(Ordering::Relaxed) + limits.batch as i64).max(needed);
        high.store(raised.min(most), Ordering::Relaxed);
        true
    }

    /// A refill of so many pages lets the CPU cache as many more, or a batch (`nr_pcp_alloc`).
    pub(super) fn raise_high_for_refill(&self, cpu: CpuId, zone: ZoneId, pages: u64) {
        if cfg!(loom) {
            // No protocol reads `high`; to a model each access would be one more place to switch.
            return;
        }
        let limits = self.zone(zone).limits();
        let high = &self.pcp(cpu, zone).accounts.high_pages;
        let now = high.load(Ordering::Relaxed);
        if now < limits.high_max as i64 && self.may_raise_high(zone, limits) {
            let raised = now + limits.batch.max(pages) as i64;
            high.store(raised.min(limits.high_max as i64), Ordering::Relaxed);
        }
    }

    /// As if the CPU had refilled, for what it frees: but no further than to a few batches
    /// (`nr_pcp_high`, where `free_count` and so what it asks for is bounded). What a CPU only
    /// frees is no demand.
    pub(super) fn raise_high_for_free(&self, cpu: CpuId, zone: ZoneId) -> bool {
        let batch = self.zone(zone).limits().batch;
        self.raise_high(cpu, zone, 0, (batch << BATCH_SCALE) + batch)
    }

    /// Tells the rule for CPUs that only free what a front moved.
    pub(super) fn note_moved(&self, front: Front, moved: Moved) {
        if self.free_high.regards(front.class) {
            let zone = self.zone(front.zone);
            let cell =
                &self.pcp(front.here.cpu, front.zone).accounts.free_counts[front.class as usize];
            // Relaxed, and a store: what an interrupt counts in between is lost, from a number that
            // only policies read.
            let count = cell.load(Ordering::Relaxed);
            cell.store(
                self.free_high.count(count, moved, zone.limits(), zone.managed()),
                Ordering::Relaxed,
            );
        }
    }

    /// Whether the CPU counts as one that only frees blocks of this class.
    fn only_frees(&self, front: Front) -> bool {
        let count = || {
            let accounts = &self.pcp(front.here.cpu, front.zone).accounts;
            accounts.free_counts[front.class as usize].load(Ordering::Relaxed)
        };
        self.free_high.regards(front.class)
            && self.free_high.only_frees(count(), self.zone(front.zone).limits())
    }

    /// Spills a shelf that holds more than its CPU may cache while it only frees. It holds one
    /// magazine more than the limit at most, but when the rule begins to apply.
    pub(super) fn spill_if_only_freeing(&self, front: Front) {
        if !self.only_frees(front) {
            return;
        }
        let Front { here, zone, class, mobility } = front;
        let (pcp, limits) = (self.pcp(here.cpu, zone), self.zone(zone).limits());
        let high = pcp.accounts.high_pages.load(Ordering::Relaxed).max(0) as u64;
        let shelved =
            u64::from(pcp.shelf(class, mobility).count()) * u64::from(class.magazine_frames());
        if shelved > self.free_high.limit.pages(limits.batch, high) {
            self.spill_at_once(front);
        }
    }

    /// A CPU that caches more than `high` spilled a magazine: if it only frees, the whole shelf
    /// follows; else its coldest front.
    pub(super) fn spill_more(&self, front: Front) {
        self.note_moved(front, Moved::Spilled);
        if self.only_frees(front) {
            self.spill_at_once(front);
        } else {
            self.empty_coldest_front(front);
        }
    }

    /// Spills a whole shelf, up to `batch << 5` pages (`nr_pcp_free`): what lies at its bottom was
    /// freed first, and would not come back to anybody if only its top were spilled.
    fn spill_at_once(&self, front: Front) {
        let Front { here, zone, class, mobility } = front;
        let pages_max = self.zone(zone).limits().batch << BATCH_SCALE;
        let magazines_max = pages_max / u64::from(class.magazine_frames());
        let magazines_max = u32::try_from(magazines_max).unwrap_or(u32::MAX).max(1);
        self.spill_shelf(here.cpu, zone, class, mobility, magazines_max);
    }

    /// Makes room for `pages` more under `high`: raises it, spills shelved magazines, empties cold
    /// fronts, a few steps at most. `false`: there is none.
    pub(super) fn make_room(&self, front: Front, pages: u64) -> bool {
        let (cpu, zone) = (front.here.cpu, front.zone);
        let pcp = self.pcp(cpu, zone);
        let fits = || {
            pcp.charged_pages.load(Ordering::Relaxed) + pages as i64
                <= pcp.accounts.high_pages.load(Ordering::Relaxed)
        };
        if pages as i64 > self.zone(zone).limits().high_max as i64 {
            return false;
        }
        for _ in 0..ROOM_STEPS_MAX {
            if fits() {
                return true;
            }
            let more = self.raise_high(cpu, zone, pages, u64::MAX)
                || self.spill_any_shelf(cpu, zone, 1) > 0
                || self.empty_coldest_front(front);
            if !more {
                return false;
            }
        }
        fits()
    }

    /// Empties up to `magazines_max` shelved magazines, the largest blocks last.
    pub(super) fn spill_any_shelf(&self, cpu: CpuId, zone: ZoneId, magazines_max: u32) -> u64 {
        let mut pages = 0;
        let mut left = magazines_max;
        for class in Class::ALL {
            for mobility in Mobility::ALL {
                let moved = self.spill_shelf(cpu, zone, class, mobility, left);
                left -= (moved / u64::from(class.magazine_frames())) as u32;
                pages += moved;
            }
        }
        pages
    }

    /// Remembers that the slow path ran, and decays `high` when it is time.
    pub(super) fn note_activity(&self, cpu: CpuId, zone: ZoneId) {
        let now = self.cpus.now_ms();
        if now == 0 {
            return;
        }
        let accounts = &self.pcp(cpu, zone).accounts;
        if accounts.active_ms.load(Ordering::Relaxed) != now {
            accounts.active_ms.store(now, Ordering::Relaxed);
        }
        let last = accounts.decayed_ms.load(Ordering::Relaxed);
        if last == 0 || now.saturating_sub(last) >= DECAY_INTERVAL_MS {
            accounts.decayed_ms.store(now, Ordering::Relaxed);
            if last != 0 {
                self.decay(cpu, zone);
            }
        }
    }

    /// Lowers `high` towards what is cached, by at most an eighth, and spills the excess
    /// (`decay_pcp_high` in `mm/page_alloc.c`); forgets half of what the CPU allocated. Returns
    /// pages moved to the store.
    fn decay(&self, cpu: CpuId, zone: ZoneId) -> u64 {
        let limits = self.zone(zone).limits();
        let accounts = &self.pcp(cpu, zone).accounts;
        let charged = self.pcp(cpu, zone).charged_pages.load(Ordering::Relaxed);
        if limits.adapts() {
            let high = accounts.high_pages.load(Ordering::Relaxed);
            let slack = (limits.batch << BATCH_SCALE) as i64;
            let lower = (charged - slack)
                .max(high - high / 8)
                .max(limits.high_min as i64)
                .min(high.max(limits.high_min as i64));
            accounts.high_pages.store(lower, Ordering::Relaxed);
        }
        for cell in &accounts.free_counts {
            let allocated = cell.load(Ordering::Relaxed).min(0);
            cell.fetch_sub(allocated / 2, Ordering::Relaxed);
        }
        let mut pages = 0;
        for _ in 0..DECAY_MAGAZINES_MAX {
            if !self.above_high(cpu, zone) {
                break;
            }
            match self.spill_any_shelf(cpu, zone, 1) {
                0 => break,
                moved => pages += moved,
            }
        }
        pages
    }

    /// Decays the caches of all CPUs once: for embedders with a timer, and for what idle CPUs hold
    /// (they run no slow paths of their own). An idle CPU's shelf empties over some calls; its
    /// fronts stay. Interrupts nobody. Returns pages moved to the store.
    ///
    /// The kernel's rhythm is once a second. O(CPUs * zones), at most 32 magazines each.
    pub fn decay_caches(&self) -> u64 {
        if self.cpus.check_usable().is_err() {
            return 0;
        }
        let idle_before = self.cpus.now_ms().saturating_sub(3 * DECAY_INTERVAL_MS);
        let mut pages = 0;
        for cpu in self.all_cpus() {
            for zone in self.all_zones() {
                pages += self.decay(cpu, zone);
                // Three ticks idle: a batch more, as the kernel does for remote zones.
                let active = self.pcp(cpu, zone).accounts.active_ms.load(Ordering::Relaxed);
                if idle_before > 0 && active < idle_before {
                    pages += self.spill_any_shelf(cpu, zone, DECAY_MAGAZINES_MAX);
                }
            }
        }
        self.end_call();
        pages
    }

    /// Changes how much each CPU may cache of a zone (`percpu_pagelist_high_fraction`, or what a
    /// tool that tunes wants). Takes effect at each CPU's next slow path.
    ///
    /// `batch` is at least 1. Returns `false` for a zone that does not exist.
    pub fn set_cache_limits(&self, zone: ZoneId, limits: CacheLimits) -> bool {
        if zone.index() >= self.zones.len() {
            return false;
        }
        let high_max = limits.high_max.max(limits.high_min);
        self.zone(zone).set_limits(CacheLimits { batch: limits.batch.max(1), high_max, ..limits });
        let limits = self.zone(zone).limits();
        for cpu in self.all_cpus() {
            let high = &self.pcp(cpu, zone).accounts.high_pages;
            let now = high.load(Ordering::Relaxed);
            high.store(
                now.clamp(limits.high_min as i64, limits.high_max as i64),
                Ordering::Relaxed,
            );
        }
        true
    }

    /// The limits in force for a zone, and `high` of one CPU in it.
    pub fn cache_limits(&self, zone: ZoneId, cpu: CpuId) -> Option<(CacheLimits, u64)> {
        if zone.index() >= self.zones.len() || cpu.get() >= self.blocks.cpus {
            return None;
        }
        let high = self.pcp(cpu, zone).accounts.high_pages.load(Ordering::Relaxed);
        Some((self.zone(zone).limits(), high.max(0) as u64))
    }
}
