//! Restartable sequences on some CPUs, and a lock on each of the others: those that must not be
//! interrupted, and whose caches drains shall take all the same.
//!
//! # Argument
//! 1. *A CPU is behind its lock or it is not, for good.* [`SequencesAndLocks::new`] decides it,
//!    with the locks for itself, before the allocator exists. So no word is ever changed both ways.
//! 2. *A sequence changes no word of a CPU behind a lock.* In every state of such a CPU's gate the
//!    lower half is 0, which leads sequences to words that refuse. Neither `pop` nor `push` needs a
//!    check for that, and on the other CPUs they are what they were. The other methods name their
//!    CPU, and go to its lock.
//! 3. *The lock excludes, not the CPU.* A thread reads where it runs, then locks. If it has been
//!    moved in between, it works on the fronts of the CPU that it named, under that CPU's lock.
//!    That costs speed alone. If it was moved from a CPU with a lock to one without, it still holds
//!    the lock that it took; if it was moved the other way, its sequence was aborted, or found a
//!    gate that refuses.
//! 4. *No caller waits for a lock.* An owner that finds it taken goes to the store: a handler above
//!    the holder, a thread beside one that was preempted with it. A drainer tries for a bounded
//!    time. If the holder has been preempted, the drain reports a busy CPU and leaves its fronts as
//!    they are, at most two magazines each. A request that is about to fail takes those pages for
//!    pages in another caller's hands, and naps for them (see `reclaim/last_resort.rs`). The lock
//!    names its holder: a handler above the holder neither tries for long nor naps.
//! 5. *A drainer that has had the lock behind a closed gate is the only writer*, as after a fence:
//!    later holders find the gate closed. It interrupts no CPU.
//! 6. *A forked child* finds its gate wiped, whatever its copy of the lock says.
#![allow(unsafe_code, reason = "implements sequences")]

use super::locked::{CpuLock, LockedCpus, WhichCpu};
use super::sequences::{Cpus, FenceError};
use crate::frame::{CpuId, Pfn};
use crate::front::word::SlotMove;
use crate::front::{BlockArray, Here, WordOffset};

/// Sequences that a process may turn out not to have.
pub trait MaybeSequences: Cpus {
    /// Whether it has them. The answer never changes. [`here`](Cpus::here) is `None` where not.
    fn exist(&self) -> bool;
}

/// Sequences `S` on all CPUs but those behind a lock. Where there are no sequences, `W` says where
/// a caller runs.
pub struct SequencesAndLocks<'l, S, W> {
    sequences: S,
    locked: LockedCpus<'l, W>,
}

impl<'l, S: MaybeSequences, W: WhichCpu> SequencesAndLocks<'l, S, W> {
    /// Puts the CPUs of which `is_behind_lock` says so behind their locks, or all where there are
    /// no sequences. CPUs beyond the locks have sequences.
    pub fn new(
        sequences: S,
        locks: &'l mut [CpuLock],
        which: W,
        is_behind_lock: impl Fn(CpuId) -> bool,
    ) -> Self {
        const {
            assert!(S::FOLLOWS_GATES, "a gate keeps only those sequences out that follow it");
            assert!(S::CONTEXTS == 1, "a lock keeps out all contexts of its CPU");
        }
        for (cpu, lock) in (0..).map(CpuId::new).zip(locks.iter_mut()) {
            if sequences.exist() && !is_behind_lock(cpu) {
                lock.leave();
            }
        }
        SequencesAndLocks { sequences, locked: LockedCpus::new(locks, which) }
    }

    /// The sequences of the CPUs that are behind no lock.
    #[inline]
    pub fn sequences(&self) -> &S {
        &self.sequences
    }

    /// The caller's CPU and its lock, if it is behind one and there are sequences. It calls no
    /// function, so that callers save no registers.
    #[inline(always)]
    fn guard_here(&self) -> Option<(CpuId, &'l CpuLock)> {
        let cpu = self.sequences.here()?.cpu;
        let lock = self.locked.guard(cpu)?;
        Some((cpu, lock))
    }

    /// Whether the CPU is behind a lock.
    fn is_guarded(&self, cpu: CpuId) -> bool {
        self.locked.guard(cpu).is_some()
    }

    /// A pop where there are no sequences, out of line: a caller carries the sequence alone.
    #[cold]
    #[inline(never)]
    fn pop_alone(&self, blocks: &BlockArray, word: WordOffset) -> Option<u32> {
        self.locked.pop(blocks, word)
    }

