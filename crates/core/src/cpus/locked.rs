//! Locks for every other system: one per CPU, tried and never waited for by owners.
#![allow(unsafe_code, reason = "implements sequences")]

use super::environment::Environment;
use super::sequence::{self, LockedFront};
use super::sequences::{Cpus, FenceError};
use crate::frame::{CpuId, Pfn};
use crate::front::word::SlotMove;
use crate::front::{BlockArray, Here, WordOffset};
use crate::sync::prim::{AtomicU32, Ordering, spin_hint};

/// The way in which a [`Locked`] depot learns where its caller runs.
///
/// A stale or wrong answer costs speed, never correctness: the lock excludes, not the CPU.
pub trait WhichCpu: Environment {
    /// The CPU, or any number that spreads threads; `None` sends the caller to the store.
    fn cpu(&self) -> Option<CpuId>;
}

/// Spins before a fence gives up on a lock holder that may be stopped.
const FENCE_SPINS: u32 = if cfg!(loom) { 2 } else { 1 << 16 };
/// Spins before a CPU counts as busy for a drain that does not wait: longer than a holder that runs
/// keeps the lock, which is some ten nanoseconds.
const QUIESCENT_SPINS: u32 = if cfg!(loom) { 1 } else { 64 };

/// The values of a lock.
const FREE: u32 = 0;
const HELD: u32 = 1;
/// The state of a lock whose CPU is not behind it; see [`CpuLock::leave`].
const LEFT: u32 = 2;

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
        CpuLock(AtomicU32::new(FREE))
    }

    /// Makes a free lock; loom's atomics are not made at compile time.
    #[cfg(loom)]
    pub fn new() -> Self {
        CpuLock(AtomicU32::new(FREE))
    }

    /// Leaves the CPU to sequences: the lock is never held, and guards nothing.
    pub(super) fn leave(&mut self) {
        *self = CpuLock(AtomicU32::new(LEFT));
    }

    /// Whether the CPU was left to sequences.
    fn is_left(&self) -> bool {
        // Relaxed: written before the allocator was made.
        self.0.load(Ordering::Relaxed) == LEFT
    }

    /// Takes the lock and drops it, with so many attempts at most.
    fn passes(&self, spins: u32) -> bool {
        (0..spins).any(|_| {
            // A look first: an exchange that fails takes the line from the holder.
            let passes = self.0.load(Ordering::Relaxed) == FREE && self.try_lock().is_some();
            if !passes {
                spin_hint();
            }
            passes
        })
    }

    /// Takes the lock if it is free, of a CPU that has not [left](Self::leave) it. An exchange
    /// costs an owner two thirds of a compare-and-exchange.
    fn try_lock(&self) -> Option<Held<'_>> {
        debug_assert!(!self.is_left());
        // Acquire: pairs with the Release in `Held::drop`; the holder sees the words as the last
        // one left them.
        (self.0.swap(HELD, Ordering::Acquire) == FREE).then(|| Held(self))
    }
}

/// Sequences under the lock of `cpu`, wherever the caller runs.
impl CpuLock {
    #[inline(always)]
    pub(super) fn pop(&self, cpu: CpuId, blocks: &BlockArray, word: WordOffset) -> Option<u32> {
        let front = LockedFront::find(blocks, cpu, word)?;
        let _held = self.try_lock()?;
        front.pop()
    }

    #[inline(always)]
    pub(super) fn push(
        &self,
        cpu: CpuId,
        blocks: &BlockArray,
        word: WordOffset,
        rounds_max: u32,
        frame: u32,
    ) -> bool {
        let Some(front) = LockedFront::find(blocks, cpu, word) else { return false };
        let Some(_held) = self.try_lock() else { return false };
        front.push(rounds_max, frame)
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
        self.0.0.store(FREE, Ordering::Release);
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

    fn try_lock(&self, cpu: CpuId) -> Option<Held<'l>> {
        self.lock(cpu)?.try_lock()
    }

    #[inline(always)]
    fn lock(&self, cpu: CpuId) -> Option<&'l CpuLock> {
        self.locks.get(cpu.index())
    }

    /// The lock of a CPU, if it was not left to sequences.
    #[inline(always)]
    pub(super) fn guard(&self, cpu: CpuId) -> Option<&'l CpuLock> {
        let lock = self.lock(cpu)?;
        if lock.is_left() { None } else { Some(lock) }
    }
}

// SAFETY: 1. the lock of the CPU is held for the whole of each function, and both contexts use the
// same one. 2., 3. checked by `sequence`. 4. a fence takes and drops the lock. Then sequences that
// began before have ended, and later ones see the closed gate. A claim runs under that lock, and so
// after all earlier sequences of the CPU. 5. as in `sequence`. 7. there are no other CPUs.
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
        let cpu = self.which.cpu()?;
        self.lock(cpu)?.pop(cpu, blocks, word)
    }

    #[inline]
    fn push(&self, blocks: &BlockArray, word: WordOffset, rounds_max: u32, frame: u32) -> bool {
        let Some(cpu) = self.which.cpu() else { return false };
        let Some(lock) = self.lock(cpu) else { return false };
        lock.push(cpu, blocks, word, rounds_max, frame)
    }

    fn compare_store(
        &self,
        blocks: &BlockArray,
        here: Here,
        word: WordOffset,
        old: u64,
        new: u64,
    ) -> bool {
        let Some(_held) = self.try_lock(here.cpu) else { return false };
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
        let Some(_held) = self.try_lock(here.cpu) else { return false };
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
        let Some(_held) = self.try_lock(here.cpu) else { return false };
        sequence::put_many(blocks, here, word, batch, frames)
    }

    fn claim_gate(&self, blocks: &BlockArray, here: Here, old: u64, new: u64) -> bool {
        let Some(_held) = self.try_lock(here.cpu) else { return false };
        sequence::claim_gate(blocks, here, old, new)
    }

    /// Taking a lock interrupts no CPU.
    fn fence_disturbs(&self, _cpu: CpuId) -> bool {
        false
    }

    /// Takes the lock and drops it, as a fence does: if that succeeds, no sequence runs, and later
    /// ones see the closed gate.
    fn is_quiescent(&self, cpu: CpuId) -> bool {
        self.lock(cpu).is_none_or(|lock| lock.passes(QUIESCENT_SPINS))
    }

    fn fence(&self, _blocks: &BlockArray, cpu: CpuId) -> Result<(), FenceError> {
        let passes = self.lock(cpu).is_none_or(|lock| lock.passes(FENCE_SPINS));
        passes.then_some(()).ok_or(FenceError::Busy)
    }
}
