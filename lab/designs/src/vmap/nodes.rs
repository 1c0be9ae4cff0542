//! `vmap-nodes`: the thread's design, as it was merged (6.9).
//!
//! A node per CPU, up to 128. An allocation takes from the pool of its size on this CPU's node. If
//! the pool is empty it takes the lowest free range, under the one lock that is left. An area's
//! address decides which node keeps it while it is busy: segments of 16 pages go to the nodes in
//! turn. A freed area goes to the lazy tree of the node that allocated it, and from there, at the
//! next purge, into that node's pool. Pools have no cap unless the setup gives one
//! ([`VmapSetup::pool_areas_max`]); a purge first takes a quarter of what they hold, rounded down,
//! and the shrinker takes everything.
//!
//! With one node there are no pools, as in the kernel (`node_alloc`).
//!
//! # Helpers
//! A purge that finds several times as much lazy as is due is late. It then leaves the lists of
//! some nodes to their CPUs (`purge_vmap_node` by `schedule_work_on`): each settles its own when it
//! next frees an area, where the kernel's worker would preempt it. When the purger is through with
//! the other lists, it takes back those that no CPU has begun, and waits for the rest.

use std::collections::{BTreeMap, VecDeque};

use pagedepot_vmap::{Host, Mapper};

use super::VmapSetup;
use super::area::{Area, AreaRequest, Ground, insert_noted, remove_noted};
use super::counts::VmapCounts;
use super::kernel::Addresses;
use super::run::Run;
use super::tree::FreeTree;
use crate::left::WorkPlaces;
use pagedepot_designs::prim::{Mutex, Ordering, Padded, note_area, note_write};

/// The kernel's bound: with more CPUs, some share a node.
const NODES_MAX: u32 = 128;

/// Sizes that have pools: 1..=256 pages, guard included (`MAX_VA_SIZE_PAGES`).
const POOLS: usize = 256;
/// Pages of a segment (`vmap_zone_size`).
const SEGMENT_PAGES: u32 = 16;

/// Areas in nodes; see the module.
pub struct NodeTrees {
    nodes: Box<[Node]>,
    /// `free_vmap_area_root`.
    free: Padded<Mutex<FreeTree>>,
    /// Lists of lazy areas that a purger left to the nodes' CPUs.
    left: WorkPlaces<Vec<Area>>,
}

struct Node {
    /// Pools by size, all behind one lock (`pool_lock`).
    pools: Padded<Mutex<Pools>>,
    busy: Padded<Mutex<Busy>>,
    lazy: Padded<Mutex<BTreeMap<u32, Area>>>,
}

struct Pools {
    by_size: Vec<VecDeque<Run>>,
    /// Most areas of each size.
    areas_max: usize,
    hits: u64,
}

#[derive(Default)]
struct Busy {
    areas: BTreeMap<u32, Area>,
    inserted: u64,
}

impl Pools {
    /// Pools of at most so many areas each; `None`: any number.
    fn new(areas_max: Option<u32>) -> Self {
        let areas_max = areas_max.map_or(usize::MAX, |areas| areas as usize);
        Pools { by_size: vec![VecDeque::new(); POOLS], areas_max, hits: 0 }
    }

    /// Takes the first area of its size, if it is aligned; otherwise that area goes to the end
    /// (`node_pool_del_va`).
    fn take(&mut self, wanted: AreaRequest, base: u64) -> Option<Run> {
        let pool = self.by_size.get_mut(wanted.pages as usize - 1)?;
        note_write(pool);
        let first = pool.pop_front()?;
        if !(base + u64::from(first.start)).is_multiple_of(wanted.align_pages) {
            pool.push_back(first);
            return None;
        }
        note_area(first.start);
        self.hits += 1;
        Some(first)
    }

    /// Puts an area at the front of its pool; `false`: there is no such pool, or it is full.
    fn put(&mut self, run: Run) -> bool {
        let pool = self.by_size.get_mut(run.pages() as usize - 1);
        let pool = pool.filter(|pool| pool.len() < self.areas_max);
        pool.as_deref().inspect(|pool| note_write(*pool));
        pool.map(|pool| pool.push_front(run)).is_some()
    }