    /// Pushes a block like [`pop_alone`](Self::pop_alone) pops one.
    #[cold]
    #[inline(never)]
    fn push_alone(
        &self,
        blocks: &BlockArray,
        word: WordOffset,
        rounds_max: u32,
        frame: u32,
    ) -> bool {
        self.locked.push(blocks, word, rounds_max, frame)
    }
}

// SAFETY: of each CPU one part keeps all promises, and the other never touches it (see the module).
unsafe impl<S: MaybeSequences, W: WhichCpu> Cpus for SequencesAndLocks<'_, S, W> {
    type Environment = W;

    const FOLLOWS_GATES: bool = true;

    fn environment(&self) -> &W {
        self.locked.environment()
    }

    fn here(&self) -> Option<Here> {
        if self.sequences.exist() { self.sequences.here() } else { self.locked.here() }
    }

    #[inline(always)]
    fn pop(&self, blocks: &BlockArray, word: WordOffset) -> Option<u32> {
        match self.sequences.exist() {
            true => self.sequences.pop(blocks, word),
            false => self.pop_alone(blocks, word),
        }
    }

    #[inline(always)]
    fn push(&self, blocks: &BlockArray, word: WordOffset, rounds_max: u32, frame: u32) -> bool {
        match self.sequences.exist() {
            true => self.sequences.push(blocks, word, rounds_max, frame),
            false => self.push_alone(blocks, word, rounds_max, frame),
        }
    }

    fn is_behind_lock(&self, cpu: CpuId) -> bool {
        self.is_guarded(cpu)
    }

    #[inline]
    fn pop_locked(&self, blocks: &BlockArray, word: WordOffset) -> Option<u32> {
        let (cpu, lock) = self.guard_here()?;
        lock.pop(|| self.locked.caller(), cpu, blocks, word)
    }

    #[inline]
    fn push_locked(
        &self,
        blocks: &BlockArray,
        word: WordOffset,
        rounds_max: u32,
        frame: u32,
    ) -> bool {
        let Some((cpu, lock)) = self.guard_here() else { return false };
        lock.push((|| self.locked.caller(), cpu), blocks, word, rounds_max, frame)
    }

    #[inline]
    fn compare_store(
        &self,
        blocks: &BlockArray,
        here: Here,
        word: WordOffset,
        old: u64,
        new: u64,
    ) -> bool {
        match self.is_guarded(here.cpu) {
            true => self.locked.compare_store(blocks, here, word, old, new),
            false => self.sequences.compare_store(blocks, here, word, old, new),
        }
    }

    #[inline]
    fn take_many(
        &self,
        blocks: &BlockArray,
        here: Here,
        word: WordOffset,
        batch: &SlotMove,
        out: &mut [Pfn],
    ) -> bool {
        match self.is_guarded(here.cpu) {
            true => self.locked.take_many(blocks, here, word, batch, out),
            false => self.sequences.take_many(blocks, here, word, batch, out),
        }
    }

    #[inline]
    fn put_many(
        &self,
        blocks: &BlockArray,
        here: Here,
        word: WordOffset,
        batch: &SlotMove,
        frames: &[Pfn],
    ) -> bool {
        match self.is_guarded(here.cpu) {
            true => self.locked.put_many(blocks, here, word, batch, frames),
            false => self.sequences.put_many(blocks, here, word, batch, frames),
        }
    }

    fn claim_gate(&self, blocks: &BlockArray, here: Here, old: u64, new: u64) -> bool {
        match self.is_guarded(here.cpu) {
            true => self.locked.claim_gate(blocks, here, old, new),
            false => self.sequences.claim_gate(blocks, here, old, new),
        }
    }

    fn fence_disturbs(&self, cpu: CpuId) -> bool {
        !self.is_guarded(cpu) && self.sequences.fence_disturbs(cpu)
    }

    fn is_quiescent(&self, cpu: CpuId) -> bool {
        match self.is_guarded(cpu) {
            true => self.locked.is_quiescent(cpu),
            false => self.sequences.is_quiescent(cpu),
        }
    }

    fn fence(&self, blocks: &BlockArray, cpu: CpuId) -> Result<(), FenceError> {
        match self.is_guarded(cpu) {
            true => self.locked.fence(blocks, cpu),
            false => self.sequences.fence(blocks, cpu),
        }
    }

    fn is_locked_by_caller(&self, cpu: CpuId) -> bool {
        match self.is_guarded(cpu) {
            true => self.locked.is_locked_by_caller(cpu),
            false => self.sequences.is_locked_by_caller(cpu),
        }
    }
}
