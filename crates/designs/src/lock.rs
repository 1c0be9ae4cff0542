//! A spinlock that counts waits and their time.
//!
//! The kernel's spinlock is a queue. This one is test-and-test-and-set: in user space the first
//! waiter of a queue may be preempted, and all others would then wait although the lock is free. A
//! waiter spins, then yields. Only waiters account: an uncontended lock and unlock is one
//! compare-and-swap and one store. On the simulated machine, which has no such preemption, waiters
//! stand in a queue.

use std::ops::AddAssign;

use crate::prim::{
    AtomicU32, HintU32, HintU64, Ordering, count, queue_for, spin_hint, unlock, waiting, yield_now,
};

/// Spins before a waiter yields: the holder may have been preempted.
const SPINS_MAX: u32 = if cfg!(loom) { 1 } else { 1 << 10 };

/// A spinlock.
pub struct SpinLock {
    held: AtomicU32,
    waiters: HintU32,
    waits: HintU64,
    wait_ns: HintU64,
}

/// Waits for a lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LockWaits {
    /// Acquisitions that had to wait.
    pub waits: u64,
    /// Time waited, in nanoseconds, summed over all waiters.
    pub wait_ns: u64,
}

impl AddAssign for LockWaits {
    fn add_assign(&mut self, other: LockWaits) {
        self.waits += other.waits;
        self.wait_ns += other.wait_ns;
    }
}

/// Holds a [`SpinLock`] until dropped.
pub struct SpinGuard<'l>(&'l SpinLock);

impl Default for SpinLock {
    fn default() -> Self {
        Self::new()
    }
}

impl SpinLock {
    /// A free lock.
    pub fn new() -> Self {
        SpinLock {
            held: AtomicU32::new(0),
            waiters: HintU32::new(0),
            waits: HintU64::new(0),
            wait_ns: HintU64::new(0),
        }
    }

    /// Takes the lock if it is free.
    #[inline]
    pub fn try_lock(&self) -> Option<SpinGuard<'_>> {
        // Acquire: pairs with the Release in `SpinGuard::drop`; the holder sees what the last
        // holder wrote. The load before it keeps a contended line shared.
        let free = self.held.load(Ordering::Relaxed) == 0
            && self.held.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok();
        free.then(|| SpinGuard(self))
    }

    /// Takes the lock, waiting for it.
    #[inline]
    pub fn lock(&self) -> SpinGuard<'_> {
        match self.try_lock() {
            Some(guard) => guard,
            None => self.wait(),
        }
    }

    #[cold]
    fn wait(&self) -> SpinGuard<'_> {
        let start = Clock::now();
        let guard =
            waiting(|| if queue_for(&self.held) { SpinGuard(self) } else { self.try_again() });
        count(&self.waits, 1);
        count(&self.wait_ns, start.elapsed_ns());
        guard
    }

    /// Tries again until it has the lock.
    fn try_again(&self) -> SpinGuard<'_> {
        // Relaxed: a hint to the holder that a thread waits.
        self.waiters.fetch_add(1, Ordering::Relaxed);
        let mut spins = 0;
        let guard = loop {
            if let Some(guard) = self.try_lock() {
                break guard;
            }
            spins += 1;
            if spins % SPINS_MAX == 0 { yield_now() } else { spin_hint() }
        };
        self.waiters.fetch_sub(1, Ordering::Relaxed);
        guard
    }

    /// Whether a thread waits for the lock.
    pub fn is_contended(&self) -> bool {
        self.waiters.load(Ordering::Relaxed) > 0
    }

    /// Waits so far.
    pub fn waits(&self) -> LockWaits {
        LockWaits {
            waits: self.waits.load(Ordering::Relaxed),
            wait_ns: self.wait_ns.load(Ordering::Relaxed),
        }
    }
}

impl Drop for SpinGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        unlock(&self.0.held);
    }
}

/// A point in time; always the same one under the model checker.
pub struct Clock {
    #[cfg(not(any(loom, feature = "simulated")))]
    start: std::time::Instant,
    #[cfg(feature = "simulated")]
    start_ps: u64,
}

impl Clock {
    pub fn now() -> Self {
        Clock {
            #[cfg(not(any(loom, feature = "simulated")))]
            start: std::time::Instant::now(),
            #[cfg(feature = "simulated")]
            start_ps: pagedepot_sim_machine::read_clock(),
        }
    }

    pub fn elapsed_ns(&self) -> u64 {
        #[cfg(feature = "simulated")]
        return (pagedepot_sim_machine::read_clock() - self.start_ps) / 1000;
        #[cfg(not(any(loom, feature = "simulated")))]
        return u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        #[cfg(loom)]
        0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn waits_are_counted_only_by_those_who_wait() {
        let lock = SpinLock::new();
        drop(lock.lock());
        assert_eq!(lock.waits(), LockWaits::default());
        let held = lock.lock();
        assert!(lock.try_lock().is_none());
        // A failed try must not release the lock.
        assert!(lock.try_lock().is_none());
        std::thread::scope(|scope| {
            scope.spawn(|| drop(lock.lock()));
            while !lock.is_contended() {
                std::thread::yield_now();
            }
            drop(held);
        });
        assert_eq!(lock.waits().waits, 1);
        assert!(lock.waits().wait_ns > 0);
    }
}
