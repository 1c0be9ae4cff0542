//! The blocks that the recorded kernel has handed out at one point of the trace.

use std::collections::HashMap;

use pagedepot::{Mobility, Order};

/// A block handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveBlock {
    /// The plan's number for it.
    pub id: u32,
    pub order: Order,
    pub mobility: Mobility,
}

/// Blocks by first frame. They never overlap.
#[derive(Default)]
pub struct Live {
    blocks: HashMap<u64, LiveBlock>,
    /// Blocks of each order, so that lookups try only orders that there are.
    by_order: [u32; Order::COUNT],
    pages: u64,
}

impl Live {
    pub fn insert(&mut self, pfn: u64, held: LiveBlock) {
        self.by_order[held.order.index()] += 1;
        self.pages += u64::from(held.order.frames());
        let before = self.blocks.insert(pfn, held);
        debug_assert!(before.is_none(), "{pfn:#x} was held already");
    }

    pub fn remove(&mut self, pfn: u64) -> Option<LiveBlock> {
        let held = self.blocks.remove(&pfn)?;
        self.by_order[held.order.index()] -= 1;
        self.pages -= u64::from(held.order.frames());
        Some(held)
    }

    /// The block that frame `pfn` belongs to: its first frame, and itself.
    pub fn covering(&self, pfn: u64) -> Option<(u64, LiveBlock)> {
        let orders = Order::all().filter(|order| self.by_order[order.index()] > 0);
        orders.map(|order| (pfn & !u64::from(order.frames() - 1), order)).find_map(
            |(base, order)| {
                Some((base, *self.blocks.get(&base).filter(|held| held.order == order)?))
            },
        )
    }

    /// The first frames of all blocks that have frames of the block at `pfn`, ascending.
    pub fn overlapping(&self, pfn: u64, order: Order) -> Vec<u64> {
        let first = self.covering(pfn).map(|(base, _)| base);
        let inside = (1..u64::from(order.frames()))
            .map(|i| pfn + i)
            .filter(|pfn| self.blocks.contains_key(pfn));
        first.into_iter().chain(inside).collect()
    }

    pub fn blocks(&self) -> u64 {
        self.blocks.len() as u64
    }

    pub fn pages(&self) -> u64 {
        self.pages
    }
}
