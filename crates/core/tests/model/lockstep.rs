//! The allocator and the model, side by side.

use std::mem::MaybeUninit;

use pagedepot::cpus::PinnedCpus;
use pagedepot::{Backing, Config, CpuId, Mode, Pfn, Scope, ZoneId};

use crate::arena::Arena;
use crate::common::backing::Sets;
use crate::common::{Anywhere, Single, range};
use crate::naive::{At, Held, Naive};
use crate::op::Op;
use crate::world::{FIRST_SPARE_SECTION, Keeper, SECTION, World};

/// Operations between two validations of all metadata.
const VALIDATE_EVERY: usize = 8;

pub struct Lockstep<'m> {
    pub depot: Single<'m>,
    pub naive: Naive,
    pub world: &'m World,
    pub arena: &'m Arena,
    /// The backing under the allocator, if it has one.
    pub backing: Option<&'m Sets>,
    /// Metadata for memory that is added, enough for two sections each.
    pub spare_metadata: Vec<&'m mut [MaybeUninit<u8>]>,
    /// CPUs whose gates stay closed.
    pub is_disabled: Vec<bool>,
    pub now_ms: u64,
    /// The greatest `high` so far of each CPU in each zone, `[cpu][zone]`.
    pub peak_high: Vec<Vec<u64>>,
    /// Allocations and frees of blocks.
    pub operations: u64,
    /// Requests that failed and are counted.
    pub failures: u64,
    pub last_freed: Option<(u32, Held)>,
}

/// Makes a world, runs `ops` in it, and frees everything.
pub fn run(world: &World, ops: &[Op]) {
    world.with_config(|config| {
        let is_backed = world.keeper != Keeper::Bitmap;
        let sets = is_backed.then(|| Sets::new(config.zones, world.keeper == Keeper::Ranges));
        let backing = sets.as_ref();
        let under = backing.map(|sets| sets as &dyn Backing);
        let bytes = Single::builder(config).backing(under).metadata_bytes().unwrap();
        let frames =
            world.zones.iter().flat_map(|zone| &zone.ranges).map(|range| range.end()).max();
        let frames = if world.is_mapped { frames.unwrap_or(0) as usize } else { 0 };
        let arena = Arena::new(bytes, world.skew, frames);
        let config = Config { linear_map: world.is_mapped.then(|| arena.linear_map()), ..*config };
        let mut spare = Vec::new();
        let anywhere = PinnedCpus(Anywhere::new());
        let builder = Single::builder(&config).backing(under);
        let depot = builder.build(arena.metadata(), anywhere).unwrap();
        // A spare for each section that memory may come to.
        spare.resize_with(2, || {
            let both = range(FIRST_SPARE_SECTION * SECTION - 1, 2);
            vec![MaybeUninit::uninit(); depot.section_bytes(both)]
        });
        let spare_metadata = spare.iter_mut().map(Vec::as_mut_slice).collect();
        Lockstep::new(depot, world, &arena, backing, spare_metadata).run(ops);
    });
}

impl<'m> Lockstep<'m> {
    fn new(
        depot: Single<'m>,
        world: &'m World,
        arena: &'m Arena,
        backing: Option<&'m Sets>,
        spare_metadata: Vec<&'m mut [MaybeUninit<u8>]>,
    ) -> Self {
        let cpus = world.cpus() as usize;
        Lockstep {
            depot,
            naive: Naive::new(world),
            world,
            arena,
            backing,
            spare_metadata,
            is_disabled: vec![!world.caches; cpus],
            now_ms: 0,
            peak_high: vec![vec![0; world.zones.len()]; cpus],
            operations: 0,
            failures: 0,
            last_freed: None,
        }
    }

    fn run(mut self, ops: &[Op]) {
        for (i, op) in ops.iter().enumerate() {
            self.perform(op);
            self.check();
            if (i + 1).is_multiple_of(VALIDATE_EVERY) {
                self.validate();
            }
        }
        self.finish();
    }

    /// Frees everything, whatever the state at the end of the run.
    fn finish(mut self) {
        let starts: Vec<u32> = self.naive.held.keys().copied().collect();
        starts.into_iter().for_each(|start| self.free_one(start));
        self.check();
        let drained = self.depot.drain(Scope::ALL, Mode::Full);
        assert_eq!((drained.unreachable_pages, drained.busy_cpus), (0, 0));
        let census = self.validate();
        assert_eq!(census.cached_pages, 0);
        assert_eq!(census.free_pages + census.carved_pages, census.managed_pages);
    }

    pub fn validate(&mut self) -> pagedepot::Census {
        let census = self.depot.validate().unwrap();
        let held: u64 = self.naive.zones.iter().map(|zone| zone.held_pages()).sum();
        let managed: u64 = self.naive.zones.iter().map(|zone| zone.managed()).sum();
        assert_eq!(census.held_pages(), held, "{census:?}");
        assert_eq!(census.managed_pages, managed);
        census
    }

    pub fn at(&self) -> At {
        let anywhere = &self.depot.cpus().0;
        At { cpu: anywhere.cpu(), is_nowhere: anywhere.is_nowhere() }
    }

    pub fn cpus(&self) -> impl Iterator<Item = CpuId> + use<> {
        (0..self.depot.cpu_count()).map(CpuId::new)
    }

    pub fn zones(&self) -> impl Iterator<Item = ZoneId> + use<> {
        (0..self.naive.zones.len() as u32).map(ZoneId::new)
    }

    pub fn is_free(&self, start: u32, frames: u32) -> bool {
        (start..start + frames).all(|frame| self.depot.is_free(Pfn::new(frame)))
    }
}
