//! Restartable sequences on some CPUs, with a lock on each of the others: those that must not be
//! interrupted, and whose caches drains shall take all the same.
//!
//! # Argument for sequences beside locks
//! CPUs behind locks rest on the argument of [`LockedCpus`](pagedepot::cpus::LockedCpus), and
//! sequences on their own. Side by side they need three things more:
//!
//! 1. *A CPU is behind its lock or it is not, for good.* [`SequencesAndLocks::new`] decides it,
//!    with the locks for itself, before the allocator exists. So no word is ever changed both ways.
//! 2. *A sequence changes no word of a CPU behind a lock.* In every state of such a CPU's gate the
//!    lower half is 0, which leads sequences to words that refuse. Neither `pop` nor `push` needs a
//!    check for that, and on the other CPUs they are what they were. The other methods name their
//!    CPU, and go to its lock.
//! 3. *A thread may be moved between the kinds.* If it was moved from a CPU with a lock to one
//!    without, it still holds the lock that it took; if it was moved the other way, its sequence
//!    was aborted, or found a gate that refuses.

use pagedepot::CpuId;
use pagedepot::cpus::implement::{BlockArray, WordOffset};
use pagedepot::cpus::{Change, CpuLock, Cpus, FenceError, Here, LockedCpus, WhichCpu};

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

    /// Pushes a block like [`pop_alone`](Self::pop_alone) pops one. Part of
    /// [`push_locked`](Cpus::push_locked), since frees ask that before anything slower.
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
        // Where there are none, [`push_locked`](Cpus::push_locked) follows.
        self.sequences.exist() && self.sequences.push(blocks, word, rounds_max, frame)
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
        match self.guard_here() {
            Some((cpu, lock)) => {
                lock.push((|| self.locked.caller(), cpu), blocks, word, rounds_max, frame)
            }
            None if self.sequences.exist() => false,
            None => self.push_alone(blocks, word, rounds_max, frame),
        }
    }

    #[inline(always)]
    fn commit(&self, blocks: &BlockArray, here: Here, change: Change<'_>) -> bool {
        match self.is_guarded(here.cpu) {
            true => self.locked.commit(blocks, here, change),
            false => self.sequences.commit(blocks, here, change),
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
