//! pagedepot itself, as one design among the others.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Arc;

use pagedepot::cpus::{Cpus, Environment, Here, WhichCpu};
use pagedepot::{
    Allocator, Backing, Config, CpuId, Flags, FreeHigh, Mobility, Mode, Order, Pfn, Watermarks,
    ZoneConfig, ZoneId,
};

use crate::PageCache;
use crate::census::{Census, Fault};
use crate::counters::Counters;
use crate::free_map::FreeMap;
use crate::prim::count;
use crate::report::{Counts, DrainResult, Scope, Volume};
use crate::setup::{Setup, SetupError};
use crate::store::Store;
use crate::store::backing::{AsBacking, Underlying};

/// The way in which an allocator that finds its CPU by itself learns which CPU the caller acts as.
pub trait ActAs: Sync {
    /// The caller acts as `here` until the next call.
    fn act_as(&self, here: Here);
}

/// Callers run on the CPU that they name; the allocator asks the system.
#[derive(Clone, Copy, Debug, Default)]
pub struct Real;

impl ActAs for Real {
    #[inline]
    fn act_as(&self, _here: Here) {}
}

/// Callers may run on any CPU: each thread keeps the CPU that it named last. For
/// [`LockedCpus`](pagedepot::cpus::LockedCpus) allocators, whose locks exclude other callers.
#[derive(Clone, Copy, Debug, Default)]
pub struct ByThread;

thread_local! {
    static ACTING_AS: Cell<u32> = const { Cell::new(u32::MAX) };
}

impl ActAs for ByThread {
    #[inline]
    fn act_as(&self, here: Here) {
        ACTING_AS.set(here.cpu.get());
    }
}

impl WhichCpu for ByThread {
    fn cpu(&self) -> Option<CpuId> {
        Some(CpuId::new(ACTING_AS.get()))
    }
}

impl Environment for ByThread {}

/// Memory for an allocator's metadata, given back when dropped.
pub(crate) struct Metadata(NonNull<[MaybeUninit<u8>]>);

// SAFETY: only the allocator uses the memory, and any thread may use the allocator.
unsafe impl Send for Metadata {}
// SAFETY: as above; `Metadata` itself never touches it.
unsafe impl Sync for Metadata {}

impl Metadata {
    /// Allocates `bytes` bytes, and returns them with the right to use them until the `Metadata` is
    /// dropped.
    ///
    /// # Safety
    /// The value that uses the memory is dropped before the `Metadata`.
    pub unsafe fn new(bytes: usize) -> (Self, &'static mut [MaybeUninit<u8>]) {
        let memory = Box::leak(Box::<[u8]>::new_uninit_slice(bytes));
        let place = NonNull::from(&mut *memory);
        (Metadata(place), memory)
    }
}

impl Drop for Metadata {
    fn drop(&mut self) {
        // SAFETY: leaked by `new`, whose caller promised that its user was dropped before.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// pagedepot's allocator: fronts and shelves, over its own bitmap or over a store of this crate
/// ([`AsBacking`]).
pub struct Depot<'m, C, A> {
    allocator: Allocator<'m, C>,
    act: A,
    /// First and one past the last of its frames, for maps of them.
    frames: (u64, u64),
    /// Drains.
    past: Counters,
    /// The store under the allocator, if it is not the allocator's own.
    backing: Option<Arc<dyn Underlying + Send>>,
    /// The memory of the allocator's metadata, if it is not the caller's. Fields are dropped in
    /// this order: the allocator is gone before this and the backing.
    _metadata: Option<Metadata>,
}

impl<'m, C: Cpus, A: ActAs> Depot<'m, C, A> {
    /// An allocator that the caller made, of memory that lies within `frames`: of the first frame
    /// and one past the last.
    pub fn new(allocator: Allocator<'m, C>, frames: (u64, u64), act: A) -> Self {
        Depot { allocator, act, frames, past: Counters::default(), backing: None, _metadata: None }
    }

    /// The allocator.
    pub fn allocator(&self) -> &Allocator<'m, C> {
        &self.allocator
    }

