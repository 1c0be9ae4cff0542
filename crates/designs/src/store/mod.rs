//! Stores: all free frames, shared by all CPUs.

#[cfg(not(loom))]
pub mod backing;
#[cfg(not(loom))]
pub mod bitmap;
pub mod buddy;

use std::sync::Arc;

use pagedepot::cpus::Here;
use pagedepot::{Mobility, Order, Pfn, ZoneId};

use crate::census::Fault;
use crate::lock::LockWaits;
use crate::report::Volume;
use crate::zones::Zones;

/// All free frames of a machine, by zone. Only its store changes a zone's free frames. A block that
/// is handed out belongs to its taker, and so do its records in the side array.
pub trait Store: Sync {
    /// The store's name in reports.
    const NAME: &'static str;

    /// The machine's zones, and the side array.
    fn zones(&self) -> &Zones;

    /// Takes up to `blocks` blocks of one zone by one visit, and hands each to `sink` until that
    /// returns `false` or the zone has no more. Returns the number of blocks. Ascending where
    /// possible.
    ///
    /// `sink` runs under the zone lock, where there is one, and must not call the store.
    fn take(
        &self,
        here: Here,
        zone: ZoneId,
        order: Order,
        mobility: Mobility,
        blocks: u32,
        sink: impl FnMut(Pfn) -> bool,
    ) -> u32;

    /// Returns blocks of one zone by one visit. `blocks` runs under the zone lock, where there is
    /// one, and must not call the store.
    ///
    /// # Panics
    /// When a block is free here already, as far as this store can detect it.
    fn give(&self, here: Here, zone: ZoneId, blocks: impl Iterator<Item = (Pfn, Order)>) -> Volume;

    /// Free pages of a zone.
    fn free_pages(&self, zone: ZoneId) -> u64;

    /// Whether a frame is free here. Call it when all other threads have stopped.
    fn is_free(&self, pfn: Pfn) -> bool;

    /// Whether a thread waits for the zone's lock.
    fn is_contended(&self, zone: ZoneId) -> bool;

    /// Waits for zone locks.
    fn lock_waits(&self) -> LockWaits;

    /// Checks the store's own metadata, and passes every free block to `mark`. Returns the pages
    /// that the store took for itself. Call it when all other threads have stopped.
    ///
    /// # Errors
    /// The first fault found, `mark`'s own included.
    fn check(
        &self,
        mark: &mut dyn FnMut(ZoneId, Pfn, Order) -> Result<(), Fault>,
    ) -> Result<u64, Fault>;
}

impl<S: Store + Send> Store for Arc<S> {
    const NAME: &'static str = S::NAME;

    #[inline]
    fn zones(&self) -> &Zones {
        (**self).zones()
    }

    #[inline]
    fn take(
        &self,
        here: Here,
        zone: ZoneId,
        order: Order,
        mobility: Mobility,
        blocks: u32,
        sink: impl FnMut(Pfn) -> bool,
    ) -> u32 {
        (**self).take(here, zone, order, mobility, blocks, sink)
    }

    #[inline]
    fn give(&self, here: Here, zone: ZoneId, blocks: impl Iterator<Item = (Pfn, Order)>) -> Volume {
        (**self).give(here, zone, blocks)
    }

    #[inline]
    fn free_pages(&self, zone: ZoneId) -> u64 {
        (**self).free_pages(zone)
    }

    fn is_free(&self, pfn: Pfn) -> bool {
        (**self).is_free(pfn)
    }

    fn is_contended(&self, zone: ZoneId) -> bool {
        (**self).is_contended(zone)
    }

    fn lock_waits(&self) -> LockWaits {
        (**self).lock_waits()
    }

    fn check(
        &self,
        mark: &mut dyn FnMut(ZoneId, Pfn, Order) -> Result<(), Fault>,
    ) -> Result<u64, Fault> {
        (**self).check(mark)
    }
}
