//! Mainline's policy for per-CPU lists: how much to refill, how much to hold, when to spill.
//!
//! Formulas of Linux 7.2, or those of 2022 ([`Rules`]), `mm/page_alloc.c`; the function that each
//! one follows is named. All quantities are pages. Nothing here is shared: one owner, or one lock
//! holder, uses it at a time.
//!
//! # When high orders are not cached
//! A CPU that frees blocks of orders 1..=3 and allocates none (the receiver of a network stream)
//! caches what its peer could reuse while it is cache-hot, and fragments memory. When that applies,
//! and what `nr_pcp_high` then returns, are both open questions of "netperf -18.0% regression"
//! (2022), so both are options.

use super::free_high::{FreeHighLimit, FreeHighPolicy, FreeHighRule};
use crate::prim::PlainU32;
use crate::zones::Zone;
use pagedepot::Order;

/// The largest order that counts as high here (`PAGE_ALLOC_COSTLY_ORDER`).
const COSTLY_ORDER: u32 = 3;

/// Options of the policy. The default is mainline's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Number of times that `batch` may double for long runs of one kind
    /// (`CONFIG_PCP_BATCH_SCALE_MAX`); at most 6.
    pub batch_scale: u32,
    /// The kernel whose formulas apply.
    pub rules: Rules,
    /// `high` stays at `high_min`, as with `percpu_pagelist_high_fraction`.
    pub fixed_high: bool,
    /// The treatment of a CPU that only frees blocks of orders 1..=3.
    pub free_high: FreeHighPolicy,
    /// Pages of the last-level cache that each CPU has for itself.
    pub cache_slice_pages: u64,
}

impl Default for Policy {
    fn default() -> Self {
        Policy {
            batch_scale: 5,
            rules: Rules::Today,
            fixed_high: false,
            free_high: FreeHighPolicy::default(),
            cache_slice_pages: 1024,
        }
    }
}

impl Policy {
    /// The policy of "netperf -18.0% regression" (2022), whose kernel is f26b3fa04611, before 5.18.
    /// The thread's question, what `nr_pcp_high` returns to a CPU that only frees, is still open.
    pub fn of_2022(limit: FreeHighLimit) -> Self {
        let free_high = FreeHighPolicy { rule: FreeHighRule::FreeFactor, limit };
        Policy { rules: Rules::Of2022, fixed_high: true, free_high, ..Policy::default() }
    }
}

/// The kernel whose formulas say how much to refill and to spill.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rules {
    /// Today's: a refill doubles while there is room, a spill is what was freed since the last
    /// allocation, by holds of the zone lock for one batch, and `high` decays.
    #[default]
    Today,
    /// The rules of 2022. A refill is a batch. A spill is `batch << free_factor` pages, which
    /// doubles with each spill and is halved by each allocation, or all pages of a CPU that only
    /// frees high orders, by one hold of the zone lock. Nothing decays.
    Of2022,
}

/// A pcp's limits and counts (the kernel's `struct per_cpu_pages` without its lists).
pub struct Tuning {
    high: PlainU32,
    alloc_factor: PlainU32,
    free_count: PlainU32,
    free_factor: PlainU32,
    previous_free_was_high_order: PlainU32,
    /// Ticks until an idle remote zone is given back.
    expire: PlainU32,
    /// The activity that the last tick saw; a change means that the zone was used since.
    seen: PlainU32,
}

/// A zone's limits, in the type of the arithmetic here (a setup's limits are checked to fit).
#[derive(Clone, Copy)]
struct Limits {
    batch: u32,
    high_min: u32,
    high_max: u32,
}

impl Limits {
    #[inline]
    fn of(policy: &Policy, zone: &Zone) -> Self {
        let limits = zone.limits();
        let high_max = if policy.fixed_high { limits.high_min } else { limits.high_max };
        Limits {
            batch: limits.batch as u32,
            high_min: limits.high_min as u32,
            high_max: high_max as u32,
        }
    }

    fn adapts(self) -> bool {
        self.high_min != self.high_max
    }
}

impl Tuning {
    pub fn new(zone: &Zone) -> Self {
        Tuning {
            high: PlainU32::new(zone.limits().high_min as u32),
            alloc_factor: PlainU32::new(0),
            free_count: PlainU32::new(0),
            free_factor: PlainU32::new(0),
            previous_free_was_high_order: PlainU32::new(0),
            expire: PlainU32::new(0),
            seen: PlainU32::new(0),
        }
    }

