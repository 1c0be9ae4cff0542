//! Per-CPU lists, each behind a spinlock that drainers take from anywhere.
//!
//! * [`LockMode::Plain`]: the owner waits for its lock ("second attempt", 2021);
//! * [`LockMode::TryLock`]: the owner tries, and goes to the zone lock when a drain holds it; long
//!   frees go in chunks with the lock dropped in between (mainline since 2022).
//!
//! Drains interrupt no CPU. One runs at a time: a global drain returns when another is running, a
//! drain of one zone waits (`__drain_all_pages`).

use pagedepot::cpus::Here;
use pagedepot::{CacheLimits, CpuId, Mobility, Mode, Order, Pfn, ZoneId};

use crate::PageCache;
use crate::census::{Census, Fault};
use crate::counters::Counters;
use crate::lock::{LockWaits, SpinGuard, SpinLock};
use crate::pcp::policy::{Policy, Tuning};
use crate::pcp::{ListIndex, Lists, Pcp, PcpContext};
use crate::prim::{Mutex, count};
use crate::report::{Counts, DrainResult, Scope};
use crate::store::Store;
use crate::taking::{CensusWalk, take_census};
use crate::walk::{self, Grid, Layer, ZoneRequest};

/// The way in which an owner takes the lock of its lists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LockMode {
    /// The owner waits for the lock.
    Plain,
    /// The owner tries the lock, and goes past the caches if it is held.
    #[default]
    TryLock,
}

/// Per-CPU lists behind spinlocks.
pub struct Spin<S> {
    store: S,
    policy: Policy,
    mode: LockMode,
    cells: Grid<Cell>,
    outside: Counters,
    draining: Mutex<()>,
}

/// The lock, the lists and their limits fill neighbouring cache lines.
#[repr(C)]
struct Cell {
    lock: SpinLock,
    tuning: Tuning,
    lists: Lists,
    counters: Counters,
}

impl Cell {
    #[inline]
    fn pcp(&self) -> Pcp<'_> {
        Pcp { lists: &self.lists, tuning: &self.tuning }
    }
}

impl<S: Store> Spin<S> {
    /// Lists over this store.
    pub fn new(store: S, mode: LockMode, policy: Policy) -> Self {
        let zones = store.zones();
        let cells = Grid::new(zones, |zone| Cell {
            lock: SpinLock::new(),
            tuning: Tuning::new(zones.zone(zone)),
            lists: Lists::new(),
            counters: Counters::default(),
        });
        Spin { store, policy, mode, cells, outside: Counters::default(), draining: Mutex::new(()) }
    }

    /// The store.
    pub fn store(&self) -> &S {
        &self.store
    }

    #[inline]
    fn at<'a>(&'a self, here: Here, zone: ZoneId, cell: &'a Cell) -> PcpContext<'a, S> {
        PcpContext {
            store: &self.store,
            policy: &self.policy,
            counters: &cell.counters,
            here,
            zone,
        }
    }

