//! A per-CPU spinlock and a vector: what exclusion by an atomic instruction costs. Every thread may
//! take the frames of a CPU, by its lock (as in what mainline merged in 2022, with trylock for
//! owners).

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, Ordering};

use pagedepot::{CpuId, Mode};
use pagedepot_designs::DrainResult;

use super::allocator::Allocator;
use super::demand::Demand;
use crate::failure::Failure;
use crate::harness::barrier::Waiter;
use crate::names::Design;

/// A CPU's stack behind a spinlock.
pub struct FloorSpin {
    /// Stacks by CPU number.
    stacks: Vec<Stack>,
}

/// A stack on two cache lines of its own: prefetchers treat a pair as one.
#[repr(align(128))]
struct Stack {
    locked: AtomicBool,
    frames: UnsafeCell<Vec<u32>>,
}

// SAFETY: the vector is touched by the holder of the lock only.
unsafe impl Sync for Stack {}

impl Stack {
    #[inline]
    fn with<T>(&self, f: impl FnOnce(&mut Vec<u32>) -> T) -> T {
        let mut waiter = Waiter::default();
        // Acquire: pairs with the Release below; the vector is as the last holder left it.
        while self
            .locked
            .compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed)
            .is_err()
        {
            waiter.pause();
        }
        // SAFETY: this thread holds the lock until the store below.
        let result = f(unsafe { &mut *self.frames.get() });
        self.locked.store(false, Ordering::Release);
        result
    }

    /// Takes all frames, and returns how many there were.
    fn take(&self) -> u64 {
        self.with(|frames| {
            let taken = frames.len() as u64;
            frames.clear();
            taken
        })
    }
}

impl FloorSpin {
    #[inline]
    fn here(&self) -> &Stack {
        // Threads are pinned to CPUs of the demand. Another thread's CPU would do as well: the lock
        // excludes.
        &self.stacks[pagedepot_rseq::current_cpu().index()]
    }
}

impl Allocator for FloorSpin {
    const DESIGN: Design = Design::FloorSpin;
    const DRAINS: &'static [Mode] = &[Mode::Quiet];
    type Block = u32;

    fn new(demand: &Demand) -> Result<Self, Failure> {
        let highest = demand.cpus.iter().map(|cpu| cpu.index()).max().unwrap_or(0);
        let stack = |cpu: usize| {
            let mut frames = Vec::new();
            if demand.cpus.iter().any(|used| used.index() == cpu) {
                fill(&mut frames, capacity(demand));
            }
            Stack { locked: AtomicBool::new(false), frames: UnsafeCell::new(frames) }
        };
        Ok(FloorSpin { stacks: (0..=highest).map(stack).collect() })
    }

    #[inline]
    fn alloc<const ORDER: u32>(&self) -> Option<u32> {
        self.here().with(|frames| frames.pop().or_else(|| refill(frames)))
    }

    #[inline]
    fn free<const ORDER: u32>(&self, block: u32) {
        self.here().with(|frames| {
            if frames.len() == frames.capacity() {
                forget(frames);
            }
            frames.push(block);
        });
    }

    fn drain(&self, cpu: Option<CpuId>, _mode: Mode) -> Option<DrainResult> {
        let mut drained = DrainResult::default();
        let stacks = match cpu {
            Some(cpu) => &self.stacks[cpu.index()..][..1],
            None => &self.stacks,
        };
        drained.taken_pages = stacks.iter().map(Stack::take).sum();
        Some(drained)
    }
}

/// Frames that a floor has room for on each CPU: twice what it will hold, so that a workload that
/// frees what it allocates never reaches either end.
pub fn capacity(demand: &Demand) -> usize {
    (demand.blocks_per_cpu as usize * 2).max(1024)
}

/// Gives a vector room for `capacity` frames, and fills half of it.
pub fn fill(frames: &mut Vec<u32>, capacity: usize) {
    *frames = Vec::with_capacity(capacity);
    frames.resize(capacity, 0);
    frames.truncate(capacity / 2);
}

/// Makes up some frames, and hands one out.
#[cold]
#[inline(never)]
pub fn refill(frames: &mut Vec<u32>) -> Option<u32> {
    frames.resize(REFILL_FRAMES.min(frames.capacity()), 0);
    frames.pop()
}

/// Forgets some frames.
#[cold]
#[inline(never)]
pub fn forget(frames: &mut Vec<u32>) {
    frames.truncate(frames.capacity() - REFILL_FRAMES);
}

/// Frames made up or forgotten at once: as many as fit a magazine of the depot.
pub const REFILL_FRAMES: usize = 63;