    /// `high` at some moment; any thread may look.
    pub fn high(&self) -> u32 {
        self.high.look()
    }

    /// Sets `high`, to start a replay in the recorded machine's state.
    pub fn set_high(&self, high: u32) {
        self.high.set(high);
    }

    fn clamped_high(&self, limits: Limits) -> u32 {
        let high = self.high.get().clamp(limits.high_min, limits.high_max);
        self.high.set(high);
        high
    }

    /// Counts an allocation that is about to be served.
    #[inline]
    pub fn on_alloc(&self) {
        self.free_count.set(self.free_count.get() >> 1);
        if self.free_factor.get() > 0 {
            self.free_factor.set(self.free_factor.get() >> 1);
        }
    }

    /// Blocks to refill (`nr_pcp_alloc`).
    pub fn refill_blocks(&self, policy: &Policy, zone: &Zone, order: Order, held: u32) -> u32 {
        let limits = Limits::of(policy, zone);
        let mut high = self.clamped_high(limits);
        if high < limits.batch {
            return 1;
        }
        if policy.rules == Rules::Of2022 {
            let batch = limits.batch;
            return if batch > 1 { (batch >> order.get()).max(2) } else { batch };
        }
        let base = order == Order::BASE;
        let mut pages = if base { limits.batch << self.alloc_factor.get() } else { limits.batch };
        if limits.adapts() && !zone.is_below_high() {
            high = high.saturating_add(pages).min(limits.high_max);
            self.high.set(high);
        }
        if base {
            let room = high.saturating_sub(held).saturating_sub(limits.batch).max(limits.batch);
            if pages <= room && self.alloc_factor.get() < policy.batch_scale {
                self.alloc_factor.add(1);
            }
            pages = pages.min(room);
        }
        if pages > 1 { (pages >> order.get()).max(2) } else { pages }
    }

    /// Whether the lists may ever hold `pages` pages.
    pub fn has_room(&self, policy: &Policy, zone: &Zone, pages: u32) -> bool {
        pages <= Limits::of(policy, zone).high_max
    }

    /// Raises `high` by `pages` pages that come besides those of [`refill_blocks`].
    ///
    /// [`refill_blocks`]: Self::refill_blocks
    pub fn raise_high(&self, policy: &Policy, zone: &Zone, pages: u32) {
        let limits = Limits::of(policy, zone);
        self.high.set(self.high.get().saturating_add(pages).min(limits.high_max));
    }

    /// Counts a free after which the lists hold `held` pages. Returns the pages to spill
    /// (`free_frozen_page_commit`).
    #[inline]
    pub fn on_free(&self, policy: &Policy, zone: &Zone, order: Order, held: u32) -> u32 {
        let limits = Limits::of(policy, zone);
        self.alloc_factor.set(self.alloc_factor.get() >> 1);
        let free_high = self.is_free_high(policy, limits, order, held);
        if self.free_count.get() < limits.batch << policy.batch_scale {
            self.free_count.add(order.frames());
        }
        let high = self.high_now(policy, zone, limits, held, free_high);
        if held < high { 0 } else { self.spill_pages(policy, limits, held, high, free_high) }
    }

    /// Whether the CPU only frees, and frees high orders (`free_high`).
    #[inline]
    fn is_free_high(&self, policy: &Policy, limits: Limits, order: Order, held: u32) -> bool {
        if !(1..=COSTLY_ORDER).contains(&order.get()) {
            if self.previous_free_was_high_order.get() != 0 {
                self.previous_free_was_high_order.set(0);
            }
            return false;
        }
        let previous = self.previous_free_was_high_order.get() != 0;
        self.previous_free_was_high_order.set(1);
        if policy.free_high.limit == FreeHighLimit::High {
            return false;
        }
        match policy.free_high.rule {
            FreeHighRule::FreeFactor => self.free_factor.get() > 0,
            FreeHighRule::FreeCount => {
                let small_cache = policy.cache_slice_pages <= 3 * u64::from(limits.batch);
                self.free_count.get() >= limits.batch + limits.high_min / 2
                    && previous
                    && (small_cache || held >= limits.batch)
            }
        }
    }

