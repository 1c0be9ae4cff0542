//! Threads that execute a script over an allocator.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pagedepot::{Mobility, Order, Pfn};

use super::script::{Script, ScriptStep, TimedStep};
use pagedepot_cli::design::Allocator;
use pagedepot_cli::harness::barrier::{SpinBarrier, Waiter};
use pagedepot_cli::harness::clock::{cpu_seconds, on_cpu_ns};
use pagedepot_cli::harness::{Contender, Seat, Subject};

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

/// Metrics of a window: elapsed, user and system seconds, CPU time in percent of the elapsed time,
/// events per second, and what the design counted: blocks refilled and spilled, drained ones and
/// those past the caches included.
pub const METRICS: usize = 7;

/// The time at which a thread does a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speed {
    /// The earliest time.
    Full,
    /// The time at which the recorded machine did it, to a millisecond.
    Recorded,
}

impl Speed {
    /// The name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Speed::Full => "full",
            Speed::Recorded => "recorded",
        }
    }
}

/// The threads of a script over one allocator.
pub struct Actors<A: Allocator<Block = Pfn>> {
    allocator: A,
    script: Arc<Script>,
    speed: Speed,
    cells: Box<[AtomicU32]>,
    /// Places in the trace, by thread.
    places: Box<[Place]>,
    /// The threads' meeting when the trace has ended.
    ended: SpinBarrier,
}

#[repr(align(128))]
struct Place(AtomicU64);

/// Places only grow; those of the n-th window begin here.
fn base(window: u64) -> u64 {
    window << 32
}

impl<A: Allocator<Block = Pfn>> Actors<A> {
    /// Actors that do a script over an allocator.
    pub fn new(allocator: A, script: &Arc<Script>, speed: Speed) -> Self {
        let cells = (0..script.cells).map(|_| AtomicU32::new(EMPTY)).collect();
        let places = script.threads.iter().map(|_| Place(AtomicU64::new(0))).collect();
        let ended = SpinBarrier::new(script.threads.len());
        Actors { allocator, script: Arc::clone(script), speed, cells, places, ended }
    }
}

impl<A: Allocator<Block = Pfn>> Actors<A> {
    /// Tells the others a thread's place. Relaxed, here and below: hints; the cells order what
    /// matters.
    fn publish(&self, thread: usize, at: u64) {
        self.places[thread].0.store(at, Ordering::Relaxed);
    }

    /// Waits until the slowest thread is at most [`AHEAD_MAX`] steps behind.
    fn keep_pace(&self, at: u64) {
        let mut waiter = Waiter::default();
        let is_behind = |place: &Place| place.0.load(Ordering::Relaxed) + u64::from(AHEAD_MAX) < at;
        while self.places.iter().any(is_behind) {
            waiter.pause();
        }
    }

