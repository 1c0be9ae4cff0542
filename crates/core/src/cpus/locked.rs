//! Locks for every other system: one per CPU, tried and never waited for by owners.
//!
//! # Argument
//! 1. *The lock excludes, not the CPU.* A thread reads where it runs, then locks. If it has been
//!    moved in between, it works on the fronts of the CPU that it named, under that CPU's lock.
//!    That costs speed alone.
//! 2. *No caller waits for a lock.* An owner that finds it taken goes to the store: a handler above
//!    the holder, a thread beside one that was preempted with it. A drainer tries for a bounded
//!    time. If the holder has been preempted, the drain reports a busy CPU and leaves its fronts as
//!    they are, at most two magazines each. A request that is about to fail takes those pages for
//!    pages in another caller's hands, and naps for them (see `reclaim/last_resort.rs`). The lock
//!    names its holder: a handler above the holder neither tries for long nor naps. Nor does one
//!    above a try that failed and has not given the holder's name back yet: its request may fail
//!    for pages that a nap would have brought.
//! 3. *A drainer that has had the lock behind a closed gate is the only writer*, as after a fence:
//!    later holders find the gate closed. It interrupts no CPU.
//! 4. *A forked child* finds its gate wiped, whatever its copy of the lock says.
//!
//! Where some CPUs have sequences instead, their locks are [left](CpuLock::leave), and an
//! implementation of [`Cpus`] that asks [`LockedCpus::guard`] tells the two apart
//! (`pagedepot-linux` has one).
#![allow(unsafe_code, reason = "implements sequences")]

use core::num::NonZeroUsize;

use super::environment::{Change, Cpus, Environment, FenceError};
use super::sequence::{self, LockedFront};
use crate::frame::CpuId;
use crate::front::{BlockArray, Here, WordOffset};
use crate::sync::model::{Mutant, bound, is_mutant};
use crate::sync::prim::{AtomicU32, AtomicUsize, Ordering, spin_hint};

/// The way in which a [`LockedCpus`] depot learns where its caller runs.
///
/// A stale or wrong answer costs speed, never correctness: the lock excludes, not the CPU.
pub trait WhichCpu: Environment {
    /// The CPU, or any number that spreads threads; `None` sends the caller to the store.
    fn cpu(&self) -> Option<CpuId>;
}

/// Spins before a fence gives up on a lock holder that may be stopped.
const FENCE_SPINS: u32 = bound(1 << 16, 2);
/// Spins before a CPU counts as busy for a drain that does not wait: longer than a holder that runs
/// keeps the lock, which is some ten nanoseconds.
const QUIESCENT_SPINS: u32 = bound(64, 1);

/// The holder of a lock that is free.
const FREE: usize = 0;
/// A holder [without a name](Environment::caller).
const UNNAMED: usize = usize::MAX;

/// One lock, on a cache line of its own. A kernel has them in a static:
/// ```
/// use pagedepot::cpus::CpuLock;
/// static LOCKS: [CpuLock; 64] = [const { CpuLock::new() }; 64];
/// ```
#[derive(Default)]
#[repr(C, align(128))]
pub struct CpuLock {
    /// The name of the caller that has it.
    holder: AtomicUsize,
    /// Number of times that a name has come into doubt: it may be that of a caller without the
    /// lock.
    doubts: AtomicU32,
    /// Number of these doubts that a drainer has ended.
    ended_doubts: AtomicU32,
    /// Whether its CPU is not behind it; see [`leave`](Self::leave).
    is_left: bool,
}

