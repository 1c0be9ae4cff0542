//! Our allocator as a target: one thread that acts as every CPU of the trace.
//!
//! There are frame numbers but no frames: a replay needs none, and so a trace of a large machine
//! runs on a small one. Without frames no magazines are carved from them; those that the books
//! include suffice for `high_min` on every CPU.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use pagedepot::cpus::{FenceError, Guard, Here, Pinned, Processor};
use pagedepot::{
    Allocator, Config, ConfigError, CpuId, Flags, FrameRange, Mobility, Mode, NodeId, Order, Pfn, Scope,
    Watermarks, ZoneConfig, ZoneId, ZoneStats,
};

use super::plan::Plan;
use super::target::{Census, ReplayCounts, ReplayTarget, Volume};
use crate::trace::Zoneinfo;

/// How often the kernel decays its caches (`vmstat_update` in `mm/vmstat.c`).
const DECAY_INTERVAL_MS: u64 = 1000;

const ZONE: ZoneId = ZoneId::new(0);

/// The CPU and the time of the event being replayed.
#[derive(Default)]
struct Acting {
    cpu: AtomicU32,
    now_ms: AtomicU64,
}

/// Proof that the replay acts as a CPU.
struct ActingAs(CpuId);

// SAFETY: `Depot` is used by one thread at a time, which changes its CPU only between calls of the
// allocator; guards live inside such a call. So while one lives, nothing else runs on any CPU.
unsafe impl Guard for ActingAs {
    fn here(&self) -> Here {
        Here::task(self.0)
    }
}

// SAFETY: as for the guard: the allocator asks for a fence, on the only thread there is, when it
// holds no guard, so all that existed before are gone and their stores are this thread's own.
unsafe impl Processor for Acting {
    type Guard = ActingAs;

    #[inline]
    fn pin(&self) -> Option<ActingAs> {
        // Relaxed: one thread.
        Some(ActingAs(CpuId::new(self.cpu.load(Ordering::Relaxed))))
    }

    fn fence(&self, _cpu: CpuId) -> Result<(), FenceError> {
        Ok(())
    }

    fn now_ms(&self) -> u64 {
        self.now_ms.load(Ordering::Relaxed)
    }
}

/// How large a machine a trace is replayed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    pub cpus: u32,
    pub pages: u64,
    /// `None`: those the kernel would compute.
    pub watermarks: Option<Watermarks>,
}

impl Machine {
    /// A machine with the zone that the trace's frames are from, if a zoneinfo tells it, else one
    /// large enough for the trace.
    pub fn for_plan(plan: &Plan, before: Option<&Zoneinfo>) -> Self {
        let cpus = (plan.cpus.len() as u32).max(1);
        let span = &plan.pfn_span;
        let zones = before.iter().flat_map(|zoneinfo| &zoneinfo.zones);
        let zone = zones
            .filter(|zone| zone.start_pfn < span.end && span.start < zone.start_pfn + zone.spanned)
            .filter(|zone| zone.managed >= plan.work.held_pages_peak + zone.min)
            .max_by_key(|zone| zone.managed);
        match zone {
            Some(zone) => {
                let watermarks = Watermarks { min: zone.min, low: zone.low, high: zone.high };
                Machine { cpus, pages: zone.managed, watermarks: Some(watermarks) }
            }
            None => Machine { cpus, pages: plan.zone_pages(), watermarks: None },
        }
    }
}

/// How the pages that go past the caches are counted; the allocator counts them in blocks only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accounting {
    /// By a look at the allocator's counters after every operation.
    Exact,
    /// Not at all, for runs whose time matters: their pages are given as 0.
    Fast,
}

/// Makes an allocator for `machine` and calls `f` with it.
///
/// # Errors
/// When the machine is larger than the allocator can manage.
pub fn with_depot<R>(
    machine: Machine,
    accounting: Accounting,
    f: impl FnOnce(&mut Depot<'_>) -> R,
) -> Result<R, ConfigError> {
    let frames = u32::try_from(machine.pages).map_err(|_| ConfigError::TooLarge)?;
    let ranges = [FrameRange::new(Pfn::new(0), frames)];
    let zone = ZoneConfig {
        name: "Normal",
        node: NodeId::new(0),
        level: 2,
        ranges: &ranges,
        watermarks: machine.watermarks,
    };
    let zones = [zone];
    let config = Config::new(machine.cpus, &zones);
    let mut books = vec![MaybeUninit::uninit(); Allocator::<Pinned<Acting>>::metadata_bytes(&config)?];
    let allocator = Allocator::new(&config, &mut books, Pinned(Acting::default()))?;
    let mut depot = Depot { allocator, decayed_ms: 0, accounting, direct: Direct::default() };
    Ok(f(&mut depot))
}

/// Our allocator, acting as the CPU of each event.
pub struct Depot<'m> {
    allocator: Allocator<'m, Pinned<Acting>>,
    decayed_ms: u64,
    accounting: Accounting,
    direct: Direct,
}

