//! The depot as a target: one thread that acts as every CPU of the trace.
//!
//! Frames have addresses, but no memory: only the allocator writes to them, for magazines beyond
//! those that its metadata include. So a trace of a large machine runs on a small one.

use std::io;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use pagedepot::cpus::{Environment, FenceError, Guard, Here, PinnedCpus, Processor};
use pagedepot::{
    Allocator, Backing, Config, ConfigError, CpuId, Flags, FrameRange, FreeHigh, LinearMap,
    Mobility, Mode, Order, Pfn, Scope, Watermarks, ZoneId, ZoneStats,
};
use pagedepot_designs::{AsBacking, Buddy, Census, FreeMap, Setup, SetupError, Volume};

use super::plan::{InitialBlock, Plan};
use super::target::{ReplayCounts, ReplayTarget, sum};
use crate::design::PAGE_BYTES;
use crate::design::pool::Pool;
use crate::design::variant::{Store, Variant};
use crate::design::zone;
use crate::names::Design;
use pagedepot_trace::Zoneinfo;

/// Milliseconds between two decays of the kernel's caches (`vmstat_update` in `mm/vmstat.c`).
const DECAY_INTERVAL_MS: u64 = 1000;

const ZONE: ZoneId = ZoneId::new(0);

/// The CPU and the time of the event being replayed.
#[derive(Default)]
struct EventClock {
    cpu: AtomicU32,
    now_ms: AtomicU64,
}

/// Proof that the replay acts as a CPU.
struct ActingAs(CpuId);

// SAFETY: `DepotTarget` is used by one thread at a time, which changes its CPU only between calls
// of the allocator; guards live inside such a call. So while one lives, nothing else runs on any
// CPU.
unsafe impl Guard for ActingAs {
    fn here(&self) -> Here {
        Here::task(self.0)
    }
}

// SAFETY: as for the guard: the allocator asks for a fence, on the only thread there is, when it
// holds no guard, so all that existed before are gone and their stores are this thread's own.
unsafe impl Processor for EventClock {
    type Guard = ActingAs;

    #[inline]
    fn pin(&self) -> Option<ActingAs> {
        // Relaxed: one thread.
        Some(ActingAs(CpuId::new(self.cpu.load(Ordering::Relaxed))))
    }

    fn fence(&self, _cpu: CpuId) -> Result<(), FenceError> {
        Ok(())
    }
}

impl Environment for EventClock {
    fn now_ms(&self) -> u64 {
        self.now_ms.load(Ordering::Relaxed)
    }
}

/// The machine that a trace is replayed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayMachine {
    pub cpus: u32,
    pub pages: u64,
    /// `None`: those the kernel would compute.
    pub watermarks: Option<Watermarks>,
    /// The store of the free frames.
    pub store: Store,
    /// The limit for a CPU that only frees.
    pub free_high: FreeHigh,
}

impl ReplayMachine {
    /// A machine with the zone that the trace's frames are from, if a zoneinfo tells it, else one
    /// large enough for the trace.
    pub fn for_plan(plan: &Plan, before: Option<&Zoneinfo>) -> Self {
        let cpus = (plan.cpus.len() as u32).max(1);
        let (store, free_high) = (Store::Bitmap, FreeHigh::MAINLINE);
        let (span, held) = (&plan.pfn_span, plan.before.held_volume().pages);
        let zones = before.iter().flat_map(|zoneinfo| &zoneinfo.zones);
        let zone = zones
            .filter(|zone| zone.frames().start < span.end && span.start < zone.frames().end)
            .filter(|zone| zone.managed >= plan.work.held_pages_peak + held + zone.min)
            .max_by_key(|zone| zone.managed);
        match zone {
            Some(zone) => {
                let watermarks = Watermarks { min: zone.min, low: zone.low, high: zone.high };
                let (pages, watermarks) = (zone.managed, Some(watermarks));
                ReplayMachine { cpus, pages, watermarks, store, free_high }
            }
            None => {
                let pages = plan.zone_pages() + held.next_multiple_of(1024);
                ReplayMachine { cpus, pages, watermarks: None, store, free_high }
            }
        }
    }

    /// The machine with what a variant says of the depot.
    pub fn in_variant(self, variant: &Variant) -> Self {
        let (store, free_high) = (variant.store_of(Design::Depot), variant.free_high_limit());
        ReplayMachine { store, free_high: free_high.into(), ..self }
    }
}

