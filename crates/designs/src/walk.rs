//! Shared by the designs: the walk over zones and watermarks, and the ways past the caches.

use pagedepot::cpus::Here;
use pagedepot::{CpuId, Mobility, Order, Pfn, ZoneId};

use crate::counters::Counters;
use crate::prim::{Mutex, Padded, count, lock_mutex, try_lock_mutex};
use crate::report::{Counts, DrainResult, Scope};
use crate::store::Store;
use crate::zones::{Mark, Zones};

/// One cell per CPU and zone, each on its own cache lines.
pub struct Grid<T> {
    cells: Box<[Padded<T>]>,
    zones: usize,
}

impl<T> Grid<T> {
    pub fn new(zones: &Zones, make: impl Fn(ZoneId) -> T) -> Self {
        let cells = zones.cpu_ids().flat_map(|_| zones.ids().map(|id| Padded(make(id)))).collect();
        Grid { cells, zones: zones.count() }
    }

    /// The cell, if that CPU has caches.
    #[inline]
    pub fn get(&self, cpu: CpuId, zone: ZoneId) -> Option<&T> {
        debug_assert!(zone.index() < self.zones);
        self.cells.get(cpu.index() * self.zones + zone.index()).map(|cell| &cell.0)
    }

    /// All cells of a CPU.
    pub fn of_cpu(&self, cpu: CpuId) -> impl Iterator<Item = (ZoneId, &T)> {
        let zones = (0..self.zones as u32).map(ZoneId::new);
        zones.filter_map(move |zone| Some((zone, self.get(cpu, zone)?)))
    }

    /// All cells, with their CPU and zone.
    pub fn iter(&self) -> impl Iterator<Item = (CpuId, ZoneId, &T)> {
        let cpus = (0..(self.cells.len() / self.zones) as u32).map(CpuId::new);
        cpus.flat_map(move |cpu| self.of_cpu(cpu).map(move |(zone, cell)| (cpu, zone, cell)))
    }

    /// The cells that a drain covers.
    pub fn within(&self, zones: &Zones, scope: Scope) -> impl Iterator<Item = (CpuId, ZoneId, &T)> {
        let cells = scope
            .cpus(zones)
            .flat_map(move |cpu| self.of_cpu(cpu).map(move |(id, cell)| (cpu, id, cell)));
        cells.filter(move |&(_, id, _)| scope.zone.is_none_or(|zone| zone == id))
    }

    /// Drains the cells of `scope`, one caller at a time (mainline's `pcpu_drain_mutex`): a drain
    /// of all zones leaves the work to the one that it finds under way. `drain` returns the pages
    /// that it took from a cell and those that it left there.
    pub fn drain_alone(
        &self,
        draining: &Mutex<()>,
        zones: &Zones,
        scope: Scope,
        drain: impl Fn(ZoneId, &T) -> (u64, u64),
    ) -> DrainResult {
        let _alone = match try_lock_mutex(draining) {
            Some(alone) => alone,
            None if scope.zone.is_none() => {
                return DrainResult { skipped: 1, ..DrainResult::default() };
            }
            None => lock_mutex(draining),
        };
        let mut done = DrainResult::default();
        for (_, zone, cell) in self.within(zones, scope) {
            let (taken, left) = drain(zone, cell);
            done.taken_pages += taken;
            done.left_pages += left;
        }
        done
    }
}

/// The request for a block from one zone.
#[derive(Clone, Copy)]
pub struct ZoneRequest {
    pub zone: ZoneId,
    pub order: Order,
    pub mobility: Mobility,
    /// The watermark that the zone's store stays above.
    pub mark: Mark,
}

/// The operations that a design implements for the walk.
pub trait Layer: Sync {
    type Store: Store;

    fn store(&self) -> &Self::Store;

    /// Takes a block from one zone: from this CPU's caches, else from the store if the zone is
    /// above its watermark.
    fn take_from(&self, here: Here, request: ZoneRequest) -> Option<Pfn>;

    /// Drains all CPUs' caches of all zones, for a request that found nothing (mainline's direct
    /// reclaim).
    fn drain_for(&self, here: Here);

    /// Counters of a CPU in a zone, or those shared by CPUs without caches.
    fn counters(&self, here: Here, zone: ZoneId) -> &Counters;
}