    #[inline]
    fn enter<'a>(&self, cell: &'a Cell) -> Option<SpinGuard<'a>> {
        match self.mode {
            LockMode::Plain => Some(cell.lock.lock()),
            LockMode::TryLock => {
                let guard = cell.lock.try_lock();
                if guard.is_none() {
                    count(&cell.counters.lock_misses, 1);
                }
                guard
            }
        }
    }

    /// Spills in chunks, and drops the lock in between; ends early when another thread has taken
    /// it.
    #[cold]
    fn spill<'a>(
        &self,
        at: &PcpContext<'_, S>,
        cell: &'a Cell,
        guard: SpinGuard<'a>,
        pages: u32,
        first: ListIndex,
    ) {
        let mut held = Some(guard);
        let mut left = pages;
        while let Some(guard) = held {
            left = cell.pcp().spill_chunk(at, left, first);
            drop(guard);
            held = if left > 0 { self.enter(cell) } else { None };
        }
    }

    fn drain_cell(&self, here: Here, zone: ZoneId, cell: &Cell) -> u64 {
        let at = self.at(here, zone, cell);
        let mut sum = 0;
        // A racy look: a drain need not take what an owner caches during it.
        while cell.lists.pages() > 0 {
            let _held = cell.lock.lock();
            sum += cell.pcp().drain_chunk(&at);
        }
        sum
    }

    fn drain_by(&self, here: Here, scope: Scope) -> DrainResult {
        count(&self.outside.drains, 1);
        self.cells.drain_alone(&self.draining, self.store.zones(), scope, |zone, cell| {
            (self.drain_cell(here, zone, cell), u64::from(cell.lists.pages()))
        })
    }

    /// Disables the caches of all CPUs in a zone (`zone_pcp_disable`): nothing is cached when this
    /// returns, and every block that is freed later goes back to the store. Returns the limits to
    /// give to [`enable_caches`](Self::enable_caches).
    pub fn disable_caches(&self, zone: ZoneId) -> CacheLimits {
        let metadata = self.store.zones().zone(zone);
        let before = metadata.limits();
        // Cannot fail: batch is 1, and 0 is not above 0.
        let _ = metadata.set_limits(CacheLimits { batch: 1, high_min: 0, high_max: 0 });
        self.drain_by(Here::task(CpuId::new(u32::MAX)), Scope::zone(zone));
        before
    }

    /// Enables the caches of a zone again, with these limits.
    pub fn enable_caches(&self, zone: ZoneId, limits: CacheLimits) {
        // The limits were in force before.
        let _ = self.store.zones().zone(zone).set_limits(limits);
    }

    /// `high` of a CPU in a zone; `None` when there is no such CPU.
    pub fn high(&self, cpu: CpuId, zone: ZoneId) -> Option<u32> {
        self.cells.get(cpu, zone).map(|cell| cell.tuning.high())
    }

    /// Sets `high` of a CPU in a zone, to start a replay in the recorded machine's state. `false`:
    /// there is no such CPU.
    pub fn set_high(&self, cpu: CpuId, zone: ZoneId, pages: u32) -> bool {
        let cell = self.cells.get(cpu, zone);
        if let Some(cell) = cell {
            let _held = cell.lock.lock();
            cell.tuning.set_high(pages);
        }
        cell.is_some()
    }

    /// Fills a CPU's list of a zone with up to `blocks` more blocks, to start a replay in the
    /// recorded machine's state. Returns the number of blocks added; 0 for orders that are not
    /// cached.
    pub fn preload(
        &self,
        cpu: CpuId,
        zone: ZoneId,
        order: Order,
        mobility: Mobility,
        blocks: u32,
    ) -> u32 {
        let (Some(cell), Some(index)) = (self.cells.get(cpu, zone), ListIndex::of(order, mobility))
        else {
            return 0;
        };
        let _held = cell.lock.lock();
        cell.pcp().fill(&self.at(Here::task(cpu), zone, cell), order, mobility, index, blocks)
    }

    /// Runs `work` as an interrupt handler that arrives while its CPU holds the lock of a zone's
    /// lists: what `work` frees or allocates of that zone as this CPU goes past the lists. With
    /// [`LockMode::Plain`] interrupts are off under the lock, so `work` runs after it is dropped.
    pub fn while_locked<R>(&self, cpu: CpuId, zone: ZoneId, work: impl FnOnce() -> R) -> R {
        let cell = self.cells.get(cpu, zone).filter(|_| self.mode == LockMode::TryLock);
        let _held = cell.map(|cell| cell.lock.lock());
        work()
    }

    /// Pages that a CPU caches of one zone.
    pub fn cached_in(&self, cpu: CpuId, zone: ZoneId) -> u64 {
        self.cells.get(cpu, zone).map_or(0, |cell| u64::from(cell.lists.pages()))
    }
}

impl<S: Store> Spin<S> {
    /// Passes all lists to a census. No other thread may run.
    pub fn check_lists(&self, taking: &mut CensusWalk<'_>) -> Result<(), Fault> {
        self.cells.iter().try_for_each(|(_, zone, cell)| taking.cached(zone, &cell.lists))
    }
}

impl<S: Store> Layer for Spin<S> {
    type Store = S;

    #[inline]
    fn store(&self) -> &S {
        &self.store
    }

