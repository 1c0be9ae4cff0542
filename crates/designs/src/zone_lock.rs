//! No caches: every request takes the zone lock. This is the lock that the threads' designs avoid.

use pagedepot::cpus::Here;
use pagedepot::{CpuId, Mode, Order, Pfn, ZoneId};

use crate::PageCache;
use crate::census::{Census, Fault};
use crate::counters::Counters;
use crate::report::{Counts, DrainResult, Scope};
use crate::store::Store;
use crate::taking::take_census;
use crate::walk::{self, Grid, Layer, ZoneRequest};

/// A store without a per-CPU layer.
pub struct ZoneLock<S> {
    store: S,
    counters: Grid<Counters>,
    outside: Counters,
}

impl<S: Store> ZoneLock<S> {
    /// Requests go to this store.
    pub fn new(store: S) -> Self {
        let counters = Grid::new(store.zones(), |_| Counters::default());
        ZoneLock { store, counters, outside: Counters::default() }
    }

    /// The store.
    pub fn store(&self) -> &S {
        &self.store
    }
}

impl<S: Store> Layer for ZoneLock<S> {
    type Store = S;

    fn store(&self) -> &S {
        &self.store
    }

    fn take_from(&self, here: Here, request: ZoneRequest) -> Option<Pfn> {
        walk::take_direct(self, here, request)
    }

    fn drain_for(&self, _here: Here) {}

    fn counters(&self, here: Here, zone: ZoneId) -> &Counters {
        self.counters.get(here.cpu, zone).unwrap_or(&self.outside)
    }
}

impl<S: Store> PageCache for ZoneLock<S> {
    fn name(&self) -> &'static str {
        "zone-lock"
    }

    walk::walks_zones!();

    fn free(&self, here: Here, pfn: Pfn, order: Order) {
        let (zone, _) = self.store.zones().place(pfn, order);
        walk::give_direct(self, here, zone, pfn, order);
    }

    fn drain(&self, _scope: Scope, _mode: Mode) -> DrainResult {
        DrainResult::default()
    }

    fn counts(&self) -> Counts {
        walk::sum_counts(
            &self.store,
            self.counters.iter().map(|(_, _, counters)| counters).chain([&self.outside]),
        )
    }

    fn cached_pages(&self, _cpu: CpuId) -> u64 {
        0
    }

    fn cached_pages_total(&self) -> u64 {
        0
    }

    fn validate(&mut self) -> Result<Census, Fault> {
        take_census(&self.store, |_| Ok(()))
    }
}
