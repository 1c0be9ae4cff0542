//! For everything else: a lock per CPU, tried and never waited for by owners.
#![allow(unsafe_code, reason = "implements sequences")]

use super::environment::Environment;
use super::sequence;
use super::sequences::{Cpus, FenceError};
use crate::frame::{CpuId, Pfn};
use crate::front::word::SlotMove;
use crate::front::{BlockArray, Here, WordOffset};
use crate::sync::prim::{AtomicU32, Ordering, spin_hint};

/// Where a caller of a [`Locked`] depot runs.
///
/// A stale or wrong answer costs speed, never correctness: the lock excludes, not the CPU.
pub trait WhichCpu: Environment {
    /// The CPU, or any number that spreads threads; `None` sends the caller to the store.
    fn cpu(&self) -> Option<CpuId>;
}

/// Spins before a fence gives up on a lock holder that may be stopped.
const FENCE_SPINS: u32 = if cfg!(loom) { 2 } else { 1 << 20 };

/// One lock, on a cache line of its own. A kernel has them in a static:
/// ```
/// use pagedepot::cpus::CpuLock;
/// static LOCKS: [CpuLock; 64] = [const { CpuLock::new() }; 64];
/// ```
#[repr(C, align(128))]
pub struct CpuLock(AtomicU32);

impl CpuLock {
    /// A free lock.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        CpuLock(AtomicU32::new(0))
    }

    /// As above; loom's atomics are not made at compile time.
    #[cfg(loom)]
    pub fn new() -> Self {
        CpuLock(AtomicU32::new(0))
    }

    fn try_lock(&self) -> Option<Held<'_>> {
        // Acquire: pairs with the Release in `Held::drop`; the holder sees the words as the last
        // one left them.
        self.0.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).ok().map(|_| Held(self))
    }
}

impl Default for CpuLock {
    fn default() -> Self {
        Self::new()
    }
}

struct Held<'l>(&'l CpuLock);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.0.store(0, Ordering::Release);
    }
}

/// Fronts behind a lock per CPU. An owner that finds the lock taken goes to the store, so a signal
/// handler may allocate at any moment. The holder may be a thread that has moved to another CPU
/// since, a drainer, or the code that the handler interrupted.
pub struct Locked<'l, W> {
    locks: &'l [CpuLock],
    which: W,
}

impl<'l, W: WhichCpu> Locked<'l, W> {
    /// Locks for as many CPUs as `locks` has; CPUs beyond go to the store.
    pub fn new(locks: &'l [CpuLock], which: W) -> Self {
        Locked { locks, which }
    }

    fn lock_here(&self) -> Option<(Held<'l>, Here)> {
        let cpu = self.which.cpu()?;
        Some((self.locks.get(cpu.index())?.try_lock()?, Here::task(cpu)))
    }
}

// SAFETY: 1. the lock of the CPU is held for the whole of each function, and both contexts use the
// same one. 2., 3. checked by `sequence`. 4. a fence takes and drops the lock. Then sequences that
// began before have ended, and later ones see the closed gate. A claim runs under that lock, and so
// after all earlier sequences of the CPU. 5. as in `sequence`.
unsafe impl<W: WhichCpu> Cpus for Locked<'_, W> {
    type Environment = W;

    fn environment(&self) -> &W {
        &self.which
    }

    fn here(&self) -> Option<Here> {
        self.which.cpu().map(Here::task)
    }

    #[inline]
    fn pop(&self, blocks: &BlockArray, word: WordOffset) -> Option<u32> {
        let (_held, here) = self.lock_here()?;
        sequence::pop(blocks, here, word)
    }

    #[inline]
    fn push(&self, blocks: &BlockArray, word: WordOffset, rounds_max: u32, frame: u32) -> bool {
        let Some((_held, here)) = self.lock_here() else { return false };
        sequence::push(blocks, here, word, rounds_max, frame)
    }

    fn compare_store(
        &self,
        blocks: &BlockArray,
        here: Here,
        word: WordOffset,
        old: u64,
        new: u64,
    ) -> bool {
        let Some(_held) = self.locks.get(here.cpu.index()).and_then(CpuLock::try_lock) else {
            return false;
        };
        sequence::compare_store(blocks, here, word, old, new)
    }

    fn take_many(
        &self,
        blocks: &BlockArray,
        here: Here,
        word: WordOffset,
        batch: &SlotMove,
        out: &mut [Pfn],
    ) -> bool {
        let Some(_held) = self.locks.get(here.cpu.index()).and_then(CpuLock::try_lock) else {
            return false;
        };
        sequence::take_many(blocks, here, word, batch, out)
    }

    fn put_many(
        &self,
        blocks: &BlockArray,
        here: Here,
        word: WordOffset,
        batch: &SlotMove,
        frames: &[Pfn],
    ) -> bool {
        let Some(_held) = self.locks.get(here.cpu.index()).and_then(CpuLock::try_lock) else {
            return false;
        };
        sequence::put_many(blocks, here, word, batch, frames)
    }

    fn claim_gate(&self, blocks: &BlockArray, here: Here, old: u64, new: u64) -> bool {
        let Some(_held) = self.locks.get(here.cpu.index()).and_then(CpuLock::try_lock) else {
            return false;
        };
        sequence::claim_gate(blocks, here, old, new)
    }

    /// Takes the lock and drops it, as a fence does: if that succeeds at once, no sequence runs,
    /// and later ones see the closed gate. So drains count no fence for a CPU whose lock is free.
    fn is_quiescent(&self, cpu: CpuId) -> bool {
        self.locks.get(cpu.index()).is_none_or(|lock| lock.try_lock().is_some())
    }

    fn fence(&self, _blocks: &BlockArray, cpu: CpuId) -> Result<(), FenceError> {
        let Some(lock) = self.locks.get(cpu.index()) else { return Ok(()) };
        for _ in 0..FENCE_SPINS {
            if lock.try_lock().is_some() {
                return Ok(());
            }
            spin_hint();
        }
        Err(FenceError::Busy)
    }
}
