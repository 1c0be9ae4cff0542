//! Magazines of processes.

use std::sync::Arc;

use pagedepot::cpus::Here;
use pagedepot::{CpuId, Mobility, Order, Pfn, ZoneId};

use super::Magazine;
use super::mag::{Mag, ProcessMags};
use pagedepot_designs::PageCache;
use pagedepot_designs::prim::lock_mutex;
use pagedepot_designs::store::Store;
use pagedepot_designs::zones::Mark;

/// A magazine that belongs to one process: only drains contend for its lock. Refills and spills go
/// to the zone in the prototype's batches. Dropping it returns its pages.
pub struct ProcessMagazine<'m, S: Store> {
    pub(super) shared: &'m Magazine<S>,
    pub(super) mags: Arc<ProcessMags>,
}

impl<S: Store> ProcessMagazine<'_, S> {
    fn mag(&self, zone: ZoneId) -> &Mag {
        &self.mags.0[zone.index()]
    }

    /// Allocates a block. Single frames come from this magazine, which is refilled when it is
    /// empty. All other blocks come from what all processes share, and so do single frames when no
    /// zone is above its watermark.
    #[inline]
    pub fn alloc(&self, here: Here, order: Order, mobility: Mobility) -> Option<Pfn> {
        if Magazine::<S>::uses_magazines(here, order)
            && let Some(zone) = self.shared.store.zones().preferred()
        {
            let (frames, mag) = (self.shared.frames(), self.mag(zone));
            let own = mag.lock().pop(frames, mobility);
            let own = own.or_else(|| self.refill(here, zone, mobility));
            if own.is_some() {
                return own;
            }
        }
        self.shared.alloc(here, order, mobility)
    }

    #[cold]
    fn refill(&self, here: Here, zone: ZoneId, mobility: Mobility) -> Option<Pfn> {
        let mag = self.mag(zone);
        let batch = self.shared.fetch(here, zone, mobility, Mark::Low, mag)?;
        let held = mag.lock();
        held.splice(self.shared.frames(), batch, mobility);
        held.pop(self.shared.frames(), mobility)
    }

    /// Frees a block.
    ///
    /// # Panics
    /// Panics like [`PageCache::free`].
    #[inline]
    pub fn free(&self, here: Here, pfn: Pfn, order: Order) {
        if !Magazine::<S>::uses_magazines(here, order) {
            return self.shared.free(here, pfn, order);
        }
        let (zone, mobility) = self.shared.store.zones().place(pfn, order);
        let held = self.mag(zone).lock();
        held.push(self.shared.frames(), pfn, mobility);
        if held.mag.pages.get() >= self.shared.options.limit {
            self.shared.trim(here, zone, held, mobility);
        }
    }

    /// Pages in this magazine.
    pub fn cached_pages(&self) -> u64 {
        self.mags.0.iter().map(|mag| u64::from(mag.pages.look())).sum()
    }
}

impl<S: Store> Drop for ProcessMagazine<'_, S> {
    fn drop(&mut self) {
        let mut chain = lock_mutex(&self.shared.chain);
        chain.retain(|mags| !Arc::ptr_eq(mags, &self.mags));
        drop(chain);
        for zone in self.shared.store.zones().ids() {
            let mag = self.mag(zone);
            self.shared.empty(Here::task(CpuId::new(0)), zone, mag);
            // The counters outlive the magazine.
            self.shared.outside.absorb(&mag.counters);
        }
    }
}
