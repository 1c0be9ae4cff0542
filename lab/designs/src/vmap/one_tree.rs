//! `vmap-global-lock`: the kernel before the thread (6.7). Free, busy and lazy areas are in one
//! tree each, behind one lock each; every request takes the first two. In the thread's profile
//! waiters for the first lock take 93% of the time.

use std::collections::BTreeMap;

use pagedepot_vmap::{Host, Mapper};

use super::VmapSetup;
use super::area::{Area, AreaRequest, Ground, insert_noted, remove_noted};
use super::counts::VmapCounts;
use super::kernel::Addresses;
use super::run::Run;
use super::tree::FreeTree;
use pagedepot_designs::prim::{Mutex, Padded, note_area};

/// Areas in three trees; see the module.
pub struct OneTree {
    /// `free_vmap_area_root`, and the number of allocations from it.
    free: Padded<Mutex<(FreeTree, u64)>>,
    /// `vmap_area_root`.
    busy: Padded<Mutex<BTreeMap<u32, Area>>>,
    /// `purge_vmap_area_root`.
    lazy: Padded<Mutex<BTreeMap<u32, Area>>>,
}

impl Addresses for OneTree {
    const NAME: &'static str = "vmap-global-lock";

    fn new(_: &VmapSetup, all: Run) -> Self {
        OneTree {
            free: Padded(Mutex::new((FreeTree::new(all), 0))),
            busy: Padded(Mutex::default()),
            lazy: Padded(Mutex::default()),
        }
    }

    fn take<M: Mapper, H: Host>(&self, ground: &Ground<M, H>, wanted: AreaRequest) -> Option<Area> {
        let mut free = ground.lock(&self.free);
        let run = free.0.take_lowest(wanted.pages, wanted.align_pages, ground.base_page())?;
        free.1 += 1;
        Some(Area::new(run, 0))
    }

    fn insert<M: Mapper, H: Host>(&self, ground: &Ground<M, H>, area: Area) {
        insert_noted(&mut ground.lock(&self.busy), area);
        // Once more, to name what uses the area (`setup_vmalloc_vm`).
        drop(ground.lock(&self.busy));
    }

    fn remove<M: Mapper, H: Host>(&self, ground: &Ground<M, H>, page: u32) -> Option<Area> {
        remove_noted(&mut ground.lock(&self.busy), page)
    }

    fn make_lazy<M: Mapper, H: Host>(&self, ground: &Ground<M, H>, area: Area) {
        insert_noted(&mut ground.lock(&self.lazy), area);
    }

    fn collect<M: Mapper, H: Host>(
        &self,
        ground: &Ground<M, H>,
        _everything: bool,
    ) -> Vec<Vec<Area>> {
        let lazy = std::mem::take(&mut *ground.lock(&self.lazy));
        vec![lazy.into_values().collect()]
    }

    /// Settles the lists under one lock that is never let go, and with the count that other CPUs
    /// change, as `__purge_vmap_area_lazy` does where nothing preempts it.
    fn settle<M: Mapper, H: Host>(
        &self,
        ground: &Ground<M, H>,
        lists: Vec<Vec<Area>>,
        _everything: bool,
    ) {
        let mut free = ground.lock(&self.free);
        for area in lists.iter().flatten() {
            note_area(area.run.start);
            free.0.give_back(area.run);
            ground.count_settled(u64::from(area.run.pages()));
        }
    }

    fn add_counts<M: Mapper, H: Host>(&self, ground: &Ground<M, H>, counts: &mut VmapCounts) {
        let free = ground.lock(&self.free);
        counts.allocated_areas += free.1;
        counts.free_pages += free.0.pages();
    }

    fn runs(&mut self) -> Vec<Run> {
        let areas = [&mut self.busy, &mut self.lazy].map(|tree| {
            let tree = tree.0.get_mut().expect("no thread panicked while it held the lock");
            tree.values().map(|area| area.run).collect::<Vec<_>>()
        });
        let free = self.free.0.get_mut().expect("no thread panicked while it held the lock");
        [areas.concat(), free.0.runs()].concat()
    }
}