/// The reason why there is no allocator for a trace.
#[derive(Debug, thiserror::Error)]
pub enum DepotError {
    #[error(
        "an allocator of {pages} pages is too large for a replay; is a number of the zoneinfo \
         damaged?"
    )]
    TooLarge { pages: u64 },
    #[error("cannot make an allocator of {pages} pages for this trace: {source}")]
    Config { pages: u64, source: ConfigError },
    #[error(
        "cannot reserve addresses for {pages} pages: {source}; raise `ulimit -v` or set \
         vm.overcommit_memory to 1"
    )]
    Addresses { pages: u64, source: io::Error },
    #[error("cannot make a buddy store for this trace: {0}")]
    Buddy(#[from] SetupError),
}

/// Makes an allocator for `machine` and calls `f` with it.
///
/// # Errors
/// When the machine is larger than the allocator can manage, or this one can address.
pub fn with_depot<R>(
    machine: ReplayMachine,
    f: impl FnOnce(&mut DepotTarget<'_>) -> R,
) -> Result<R, DepotError> {
    let ReplayMachine { cpus, pages, watermarks, store, free_high } = machine;
    let refused = |source| match source {
        ConfigError::TooLarge => DepotError::TooLarge { pages },
        source => DepotError::Config { pages, source },
    };
    let frames = u32::try_from(pages).map_err(|_| refused(ConfigError::TooLarge))?;
    let ranges = [FrameRange::new(Pfn::new(0), frames)];
    let zones = [zone::normal(&ranges, watermarks)];
    let mut config = Config::new(cpus, &zones);
    config.free_high = free_high;
    let buddy = match store {
        Store::Bitmap => None,
        Store::Buddy => {
            let buddy = Buddy::new(&Setup::single(cpus, frames))?;
            // SAFETY: it hands out each block of its zone once, under a lock, and the allocator
            // alone takes and gives blocks of it.
            Some(unsafe { AsBacking::new(buddy) })
        }
    };
    let under = buddy.as_ref().map(|buddy| buddy as &dyn Backing);
    let metadata_bytes =
        Allocator::<PinnedCpus<EventClock>>::builder(&config).backing(under).metadata_bytes();
    let metadata_bytes = metadata_bytes.map_err(refused)?.next_multiple_of(PAGE_BYTES);
    let memory = reserve(metadata_bytes, frames)
        .map_err(|source| DepotError::Addresses { pages, source })?;
    let first_frame = memory.at(metadata_bytes).as_ptr().expose_provenance();
    // SAFETY: the frames are mapped behind the metadata for as long as the allocator exists. Only
    // the allocator writes to frames: for magazines beyond those that its metadata include, which
    // it finds by their distance from the others.
    config.linear_map = Some(unsafe { LinearMap::new(first_frame) });
    // SAFETY: so many bytes are mapped, zeroed and this function's alone; the pool outlives the
    // allocator.
    let metadata = unsafe {
        std::slice::from_raw_parts_mut(
            memory.at(0).as_ptr().cast::<MaybeUninit<u8>>(),
            metadata_bytes,
        )
    };
    let cpus = PinnedCpus(EventClock::default());
    let allocator = Allocator::builder(&config).backing(under).build(metadata, cpus);
    let mut depot = DepotTarget {
        allocator: allocator.map_err(refused)?,
        decayed_ms: 0,
        frames: frames.into(),
        keeps_cache_apart: false,
    };
    Ok(f(&mut depot))
}

/// Addresses for metadata, and behind them for frames.
fn reserve(metadata_bytes: usize, frames: u32) -> io::Result<Pool> {
    let bytes = (frames as usize).checked_mul(PAGE_BYTES);
    let bytes = bytes.and_then(|frames| frames.checked_add(metadata_bytes));
    Pool::reserve(bytes.ok_or(io::ErrorKind::OutOfMemory)?, PAGE_BYTES)
}

/// The depot, acting as the CPU of each event.
pub struct DepotTarget<'m> {
    allocator: Allocator<'m, PinnedCpus<EventClock>>,
    decayed_ms: u64,
    frames: u64,
    /// Whether blocks of the page cache are asked for as reclaimable ones, which have pageblocks of
    /// their own: their owner can give them up.
    keeps_cache_apart: bool,
}

