//! pagedepot's own store, a lock-free bitmap, as a store for the other designs. Each zone has an
//! allocator without caches.

use pagedepot::cpus::{Here, LockedCpus};
use pagedepot::{Allocator, Config, Flags, FrameRange, HighPolicy, Mobility, NodeId, Order, Pfn};
use pagedepot::{Watermarks, ZoneConfig, ZoneId};

use super::Store;
use crate::census::{Fault, agree};
use crate::depot::{ActAs, ByThread, Metadata};
use crate::lock::LockWaits;
use crate::report::Volume;
use crate::setup::{Setup, SetupError};
use crate::zones::Zones;

/// Blocks moved by one call of the allocator.
const CHUNK: usize = 64;

/// The allocator of one zone, and the memory of its metadata, which must outlive it: fields are
/// dropped in this order.
struct ZoneStore {
    allocator: Allocator<'static, LockedCpus<'static, ByThread>>,
    _metadata: Metadata,
}

/// A bitmap store over all zones.
pub struct Bitmap {
    zones: Zones,
    /// `None` for zones without memory.
    stores: Vec<Option<ZoneStore>>,
}

impl Bitmap {
    /// A store of all frames of a setup.
    ///
    /// # Errors
    /// What is wrong with the setup.
    pub fn new(setup: &Setup) -> Result<Self, SetupError> {
        let zones = Zones::new(setup)?;
        let stores = zones
            .ids()
            .map(|id| ZoneStore::new(setup, &zones.zone(id).ranges))
            .collect::<Result<_, _>>()?;
        Ok(Bitmap { zones, stores })
    }

    fn store(
        &self,
        here: Here,
        zone: ZoneId,
    ) -> Option<&Allocator<'static, LockedCpus<'static, ByThread>>> {
        let store = self.stores[zone.index()].as_ref()?;
        ByThread.act_as(here);
        Some(&store.allocator)
    }

    /// Records the mobility of a pageblock, which the allocator changes when it claims a whole one.
    fn note(&self, pfn: Pfn, zone: ZoneId, mobility: Mobility) {
        if self.zones.lookup(pfn).is_none_or(|(_, its)| its != mobility) {
            self.zones.set_mobility(pfn, zone, mobility);
        }
    }
}

impl ZoneStore {
    fn new(setup: &Setup, ranges: &[FrameRange]) -> Result<Option<Self>, SetupError> {
        if ranges.iter().all(|range| range.frames == 0) {
            return Ok(None);
        }
        let zones = [ZoneConfig {
            name: "zone",
            node: NodeId::new(0),
            level: 0,
            ranges,
            // The walk over zones checks watermarks; the allocator itself has none.
            watermarks: Some(Watermarks::default()),
        }];
        let config = Config {
            caches: false,
            high: HighPolicy::Fixed(0),
            page_size: setup.page_size,
            ..Config::new(setup.cpus, &zones)
        };
        let needed = Allocator::<LockedCpus<'static, ByThread>>::metadata_bytes(&config)?;
        // SAFETY: the allocator is the field before `_metadata`, and on an error is made after it.
        let (metadata, memory) = unsafe { Metadata::new(needed) };
        let allocator = Allocator::new(&config, memory, LockedCpus::new(&[], ByThread))?;
        Ok(Some(ZoneStore { allocator, _metadata: metadata }))
    }
}

impl Store for Bitmap {
    const NAME: &'static str = "bitmap";

    #[inline]
    fn zones(&self) -> &Zones {
        &self.zones
    }

    fn take(
        &self,
        here: Here,
        zone: ZoneId,
        order: Order,
        mobility: Mobility,
        blocks: u32,
        mut sink: impl FnMut(Pfn) -> bool,
    ) -> u32 {
        let Some(store) = self.store(here, zone) else { return 0 };
        let mut taken = 0;
        let mut chunk = [Pfn::new(0); CHUNK];
        while taken < blocks {
            let wanted = CHUNK.min((blocks - taken) as usize);
            let got = store
                .alloc_many(order, Flags::new(mobility).no_reclaim(), &mut chunk[..wanted])
                .unwrap_or(0);
            for (at, &pfn) in chunk[..got].iter().enumerate() {
                self.note(pfn, zone, mobility);
                taken += 1;
                if !sink(pfn) {
                    self.give(here, zone, chunk[at + 1..got].iter().map(|&pfn| (pfn, order)));
                    return taken;
                }
            }
            if got < wanted {
                break;
            }
        }
        taken
    }

    fn give(&self, here: Here, zone: ZoneId, blocks: impl Iterator<Item = (Pfn, Order)>) -> Volume {
        let mut given = Volume::default();
        let Some(store) = self.store(here, zone) else { return given };
        let mut blocks = blocks;
        let mut chunk = [(Pfn::new(0), Order::BASE); CHUNK];
        loop {
            let mut length = 0;
            for (place, block) in chunk.iter_mut().zip(&mut blocks) {
                *place = block;
                given.add(block.1);
                length += 1;
            }
            if let Err(error) = store.free_many(&chunk[..length]) {
                panic!("{error}");
            }
            if length < CHUNK {
                return given;
            }
        }
    }

    fn free_pages(&self, zone: ZoneId) -> u64 {
        self.stores[zone.index()]
            .as_ref()
            .map_or(0, |store| store.allocator.free_pages(ZoneId::new(0)))
    }

    fn is_free(&self, pfn: Pfn) -> bool {
        let zone = self.zones.lookup(pfn).map(|(zone, _)| zone);
        zone.and_then(|zone| self.stores[zone.index()].as_ref())
            .is_some_and(|store| store.allocator.is_free(pfn))
    }

    fn is_contended(&self, _zone: ZoneId) -> bool {
        false
    }

    fn lock_waits(&self) -> LockWaits {
        LockWaits::default()
    }

    fn check(
        &self,
        mark: &mut dyn FnMut(ZoneId, Pfn, Order) -> Result<(), Fault>,
    ) -> Result<u64, Fault> {
        for zone in self.zones.ids() {
            let Some(store) = &self.stores[zone.index()] else { continue };
            let mut found = 0;
            for range in &self.zones.zone(zone).ranges {
                for pfn in (0..range.frames).map(|at| range.start.add(at)) {
                    if store.allocator.is_free(pfn) {
                        mark(zone, pfn, Order::BASE)?;
                        found += 1;
                    }
                }
            }
            agree("free pages of the store", self.free_pages(zone), found)?;
        }
        Ok(0)
    }
}
