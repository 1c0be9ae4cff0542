//! Reports of drains, and counters.

use std::ops::AddAssign;

use pagedepot::{CpuId, Order, ZoneId};

use crate::lock::LockWaits;
use crate::zones::Zones;

/// A number of blocks, and the number of pages in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Volume {
    /// Blocks.
    pub blocks: u64,
    /// Pages in them.
    pub pages: u64,
}

impl Volume {
    /// Adds a block.
    #[inline]
    pub fn add(&mut self, order: Order) {
        self.blocks += 1;
        self.pages += u64::from(order.frames());
    }
}

impl AddAssign for Volume {
    fn add_assign(&mut self, other: Volume) {
        self.blocks += other.blocks;
        self.pages += other.pages;
    }
}

/// The caches that a drain takes. `ALL` is the kernel's drain without a zone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// One CPU's; `None`: every CPU's.
    pub cpu: Option<CpuId>,
    /// One zone's; `None`: every zone's, those without memory included.
    pub zone: Option<ZoneId>,
}

impl Scope {
    /// All CPUs and all zones.
    pub const ALL: Scope = Scope { cpu: None, zone: None };

    /// All zones of one CPU.
    pub const fn cpu(cpu: CpuId) -> Self {
        Scope { cpu: Some(cpu), zone: None }
    }

    /// All CPUs' caches of one zone.
    pub const fn zone(zone: ZoneId) -> Self {
        Scope { cpu: None, zone: Some(zone) }
    }

    /// The zones in scope. Every drain loops over these. A design that dereferenced "the zone" of a
    /// global drain instead crashed on the first machine that ran out of memory ("Remote per-cpu
    /// lists drain support", 2022).
    pub fn zones(self, zones: &Zones) -> impl Iterator<Item = ZoneId> + use<> {
        zones.ids().filter(move |&id| self.zone.is_none_or(|zone| zone == id))
    }

    pub fn cpus(self, zones: &Zones) -> impl Iterator<Item = CpuId> + use<> {
        zones.cpu_ids().filter(move |&id| self.cpu.is_none_or(|cpu| cpu == id))
    }
}

/// The result of a drain. Sums by `+=`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DrainResult {
    /// Pages returned to the store by the time the call ended.
    pub taken_pages: u64,
    /// Pages in scope that CPUs cache when the call ends: those that owners cached during the
    /// drain, and those that the design leaves to their owner.
    pub left_pages: u64,
    /// Pages in lists that were switched away, still waiting for a grace period to end.
    pub pending_pages: u64,
    /// Pages that this kind of drain does not reach.
    pub unreachable_pages: u64,
    /// CPUs that this drain interrupted: it ran work on them, or asked the kernel to fence them,
    /// which interrupts a CPU that runs this process.
    pub interruptions: u64,
    /// Fences among them.
    pub fences: u64,
    /// CPUs that could not be drained now.
    pub busy_cpus: u64,
    /// Drains skipped because another was running (mainline: a global drain does not queue up).
    pub skipped: u64,
}

impl AddAssign for DrainResult {
    fn add_assign(&mut self, other: DrainResult) {
        self.taken_pages += other.taken_pages;
        self.left_pages += other.left_pages;
        self.pending_pages += other.pending_pages;
        self.unreachable_pages += other.unreachable_pages;
        self.interruptions += other.interruptions;
        self.fences += other.fences;
        self.busy_cpus += other.busy_cpus;
        self.skipped += other.skipped;
    }
}

/// Counters of a design since it was made. Each number is exact, but the numbers are not read at
/// one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Refills of caches from the store.
    pub refills: u64,
    /// Moved from the store to caches, including the block that the causing request got.
    pub refilled: Volume,
    /// Moved from caches to the store because a cache was above its limit or idle.
    pub spilled: Volume,
    /// Moved from caches to the store by drains.
    pub drained: Volume,
    /// Moved from the store to the caller, past the caches.
    pub direct_allocated: Volume,
    /// Moved from the caller to the store, past the caches.
    pub direct_freed: Volume,
    /// Operations that found their caches' lock held, and went past the caches.
    pub lock_misses: u64,
    /// Waits for locks of caches.
    pub cache_lock: LockWaits,
    /// Waits for the zone locks.
    pub zone_lock: LockWaits,
    /// Calls of `drain`.
    pub drains: u64,
    /// Interruptions of CPUs by drains.
    pub interruptions: u64,
    /// Grace periods that ended with their pages collected.
    pub collected: u64,
    /// Time from switching lists to collecting them, in nanoseconds, summed over `collected`.
    pub collect_ns: u64,
    /// The longest such time, in nanoseconds.
    pub collect_ns_max: u64,
    /// Requests that failed.
    pub failures: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.refills += other.refills;
        self.refilled += other.refilled;
        self.spilled += other.spilled;
        self.drained += other.drained;
        self.direct_allocated += other.direct_allocated;
        self.direct_freed += other.direct_freed;
        self.lock_misses += other.lock_misses;
        self.cache_lock += other.cache_lock;
        self.zone_lock += other.zone_lock;
        self.drains += other.drains;
        self.interruptions += other.interruptions;
        self.collected += other.collected;
        self.collect_ns += other.collect_ns;
        self.collect_ns_max = self.collect_ns_max.max(other.collect_ns_max);
        self.failures += other.failures;
    }
}