    /// Pages that the lists may hold (`nr_pcp_high`).
    #[inline]
    fn high_now(
        &self,
        policy: &Policy,
        zone: &Zone,
        limits: Limits,
        held: u32,
        free_high: bool,
    ) -> u32 {
        let high = self.clamped_high(limits);
        if high == 0 {
            return 0;
        }
        if policy.rules == Rules::Of2022 && (free_high || zone.is_reclaim_active()) {
            let of_reclaim = (4 * limits.batch).min(high);
            let of_free_high = policy.free_high.limit.pages(limits.batch, high);
            return if free_high { of_free_high } else { of_reclaim };
        }
        if free_high {
            let lowered = high.saturating_sub(limits.batch << policy.batch_scale);
            self.high.set(lowered.max(limits.high_min));
            return policy.free_high.limit.pages(limits.batch, high);
        }
        let lowered = || {
            let step = self.free_count.get().max(limits.batch);
            high.saturating_sub(step).max(limits.high_min)
        };
        if zone.is_reclaim_active() {
            self.high.set(lowered());
            return (4 * limits.batch).min(self.high.get());
        }
        if !limits.adapts() {
            return high;
        }
        if zone.is_below_high() {
            self.high.set(lowered());
            return held.max(limits.high_min);
        }
        if held >= high {
            let needed = self.free_count.get() + limits.batch;
            if high < needed {
                self.high.set(needed.clamp(limits.high_min, limits.high_max));
            }
        }
        high
    }

    /// Pages to spill (`nr_pcp_free`).
    fn spill_pages(
        &self,
        policy: &Policy,
        limits: Limits,
        held: u32,
        high: u32,
        free_high: bool,
    ) -> u32 {
        if free_high {
            return match policy.rules {
                Rules::Today => held.min(limits.batch << policy.batch_scale),
                Rules::Of2022 => held,
            };
        }
        if high < limits.batch {
            return 1;
        }
        let most = high - limits.batch;
        let doubled = limits.batch << self.free_factor.get();
        if doubled < most {
            // `most` is below 2^30, so this ends below 30 even where nothing else bounds it.
            let factor_max = if policy.rules == Rules::Today { policy.batch_scale } else { 30 };
            self.free_factor.set((self.free_factor.get() + 1).min(factor_max));
        }
        if policy.rules == Rules::Of2022 {
            return doubled.max(limits.batch).min(most);
        }
        // As `clamp` where `most` is below `batch`: the upper bound wins.
        self.free_count.get().max(limits.batch).min(most)
    }

    /// Lowers `high` once a second; returns pages to spill (`decay_pcp_high`).
    pub fn decay(&self, policy: &Policy, zone: &Zone, held: u32) -> u32 {
        if policy.rules == Rules::Of2022 {
            return 0;
        }
        let limits = Limits::of(policy, zone);
        let high = self.high.get();
        if high > limits.high_min {
            let kept = held.saturating_sub(limits.batch << policy.batch_scale);
            self.high.set(kept.max(high - (high >> 3)).max(limits.high_min));
        }
        held.saturating_sub(self.high.get())
    }

    /// Counts down an idle zone that is remote to the CPU; returns pages to spill
    /// (`refresh_cpu_vm_stats`). `activity` is a number that changes when the zone is used.
    pub fn expire(&self, zone: &Zone, remote: bool, held: u32, activity: u32) -> u32 {
        const TICKS: u32 = 3;
        if self.seen.get() != activity {
            self.seen.set(activity);
            self.expire.set(TICKS);
        }
        if self.expire.get() == 0 || held == 0 {
            return 0;
        }
        if !remote {
            self.expire.set(0);
            return 0;
        }
        self.expire.sub(1);
        if self.expire.get() > 0 { 0 } else { held.min(zone.limits().batch as u32) }
    }

    /// Pages freed between two drops of the lock.
    pub fn chunk_pages(policy: &Policy, zone: &Zone) -> u32 {
        match policy.rules {
            Rules::Today => Limits::of(policy, zone).batch,
            Rules::Of2022 => u32::MAX,
        }
    }

    /// Pages a drain frees between two drops of the lock (`drain_pages_zone`).
    pub fn drain_chunk_pages(policy: &Policy, zone: &Zone) -> u32 {
        match policy.rules {
            Rules::Today => Limits::of(policy, zone).batch << policy.batch_scale,
            Rules::Of2022 => u32::MAX,
        }
    }
}