/// What went past the caches, as far as it was looked at.
#[derive(Clone, Copy, Default)]
struct Direct {
    allocated: Volume,
    freed: Volume,
}

impl Depot<'_> {
    fn act_as(&self, cpu: CpuId) {
        self.allocator.cpus().0.cpu.store(cpu.get(), Ordering::Relaxed);
    }

    fn zone(&self) -> ZoneStats {
        self.allocator.zone_stats(ZONE).expect("there is one zone")
    }

    /// Finds out whether the operation on a block of `order` that just ended went past the caches.
    #[inline]
    fn account(&mut self, order: Order) {
        if self.accounting == Accounting::Exact {
            let counts = self.zone().counts;
            let direct = &mut self.direct;
            for (volume, blocks) in
                [(&mut direct.allocated, counts.direct_allocs), (&mut direct.freed, counts.direct_frees)]
            {
                if blocks > volume.blocks {
                    volume.add(order);
                }
            }
        }
    }
}

impl ReplayTarget for Depot<'_> {
    fn set_time(&mut self, now_ms: u64) {
        // 0 means that there is no clock.
        self.allocator.cpus().0.now_ms.store(now_ms + 1, Ordering::Relaxed);
        if now_ms >= self.decayed_ms + DECAY_INTERVAL_MS {
            self.decayed_ms = now_ms;
            self.allocator.decay_caches();
        }
    }

    #[inline]
    fn alloc(&mut self, cpu: CpuId, order: Order, mobility: Mobility) -> Option<Pfn> {
        self.act_as(cpu);
        let pfn = self.allocator.alloc(order, Flags::new(mobility)).ok();
        self.account(order);
        pfn
    }

    #[inline]
    fn free(&mut self, cpu: CpuId, pfn: Pfn, order: Order) {
        self.act_as(cpu);
        self.allocator.free(pfn, order).unwrap_or_else(|why| panic!("{pfn:?} of {order:?} is ours: {why}"));
        self.account(order);
    }

    /// One by one: the blocks of the kernel's batches end in its per-CPU lists, while
    /// [`Allocator::free_many`] sends most of a batch to the store, as suits an exiting process.
    /// Replayed so, batches of at most 31 blocks (`PAGEVEC_SIZE`) would empty the caches that the
    /// kernel fills.
    fn free_many(&mut self, cpu: CpuId, blocks: &[(Pfn, Order)]) {
        blocks.iter().for_each(|&(pfn, order)| self.free(cpu, pfn, order));
    }

    fn halve(&mut self, pfn: Pfn, order: Order) {
        let half = Order::new(order.get() - 1).expect("an order above 0");
        self.allocator
            .split(pfn, order, half)
            .unwrap_or_else(|why| panic!("{pfn:?} of {order:?} is ours: {why}"));
    }

    fn counts(&self) -> ReplayCounts {
        let counts = self.zone().counts;
        let cpus = (0..self.allocator.cpu_count()).map(CpuId::new);
        let cached = |cpu| self.allocator.cpu_stats(cpu, ZONE).expect("the CPU exists").cached_pages();
        let direct_allocated = Volume { blocks: counts.direct_allocs, pages: self.direct.allocated.pages };
        let direct_freed = Volume { blocks: counts.direct_frees, pages: self.direct.freed.pages };
        let to_caches = Volume { blocks: counts.refilled_blocks, pages: counts.refilled_pages };
        let spilled = Volume { blocks: counts.spilled_blocks, pages: counts.spilled_pages };
        let drained = Volume { blocks: counts.drained_blocks, pages: counts.drained_pages };
        ReplayCounts {
            hits: counts.hits,
            shelf_hits: counts.shelf_hits,
            refilled: to_caches + direct_allocated,
            spilled: spilled + drained + direct_freed,
            drained,
            direct_allocated,
            direct_freed,
            cached_pages: cpus.map(cached).collect(),
        }
    }

    fn cached_pages_total(&self) -> u64 {
        self.zone().cached_pages
    }

    fn census(&mut self) -> Result<Census, String> {
        let census = self.allocator.validate().map_err(|fault| fault.to_string())?;
        Ok(Census {
            managed: census.managed_pages,
            free: census.free_pages,
            cached: census.cached_pages,
            overhead: census.carved_pages,
        })
    }

    fn drain_all(&mut self) {
        self.allocator.drain(Scope::ALL, Mode::Full);
    }
}
