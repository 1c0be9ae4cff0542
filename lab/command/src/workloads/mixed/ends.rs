//! The state at the end: contiguity, and the huge pages that can be had.

use std::sync::Mutex;
use std::time::Instant;

use pagedepot::{Mobility, Order};
use pagedepot_designs::FreeMap;

use super::holdings::Holdings;
use super::kinds::Stocks;
use pagedepot_cli::design::Allocator;

/// The state at the end of a run. Not-a-number where the design cannot tell.
#[derive(Clone, Debug, Default)]
pub struct End {
    pub whole_share: f64,
    pub gib_ranges: f64,
    pub tainted_share: f64,
    pub mixed_share: f64,
    /// The least that `tainted_share` could be: all unmovable memory packed.
    pub packed_share: f64,
    pub gib_allocated: f64,
    pub gib_ns: f64,
    pub gib_compacted: f64,
    pub gib_compact_ns: f64,
    pub moved_pages: f64,
    /// Pages moved in the rounds.
    pub churn_moved_pages: f64,
    pub huge_allocated: f64,
    pub huge_ns: f64,
    pub fallbacks: f64,
    /// The fault in the design's metadata.
    pub fault: Option<String>,
}

/// An [`End`] that the run writes and its starter reads; `None` until the last round is done.
pub type Ends = Mutex<Option<End>>;

/// The pageblocks that hold memory that cannot be moved, and those that hold movable memory.
#[derive(Debug, PartialEq, Eq)]
pub struct Taint {
    blocks: Vec<u8>,
    unmovable_pages: u64,
}

const UNMOVABLE: u8 = 1;
const MOVABLE: u8 = 2;

impl Taint {
    /// Makes the taint of a memory of `pages` pages of which nothing is held.
    pub fn new(pages: u64) -> Self {
        let blocks = vec![0; pages.div_ceil(Order::PAGEBLOCK.frames().into()) as usize];
        Taint { blocks, unmovable_pages: 0 }
    }

    /// Adds a held block of at most a pageblock.
    pub fn add(&mut self, frame: u64, order: Order, mobility: Mobility) {
        let is_movable = mobility == Mobility::Movable;
        let at = (frame / u64::from(Order::PAGEBLOCK.frames())) as usize;
        self.blocks[at] |= if is_movable { MOVABLE } else { UNMOVABLE };
        self.unmovable_pages += if is_movable { 0 } else { order.frames().into() };
    }

    /// Shares of all pageblocks: tainted, those of them that also hold movable memory, and the
    /// least that could be tainted.
    pub fn shares(&self) -> [f64; 3] {
        let share = |kept: u64| kept as f64 / self.blocks.len().max(1) as f64;
        let count =
            |of: fn(u8) -> bool| self.blocks.iter().filter(|&&block| of(block)).count() as u64;
        [
            share(count(|block| block & UNMOVABLE != 0)),
            share(count(|block| block == UNMOVABLE | MOVABLE)),
            share(self.unmovable_pages.div_ceil(Order::PAGEBLOCK.frames().into())),
        ]
    }
}

/// Looks at a design whose seats have stopped, and allocates huge pages, which it frees again.
pub fn examine<A: Allocator>(
    allocator: &A,
    pages: u64,
    holdings: &Holdings,
    held: &[&Stocks],
) -> End {
    let churn_moved_pages = holdings.moved_pages() as f64;
    let map = match allocator.free_map() {
        Ok(map) => map.unwrap_or_else(|| FreeMap::new(0, pages)),
        Err(fault) => return End { fault: Some(fault), ..End::default() },
    };
    let mut taint = Taint::new(pages);
    let fallbacks = held.iter().map(|held| held.fallbacks as f64).sum();
    for stock in held.iter().flat_map(|held| &held.stocks) {
        for &(handle, order) in stock.blocks() {
            let frame = allocator.frame(holdings.block(handle));
            taint.add(frame, order, stock.kind.mobility);
        }
    }
    let [tainted_share, mixed_share, packed_share] = taint.shares();
    let (ranges, gib_ns) = all_of(|| allocator.alloc_gib());
    ranges.iter().for_each(|&range| allocator.free_gib(range));
    const HUGE: u32 = Order::PAGEBLOCK.get();
    let (blocks, huge_ns) = all_of(|| allocator.alloc::<HUGE>());
    blocks.iter().for_each(|&block| allocator.free::<HUGE>(block));
    let [gib_compacted, gib_compact_ns, moved_pages] = match A::COMPACTS {
        true => compact(allocator, holdings),
        false => [f64::NAN; 3],
    };
    End {
        whole_share: map.whole_pageblocks() as f64 / (pages / 512) as f64,
        gib_ranges: map.gib_ranges() as f64,
        tainted_share,
        mixed_share,
        packed_share,
        gib_allocated: if A::RANGES { ranges.len() as f64 } else { f64::NAN },
        gib_ns,
        gib_compacted,
        gib_compact_ns,
        moved_pages,
        churn_moved_pages: if A::COMPACTS { churn_moved_pages } else { f64::NAN },
        huge_allocated: blocks.len() as f64,
        huge_ns,
        fallbacks,
        fault: None,
    }
}

/// Allocates ranges of 1 GiB, moving what is held, and frees them again: how many there were, the
/// time of each, and pages moved.
fn compact<A: Allocator>(allocator: &A, holdings: &Holdings) -> [f64; 3] {
    let mut moved_pages = 0;
    let (ranges, ns) = all_of(|| {
        let (range, moved) = allocator.alloc_gib_by_moves(holdings);
        moved_pages += moved;
        holdings.note_range(allocator.frame(range?));
        range
    });
    ranges.iter().for_each(|&range| allocator.free_gib(range));
    [ranges.len() as f64, ns, moved_pages as f64]
}

/// Allocates until there is no more; nanoseconds for each that was had, not-a-number for none.
fn all_of<B>(mut alloc: impl FnMut() -> Option<B>) -> (Vec<B>, f64) {
    let (mut all, mut ns) = (Vec::new(), 0);
    loop {
        let start = Instant::now();
        let Some(one) = alloc() else {
            let each = if all.is_empty() { f64::NAN } else { ns as f64 / all.len() as f64 };
            return (all, each);
        };
        ns += start.elapsed().as_nanos();
        all.push(one);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taint_of_a_memory_made_by_hand() {
        let mut taint = Taint::new(4 * 512);
        assert_eq!(taint.shares(), [0.0; 3]);
        // Pageblock 0: movable alone; 1: both; 2: reclaimable alone; 3: nothing.
        taint.add(3, Order::BASE, Mobility::Movable);
        taint.add(512, Order::BASE, Mobility::Movable);
        taint.add(520, Order::new(3).unwrap(), Mobility::Unmovable);
        taint.add(1024, Order::BASE, Mobility::Reclaimable);
        assert_eq!(taint.shares(), [0.5, 0.25, 0.25]);
        // 520 unmovable pages do not fit into one pageblock.
        taint.add(1024, Order::PAGEBLOCK, Mobility::Unmovable);
        assert_eq!(taint.shares(), [0.5, 0.25, 0.5]);
    }

    #[test]
    fn everything_is_allocated_once() {
        let mut left = 3;
        let (all, ns) = all_of(|| {
            left -= 1;
            (left >= 0).then_some(left)
        });
        assert_eq!(all, [2, 1, 0]);
        assert!(ns >= 0.0);
        assert!(all_of(|| None::<u32>).1.is_nan());
    }
}
