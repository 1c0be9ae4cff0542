//! The one seam for atomics, locks and spinning: `std` in production, `loom` under `--cfg loom`,
//! the simulated machine's where `pagedepot-sim-designs` compiles these sources.
//!
//! Everything shared is an atomic, even what only the holder of a lock changes ([`PlainU32`]).
//! Relaxed loads and stores compile to plain ones, a racy look at a counter is defined, and no
//! module of this crate needs `unsafe` for its lists. Under the model checker these types report
//! each access, so that it finds a missing lock or ordering as a race.

#[cfg(not(any(loom, feature = "simulated")))]
pub use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU32, AtomicU64, Ordering, fence},
};

#[cfg(loom)]
pub use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU32, AtomicU64, Ordering, fence},
};

#[cfg(feature = "simulated")]
pub use pagedepot_sim_machine::{
    atomic::{self, AtomicU32, AtomicU64, Ordering, fence},
    lock::{Mutex, MutexGuard},
};
#[cfg(not(feature = "simulated"))]
use std::sync::atomic;

// Statistics and hints, on which no protocol depends; not part of models.
pub use self::atomic::{
    AtomicBool as HintBool, AtomicU8 as HintU8, AtomicU32 as HintU32, AtomicU64 as HintU64,
};

/// Tells the processor that this is a spin loop; under loom, lets another thread run.
#[inline]
pub fn spin_hint() {
    #[cfg(not(any(loom, feature = "simulated")))]
    std::hint::spin_loop();
    #[cfg(feature = "simulated")]
    pagedepot_sim_machine::spin();
    #[cfg(loom)]
    loom::thread::yield_now();
}

/// Gives the rest of the time slice away: the thread waited for may have been preempted.
pub fn yield_now() {
    #[cfg(not(any(loom, feature = "simulated")))]
    std::thread::yield_now();
    #[cfg(feature = "simulated")]
    pagedepot_sim_machine::yield_now();
    #[cfg(loom)]
    loom::thread::yield_now();
}

/// Waits in the queue of a spinlock until its holder hands it over. `false`: the waiter tries again
/// by itself, as it always does outside of the simulated machine.
#[inline]
pub fn queue_for(lock: &AtomicU32) -> bool {
    #[cfg(feature = "simulated")]
    return pagedepot_sim_machine::queue_for(lock.as_ptr().addr());
    #[cfg(not(feature = "simulated"))]
    {
        let _ = lock;
        false
    }
}

/// Calls `wait`, which returns once it has a lock. The simulated machine counts that as time spent
/// waiting.
#[inline]
pub fn waiting<R>(wait: impl FnOnce() -> R) -> R {
    #[cfg(feature = "simulated")]
    pagedepot_sim_machine::wait_begins();
    let result = wait();
    #[cfg(feature = "simulated")]
    pagedepot_sim_machine::wait_ends();
    result
}

/// Frees a spinlock: stores 0 or, where waiters stand in a queue, hands it to the first of them.
#[inline]
pub fn unlock(lock: &AtomicU32) {
    #[cfg(feature = "simulated")]
    lock.unlock();
    // Release: pairs with the Acquire by which the next holder takes the lock.
    #[cfg(not(feature = "simulated"))]
    lock.store(0, Ordering::Release);
}

/// Accounts for a step down a tree to a node that is no atomic, where accesses cost simulated time.
#[inline(always)]
pub fn note_step<T>(node: &T) {
    #[cfg(feature = "simulated")]
    pagedepot_sim_machine::tree_step(node);
    #[cfg(not(feature = "simulated"))]
    let _ = node;
}

/// Notes a change to any value, as [`note_step`] notes a step.
#[inline(always)]
pub fn note_write<T>(value: &T) {
    #[cfg(feature = "simulated")]
    pagedepot_sim_machine::touch(value, pagedepot_sim_machine::Access::Store);
    #[cfg(not(feature = "simulated"))]
    let _ = value;
}

