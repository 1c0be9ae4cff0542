//! A per-CPU spinlock and a vector: what exclusion by an atomic instruction costs. Anybody may take
//! the frames of a CPU, by its lock (what mainline merged in 2022 does, with trylock for owners).

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, Ordering};

use pagedepot::CpuId;

use super::{Demand, Design, Subject};
use crate::harness::barrier::Waiter;

/// See the module.
pub struct FloorSpin {
    /// By CPU number.
    stacks: Vec<Stack>,
}

/// On two cache lines of its own: prefetchers treat a pair as one.
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
}

impl FloorSpin {
    /// For CPUs that hold at most as many blocks as `demand` says.
    pub fn new(demand: &Demand) -> Self {
        let highest = demand.cpus.iter().map(|cpu| cpu.index()).max().unwrap_or(0);
        let stack = |cpu: usize| {
            let mut frames = Vec::new();
            if demand.cpus.iter().any(|used| used.index() == cpu) {
                fill(&mut frames, capacity(demand));
            }
            Stack { locked: AtomicBool::new(false), frames: UnsafeCell::new(frames) }
        };
        FloorSpin { stacks: (0..=highest).map(stack).collect() }
    }

    /// Takes all frames of a CPU; how many.
    pub fn take(&self, cpu: CpuId) -> u64 {
        self.stacks[cpu.index()].with(|frames| {
            let taken = frames.len() as u64;
            frames.clear();
            taken
        })
    }

    #[inline]
    fn here(&self) -> &Stack {
        // Threads are pinned to CPUs of the demand. Another thread's CPU would do as well: the lock
        // excludes.
        &self.stacks[pagedepot_rseq::current_cpu().index()]
    }
}

impl Subject for FloorSpin {
    const DESIGN: Design = Design::FloorSpin;
    type Block = u32;

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
}

/// Room that a floor has for each CPU: what it will hold and as much again, so that a workload that
/// frees what it allocates never reaches either end.
pub fn capacity(demand: &Demand) -> usize {
    (demand.blocks_per_cpu as usize * 2).max(1024)
}

/// Gives a vector its room, half of it full.
pub fn fill(frames: &mut Vec<u32>, capacity: usize) {
    *frames = Vec::with_capacity(capacity);
    frames.resize(capacity, 0);
    frames.truncate(capacity / 2);
}

/// Makes up frames, and hands one out.
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

/// As many as fit a magazine of the depot.
pub const REFILL_FRAMES: usize = 63;
