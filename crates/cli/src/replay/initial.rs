//! The contents of the CPUs' lists when the recording began.
//!
//! A zoneinfo tells how many pages a CPU caches of a zone, but not on which of its lists. The trace
//! tells most of that: a block that leaves a list and was not seen coming was there before. Once a
//! list is refilled nothing is left of it, because only empty lists are. What no event explains
//! stayed where it was, on lists that were never refilled.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashSet};

use pagedepot::{Mobility, Order};

use super::plan::InitialList;
use super::zone_map::ZoneMap;

/// A list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListKey {
    /// The kernel's number.
    pub cpu: u16,
    pub zone: u8,
    pub order: Order,
    pub mobility: Mobility,
}

impl Ord for ListKey {
    fn cmp(&self, other: &Self) -> Ordering {
        let key = |list: &Self| (list.cpu, list.zone, list.order, list.mobility.index());
        key(self).cmp(&key(other))
    }
}

impl PartialOrd for ListKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The part of a list that the trace shows.
#[derive(Clone, Copy, Default)]
struct ListSeen {
    /// Blocks that were on the list and left it.
    left: u64,
    refilled: bool,
}

/// The contents of the CPUs' lists when the recording began.
#[derive(Default)]
pub struct Initial {
    /// Frames of blocks that the trace has shown already.
    seen: HashSet<u64>,
    lists: BTreeMap<ListKey, ListSeen>,
}

impl Initial {
    /// A block came from the zone's free lists.
    pub fn refilled(&mut self, list: ListKey, pfn: u64) {
        self.seen.insert(pfn);
        self.lists.entry(list).or_default().refilled = true;
    }

    /// A block was freed.
    pub fn came(&mut self, pfn: u64) {
        self.seen.insert(pfn);
    }

    /// A block was allocated, or went back to the zone.
    pub fn left(&mut self, list: ListKey, pfn: u64) {
        let known = self.lists.entry(list).or_default();
        if self.seen.insert(pfn) && !known.refilled {
            known.left += 1;
        }
    }

    /// The lists of these CPUs, as many pages as the zoneinfo says. Operations count the CPUs.
    pub fn finish(&self, cpus: &[u16], zones: &ZoneMap) -> Vec<InitialList> {
        let mut all = Vec::new();
        for (zone, cpu, pages) in zones.cached() {
            let Ok(index) = cpus.binary_search(&cpu) else { continue };
            for (order, mobility, blocks) in self.lists_of(cpu, zone, pages) {
                all.push(InitialList {
                    cpu: index as u16,
                    zone,
                    order,
                    mobility,
                    blocks: blocks as u32,
                });
            }
        }
        all
    }

    /// Order, mobility and blocks of a CPU's lists of a zone, `pages` in all.
    fn lists_of(&self, cpu: u16, zone: u8, pages: u64) -> Vec<(Order, Mobility, u64)> {
        let here = self.lists.iter().filter(|(key, _)| key.cpu == cpu && key.zone == zone);
        let cached = here.filter(|(key, _)| is_cached(key.order));
        let mut lists = Vec::new();
        let mut left = pages;
        for (key, known) in cached {
            let blocks = known.left.min(left >> key.order.get());
            left -= blocks << key.order.get();
            lists.push((key.order, key.mobility, blocks));
        }
        self.place_rest((cpu, zone), left, &mut lists);
        lists.retain(|&(_, _, blocks)| blocks > 0);
        lists
    }

    /// Pages that nothing was seen of go to a list that was never refilled: the busiest one, else
    /// one that nothing was asked of.
    fn place_rest(
        &self,
        (cpu, zone): (u16, u8),
        pages: u64,
        lists: &mut Vec<(Order, Mobility, u64)>,
    ) {
        let known = |order, mobility| self.lists.get(&ListKey { cpu, zone, order, mobility });
        let is_full = |order, mobility| known(order, mobility).is_none_or(|known| !known.refilled);
        let mut rest = pages;
        let full = lists.iter_mut().filter(|(order, mobility, _)| is_full(*order, *mobility));
        if let Some((order, _, blocks)) =
            full.max_by_key(|(order, _, blocks)| *blocks << order.get())
        {
            *blocks += rest >> order.get();
            rest &= u64::from(order.frames() - 1);
        }
        let base = [Mobility::Movable, Mobility::Unmovable, Mobility::Reclaimable];
        let idle = base.into_iter().find(|&mobility| known(Order::BASE, mobility).is_none());
        lists.push((Order::BASE, idle.unwrap_or(Mobility::Reclaimable), rest));
    }
}

/// Whether CPUs have lists of that order (`pcp_allowed_order` in `mm/page_alloc.c`).
pub fn is_cached(order: Order) -> bool {
    order.get() <= 3 || order == Order::PAGEBLOCK
}
