//! Threads that execute a script over an allocator.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use pagedepot::{Mobility, Mode, Order, Pfn};

use super::script::{Script, ScriptStep};
use crate::design::Allocator;
use crate::harness::barrier::Waiter;
use crate::harness::{Contender, Seat};
use crate::names::Design;

/// An empty cell.
const EMPTY: u32 = u32::MAX;

/// Steps of the trace that a thread may be ahead of the slowest: without a bound, one that only
/// allocates would take all memory before others have freed any.
pub const AHEAD_MAX: u32 = 1 << 13;
/// Steps of the trace between two looks at the others. Of the trace, not the thread's own: a thread
/// that said last where it was long ago could hold up the one that it waits for.
const LOOK_EVERY: u32 = 64;
/// Tries of an allocation: others may be about to free, or to drain what this CPU cannot reach.
const TRIES: u32 = 1000;

/// Metrics of a window: elapsed seconds, events per second, and what the design counted: blocks
/// refilled and spilled, drained ones and those past the caches included.
pub const METRICS: usize = 4;

/// The threads of a script over one allocator.
pub struct Actors<A: Allocator<Block = Pfn>> {
    allocator: A,
    script: Arc<Script>,
    cells: Box<[AtomicU32]>,
    /// By thread: its place in the trace.
    places: Box<[Place]>,
}

#[repr(align(128))]
struct Place(AtomicU64);

/// Places only grow; those of the n-th window begin here.
fn base(window: u64) -> u64 {
    window << 32
}

impl<A: Allocator<Block = Pfn>> Actors<A> {
    /// Actors that do a script over an allocator.
    pub fn new(allocator: A, script: &Arc<Script>) -> Self {
        let cells = (0..script.cells).map(|_| AtomicU32::new(EMPTY)).collect();
        let places = script.threads.iter().map(|_| Place(AtomicU64::new(0))).collect();
        Actors { allocator, script: Arc::clone(script), cells, places }
    }
}

impl<A: Allocator<Block = Pfn>> Actors<A> {
    /// Waits until the slowest thread is at most [`AHEAD_MAX`] steps behind.
    fn keep_pace(&self, thread: usize, at: u64) {
        // Relaxed, here and below: hints; the cells order what matters.
        self.places[thread].0.store(at, Ordering::Relaxed);
        let mut waiter = Waiter::default();
        while self
            .places
            .iter()
            .any(|place| place.0.load(Ordering::Relaxed) + u64::from(AHEAD_MAX) < at)
        {
            waiter.pause();
        }
    }

    fn act(&self, thread: usize) {
        let part = &self.script.threads[thread];
        let window = base((self.places[thread].0.load(Ordering::Relaxed) >> 32) + 1);
        let mut batch = Vec::new();
        let mut look_at = 0;
        for &(at, step) in &part.steps {
            if at >= look_at {
                self.keep_pace(thread, window + u64::from(at));
                look_at = at + LOOK_EVERY;
            }
            self.step(step, &mut batch);
        }
        // Done: other threads need not wait for this one any more in this window.
        self.places[thread].0.store(base((window >> 32) + 1) - 1, Ordering::Relaxed);
    }

    fn step(&self, step: ScriptStep, batch: &mut Vec<(Pfn, Order)>) {
        match step {
            ScriptStep::Alloc { order, mobility, cell } => {
                self.put(cell, self.alloc(order, mobility))
            }
            ScriptStep::Free { order, cell } => self.allocator.free_block(self.take(cell), order),
            ScriptStep::FreeMany { first, len } => {
                batch.clear();
                let blocks = self.script.batch(first, len).iter();
                batch.extend(blocks.map(|&(cell, order)| (self.take(cell), order)));
                self.allocator.free_many(batch);
            }
            ScriptStep::Halve { order, cell, lower, upper } => {
                let whole = self.take(cell);
                self.allocator.halve(whole, order);
                self.put(lower, whole);
                self.put(upper, whole.add(order.frames() / 2));
            }
        }
    }

    #[inline]
    fn alloc(&self, order: Order, mobility: Mobility) -> Pfn {
        self.allocator
            .alloc_block(order, mobility)
            .unwrap_or_else(|| self.alloc_slow(order, mobility))
    }

    #[cold]
    fn alloc_slow(&self, order: Order, mobility: Mobility) -> Pfn {
        let again = || {
            std::thread::yield_now();
            self.allocator.alloc_block(order, mobility)
        };
        let found = std::iter::repeat_with(again).take(TRIES as usize).flatten().next();
        found.unwrap_or_else(|| panic!("{} has no block of order {order}: it lost some", A::DESIGN))
    }

    #[inline]
    fn put(&self, cell: u32, block: Pfn) {
        // Release: pairs with the Acquire in `take`; the taker sees what was done to the block.
        self.cells[cell as usize].store(block.get(), Ordering::Release);
    }

    /// Empties a cell, once it is filled.
    #[inline]
    fn take(&self, cell: u32) -> Pfn {
        let cell = &self.cells[cell as usize];
        let mut waiter = Waiter::default();
        loop {
            // Acquire: pairs with the Release in `put`.
            let block = cell.load(Ordering::Acquire);
            if block != EMPTY {
                // Relaxed: the cell is filled again only in another window.
                cell.store(EMPTY, Ordering::Relaxed);
                return Pfn::new(block);
            }
            waiter.pause();
        }
    }

    /// Blocks refilled and spilled so far, as far as the design counts.
    fn moved(&self) -> [u64; 2] {
        let counts = self.allocator.counts().unwrap_or_default();
        [
            counts.refilled.blocks + counts.direct_allocated.blocks,
            counts.spilled.blocks + counts.drained.blocks + counts.direct_freed.blocks,
        ]
    }
}

impl<A: Allocator<Block = Pfn>> Contender<METRICS> for Actors<A> {
    fn design(&self) -> Design {
        A::DESIGN
    }

    fn enter(&self) {
        self.allocator.enter();
    }

    fn leave(&self) {
        self.allocator.leave();
    }

    fn drain_all(&self) {
        self.allocator.drain(None, Mode::Quiet);
    }

    fn check(&mut self) -> Result<(), String> {
        self.allocator.check()
    }

    /// What is held at the end is freed outside the time.
    fn window(&self, seat: Seat, _units: u64) -> [f64; METRICS] {
        let before = self.moved();
        let start = Instant::now();
        self.act(seat.index);
        let elapsed = start.elapsed().as_secs_f64();
        let after = self.moved();
        for &(cell, order) in &self.script.threads[seat.index].held {
            self.allocator.free_block(self.take(cell), order);
        }
        let moved = |which: usize| (after[which] - before[which]) as f64;
        [elapsed, self.script.events as f64, moved(0), moved(1)]
    }

    /// The last thread counts, and sees what all did.
    fn combine(&self, seats: &[[f64; METRICS]]) -> [f64; METRICS] {
        let largest = |metric: usize| seats.iter().map(|seat| seat[metric]).fold(0.0, f64::max);
        let elapsed = largest(0);
        [elapsed, largest(1) / elapsed, largest(2), largest(3)]
    }
}
