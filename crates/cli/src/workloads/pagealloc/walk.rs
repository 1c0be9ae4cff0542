//! A random rhythm: as many allocations in a row, and then as many frees, as a geometric
//! distribution says. Batches of one size meet the ends of an allocator's arrays in the same places
//! each time; a walk meets all of them.

use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::loops::{alloc_each, free_each, some_block};
use crate::design::Allocator;
use crate::harness::clock::{self, ticks_in_order};
use crate::harness::{Contender, Seat, Subject, lock};

/// Mean of the lengths of runs of allocations, and of frees.
const RUN_MEAN: u32 = 8;
/// Most blocks that the walk holds.
pub const HELD_MAX: u32 = 512;
/// Turns of a walk, which then begins anew: too many for a processor to learn.
const TURNS: u32 = 4096;

/// Blocks allocated in a row, and then freed.
struct Turn {
    allocs: u32,
    frees: u32,
}

/// The turns of a walk, which ends with no block, as it began, and holds at most `held_max`.
fn turns(seed: u64, held_max: u32) -> Vec<Turn> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut length =
        || 1 + (0..held_max).take_while(|_| random.u32(0..RUN_MEAN) > 0).count() as u32;
    let mut held = 0;
    let mut turns: Vec<Turn> = (0..TURNS)
        .map(|_| {
            let allocs = length().min(held_max - held);
            let frees = length().min(held + allocs);
            held = held + allocs - frees;
            Turn { allocs, frees }
        })
        .collect();
    turns.push(Turn { allocs: 0, frees: held });
    turns
}

/// A function that times so many walks.
type WalkTimer<A> = fn(&A, &[Turn], &mut [<A as Allocator>::Block], u64) -> f64;

/// The loops of one order. What is around them is compiled once for all orders.
pub struct Loops<A: Allocator> {
    some_block: fn(&A) -> A::Block,
    total_ns: WalkTimer<A>,
    alloc_share: fn(&A, &[Turn], &mut [A::Block]) -> f64,
}

impl<A: Allocator> Loops<A> {
    pub fn of<const ORDER: u32>() -> Self {
        Loops {
            some_block: some_block::<A, ORDER>,
            total_ns: total_ns::<A, ORDER>,
            alloc_share: alloc_share::<A, ORDER>,
        }
    }
}

/// One design doing the walk.
pub struct Walk<A: Allocator> {
    allocator: Arc<A>,
    loops: Loops<A>,
    held_max: u32,
    turns: Vec<Turn>,
    /// Allocations of a walk, and its frees.
    pairs: u64,
    /// Room for the blocks of each seat.
    held: Vec<Mutex<Vec<A::Block>>>,
}

impl<A: Allocator> Walk<A> {
    pub fn new(allocator: Arc<A>, loops: Loops<A>, held_max: u32, seats: usize, seed: u64) -> Self {
        let turns = turns(seed, held_max);
        let pairs = turns.iter().map(|turn| u64::from(turn.allocs)).sum();
        let held = (0..seats).map(|_| Mutex::default()).collect();
        Walk { allocator, loops, held_max, turns, pairs, held }
    }
}

/// Walks; each turn's allocations and frees are those of the blocks in two ranges.
#[inline(always)]
fn walk(turns: &[Turn], mut turn: impl FnMut(Range<usize>, Range<usize>)) {
    let mut top = 0;
    for &Turn { allocs, frees } in turns {
        let end = top + allocs as usize;
        let left = end - frees as usize;
        turn(top..end, left..end);
        top = left;
    }
}

/// Nanoseconds of so many walks. The clock is not read in between.
#[inline(never)]
fn total_ns<A: Allocator, const ORDER: u32>(
    allocator: &A,
    turns: &[Turn],
    held: &mut [A::Block],
    times: u64,
) -> f64 {
    let start = Instant::now();
    for _ in 0..times {
        walk(turns, |allocated, freed| {
            alloc_each::<A, ORDER>(allocator, &mut held[allocated]);
            free_each::<A, ORDER>(allocator, held[freed].iter().rev().copied());
        });
    }
    start.elapsed().as_nanos() as f64
}

/// The part of a walk's time that allocation is.
#[inline(never)]
fn alloc_share<A: Allocator, const ORDER: u32>(
    allocator: &A,
    turns: &[Turn],
    held: &mut [A::Block],
) -> f64 {
    let (mut alloc, mut free) = (0, 0);
    walk(turns, |allocated, freed| {
        let start = ticks_in_order();
        alloc_each::<A, ORDER>(allocator, &mut held[allocated]);
        let between = ticks_in_order();
        free_each::<A, ORDER>(allocator, held[freed].iter().rev().copied());
        alloc += between - start;
        free += ticks_in_order() - between;
    });
    let cost = clock::read_cost_ticks(ticks_in_order) * turns.len() as f64;
    let (alloc, free) = ((alloc as f64 - cost).max(0.0), (free as f64 - cost).max(0.0));
    if alloc + free > 0.0 { alloc / (alloc + free) } else { 0.5 }
}

impl<A: Allocator> Contender<3> for Walk<A> {
    fn subject(&self) -> &dyn Subject {
        &*self.allocator
    }

    fn window(&self, seat: Seat, units: u64) -> [f64; 3] {
        let mut held = lock(&self.held[seat.index]);
        if held.is_empty() {
            held.resize(self.held_max as usize, (self.loops.some_block)(&self.allocator));
        }
        let (allocator, turns) = (&*self.allocator, &*self.turns);
        let total =
            (self.loops.total_ns)(allocator, turns, &mut held, units) / (units * self.pairs) as f64;
        let alloc = total * (self.loops.alloc_share)(allocator, turns, &mut held);
        [alloc, total - alloc, total]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_returns_what_it_took_and_stays_in_its_bounds() {
        let mut held = 0;
        let mut lengths = 0;
        for Turn { allocs, frees } in turns(7, HELD_MAX) {
            held += allocs;
            lengths += allocs;
            assert!(frees <= held && held <= HELD_MAX);
            held -= frees;
        }
        assert_eq!(held, 0);
        let mean = lengths / TURNS;
        assert!((RUN_MEAN - 2..=RUN_MEAN + 2).contains(&mean), "{mean}");
    }
}