    fn census(&mut self) -> Result<Census, Fault> {
        if let Some(backing) = &self.backing {
            backing.check()?;
        }
        let found = self.allocator.validate()?;
        Ok(Census {
            managed_pages: found.managed_pages,
            free_pages: found.free_pages,
            cached_pages: found.cached_pages,
            overhead_pages: found.carved_pages,
            ..Census::default()
        })
    }
}

impl<C: Cpus, A: ActAs> Depot<'static, C, A> {
    /// An allocator of all frames of a setup. It owns the memory of its metadata.
    ///
    /// # Errors
    /// When the setup is wrong.
    pub fn owned(setup: &Setup, cpus: C, act: A, free_high: FreeHigh) -> Result<Self, SetupError> {
        Self::make(setup, None, cpus, act, free_high)
    }

    /// Makes a depot like [`owned`](Self::owned), over a store of this setup.
    ///
    /// # Errors
    /// When the setup is wrong.
    pub fn over<S: Store + Send + 'static>(
        store: S,
        setup: &Setup,
        cpus: C,
        act: A,
        free_high: FreeHigh,
    ) -> Result<Self, SetupError> {
        // SAFETY: the allocator made here has no linear map, and its frames are numbers only.
        let backing = unsafe { AsBacking::new(store) };
        Self::make(setup, Some(Arc::new(backing)), cpus, act, free_high)
    }

    fn make(
        setup: &Setup,
        backing: Option<Arc<dyn Underlying + Send>>,
        cpus: C,
        act: A,
        free_high: FreeHigh,
    ) -> Result<Self, SetupError> {
        setup.check()?;
        let marks = |zone: &crate::ZoneSetup| {
            let marks = setup.watermarks(zone);
            Watermarks {
                min: marks.min + zone.protection,
                low: marks.low + zone.protection,
                high: marks.high + zone.protection,
            }
        };
        let zones: Vec<_> = (0u8..)
            .zip(&setup.zones)
            .map(|(level, zone)| ZoneConfig {
                name: &zone.name,
                node: zone.node,
                level: level.min(14),
                ranges: &zone.ranges,
                watermarks: Some(marks(zone)),
            })
            .collect();
        let config = Config {
            cpu_nodes: &setup.cpu_nodes,
            high: setup.high,
            free_high,
            page_size: setup.page_size,
            ..Config::new(setup.cpus, &zones)
        };
        // SAFETY: the `Arc` keeps the backing in its place. It is dropped after the allocator,
        // which alone gets this reference: as a later field or, on an error here, as an argument.
        let under = backing.as_ref().map(|backing| unsafe { &*Arc::as_ptr(backing) });
        let under: Option<&'static dyn Backing> = under.map(|under| under as _);
        let builder = Allocator::builder(&config).backing(under);
        // SAFETY: the allocator is dropped first, as a field before `_metadata` or, on an error
        // here, as a local made after `metadata`; none of its methods hands that memory out for
        // longer than the allocator is borrowed.
        let (metadata, memory) = unsafe { Metadata::new(builder.metadata_bytes()?) };
        let allocator = builder.build(memory, cpus)?;
        for (id, zone) in allocator.zone_ids().zip(&setup.zones) {
            if let (Some(settings), Some(limits)) = (allocator.settings(id), zone.limits) {
                settings.set_cache_limits(limits);
            }
        }
        let (start, end) = setup.span();
        let frames = (start.into(), end.into());
        Ok(Depot { backing, _metadata: Some(metadata), ..Depot::new(allocator, frames, act) })
    }
}

