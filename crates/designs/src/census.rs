//! Validation: where all frames are, and the faults it finds.

use std::fmt;

use pagedepot::{Order, Pfn, ZoneId};

use crate::pcp::Lists;
use crate::store::Store;
use crate::zones::Zones;

/// Where all frames are, in pages. Callers hold the rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Census {
    /// Pages given to the design.
    pub managed_pages: u64,
    /// Pages free in the store.
    pub free_pages: u64,
    /// Pages in caches.
    pub cached_pages: u64,
    /// Pages in lists that were switched away and wait for a grace period.
    pub pending_pages: u64,
    /// Pages that the design took for its own metadata.
    pub overhead_pages: u64,
}

impl Census {
    /// Pages that callers must be holding.
    pub fn held_pages(&self) -> u64 {
        self.managed_pages
            - self.free_pages
            - self.cached_pages
            - self.pending_pages
            - self.overhead_pages
    }
}

/// What is wrong with a design's metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// A frame is in two places.
    Doubled {
        /// The frame.
        pfn: Pfn,
    },
    /// A frame is in a list of another zone or order than its own.
    Misplaced {
        /// The frame.
        pfn: Pfn,
    },
    /// Two free buddies were not merged.
    Unmerged {
        /// The first frame of the lower buddy.
        pfn: Pfn,
    },
    /// A counter disagrees with what it counts.
    Count {
        /// What is counted.
        what: &'static str,
        /// The counter's value.
        counted: u64,
        /// What a walk found.
        found: u64,
    },
    /// A fault of the bitmap store, or of pagedepot's allocator.
    Allocator(pagedepot::Fault),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Allocator(fault) => fault.fmt(f),
            fault => write!(f, "the design's metadata is inconsistent: {fault:?}"),
        }
    }
}

impl std::error::Error for Fault {}

impl From<pagedepot::Fault> for Fault {
    fn from(fault: pagedepot::Fault) -> Self {
        Fault::Allocator(fault)
    }
}

/// Compares a counter with what a walk found.
pub(crate) fn agree(what: &'static str, counted: u64, found: u64) -> Result<(), Fault> {
    if counted == found { Ok(()) } else { Err(Fault::Count { what, counted, found }) }
}

/// A census under way.
pub(crate) struct Taking<'z> {
    seen: Seen,
    zones: &'z Zones,
    census: Census,
}

impl Taking<'_> {
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

/// Which frames have been seen by a validation.
pub(crate) struct Seen {
    words: Vec<u64>,
    base: u32,
}

impl Seen {
    pub fn new(zones: &Zones) -> Self {
        let ranges = || {
            zones
                .ids()
                .flat_map(|id| zones.zone(id).ranges.clone())
                .filter(|range| range.frames > 0)
        };
        let base = ranges().map(|range| range.start.get()).min().unwrap_or(0);
        let end = ranges().map(|range| range.end()).max().unwrap_or(0);
        Seen { words: vec![0; end.saturating_sub(u64::from(base)).div_ceil(64) as usize], base }
    }

    /// Checks a store, and by `caches` the layer above it; counts all frames. `caches` marks the
    /// frames that it finds and adds them to the census.
    ///
    /// # Errors
    /// The first fault found.
    pub fn census<S: Store>(
        store: &S,
        caches: impl FnOnce(&mut Taking<'_>) -> Result<(), Fault>,
    ) -> Result<Census, Fault> {
        let zones = store.zones();
        let mut taking = Taking { seen: Seen::new(zones), zones, census: Census::default() };
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

    /// Marks a block of a zone.
    ///
    /// # Errors
    /// When one of its frames was seen before, or is not the zone's, or the block is not aligned.
    pub fn mark(
        &mut self,
        zones: &Zones,
        zone: ZoneId,
        pfn: Pfn,
        order: Order,
    ) -> Result<(), Fault> {
        let end = u64::from(pfn.get()) + u64::from(order.frames());
        let inside = |range: &pagedepot::FrameRange| range.start <= pfn && end <= range.end();
        if !pfn.is_aligned(order) || !covered(&zones.zone(zone).ranges, pfn, end, inside) {
            return Err(Fault::Misplaced { pfn });
        }
        for frame in (0..order.frames()).map(|i| pfn.add(i)) {
            let at = (frame.get() - self.base) as usize;
            if self.words[at / 64] >> (at % 64) & 1 == 1 {
                return Err(Fault::Doubled { pfn: frame });
            }
            self.words[at / 64] |= 1 << (at % 64);
        }
        Ok(())
    }
}

/// Whether a block lies in one range, or in several that touch.
fn covered(
    ranges: &[pagedepot::FrameRange],
    pfn: Pfn,
    end: u64,
    inside: impl Fn(&pagedepot::FrameRange) -> bool,
) -> bool {
    ranges.iter().any(inside)
        || (u64::from(pfn.get())..end).all(|frame| {
            ranges.iter().any(|r| u64::from(r.start.get()) <= frame && frame < r.end())
        })
}