impl DepotTarget<'_> {
    /// Keeps the page cache in pageblocks of its own from now on.
    pub fn keep_cache_apart(&mut self) {
        self.keeps_cache_apart = true;
    }

    fn act_as(&self, cpu: CpuId) {
        self.allocator.cpus().0.cpu.store(cpu.get(), Ordering::Relaxed);
    }

    fn zone(&self) -> ZoneStats {
        self.allocator.zone_stats(ZONE).expect("there is one zone")
    }
}

impl ReplayTarget for DepotTarget<'_> {
    fn set_time(&mut self, now_ms: u64) {
        // 0 means that there is no clock.
        self.allocator.cpus().0.now_ms.store(now_ms + 1, Ordering::Relaxed);
        if now_ms >= self.decayed_ms + DECAY_INTERVAL_MS {
            self.decayed_ms = now_ms;
            self.allocator.cpu_caches().decay();
        }
    }

    fn hold(&mut self, blocks: &[InitialBlock]) -> Option<Vec<Pfn>> {
        self.act_as(CpuId::new(0));
        let alloc = |known: &InitialBlock| {
            self.allocator.alloc(known.order, Flags::new(known.mobility)).ok()
        };
        let held = blocks.iter().map(alloc).collect();
        self.drain_all();
        held
    }

    #[inline]
    fn alloc(
        &mut self,
        cpu: CpuId,
        _zone: ZoneId,
        order: Order,
        mobility: Mobility,
    ) -> Option<Pfn> {
        self.act_as(cpu);
        self.allocator.alloc(order, Flags::new(mobility)).ok()
    }

    fn alloc_cache(&mut self, cpu: CpuId, zone: ZoneId, order: Order) -> Option<Pfn> {
        let apart = self.keeps_cache_apart;
        self.alloc(cpu, zone, order, if apart { Mobility::Reclaimable } else { Mobility::Movable })
    }

    #[inline]
    fn free(&mut self, cpu: CpuId, pfn: Pfn, order: Order) {
        self.act_as(cpu);
        self.allocator
            .free(pfn, order)
            .unwrap_or_else(|why| panic!("{pfn:?} of {order:?} is ours: {why}"));
    }

    fn free_many(&mut self, cpu: CpuId, blocks: &[(Pfn, Order)]) {
        self.act_as(cpu);
        self.allocator.free_many(blocks).unwrap_or_else(|why| panic!("a batch of ours: {why}"));
    }

    fn halve(&mut self, pfn: Pfn, order: Order) {
        let half = Order::new(order.get() - 1).expect("an order above 0");
        self.allocator
            .split(pfn, order, half)
            .unwrap_or_else(|why| panic!("{pfn:?} of {order:?} is ours: {why}"));
    }

    fn free_map(&self) -> Result<FreeMap, String> {
        Ok(FreeMap::by_frame(0, self.frames, |pfn| self.allocator.is_free(pfn)))
    }

    fn counts(&self) -> ReplayCounts {
        let counts = self.zone().counts;
        let cpus = (0..self.allocator.cpu_count()).map(CpuId::new);
        let cached =
            |cpu| self.allocator.cpu_stats(cpu, ZONE).expect("the CPU exists").cached_pages();
        let direct_allocated =
            Volume { blocks: counts.direct_allocs, pages: counts.direct_alloc_pages };
        let direct_freed = Volume { blocks: counts.direct_frees, pages: counts.direct_free_pages };
        let to_caches = Volume { blocks: counts.refilled_blocks, pages: counts.refilled_pages };
        let spilled = Volume { blocks: counts.spilled_blocks, pages: counts.spilled_pages };
        let drained = Volume { blocks: counts.drained_blocks, pages: counts.drained_pages };
        ReplayCounts {
            hits: counts.hits,
            shelf_hits: counts.shelf_hits,
            refilled: sum(to_caches, direct_allocated),
            spilled: sum(sum(spilled, drained), direct_freed),
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
        let mut found = Census::default();
        found.managed_pages = census.managed_pages;
        found.free_pages = census.free_pages;
        found.cached_pages = census.cached_pages;
        found.overhead_pages = census.carved_pages;
        Ok(found)
    }

    fn drain_all(&mut self) {
        self.allocator.drain(Scope::ALL, Mode::Full);
    }
}
