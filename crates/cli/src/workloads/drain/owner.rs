//! The work of the owner of the drained CPU.

use crate::design::{self, Allocator};
use crate::harness::clock::{self, Scale, ticks_in_order};
use crate::harness::histogram::Histogram;

/// Operations between two looks at the clock: a single one is too short to be timed, and a magazine
/// has about as many rounds.
pub const GROUP_OPS: usize = 64;
/// Blocks in a burst.
const BURST_BLOCKS: usize = 512;

/// Full magazines that a fill leaves on the owner's shelf, at least.
pub const FULL_MAGAZINES: usize = 8;
/// Rounds of a magazine of order 0.
const ROUNDS: usize = 63;
/// Blocks of a fill. Freed, they fill the front's two magazines, whatever those held before, and
/// then `FULL_MAGAZINES` more.
const FILL_BLOCKS: usize = (FULL_MAGAZINES + 2) * ROUNDS;

/// Most blocks an owner holds.
pub const HELD_BLOCKS_MAX: u32 = FILL_BLOCKS as u32;

/// Puts this CPU into the state that drains are measured from: at least [`FULL_MAGAZINES`] full
/// magazines on its shelf and a full front, by allocating that many pages at once and freeing them.
/// A CPU that has them already keeps them and gets no more.
pub fn fill<A: Allocator>(allocator: &A, held: &mut Vec<A::Block>) {
    held.extend((0..FILL_BLOCKS).map(|_| design::alloc::<A, 0>(allocator)));
    held.drain(..).for_each(|block| allocator.free::<0>(block));
}

/// The owner's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerWork {
    /// A page allocated and freed, again and again. It needs nothing of the shelf, so what a drain
    /// costs it is disturbance alone. Before each drain it is asked to [`fill`] its shelf, which is
    /// not counted as work, nor is the group after it, which finds other lines in the cache.
    Pairs,
    /// 512 pages allocated, then freed: drains find what is there at the moment, and the owner
    /// pays for getting it back from the store.
    Bursts,
}

/// Times of groups of operations.
pub struct GroupTimes {
    ticks: Histogram,
    sum_ticks: u64,
    clock_ticks: f64,
    /// The next group is not counted.
    skips_next: bool,
}

/// Groups longer than this are counted as this long.
const GROUP_TICKS_MAX: u64 = 1 << 32;

impl GroupTimes {
    /// No group yet.
    pub fn new() -> Self {
        let clock_ticks = clock::read_cost_ticks(ticks_in_order);
        let ticks = Histogram::new(GROUP_TICKS_MAX);
        GroupTimes { ticks, sum_ticks: 0, clock_ticks, skips_next: false }
    }

    /// Does not count the next group: it finds the caches as something else left them. It is run as
    /// any other, by the same instructions, because the caches of those are meant, too.
    pub fn skip_next(&mut self) {
        self.skips_next = true;
    }

    /// Times a group, and nothing of what the owner does in between: that the drainer's requests
    /// arrive late, as a cache line of another CPU's, is not part of its work.
    #[inline(always)]
    fn time(&mut self, group: impl FnOnce()) {
        let start = ticks_in_order();
        group();
        let elapsed = ticks_in_order() - start;
        if !std::mem::take(&mut self.skips_next) {
            self.sum_ticks += elapsed;
            self.ticks.record(elapsed);
        }
    }

    /// Nanoseconds per operation: mean, and the quantiles 0.5, 0.99 and 0.999 of groups. The cost
    /// of reading the clock is taken off.
    pub fn per_op_ns(&self, scale: &Scale) -> [f64; 4] {
        let groups = self.ticks.len();
        if groups == 0 {
            return [f64::NAN; 4];
        }
        let ns_per_tick = scale.ns_per_tick();
        let per_op =
            |ticks: f64| (ticks - self.clock_ticks).max(0.0) * ns_per_tick / GROUP_OPS as f64;
        let quantile = |q| per_op(self.ticks.quantile(q) as f64);
        [
            per_op(self.sum_ticks as f64 / groups as f64),
            quantile(0.5),
            quantile(0.99),
            quantile(0.999),
        ]
    }
}

impl OwnerWork {
    /// Works for a while: a group, or a burst of them.
    #[inline(always)]
    pub fn step<A: Allocator>(
        self,
        allocator: &A,
        held: &mut Vec<A::Block>,
        times: &mut GroupTimes,
    ) {
        match self {
            OwnerWork::Pairs => times.time(|| pairs(allocator)),
            OwnerWork::Bursts => burst(allocator, held, times),
        }
    }
}

/// A group of operations in pairs.
#[inline(always)]
pub fn pairs<A: Allocator>(allocator: &A) {
    for _ in 0..GROUP_OPS / 2 {
        let block = design::alloc::<A, 0>(allocator);
        design::observe(block);
        allocator.free::<0>(block);
    }
}

fn burst<A: Allocator>(allocator: &A, held: &mut Vec<A::Block>, times: &mut GroupTimes) {
    for _ in 0..BURST_BLOCKS / GROUP_OPS {
        times.time(|| held.extend((0..GROUP_OPS).map(|_| design::alloc::<A, 0>(allocator))));
    }
    for group in held.chunks(GROUP_OPS) {
        times.time(|| group.iter().for_each(|&block| allocator.free::<0>(block)));
    }
    held.clear();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_groups_by_hand() {
        let mut times = GroupTimes::new();
        times.clock_ticks = 10.0;
        for ticks in 1..=1000 {
            times.sum_ticks += ticks * 64;
            times.ticks.record(ticks * 64);
        }
        let scale = Scale::start();
        std::thread::sleep(std::time::Duration::from_millis(5));
        let [mean, p50, p99, p999] = times.per_op_ns(&scale);
        // All in the same unknown unit, nanoseconds per tick; the histogram keeps three digits.
        let unit = mean / (500.5 - 10.0 / 64.0);
        for (quantile, expected) in [(p50, 500.0), (p99, 990.0), (p999, 999.0)] {
            let ticks = quantile / unit + 10.0 / 64.0;
            assert!((ticks / expected - 1.0).abs() < 2e-3, "{ticks} for {expected}");
        }
    }
}
