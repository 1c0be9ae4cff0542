//! Nodes: what a CPU's requests touch, apart from those of other CPUs.

pub mod counters;
pub mod large;
pub mod lazy;
pub mod pool;

use crate::metadata::area::{Area, AreaIndex, Areas, State};
use crate::node::counters::Counters;
use crate::node::large::LargePools;
use crate::node::lazy::LazyList;
use crate::node::pool::{POOL_SIZES, Pools};
use pagedepot::CpuId;
use pagedepot::sync::count;

/// Nodes whose pools a request searches before it waits for a lock.
const NEAR_NODES: usize = 4;

/// The pools and the lazy list of one or more CPUs.
#[repr(align(128))]
pub struct Node {
    cold: Pools,
    warm: Pools,
    large: LargePools,
    lazy: LazyList,
    counters: Counters,
}

impl Node {
    pub fn new() -> Self {
        Node {
            cold: Pools::new(),
            warm: Pools::new(),
            large: LargePools::new(),
            lazy: LazyList::new(),
            counters: Counters::new(),
        }
    }

    /// Pools of areas with nothing mapped.
    #[inline]
    pub fn cold(&self) -> &Pools {
        &self.cold
    }

    /// Pools of areas whose frames stayed mapped.
    #[inline]
    pub fn warm(&self) -> &Pools {
        &self.warm
    }

    /// Pools of areas whose frames stayed mapped, and that are too large for the others.
    pub fn large(&self) -> &LargePools {
        &self.large
    }

    pub fn lazy(&self) -> &LazyList {
        &self.lazy
    }

    pub fn counters(&self) -> &Counters {
        &self.counters
    }
}

/// Purged areas of one node and size, linked, that their purger owns.
pub struct Row {
    node: usize,
    pages: u32,
    pub first: AreaIndex,
    last: AreaIndex,
    pub count: u32,
}

impl Row {
    /// One area. `None`: it retires, so no pool gets it.
    pub fn new(areas: Areas<'_>, index: AreaIndex) -> Option<Self> {
        let area = &areas[index];
        let (node, pages) = (area.traits().node(), area.pages());
        let mut row = Row { node, pages, first: index, last: index, count: 0 };
        (!area.word().is_retiring()).then(|| {
            row.add(areas, index);
            row
        })
    }

    /// Adds an area behind the last. `false`: it is of another node or size, or retires.
    pub fn append(&mut self, areas: Areas<'_>, index: AreaIndex) -> bool {
        let area = &areas[index];
        let fits = (area.traits().node(), area.pages()) == (self.node, self.pages)
            && !area.word().is_retiring();
        if fits {
            areas[self.last].set_next(Some(index));
            self.add(areas, index);
        }
        fits
    }

    fn add(&mut self, areas: Areas<'_>, index: AreaIndex) {
        let area = &areas[index];
        area.set_next(None);
        // Before the push: afterwards the area belongs to whichever thread pops it.
        area.set_word(area.word().plain(State::Pooled));
        self.last = index;
        self.count += 1;
    }
}

/// All nodes, and the budgets of their pools.
pub struct Nodes<'m> {
    nodes: &'m [Node],
    cold_pages_max: u64,
    warm_pages_max: u64,
    large_pages_max: u64,
}

impl<'m> Nodes<'m> {
    /// Nodes whose pools keep up to `cold_pages_max` pages of addresses, `warm_pages_max` pages of
    /// memory, and `large_pages_max` pages of memory in large areas each.
    pub fn new(
        nodes: &'m [Node],
        cold_pages_max: u64,
        warm_pages_max: u64,
        large_pages_max: u64,
    ) -> Self {
        Nodes { nodes, cold_pages_max, warm_pages_max, large_pages_max }
    }

    /// The node of a CPU, and its number.
    #[inline]
    pub fn of_cpu(&self, cpu: Option<CpuId>) -> (u32, &'m Node) {
        let cpu = cpu.map_or(0, |cpu| cpu.get());
        // A division costs as much as the rest of a warm allocation.
        let number =
            if (cpu as usize) < self.nodes.len() { cpu } else { cpu % self.nodes.len() as u32 };
        (number, &self.nodes[number as usize])
    }