    #[inline]
    fn take_from(&self, here: Here, request: ZoneRequest) -> Option<Pfn> {
        let ZoneRequest { zone, order, mobility, mark } = request;
        if let (Some(index), Some(cell)) =
            (ListIndex::of(order, mobility), self.cells.get(here.cpu, zone))
            && let Some(_held) = self.enter(cell)
            && let Some(pfn) =
                cell.pcp().take(&self.at(here, zone, cell), order, mobility, index, mark)
        {
            return Some(pfn);
        }
        walk::take_direct(self, here, request)
    }

    fn drain_for(&self, here: Here) {
        self.drain_by(here, Scope::ALL);
    }

    fn counters(&self, here: Here, zone: ZoneId) -> &Counters {
        self.cells.get(here.cpu, zone).map_or(&self.outside, |cell| &cell.counters)
    }
}

impl<S: Store> PageCache for Spin<S> {
    fn name(&self) -> &'static str {
        "spin"
    }

    walk::walks_zones!();

    #[inline]
    fn free(&self, here: Here, pfn: Pfn, order: Order) {
        let (zone, mobility) = self.store.zones().place(pfn, order);
        if let (Some(index), Some(cell)) =
            (ListIndex::of(order, mobility), self.cells.get(here.cpu, zone))
            && let Some(held) = self.enter(cell)
        {
            let at = self.at(here, zone, cell);
            let excess = cell.pcp().put(&at, pfn, order, index);
            if excess > 0 {
                self.spill(&at, cell, held, excess, index);
            }
            return;
        }
        walk::give_direct(self, here, zone, pfn, order);
    }

    /// Keeps the lock over consecutive blocks of one zone, as long as nothing has to be spilled.
    fn free_many(&self, here: Here, blocks: &[(Pfn, Order)]) {
        let mut held: Option<(ZoneId, SpinGuard<'_>)> = None;
        for &(pfn, order) in blocks {
            let (zone, mobility) = self.store.zones().place(pfn, order);
            let place = ListIndex::of(order, mobility).zip(self.cells.get(here.cpu, zone));
            let Some((index, cell)) = place else {
                held = None;
                walk::give_direct(self, here, zone, pfn, order);
                continue;
            };
            // The lock of another zone's lists is dropped before this one is taken.
            let same = held.take().filter(|&(its, _)| its == zone);
            let Some((_, guard)) = same.or_else(|| Some((zone, self.enter(cell)?))) else {
                walk::give_direct(self, here, zone, pfn, order);
                continue;
            };
            let at = self.at(here, zone, cell);
            match cell.pcp().put(&at, pfn, order, index) {
                0 => held = Some((zone, guard)),
                excess => self.spill(&at, cell, guard, excess, index),
            }
        }
    }

    fn drain(&self, scope: Scope, _mode: Mode) -> DrainResult {
        self.drain_by(Here::task(CpuId::new(u32::MAX)), scope)
    }

    fn tick(&self, here: Here) {
        for (zone, cell) in self.cells.of_cpu(here.cpu) {
            let at = self.at(here, zone, cell);
            let mut left = {
                let _held = cell.lock.lock();
                cell.pcp().tick(&at)
            };
            while left > 0 {
                let _held = cell.lock.lock();
                left = cell.pcp().spill_chunk(&at, left, ListIndex::FIRST);
            }
        }
    }

    fn counts(&self) -> Counts {
        let counters = self.cells.iter().map(|(_, _, cell)| &cell.counters).chain([&self.outside]);
        let mut sum = walk::sum_counts(&self.store, counters);
        let mut waits = LockWaits::default();
        self.cells.iter().for_each(|(_, _, cell)| waits += cell.lock.waits());
        sum.cache_lock = waits;
        sum
    }

    fn cached_pages(&self, cpu: CpuId) -> u64 {
        self.cells.of_cpu(cpu).map(|(_, cell)| u64::from(cell.lists.pages())).sum()
    }

    fn cached_pages_total(&self) -> u64 {
        self.cells.iter().map(|(_, _, cell)| u64::from(cell.lists.pages())).sum()
    }

    fn validate(&mut self) -> Result<Census, Fault> {
        take_census(&self.store, |taking| self.check_lists(taking))
    }
}
