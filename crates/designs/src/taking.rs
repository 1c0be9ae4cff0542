//! Validation of a whole design: its store, and the caches above it.

use pagedepot::{Order, Pfn, ZoneId};

use crate::census::{Census, Fault};
use crate::pcp::Lists;
use crate::seen::FrameSet;
use crate::store::Store;
use crate::zones::Zones;

/// A census under way.
pub struct CensusWalk<'z> {
    seen: FrameSet,
    zones: &'z Zones,
    census: Census,
}

impl<'z> CensusWalk<'z> {
    /// The machine's zones.
    pub fn zones(&self) -> &'z Zones {
        self.zones
    }

    /// Counts cached lists.
    pub fn cached(&mut self, zone: ZoneId, lists: &Lists) -> Result<(), Fault> {
        self.census.cached_pages += lists.check(self.zones, zone, &mut self.seen)?;
        Ok(())
    }

    /// Counts lists that wait for a grace period.
    pub fn pending(&mut self, zone: ZoneId, lists: &Lists) -> Result<(), Fault> {
        self.census.pending_pages += lists.check(self.zones, zone, &mut self.seen)?;
        Ok(())
    }

    /// Counts one cached block.
    pub fn cached_block(&mut self, zone: ZoneId, pfn: Pfn, order: Order) -> Result<(), Fault> {
        self.census.cached_pages += u64::from(order.frames());
        self.seen.mark(self.zones, zone, pfn, order)
    }
}

/// Checks a store, and by `caches` the layer above it; counts all frames. `caches` marks the
/// frames that it finds and adds them to the census.
///
/// # Errors
/// The first fault found.
pub fn take_census<S: Store>(
    store: &S,
    caches: impl FnOnce(&mut CensusWalk<'_>) -> Result<(), Fault>,
) -> Result<Census, Fault> {
    let zones = store.zones();
    let mut taking = CensusWalk { seen: FrameSet::new(zones), zones, census: Census::default() };
    let mut free_pages = 0;
    let overhead_pages = store.check(&mut |zone, pfn, order| {
        free_pages += u64::from(order.frames());
        taking.seen.mark(zones, zone, pfn, order)
    })?;
    taking.census.free_pages = free_pages;
    taking.census.overhead_pages = overhead_pages;
    taking.census.managed_pages = zones.ids().map(|zone| zones.zone(zone).managed_pages).sum();
    caches(&mut taking)?;
    Ok(taking.census)
}
