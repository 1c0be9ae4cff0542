//! The owner of each pageblock, and the owned pageblocks that have fragments in the store.

use pagedepot::{CpuId, Mobility, Order, Pfn};

use pagedepot_designs::census::{Fault, agree};
use pagedepot_designs::frames::{Frames, List, Slot};
use pagedepot_designs::prim::{AtomicU32, Ordering};
use pagedepot_designs::store::Store;
use pagedepot_designs::store::buddy::Buddy;
use pagedepot_designs::store::buddy::held::BuddyGuard;
use pagedepot_designs::walk::Grid;
use pagedepot_designs::zones::Zones;

/// The owners of all pageblocks, or of smaller blocks of one order.
pub(super) struct Blocks {
    order: Order,
    first: u32,
    /// 1 + the owner; 0: none. Written under the zone lock.
    owners: Box<[AtomicU32]>,
    /// Blocks with fragments in the store, by the CPU that owns them and by zone. Under the zone
    /// lock.
    fragmented: Grid<List>,
    /// The links of these lists, a record for each block; its `head` is set while it is on a list.
    links: Frames,
}

impl Blocks {
    pub fn new(zones: &Zones, order: Order) -> Self {
        let frames = || zones.ids().flat_map(|id| &zones.zone(id).ranges);
        let size = u64::from(order.frames());
        let start = frames().map(|range| u64::from(range.start.get())).min().unwrap_or(0);
        let end = frames().map(|range| range.end()).max().unwrap_or(0);
        let (first, end) = ((start / size) as u32, end.div_ceil(size) as u32);
        Blocks {
            order,
            first,
            owners: (first..end).map(|_| AtomicU32::new(0)).collect(),
            fragmented: Grid::new(zones, |_| List::new()),
            links: Frames::new(first, end).expect("there is a record for each frame already"),
        }
    }

    /// The size of a block.
    pub fn order(&self) -> Order {
        self.order
    }

    #[inline]
    fn number(&self, pfn: Pfn) -> u32 {
        pfn.get() / self.order.frames()
    }

    fn start(&self, link: Slot) -> Pfn {
        Pfn::new(self.links.pfn(link).get() * self.order.frames())
    }

    fn link(&self, pfn: Pfn) -> Slot {
        self.links.slot(Pfn::new(self.number(pfn)))
    }

    /// The CPU that owns the block of a frame. The caller holds the frame, or a lock under which
    /// the frame cannot leave a cache.
    #[inline]
    pub fn owner(&self, pfn: Pfn) -> Option<CpuId> {
        let owner = &self.owners[(self.number(pfn) - self.first) as usize];
        // Relaxed: the last write happened before the frame was handed out (invariant 1).
        owner.load(Ordering::Relaxed).checked_sub(1).map(CpuId::new)
    }

    fn set_owner(&self, pfn: Pfn, cpu: Option<CpuId>) {
        let owner = &self.owners[(self.number(pfn) - self.first) as usize];
        // Relaxed: as in `owner`.
        owner.store(cpu.map_or(0, |cpu| cpu.get() + 1), Ordering::Relaxed);
    }

    /// Gives a CPU a block that was just taken from the store as a whole.
    pub fn own(&self, _held: &BuddyGuard<'_>, block: Pfn, cpu: CpuId) {
        debug_assert!(self.owner(block).is_none(), "{block} was not whole in the store");
        self.set_owner(block, Some(cpu));
    }

    /// Frees to the store. An owned block that is whole there has no owner any more; one that is
    /// not is remembered as fragmented.
    pub fn give(&self, held: &BuddyGuard<'_>, pfn: Pfn, order: Order) {
        let size = held.give(pfn, order);
        // What is larger than a block had no owner, and had none when it was taken.
        let Some(owner) = self.owner(pfn).filter(|_| order <= self.order) else { return };
        let (link, list) = (self.link(pfn), self.fragmented.get(owner, held.zone));
        let Some(list) = list else { return };
        let is_listed = self.links.head(link).is_some();
        let is_whole = size >= self.order;
        if is_whole {
            self.set_owner(pfn, None);
        }
        if is_whole && is_listed {
            list.remove(&self.links, link);
            self.links.set_head(link, None);
        } else if !is_whole && !is_listed {
            list.push_back(&self.links, link);
            self.links.set_head(link, Some(self.order));
        }
    }

    /// Takes fragments of a CPU's blocks of one mobility out of the store, block by block, until
    /// they have `pages` pages in blocks of at least `order`. Returns the pages of such blocks.
    pub fn recover(
        &self,
        held: &BuddyGuard<'_>,
        zones: &Zones,
        cpu: CpuId,
        (order, mobility, pages): (Order, Mobility, u32),
        mut sink: impl FnMut(Pfn, Order),
    ) -> u32 {
        let mut got = 0;
        let Some(list) = self.fragmented.get(cpu, held.zone) else { return 0 };
        let skipped = List::new();
        while got < pages {
            let Some(link) = list.pop_front(&self.links) else { break };
            let start = self.start(link);
            if zones.lookup(start) != Some((held.zone, mobility)) {
                skipped.push_back(&self.links, link);
                continue;
            }
            self.links.set_head(link, None);
            held.take_inside(start, self.order, |pfn, size| {
                got += if size >= order { size.frames() } else { 0 };
                sink(pfn, size);
            });
        }
        list.splice_front(&self.links, &skipped);
        got
    }

    /// Checks owners and lists against the store. No other thread may run.
    pub fn check(&self, store: &Buddy) -> Result<(), Fault> {
        let (mut listed, mut marked) = (0, 0);
        for zone in store.zones().ids() {
            let held = store.hold(zone);
            for (cpu, _, list) in self.fragmented.iter().filter(|&(_, id, _)| id == zone) {
                for link in list.iter(&self.links, self.owners.len() + 1) {
                    let pfn = self.start(link);
                    if self.owner(pfn) != Some(cpu) || self.links.head(link).is_none() {
                        return Err(Fault::Misplaced { pfn });
                    }
                    listed += 1;
                }
            }
            for at in 0..self.owners.len() as u32 {
                let pfn = Pfn::new((self.first + at) * self.order.frames());
                if store.zones().lookup(pfn).is_none_or(|(its, _)| its != zone) {
                    continue;
                }
                marked += u64::from(self.links.head(self.link(pfn)).is_some());
                if self.owner(pfn).is_some() && held.is_in_free_block(pfn, self.order) {
                    return Err(Fault::Misplaced { pfn });
                }
            }
        }
        agree("pageblocks with fragments in the store", marked, listed)
    }
}