/// The methods of [`PageCache`](crate::PageCache) that walk and store answer for every [`Layer`].
#[doc(hidden)]
#[macro_export]
macro_rules! walks_zones {
    () => {
        #[inline]
        fn alloc(
            &self,
            here: pagedepot::cpus::Here,
            order: pagedepot::Order,
            mobility: pagedepot::Mobility,
        ) -> Option<pagedepot::Pfn> {
            $crate::walk::alloc(self, here, order, mobility)
        }

        fn alloc_from(
            &self,
            here: pagedepot::cpus::Here,
            zone: pagedepot::ZoneId,
            order: pagedepot::Order,
            mobility: pagedepot::Mobility,
        ) -> Option<pagedepot::Pfn> {
            $crate::walk::alloc_from(self, here, zone, order, mobility)
        }

        fn free_pages(&self) -> u64 {
            $crate::walk::free_pages($crate::walk::Layer::store(self))
        }

        fn free_map(&self) -> Result<$crate::free_map::FreeMap, $crate::census::Fault> {
            $crate::free_map::FreeMap::of_store($crate::walk::Layer::store(self))
        }
    };
}
pub use walks_zones;

/// Allocates a block from the first zone that has one.
#[inline]
pub fn alloc<L: Layer>(layer: &L, here: Here, order: Order, mobility: Mobility) -> Option<Pfn> {
    let zone = layer.store().zones().preferred()?;
    alloc_from(layer, here, zone, order, mobility)
}

/// Allocates a block, from `zone` if possible.
#[inline]
pub fn alloc_from<L: Layer>(
    layer: &L,
    here: Here,
    zone: ZoneId,
    order: Order,
    mobility: Mobility,
) -> Option<Pfn> {
    match layer.take_from(here, ZoneRequest { zone, order, mobility, mark: Mark::Low }) {
        Some(pfn) => Some(pfn),
        None => alloc_slow(layer, here, zone, order, mobility),
    }
}

/// Tries the other zones above `low`; then wakes reclaim, and tries all above `min`; then drains
/// globally, and tries all above `min` again (`get_page_from_freelist`,
/// `__alloc_pages_direct_reclaim`).
#[cold]
fn alloc_slow<L: Layer>(
    layer: &L,
    here: Here,
    first: ZoneId,
    order: Order,
    mobility: Mobility,
) -> Option<Pfn> {
    let others = layer.store().zones().preference();
    let all = || std::iter::once(first).chain(others.iter().copied().filter(|&zone| zone != first));
    let try_all = |mark| {
        let of = |zone| ZoneRequest { zone, order, mobility, mark };
        all().find_map(|zone| layer.take_from(here, of(zone)))
    };
    let found = try_all(Mark::Low).or_else(|| {
        let store = layer.store();
        store
            .zones()
            .ids()
            .for_each(|id| store.zones().zone(id).wake_reclaim(store.free_pages(id)));
        try_all(Mark::Min)
    });
    let found = found.or_else(|| {
        layer.drain_for(here);
        try_all(Mark::Min)
    });
    if found.is_none() {
        count(&layer.counters(here, first).failures, 1);
    }
    found
}

/// Takes one block from the store of a zone, past the caches.
pub fn take_direct<L: Layer>(layer: &L, here: Here, request: ZoneRequest) -> Option<Pfn> {
    let (store, ZoneRequest { zone, order, mobility, mark }) = (layer.store(), request);
    if !store.zones().zone(zone).may_take(store.free_pages(zone), order, mark) {
        return None;
    }
    let mut found = None;
    store.take(here, zone, order, mobility, 1, |pfn| {
        found = Some(pfn);
        false
    });
    if found.is_some() {
        layer.counters(here, zone).direct_allocated.one(order);
    }
    found
}

/// Returns one block to the store, past the caches.
pub fn give_direct<L: Layer>(layer: &L, here: Here, zone: ZoneId, pfn: Pfn, order: Order) {
    layer.store().give(here, zone, std::iter::once((pfn, order)));
    layer.counters(here, zone).direct_freed.one(order);
}

/// Sums counters, and the zone locks' waits.
pub fn sum_counts<'c>(store: &impl Store, counters: impl Iterator<Item = &'c Counters>) -> Counts {
    let mut sum = Counts::default();
    counters.for_each(|counters| counters.add_to(&mut sum));
    sum.zone_lock = store.lock_waits();
    sum
}

/// Free pages of all zones.
pub fn free_pages(store: &impl Store) -> u64 {
    store.zones().ids().map(|zone| store.free_pages(zone)).sum()
}