impl CpuLock {
    /// A free lock.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        CpuLock {
            holder: AtomicUsize::new(FREE),
            doubts: AtomicU32::new(0),
            ended_doubts: AtomicU32::new(0),
            is_left: false,
        }
    }

    /// Makes a free lock; loom's atomics are not made at compile time.
    #[cfg(loom)]
    pub fn new() -> Self {
        Self::default()
    }

    /// Leaves the CPU to sequences: the lock is never held, and guards nothing.
    pub fn leave(&mut self) {
        self.is_left = true;
    }

    /// Whether this caller is known to have the lock, or is a handler above a try that failed: see
    /// [`give_back`](Self::give_back). Never so of a caller without a name.
    pub(crate) fn is_held_by(&self, caller: usize) -> bool {
        // Relaxed: a caller finds its own name because it wrote it itself.
        caller != UNNAMED
            && self.holder.load(Ordering::Relaxed) == caller
            && self.doubts.load(Ordering::Relaxed) == self.ended_doubts.load(Ordering::Relaxed)
    }

    /// Takes the lock and drops it, with so many attempts at most. A handler above the holder makes
    /// none: the holder cannot go on.
    pub(crate) fn passes(&self, caller: usize, spins: u32) -> bool {
        let spins = if self.is_held_by(caller) { 0 } else { spins };
        (0..spins).any(|_| {
            // Before the exchange: its name then takes the place of those that came into doubt
            // until here. Doubts that come while it has the lock are not ended. Acquire: pairs with
            // the Release in `give_back`; the exchange comes after those that failed.
            let doubts = self.doubts.load(Ordering::Acquire);
            // A look first: an exchange that fails takes the line from the holder.
            let is_free = self.holder.load(Ordering::Relaxed) == FREE;
            let held = if is_free { self.try_lock(|| caller) } else { None };
            let passes = held.is_some();
            if passes && caller != UNNAMED {
                let doubts = match is_mutant(Mutant::EndsLaterDoubts) {
                    true => self.doubts.load(Ordering::Relaxed),
                    false => doubts,
                };
                self.ended_doubts.store(doubts, Ordering::Relaxed);
            }
            drop(held);
            if !passes {
                spin_hint();
            }
            passes
        })
    }

    /// Takes the lock if it is free, of a CPU that has not [left](Self::leave) it. An exchange
    /// costs an owner two thirds of a compare-and-exchange.
    #[inline(always)]
    pub(crate) fn try_lock(&self, caller: impl Fn() -> usize) -> Option<CpuLockGuard<'_>> {
        debug_assert!(!self.is_left);
        // Acquire: pairs with the Release in `CpuLockGuard::drop`; the holder sees the words as the
        // last one left them.
        match self.holder.swap(caller(), Ordering::Acquire) {
            FREE => Some(CpuLockGuard(self)),
            holder => {
                // Asked again: to keep it would cost the usual way a register.
                self.give_back(caller(), holder);
                None
            }
        }
    }

    /// Writes the holder's name again, where an exchange that failed has written this caller's. The
    /// lock stays held in any case.
    ///
    /// Another exchange may have failed meanwhile. It found this caller's name, and writes that
    /// again; then the lock names a caller that does not have it. So from here on its names are in
    /// doubt, until a drainer has had it: a request rather naps in vain than fails without cause.
    #[cold]
    fn give_back(&self, caller: usize, holder: usize) {
        // Relaxed: the name publishes nothing.
        let (own, other) = (caller, holder);
        if own != other
            && let Err(now) =
                self.holder.compare_exchange(own, other, Ordering::Relaxed, Ordering::Relaxed)
            && now != FREE
        {
            // Release: pairs with the Acquire in `passes`.
            self.doubts.fetch_add(1, Ordering::Release);
        }
    }
}

/// Sequences under the lock of `cpu`, wherever the caller runs.
impl CpuLock {
    /// Pops a block like [`Cpus::pop`]. `caller`: see [`LockedCpus::caller`].
    #[inline(always)]
    pub fn pop(
        &self,
        caller: impl Fn() -> usize,
        cpu: CpuId,
        blocks: &BlockArray,
        word: WordOffset,
    ) -> Option<u32> {
        let front = LockedFront::find(blocks, cpu, word)?;
        let _held = self.try_lock(caller)?;
        front.pop()
    }

    /// Pushes a block like [`Cpus::push`]. `caller`: see [`LockedCpus::caller`].
    #[inline(always)]
    pub fn push(
        &self,
        (caller, cpu): (impl Fn() -> usize, CpuId),
        blocks: &BlockArray,
        word: WordOffset,
        rounds_max: u32,
        frame: u32,
    ) -> bool {
        let Some(front) = LockedFront::find(blocks, cpu, word) else { return false };
        let Some(_held) = self.try_lock(caller) else { return false };
        front.push(rounds_max, frame)
    }
}

/// The lock while a caller has it.
pub(crate) struct CpuLockGuard<'l>(&'l CpuLock);

impl Drop for CpuLockGuard<'_> {
    fn drop(&mut self) {
        if cfg!(loom) {
            // Loom lets an exchange elsewhere overlook a store that it does not know of; C11 places
            // the store after all exchanges that began with the name.
            self.0.holder.swap(FREE, Ordering::Release);
        } else {
            self.0.holder.store(FREE, Ordering::Release);
        }
    }
}

/// Fronts behind a lock per CPU. An owner that finds the lock taken goes to the store, so a signal
/// handler may allocate at any moment. The holder may be a thread that has moved to another CPU
/// since, a drainer, or the code that the handler interrupted.
pub struct LockedCpus<'l, W> {
    locks: &'l [CpuLock],
    which: W,
}