/// Accounts for adding or removing a key of a sorted map, and for the search that leads there: the
/// standard library's maps hide where their nodes lie.
#[inline(always)]
pub fn note_change<V>(map: &std::collections::BTreeMap<u32, V>, key: u32) {
    #[cfg(feature = "simulated")]
    {
        let last = map.last_key_value().map_or(0, |(&last, _)| last);
        let search = pagedepot_sim_machine::Search { len: map.len(), key, last, changes: true };
        pagedepot_sim_machine::search(map, search);
    }
    #[cfg(not(feature = "simulated"))]
    let _ = (map, key);
}

/// Accounts for a change of the metadata of one area, on a line of its own that moves to whichever
/// CPU works with the area, whatever list it is in: the kernel's `vmap_area`.
#[inline(always)]
pub fn note_area(start: u32) {
    #[cfg(feature = "simulated")]
    pagedepot_sim_machine::touch_object(start);
    #[cfg(not(feature = "simulated"))]
    let _ = start;
}

/// Locks a mutex whose holders never leave its data half changed, even when they panic.
pub fn lock_mutex<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    match mutex.lock() {
        Ok(guard) => guard,
        Err(poisoned) => poisoned.into_inner(),
    }
}

/// Locks a mutex if it is free.
pub fn try_lock_mutex<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    mutex.try_lock().ok()
}

/// Reports accesses to the model checker, which reports those that do not exclude each other.
#[cfg(loom)]
struct Access(loom::cell::Cell<()>);

#[cfg(loom)]
impl Default for Access {
    fn default() -> Self {
        Access(loom::cell::Cell::new(()))
    }
}

// SAFETY: the type holds no data; the checker's metadata behind it is made for many threads.
#[cfg(loom)]
unsafe impl Sync for Access {}

macro_rules! plain {
    ($(#[$doc:meta])* $name:ident, $atomic:ident, $int:ty) => {
        $(#[$doc])*
        pub struct $name {
            now: atomic::$atomic,
            #[cfg(loom)]
            access: Access,
        }

        impl $name {
            pub fn new(value: $int) -> Self {
                $name {
                    now: atomic::$atomic::new(value),
                    #[cfg(loom)]
                    access: Access::default(),
                }
            }

            /// The number. The caller excludes changes.
            #[inline]
            pub fn get(&self) -> $int {
                #[cfg(loom)]
                self.access.0.get();
                self.look()
            }

            /// The number at some moment; any thread may look.
            #[inline]
            pub fn look(&self) -> $int {
                self.now.load(Ordering::Relaxed)
            }

            #[inline]
            pub fn set(&self, value: $int) {
                #[cfg(loom)]
                self.access.0.set(());
                self.now.store(value, Ordering::Relaxed);
            }

            /// Adds by a load and a store.
            #[inline]
            pub fn add(&self, n: $int) {
                self.set(self.get().wrapping_add(n));
            }

            /// Subtracts by a load and a store.
            #[inline]
            pub fn sub(&self, n: $int) {
                self.set(self.get().wrapping_sub(n));
            }
        }
    };
}

plain!(
    /// A number that one holder of a lock (or one owner) at a time changes, by plain stores. Any
    /// thread may [look](Self::look) at it.
    PlainU32, AtomicU32, u32
);
plain!(
    /// A plain cell of 64 bits, like [`PlainU32`].
    PlainU64, AtomicU64, u64
);

/// Adds to a statistic that several CPUs share.
#[inline]
pub fn count(cell: &HintU64, n: u64) {
    // Relaxed: no protocol depends on it.
    cell.fetch_add(n, Ordering::Relaxed);
}

/// Alone on its cache lines: 128 bytes, because processors fetch lines in pairs.
#[repr(align(128))]
pub struct Padded<T>(pub T);

impl<T> std::ops::Deref for Padded<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}