    /// Takes a quarter of each pool, or everything (`decay_va_pool_node`).
    fn decay(&mut self, everything: bool, taken: &mut Vec<Run>) {
        for pool in &mut self.by_size {
            let count = if everything { pool.len() } else { pool.len() / 4 };
            pool.range(..count).for_each(|run| note_area(run.start));
            taken.extend(pool.drain(..count));
        }
    }

    fn pages(&self) -> u64 {
        self.by_size.iter().flatten().map(|run| u64::from(run.pages())).sum()
    }
}

impl NodeTrees {
    fn node_of(&self, page: u32, base: u64) -> usize {
        let segment = (base + u64::from(page)) / u64::from(SEGMENT_PAGES);
        (segment % self.nodes.len() as u64) as usize
    }

    fn has_pools(&self) -> bool {
        self.nodes.len() > 1
    }

    /// The node of the calling CPU.
    fn here<H: Host>(&self, host: &H) -> usize {
        host.cpu().map_or(0, |cpu| cpu.index() % self.nodes.len())
    }

    fn give_back<M: Mapper, H: Host>(&self, ground: &Ground<M, H>, runs: Vec<Run>) {
        if !runs.is_empty() {
            let mut free = ground.lock(&self.free);
            runs.into_iter().for_each(|run| free.give_back(run));
        }
    }

    /// Settles the list of one node (`purge_vmap_node`).
    fn settle_node<M: Mapper, H: Host>(
        &self,
        ground: &Ground<M, H>,
        areas: Vec<Area>,
        everything: bool,
    ) {
        let (mut rest, mut pages) = (Vec::new(), 0);
        for area in areas {
            note_area(area.run.start);
            pages += u64::from(area.run.pages());
            let pools = &self.nodes[area.node as usize].pools;
            if everything || !self.has_pools() || !ground.lock(pools).put(area.run) {
                rest.push(area.run);
            }
        }
        if pages > 0 {
            ground.count_settled(pages);
        }
        self.give_back(ground, rest);
    }
}

impl Addresses for NodeTrees {
    const NAME: &'static str = "vmap-nodes";

    fn new(setup: &VmapSetup, all: Run) -> Self {
        let node = || Node {
            pools: Padded(Mutex::new(Pools::new(setup.pool_areas_max))),
            busy: Padded(Mutex::default()),
            lazy: Padded(Mutex::default()),
        };
        let nodes: Box<[Node]> = (0..setup.cpus.clamp(1, NODES_MAX)).map(|_| node()).collect();
        let left = WorkPlaces::new(nodes.len());
        NodeTrees { nodes, free: Padded(Mutex::new(FreeTree::new(all))), left }
    }

    fn take<M: Mapper, H: Host>(&self, ground: &Ground<M, H>, wanted: AreaRequest) -> Option<Area> {
        let here = self.here(&ground.host);
        let pooled = self
            .has_pools()
            .then(|| ground.lock(&self.nodes[here].pools).take(wanted, ground.base_page()))
            .flatten();
        let run = pooled.or_else(|| {
            ground.lock(&self.free).take_lowest(
                wanted.pages,
                wanted.align_pages,
                ground.base_page(),
            )
        })?;
        Some(Area::new(run, here as u32))
    }

    fn insert<M: Mapper, H: Host>(&self, ground: &Ground<M, H>, area: Area) {
        let node = &self.nodes[self.node_of(area.run.start, ground.base_page())];
        let mut busy = ground.lock(&node.busy);
        busy.inserted += 1;
        insert_noted(&mut busy.areas, area);
        drop(busy);
        // Once more, to name what uses the area (`setup_vmalloc_vm`).
        drop(ground.lock(&node.busy));
    }

    fn remove<M: Mapper, H: Host>(&self, ground: &Ground<M, H>, page: u32) -> Option<Area> {
        let node = &self.nodes[self.node_of(page, ground.base_page())];
        remove_noted(&mut ground.lock(&node.busy).areas, page)
    }

    fn make_lazy<M: Mapper, H: Host>(&self, ground: &Ground<M, H>, area: Area) {
        insert_noted(&mut ground.lock(&self.nodes[area.node as usize].lazy), area);
    }

    fn collect<M: Mapper, H: Host>(
        &self,
        ground: &Ground<M, H>,
        everything: bool,
    ) -> Vec<Vec<Area>> {
        let lists = self.nodes.iter().map(|node| {
            let mut decayed = Vec::new();
            ground.lock(&node.pools).decay(everything, &mut decayed);
            self.give_back(ground, decayed);
            std::mem::take(&mut *ground.lock(&node.lazy)).into_values().collect()
        });
        lists.collect()
    }