impl<'l, W: WhichCpu> LockedCpus<'l, W> {
    /// Locks for as many CPUs as `locks` has; CPUs beyond go to the store.
    pub fn new(locks: &'l [CpuLock], which: W) -> Self {
        LockedCpus { locks, which }
    }

    /// The calling thread, as locks name their holders.
    #[inline(always)]
    pub fn caller(&self) -> usize {
        self.which.caller().map_or(UNNAMED, NonZeroUsize::get)
    }

    fn try_lock(&self, cpu: CpuId) -> Option<CpuLockGuard<'l>> {
        self.lock(cpu)?.try_lock(|| self.caller())
    }

    #[inline(always)]
    fn lock(&self, cpu: CpuId) -> Option<&'l CpuLock> {
        self.locks.get(cpu.index())
    }

    /// The lock of a CPU, if it was not left to sequences.
    #[inline(always)]
    pub fn guard(&self, cpu: CpuId) -> Option<&'l CpuLock> {
        let lock = self.lock(cpu)?;
        if lock.is_left { None } else { Some(lock) }
    }
}

// SAFETY: 1. the lock of the CPU is held for the whole of each function, and both contexts use the
// same one. 2., 3. checked by `sequence`. 4. a fence takes and drops the lock. Then sequences that
// began before have ended, and later ones see the closed gate. A claim runs under that lock, and so
// after all earlier sequences of the CPU. 5. as in `sequence`. 7. there are no other CPUs.
unsafe impl<W: WhichCpu> Cpus for LockedCpus<'_, W> {
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
        self.lock(cpu)?.pop(|| self.caller(), cpu, blocks, word)
    }

    #[inline]
    fn push(&self, blocks: &BlockArray, word: WordOffset, rounds_max: u32, frame: u32) -> bool {
        let Some(cpu) = self.which.cpu() else { return false };
        let Some(lock) = self.lock(cpu) else { return false };
        lock.push((|| self.caller(), cpu), blocks, word, rounds_max, frame)
    }

    fn commit(&self, blocks: &BlockArray, here: Here, change: Change<'_>) -> bool {
        let Some(_held) = self.try_lock(here.cpu) else { return false };
        sequence::commit(blocks, here, change)
    }

    fn fence_disturbs(&self, _cpu: CpuId) -> bool {
        false
    }

    /// Takes the lock and drops it, as a fence does: if that succeeds, no sequence runs, and later
    /// ones see the closed gate.
    fn is_quiescent(&self, cpu: CpuId) -> bool {
        self.lock(cpu).is_none_or(|lock| lock.passes(self.caller(), QUIESCENT_SPINS))
    }

    fn fence(&self, _blocks: &BlockArray, cpu: CpuId) -> Result<(), FenceError> {
        let passes = self.lock(cpu).is_none_or(|lock| lock.passes(self.caller(), FENCE_SPINS));
        passes.then_some(()).ok_or(FenceError::Busy)
    }

    fn is_locked_by_caller(&self, cpu: CpuId) -> bool {
        self.lock(cpu).is_some_and(|lock| lock.is_held_by(self.caller()))
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// Two exchanges fail, the second before the first has written the holder's name again.
    #[test]
    fn no_caller_takes_a_lock_for_its_own_that_it_did_not_get() {
        let lock = CpuLock::new();
        let held = lock.try_lock(|| 1).unwrap();
        assert_eq!([2, 3].map(|caller| lock.holder.swap(caller, Ordering::Relaxed)), [1, 2]);
        lock.give_back(2, 1);
        lock.give_back(3, 2);
        assert!([1, 2, 3].iter().all(|&caller| !lock.is_held_by(caller)));
        drop(held);
        // A drainer has it, and then names tell again.
        assert!(lock.passes(3, 1));
        let _held = lock.try_lock(|| 2).unwrap();
        assert!(lock.is_held_by(2));
    }

    #[test]
    fn a_lock_names_its_holder() {
        let lock = CpuLock::new();
        assert!(!lock.is_held_by(1));
        let held = lock.try_lock(|| 1).unwrap();
        assert!(lock.is_held_by(1) && !lock.is_held_by(2));
        // By a handler above the holder, and by others.
        for caller in [1, 2, UNNAMED] {
            assert!(lock.try_lock(|| caller).is_none() && !lock.passes(caller, 2));
            assert!(lock.is_held_by(1) && !lock.is_held_by(2), "it still names its holder");
        }
        drop(held);
        assert!(!lock.is_held_by(1) && lock.passes(1, 1) && lock.passes(UNNAMED, 1));
        let _held = lock.try_lock(|| UNNAMED).unwrap();
        assert!(!lock.is_held_by(UNNAMED), "callers without names may be others");
    }
}