    fn act(&self, thread: usize, start: Instant) {
        let part = &self.script.threads[thread];
        let window = base((self.places[thread].0.load(Ordering::Relaxed) >> 32) + 1);
        let mut batch = Vec::new();
        let mut look_at = 0;
        let mut ms_now = 0;
        for &TimedStep { at, ms, step } in &part.steps {
            let is_early = self.speed == Speed::Recorded && ms > ms_now;
            if is_early {
                // First: until its end the sleep leaves nothing that others could wait for.
                self.publish(thread, window + u64::from(at));
                sleep_until(start + Duration::from_millis(ms.into()));
                ms_now = ms;
            }
            if is_early || at >= look_at {
                self.publish(thread, window + u64::from(at));
                self.keep_pace(window + u64::from(at));
                look_at = at + LOOK_EVERY;
            }
            self.step(step, &mut batch);
        }
        // Done: other threads need not wait for this one any more in this window.
        self.publish(thread, base((window >> 32) + 1) - 1);
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
            thread::yield_now();
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

fn sleep_until(due: Instant) {
    let left = due.saturating_duration_since(Instant::now());
    if !left.is_zero() {
        thread::sleep(left);
    }
}

impl<A: Allocator<Block = Pfn>> Contender<METRICS> for Actors<A> {
    fn subject(&self) -> &dyn Subject {
        &self.allocator
    }

    fn owned_subject(&mut self) -> Option<&mut dyn Subject> {
        Some(&mut self.allocator)
    }

    /// Runs the trace once; blocks still held at the end are freed when all threads have read the
    /// time and the counts.
    fn window(&self, seat: Seat, _units: u64) -> [f64; METRICS] {
        let _guard = self.ended.guard();
        let before = self.moved();
        let (cpu_ns, [user, system], start) = (on_cpu_ns(), cpu_seconds(), Instant::now());
        self.act(seat.index, start);
        let elapsed = start.elapsed().as_secs_f64();
        let [user_after, system_after] = cpu_seconds();
        let [user, system] = [user_after - user, system_after - system];
        let cpu_s = (on_cpu_ns() - cpu_ns) as f64 / 1e9;
        let after = self.moved();
        self.ended.wait();
        for &(cell, order) in &self.script.threads[seat.index].held {
            self.allocator.free_block(self.take(cell), order);
        }
        let moved = |which: usize| (after[which] - before[which]) as f64;
        [elapsed, user, system, cpu_s, self.script.events as f64, moved(0), moved(1)]
    }

    /// The last thread counts, and sees what all did.
    fn combine(&self, seats: &[[f64; METRICS]]) -> [f64; METRICS] {
        let largest = |metric: usize| seats.iter().map(|seat| seat[metric]).fold(0.0, f64::max);
        let sum = |metric: usize| seats.iter().map(|seat| seat[metric]).sum::<f64>();
        let elapsed = largest(0);
        let cpu_percent = sum(3) / elapsed * 100.0;
        let events_per_s = largest(4) / elapsed;
        [elapsed, sum(1), sum(2), cpu_percent, events_per_s, largest(5), largest(6)]
    }
}

#[cfg(test)]
mod tests {
    use pagedepot::CpuId;
    use pagedepot_cli::design::Demand;
    use pagedepot_cli::design::depot::DepotAllocator;

    use super::super::script::Thread;
    use super::*;

    #[test]
    fn frees_of_what_is_held_at_the_end_are_not_counted() {
        const HELD: u32 = 4000;
        let (order, mobility) = (Order::BASE, Mobility::Movable);
        let alloc =
            |at, ms, cell| TimedStep { at, ms, step: ScriptStep::Alloc { order, mobility, cell } };
        let free = |at, ms, cell| TimedStep { at, ms, step: ScriptStep::Free { order, cell } };
        // One thread ends long before the other.
        let first = Thread {
            steps: (0..HELD).map(|cell| alloc(cell, 0, cell)).collect(),
            held: (0..HELD).map(|cell| (cell, order)).collect(),
        };
        let steps = vec![alloc(HELD, 100, HELD), free(HELD + 1, 100, HELD)];
        let last = Thread { steps, ..Thread::default() };
        let mut script = Script::default();
        (script.threads, script.cells) = (vec![first, last], HELD + 1);
        let cpu = CpuId::new(0);
        let demand = Demand {
            blocks_per_cpu: 2 * HELD,
            frames_per_block: 1,
            cpus: vec![cpu],
            memory_pages: Some(1 << 14),
            ..Demand::default()
        };
        let depot = DepotAllocator::<true, true>::new(&demand).unwrap();
        let actors = Actors::new(depot, &Arc::new(script), Speed::Recorded);
        let seats = thread::scope(|scope| {
            let window = |index| {
                scope.spawn({
                    let actors = &actors;
                    move || actors.window(Seat { index, cpu }, 0)
                })
            };
            [0, 1].map(window).map(|seat| seat.join().unwrap())
        });
        let [.., refilled, spilled] = actors.combine(&seats);
        assert!(refilled >= f64::from(HELD) && spilled < f64::from(HELD / 2), "{seats:?}");
    }
}