    fn settle<M: Mapper, H: Host>(
        &self,
        ground: &Ground<M, H>,
        lists: Vec<Vec<Area>>,
        everything: bool,
    ) {
        // One helper for each time that as much is lazy as is due, but for the first time.
        let due = ground.lazy_pages.load(Ordering::Relaxed) / ground.lazy_pages_max.max(1);
        let mut helpers = if everything { 0 } else { due.saturating_sub(1) };
        let mut own = Vec::new();
        for (node, list) in lists.into_iter().enumerate().filter(|(_, list)| !list.is_empty()) {
            if helpers > 0 {
                self.left.leave(node, list);
                helpers -= 1;
            } else {
                own.push(list);
            }
        }
        let settle = |list| self.settle_node(ground, list, everything);
        own.into_iter().for_each(settle);
        (0..self.nodes.len()).for_each(|node| self.left.do_at(node, settle));
        self.left.wait();
    }

    fn help<M: Mapper, H: Host>(&self, ground: &Ground<M, H>) {
        let here = self.here(&ground.host);
        self.left.do_at(here, |list| self.settle_node(ground, list, false));
    }

    fn shrink<M: Mapper, H: Host>(&self, ground: &Ground<M, H>) -> u64 {
        let mut areas = 0;
        for node in &self.nodes {
            let mut taken = Vec::new();
            ground.lock(&node.pools).decay(true, &mut taken);
            areas += taken.len() as u64;
            self.give_back(ground, taken);
        }
        areas
    }

    fn add_counts<M: Mapper, H: Host>(&self, ground: &Ground<M, H>, counts: &mut VmapCounts) {
        for node in &self.nodes {
            counts.allocated_areas += ground.lock(&node.busy).inserted;
            let pools = ground.lock(&node.pools);
            counts.pool_hits += pools.hits;
            counts.pooled_pages += pools.pages();
        }
        counts.free_pages += ground.lock(&self.free).pages();
    }

    fn runs(&mut self) -> Vec<Run> {
        const CLEAN: &str = "no thread panicked while it held the lock";
        let mut runs = self.free.0.get_mut().expect(CLEAN).runs();
        for node in &mut self.nodes {
            runs.extend(node.pools.0.get_mut().expect(CLEAN).by_size.iter().flatten());
            runs.extend(node.busy.0.get_mut().expect(CLEAN).areas.values().map(|area| area.run));
            runs.extend(node.lazy.0.get_mut().expect(CLEAN).values().map(|area| area.run));
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool_of(runs: u32) -> Pools {
        let mut pools = Pools::new(None);
        (0..runs).for_each(|i| assert!(pools.put(Run::new(10 * i, 2))));
        pools
    }

    #[test]
    fn a_decay_takes_a_quarter_rounded_down() {
        for (held, taken) in [(0, 0), (3, 0), (4, 1), (11, 2), (100, 25)] {
            let (mut pools, mut runs) = (pool_of(held), Vec::new());
            pools.decay(false, &mut runs);
            assert_eq!(runs.len(), taken);
            pools.decay(true, &mut runs);
            assert_eq!(runs.len(), held as usize);
        }
    }

    #[test]
    fn what_is_misaligned_goes_to_the_end_and_what_is_too_large_nowhere() {
        let mut pools = pool_of(2);
        let wanted = |align_pages| AreaRequest { pages: 2, align_pages };
        // Page 10 is first.
        assert_eq!(pools.take(wanted(4), 0), None);
        assert_eq!(pools.take(wanted(4), 0), Some(Run::new(0, 2)));
        assert_eq!(pools.take(wanted(1), 0), Some(Run::new(10, 2)));
        assert_eq!(pools.hits, 2);
        assert!(!pools.put(Run::new(0, 257)));
        assert!(pools.put(Run::new(0, 256)));
    }

    #[test]
    fn a_full_pool_takes_no_more() {
        let mut pools = Pools::new(Some(2));
        let put: Vec<_> = (0..3).map(|i| pools.put(Run::new(10 * i, 2))).collect();
        assert_eq!(put, [true, true, false]);
        assert!(pools.put(Run::new(100, 3)), "each size has its own");
    }
}