    /// The node that allocated an area.
    #[inline]
    pub fn of_area(&self, area: &Area) -> &'m Node {
        &self.nodes[area.traits().node()]
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = &'m Node> + use<'m> {
        self.nodes.iter()
    }

    /// Budget of a node's cold pools, in pages.
    pub fn cold_pages_max(&self) -> u64 {
        self.cold_pages_max
    }

    /// Budget of a node's warm pools, in pages.
    pub fn warm_pages_max(&self) -> u64 {
        self.warm_pages_max
    }

    /// Budget of a node's pools of large warm areas, in pages.
    pub fn large_pages_max(&self) -> u64 {
        self.large_pages_max
    }

    /// Whether an area of `pages` pages with guard may stay mapped when it is freed.
    pub fn keeps_warm(&self, pages: u32) -> bool {
        if pages <= POOL_SIZES {
            self.warm_pages_max > 0
        } else {
            LargePools::has_size(pages) && u64::from(pages) <= self.large_pages_max
        }
    }

    /// Pages that wait for a purge.
    pub fn lazy_pages(&self) -> u64 {
        self.nodes.iter().map(|node| node.lazy.pages()).sum()
    }

    /// An area of `pages` pages from the pool of a node near `number`. It stays that node's.
    pub fn borrow(&self, areas: Areas<'_>, number: u32, pages: u32) -> Option<AreaIndex> {
        let near = NEAR_NODES.min(self.nodes.len() - 1);
        let mut nodes = self.nodes.iter().cycle().skip(number as usize + 1).take(near);
        nodes.find_map(|node| {
            let area = node.cold.of(pages)?.pop(areas, |_| true)?;
            count(&node.counters.borrowed_areas, 1);
            Some(area)
        })
    }

    /// Puts a freed area that its pool had no room for into the pool after all, if its limit can
    /// be raised. `false`: it is held by the caller still.
    #[cold]
    pub fn keep(&self, areas: Areas<'_>, index: AreaIndex) -> bool {
        let area = &areas[index];
        let (pages, node) = (area.pages(), self.of_area(area));
        if area.word().is_warm() && pages > POOL_SIZES {
            area.set_word(area.word().in_state(State::Pooled));
            return node.large.push(areas, index, pages, self.large_pages_max);
        }
        let (pools, budget) = match (area.word().is_warm(), area.mapped()) {
            (true, _) => (&node.warm, self.warm_pages_max),
            (false, 0) => (&node.cold, self.cold_pages_max),
            _ => return false,
        };
        if !pools.raise_limit(pages, budget) {
            return false;
        }
        area.set_word(area.word().in_state(State::Pooled));
        pools.of(pages).is_some_and(|pool| pool.push(areas, index))
    }

    /// Takes a large area out of its pool, so that a freed one of another size finds room there.
    /// The caller owns it. `None`: there is no more to take.
    #[cold]
    pub fn evict_for(&self, areas: Areas<'_>, index: AreaIndex) -> Option<AreaIndex> {
        let area = &areas[index];
        let is_kept = area.word().is_warm() && LargePools::has_size(area.pages());
        let large = self.of_area(area).large();
        is_kept.then(|| large.evict(areas, area.pages(), self.large_pages_max))?
    }

    /// Puts purged areas into their node's cold pool, by one operation. `false`: the pool has no
    /// room for all of them, and the caller owns them still.
    pub fn refill(&self, areas: Areas<'_>, row: &Row) -> bool {
        let node = &self.nodes[row.node];
        let Some(pool) = node.cold.of(row.pages) else { return false };
        let push = || pool.push_list(areas, row.first, row.last, row.count);
        let is_pushed = push() || node.cold.raise_limit(row.pages, self.cold_pages_max) && push();
        if is_pushed {
            count(&node.counters.refilled_areas, row.count.into());
        }
        is_pushed
    }

    /// Puts a held area into its node's lazy list; returns the pages in the list. From here on the
    /// area belongs to the next purge.
    pub fn push_lazy(&self, areas: Areas<'_>, index: AreaIndex) -> u64 {
        let area = &areas[index];
        let (pages, node) = (area.pages(), self.of_area(area));
        area.set_word(area.word().in_state(State::Lazy));
        node.lazy.push(areas, index, pages)
    }
}