impl<C: Cpus, A: ActAs> PageCache for Depot<'_, C, A> {
    fn name(&self) -> &'static str {
        "depot"
    }

    #[inline]
    fn alloc(&self, here: Here, order: Order, mobility: Mobility) -> Option<Pfn> {
        self.act.act_as(here);
        self.allocator.alloc(order, Flags::new(mobility)).ok()
    }

    /// Tries `zone` and the zones below it in the machine's list first.
    fn alloc_from(
        &self,
        here: Here,
        zone: ZoneId,
        order: Order,
        mobility: Mobility,
    ) -> Option<Pfn> {
        self.act.act_as(here);
        let flags = Flags::new(mobility);
        let level = u8::try_from(zone.get()).unwrap_or(14).min(14);
        let first = self.allocator.alloc(order, flags.at_most_level(level).no_reclaim());
        first.or_else(|_| self.allocator.alloc(order, flags)).ok()
    }

    #[inline]
    fn free(&self, here: Here, pfn: Pfn, order: Order) {
        self.act.act_as(here);
        if let Err(error) = self.allocator.free(pfn, order) {
            panic!("{pfn}, order {order}: {error}");
        }
    }

    fn free_many(&self, here: Here, blocks: &[(Pfn, Order)]) {
        self.act.act_as(here);
        if let Err(error) = self.allocator.free_many(blocks) {
            panic!("{error}");
        }
    }

    fn split(&self, pfn: Pfn, order: Order) {
        let half = Order::new(order.get().wrapping_sub(1));
        if let Some(Err(error)) = half.map(|half| self.allocator.split(pfn, order, half)) {
            panic!("{pfn}, order {order}: {error}");
        }
    }

    fn drain(&self, scope: Scope, mode: Mode) -> DrainResult {
        count(&self.past.drains, 1);
        let mut theirs = scope.cpu.map_or(pagedepot::Scope::ALL, pagedepot::Scope::cpu);
        if let Some(zone) = scope.zone {
            theirs = theirs.in_zone(zone);
        }
        let done = self.allocator.drain(theirs, mode);
        count(&self.past.interruptions, done.fences);
        DrainResult {
            taken_pages: done.taken_pages,
            left_pages: done.left_pages + done.in_flight_pages,
            unreachable_pages: done.unreachable_pages,
            interruptions: done.fences,
            fences: done.fences,
            busy_cpus: done.busy_cpus + done.isolated_cpus,
            ..DrainResult::default()
        }
    }

    fn tick(&self, here: Here) {
        // One call decays the caches of all CPUs, so only CPU 0 makes it.
        if here.cpu == CpuId::new(0) {
            self.allocator.cpu_caches().decay();
        }
    }

    fn counts(&self) -> Counts {
        let mut sum = Counts::default();
        self.past.add_to(&mut sum);
        if let Some(backing) = &self.backing {
            sum.zone_lock = backing.lock_waits();
        }
        for stats in self.allocator.zone_ids().filter_map(|zone| self.allocator.zone_stats(zone)) {
            let counts = stats.counts;
            sum.refills += counts.refills;
            sum.refilled += Volume { blocks: counts.refilled_blocks, pages: counts.refilled_pages };
            sum.spilled += Volume { blocks: counts.spilled_blocks, pages: counts.spilled_pages };
            sum.drained += Volume { blocks: counts.drained_blocks, pages: counts.drained_pages };
            sum.direct_allocated +=
                Volume { blocks: counts.direct_allocs, pages: counts.direct_alloc_pages };
            sum.direct_freed +=
                Volume { blocks: counts.direct_frees, pages: counts.direct_free_pages };
            sum.lock_misses += counts.lost_races;
            sum.failures += counts.failures;
        }
        sum
    }

    fn cached_pages(&self, cpu: CpuId) -> u64 {
        let zones = self.allocator.zone_ids();
        zones
            .filter_map(|zone| self.allocator.cpu_stats(cpu, zone))
            .map(|stats| stats.cached_pages())
            .sum()
    }

    fn cached_pages_total(&self) -> u64 {
        (0..self.allocator.cpu_count()).map(|cpu| self.cached_pages(CpuId::new(cpu))).sum()
    }

    fn free_pages(&self) -> u64 {
        self.allocator.zone_ids().map(|zone| self.allocator.free_pages(zone)).sum()
    }

    fn free_map(&self) -> Result<FreeMap, Fault> {
        let (start, end) = self.frames;
        Ok(FreeMap::by_frame(start, end, |pfn| self.allocator.is_free(pfn)))
    }

    fn validate(&mut self) -> Result<Census, Fault> {
        self.census()
    }
}
