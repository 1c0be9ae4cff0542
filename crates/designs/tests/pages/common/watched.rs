//! CPUs behind locks of a depot under watch: a drain fences a CPU only if its lock was held when
//! the drain looked. That a full drain then does is seen in its count of fences.
#![allow(dead_code, reason = "each test file uses its part")]

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use pagedepot::CpuId;
use pagedepot::cpus::implement::{BlockArray, WordOffset};
use pagedepot::cpus::{Change, CpuLock, Cpus, FenceError, Here, LockedCpus};
use pagedepot_designs::ByThread;

thread_local! {
    /// The CPU whose lock this thread found held when it looked last, until it has fenced it. A
    /// handover, which a request makes before it fails, fences none.
    static HELD: Cell<Option<CpuId>> = const { Cell::new(None) };
}

/// CPUs with locks, of which a drain fences only those whose lock was held when it looked.
pub struct Watched {
    locked: LockedCpus<'static, ByThread>,
    /// CPUs whose locks are reported as held, a bit each.
    reported_held: AtomicU64,
}

impl Watched {
    pub fn new(cpus: u32) -> Self {
        let locks: Vec<_> = (0..cpus).map(|_| CpuLock::new()).collect();
        Watched {
            locked: LockedCpus::new(locks.leak(), ByThread),
            reported_held: AtomicU64::new(0),
        }
    }

    /// Reports these locks, a bit each, as held to drains from now on.
    pub fn report_held(self, cpus: u64) -> Self {
        self.reported_held.store(cpus, Ordering::Relaxed);
        self
    }
}

// SAFETY: each method is that of `LockedCpus`. `is_quiescent` may say `false` of any CPU.
unsafe impl Cpus for Watched {
    type Environment = ByThread;

    fn environment(&self) -> &ByThread {
        self.locked.environment()
    }

    fn here(&self) -> Option<Here> {
        self.locked.here()
    }

    fn pop(&self, blocks: &BlockArray, word: WordOffset) -> Option<u32> {
        self.locked.pop(blocks, word)
    }

    fn push(&self, blocks: &BlockArray, word: WordOffset, rounds_max: u32, frame: u32) -> bool {
        self.locked.push(blocks, word, rounds_max, frame)
    }

    fn commit(&self, blocks: &BlockArray, here: Here, change: Change<'_>) -> bool {
        self.locked.commit(blocks, here, change)
    }

    fn is_quiescent(&self, cpu: CpuId) -> bool {
        let reported_held = self.reported_held.load(Ordering::Relaxed) >> cpu.get() & 1 == 1;
        let is_free = !reported_held && self.locked.is_quiescent(cpu);
        HELD.set((!is_free).then_some(cpu));
        is_free
    }

    fn fence(&self, blocks: &BlockArray, cpu: CpuId) -> Result<(), FenceError> {
        assert_eq!(HELD.take(), Some(cpu), "a drain fenced a CPU whose lock was free");
        self.locked.fence(blocks, cpu)
    }
}
