//! Free blocks of a zone by order and mobility, as a buddy allocator would have them.
//!
//! The store has no list of blocks: a block is free when its frames are. Free frames are counted
//! here as the largest aligned blocks that they make up, which is what a buddy allocator's lists
//! hold once everything is merged.

use pagedepot::{Mobility, Order, Pfn, ZoneId};
use pagedepot_contiguity::{PageblockInfo, Pageblocks};

use crate::depot::handle::Depot;
use crate::memory::frames::Frames;

/// The names of the kernel's migratetypes, by the number of a mobility; then pageblocks that a
/// caller adds, removes or empties.
pub(super) const TYPES: [&str; Mobility::COUNT + 1] =
    ["Unmovable", "Movable", "Reclaimable", "Isolate"];

/// Counts of free blocks, by order.
pub(super) type OrderCounts = [u64; Order::COUNT];

/// The free blocks of a zone's store.
#[derive(Clone, Default)]
pub(super) struct FreeBlocks {
    /// Free blocks by type and order.
    pub blocks: [OrderCounts; TYPES.len()],
    /// Pageblocks by type.
    pub pageblocks: [u64; TYPES.len()],
}

impl FreeBlocks {
    /// The free blocks of a zone; `None` when there is no such zone.
    pub fn of(depot: &Depot, zone: ZoneId) -> Option<Self> {
        let frames = depot.raw().frames();
        let mut counted = FreeBlocks::default();
        // A whole pageblock whose buddy follows it.
        let mut lower: Option<(Pfn, usize)> = None;
        for pageblock in Pageblocks::of(frames, zone)? {
            let kind = pageblock.mobility.map_or(TYPES.len() - 1, Mobility::index);
            counted.pageblocks[kind] += 1;
            if pageblock.is_whole() {
                lower = counted.add_whole(lower, pageblock.first, kind);
            } else if pageblock.free_frames != Some(0) {
                count_runs(frames, &pageblock, &mut counted.blocks[kind]);
            }
        }
        if let Some((_, kind)) = lower {
            counted.blocks[kind][Order::PAGEBLOCK.index()] += 1;
        }
        Some(counted)
    }

    /// Counts a whole pageblock: with its buddy, or by itself once it is known to have none.
    fn add_whole(
        &mut self,
        lower: Option<(Pfn, usize)>,
        first: Pfn,
        kind: usize,
    ) -> Option<(Pfn, usize)> {
        let waiting = match lower {
            Some((before, kind)) if before.add(Order::PAGEBLOCK.frames()) == first => {
                self.blocks[kind][Order::MAX.index()] += 1;
                return None;
            }
            waiting => waiting,
        };
        if let Some((_, kind)) = waiting {
            self.blocks[kind][Order::PAGEBLOCK.index()] += 1;
        }
        if first.is_aligned(Order::MAX) {
            return Some((first, kind));
        }
        self.blocks[kind][Order::PAGEBLOCK.index()] += 1;
        None
    }
}

/// Counts the free frames of a pageblock as the largest aligned blocks that they make up.
fn count_runs(frames: &Frames, pageblock: &PageblockInfo, orders: &mut OrderCounts) {
    let size = Order::PAGEBLOCK.frames();
    let is_free = |at: u32| frames.is_free(pageblock.first.add(at));
    let mut at = 0;
    while at < size {
        if !is_free(at) {
            at += 1;
            continue;
        }
        let run = (at..size).take_while(|&at| is_free(at)).count() as u32;
        add_run(at..at + run, orders);
        at += run;
    }
}

/// Counts a run of frames as the largest aligned blocks that it is made of.
fn add_run(run: std::ops::Range<u32>, orders: &mut OrderCounts) {
    let mut at = run.start;
    while at < run.end {
        // 0 is aligned to everything.
        let aligned = at.trailing_zeros().min(Order::PAGEBLOCK.get());
        let order = aligned.min((run.end - at).ilog2());
        orders[order as usize] += 1;
        at += 1 << order;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn orders_of(run: std::ops::Range<u32>) -> Vec<(usize, u64)> {
        let mut orders = OrderCounts::default();
        add_run(run, &mut orders);
        orders.into_iter().enumerate().filter(|&(_, count)| count > 0).collect()
    }

    #[test]
    fn runs_are_made_of_aligned_blocks() {
        assert_eq!(orders_of(0..512), [(9, 1)]);
        assert_eq!(orders_of(0..1), [(0, 1)]);
        assert_eq!(orders_of(1..512), (0..9).map(|order| (order, 1)).collect::<Vec<_>>());
        // 3, 4..8, 8..12, 12.
        assert_eq!(orders_of(3..13), [(0, 2), (2, 2)]);
    }

    /// Checks that the blocks have as many frames as the run, whatever the run.
    #[test]
    fn no_frame_is_lost() {
        for start in 0..40 {
            for end in start..80 {
                let mut orders = OrderCounts::default();
                add_run(start..end, &mut orders);
                let frames: u64 =
                    (0..).zip(orders).map(|(order, blocks): (u32, u64)| blocks << order).sum();
                assert_eq!(frames, u64::from(end - start), "{start}..{end}");
            }
        }
    }
}
