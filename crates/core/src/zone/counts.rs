//! Counters of a zone, of a CPU in it, and of compaction in it.

use crate::frame::Order;
use crate::sync::model::{Mutant, bound, is_mutant};
use crate::sync::prim::{AtomicU64, Ordering};
use crate::sync::total::MOVES;
use crate::sync::{count, counts};

/// Cells of [`Blocks`]; a model has fewer of them to read.
const BLOCK_CELLS: usize = bound(Order::COUNT, 1);

/// Blocks by order: one operation counts a block and its pages. Loads for statistics are Relaxed.
#[derive(Default)]
pub struct Blocks([AtomicU64; BLOCK_CELLS]);

impl Blocks {
    /// Counts one block that left the store.
    #[inline]
    pub fn count_out(&self, order: Order) {
        count(&self.0[order.index() % BLOCK_CELLS], 1);
    }

    /// Counts one block that came back to the store, which is also a move (see [`InFlight`]). Call
    /// when it is there and the zone's free pages say so.
    #[inline]
    pub fn count_back(&self, order: Order) {
        if is_mutant(Mutant::Uncounted) {
            return;
        }
        // SeqCst: as the end of a move in the in_flight.
        self.0[order.index() % BLOCK_CELLS].fetch_add(1, MOVES.change());
    }

    /// Number of times that blocks came back.
    pub fn moves(&self) -> u64 {
        self.0.iter().fold(0, |sum, cell| sum.wrapping_add(cell.load(MOVES.look())))
    }

    fn blocks_and_pages(&self) -> (u64, u64) {
        let counts = || self.0.iter().map(|cell| cell.load(Ordering::Relaxed));
        (counts().sum(), (0..).zip(counts()).map(|(order, blocks)| blocks << order).sum())
    }
}

counts! {
    /// Counters of a CPU and zone, or a sum of them. Statistics: they are not read at one moment.
    /// Each is exact but for `hits`, `shelf_hits` and `exchanges`: where code on two CPUs counts
    /// for the same one at the same moment, a count of these may be lost.
    Counts of CountCells {
        /// Allocations and frees served by the fronts alone.
        hits,
        /// Allocations served by full magazines from the CPU's shelf, one or two of which are
        /// loaded at once.
        shelf_hits,
        /// Times that the two magazines of a front were exchanged, or their blocks divided, because
        /// one had no more or no room. A rhythm of allocations and frees that exchanges them at
        /// each turn would show here.
        exchanges,
        /// Magazines filled from the store.
        refills,
        /// Blocks moved from the store to the CPU: into magazines, or to the request that caused
        /// it.
        refilled_blocks,
        /// Pages in them.
        refilled_pages,
        /// Magazines emptied into the store because the CPU was above `high`, or decayed.
        spills,
        /// Blocks moved from the CPU to the store, drains not included.
        spilled_blocks,
        /// Pages in them.
        spilled_pages,
        /// Spilled pages that left avoided pageblocks by full magazines.
        evacuated_pages,
        /// Blocks taken back by drains.
        drained_blocks,
        /// Pages in them.
        drained_pages,
        /// Blocks allocated from the store directly: too large to cache, closed gates, nested
        /// interrupts.
        direct_allocs,
        /// Pages in them, and in contiguous ranges.
        direct_alloc_pages,
        /// Blocks freed to the store directly.
        direct_frees,
        /// Pages in them, and in contiguous ranges.
        direct_free_pages,
        /// Sequences that found another word than they had read (a preemption, a drain) and
        /// retried.
        lost_races,
        /// Requests that failed, those for ranges and for frames at given addresses included.
        failures,
    }
}

/// The counters of a CPU and zone. In this order: refills and spills count on one line.
#[derive(Default)]
#[repr(C)]
pub struct Counters {
    cells: CountCells,
    /// Single blocks allocated past the caches, besides `direct_allocs` and their pages.
    pub blocks_out: Blocks,
    /// Single blocks freed past the caches, besides `direct_frees` and their pages.
    pub blocks_back: Blocks,
}

impl core::ops::Deref for Counters {
    type Target = CountCells;

    fn deref(&self) -> &CountCells {
        &self.cells
    }
}

impl Counters {
    pub fn read(&self) -> Counts {
        let mut counts = self.cells.read();
        let (out, back) = (self.blocks_out.blocks_and_pages(), self.blocks_back.blocks_and_pages());
        counts.direct_allocs += out.0;
        counts.direct_alloc_pages += out.1;
        counts.direct_frees += back.0;
        counts.direct_free_pages += back.1;
        counts
    }
}

counts! {
    /// Counts of a zone's compactions since construction.
    Compactions of CompactionCounters {
        /// Compactions that ended, those for requests included. One that a panic of its mover ended
        /// is not counted.
        compactions,
        /// Compactions that reached their target.
        compact_reached,
        /// Pageblocks that became whole.
        emptied_pageblocks,
        /// Candidates looked at: pageblocks, or windows of them.
        compact_looks,
        /// Blocks moved.
        moved_blocks,
        /// Pages in them.
        moved_pages,
        /// Blocks that could not be moved.
        pinned_blocks,
        /// Blocks that were freed before they were moved.
        gone_blocks,
        /// Moves for which there was no destination.
        unplaced_blocks,
    }
}
