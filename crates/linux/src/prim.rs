//! The seam for the atomics, clocks and waiting of what a model checker explores: `std` and the
//! kernel in production, `loom` under `--cfg loom`. Then this crate is empty, and `tests/loom`
//! takes in the real modules.

#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

#[cfg(loom)]
use loom::sync::{Mutex as Lock, MutexGuard};
#[cfg(not(loom))]
use std::sync::{Mutex as Lock, MutexGuard};
use std::sync::{PoisonError, TryLockError};

use rustix::io::Errno;

/// Milliseconds of a clock that costs little. Loom's stands still.
pub fn now_ms() -> u64 {
    if cfg!(loom) {
        return 0;
    }
    let now = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}

/// Sleeps while `word` is `seen`, `limit_ms` milliseconds at most. Woken, out of time, interrupted,
/// or the word has changed: the caller looks again.
#[cfg(not(loom))]
pub fn wait(word: &AtomicU32, seen: u32, limit_ms: u32) {
    use rustix::thread::futex;
    let limit = rustix::time::Timespec {
        tv_sec: i64::from(limit_ms / 1000),
        tv_nsec: i64::from(limit_ms % 1000) * 1_000_000,
    };
    let _ = futex::wait(word, futex::Flags::PRIVATE, seen, Some(&limit));
}

/// Wakes all that [`wait`] on `word`.
#[cfg(not(loom))]
pub fn wake_all(word: &AtomicU32) {
    use rustix::thread::futex;
    let _ = futex::wake(word, futex::Flags::PRIVATE, i32::MAX as u32);
}

#[cfg(loom)]
loom::lazy_static! {
    /// Loom's futex: all sleepers, of whatever word.
    static ref SLEEPERS: (loom::sync::Mutex<()>, loom::sync::Condvar) =
        (loom::sync::Mutex::new(()), loom::sync::Condvar::new());
}

/// Sleeps without a limit, so that loom reports a waiter that is not woken.
#[cfg(loom)]
pub fn wait(word: &AtomicU32, seen: u32, _limit_ms: u32) {
    let guard = SLEEPERS.0.lock().unwrap();
    // Acquire: pairs with the Release of the caller that changed the word and wakes.
    if word.load(Ordering::Acquire) == seen {
        drop(SLEEPERS.1.wait(guard).unwrap());
    }
}

#[cfg(loom)]
pub fn wake_all(_word: &AtomicU32) {
    if !crate::WAKES_NONE.get() {
        let _guard = SLEEPERS.0.lock().unwrap();
        SLEEPERS.1.notify_all();
    }
}

/// A mutex that goes on after a panic.
pub struct Mutex<T>(Lock<T>);

impl<T> Mutex<T> {
    pub fn new(value: T) -> Self {
        Mutex(Lock::new(value))
    }

    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None`: another thread has it, or this one.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// Lets other threads run.
pub fn yield_now() {
    #[cfg(not(loom))]
    std::thread::yield_now();
    #[cfg(loom)]
    loom::thread::yield_now();
}

/// The kernel's number for this thread.
#[cfg(not(loom))]
pub fn thread_id() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get() as u32
}

#[cfg(loom)]
pub fn thread_id() -> u32 {
    use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
    BuildHasherDefault::<DefaultHasher>::default().hash_one(loom::thread::current().id()) as u32 | 1
}

/// Words, zero at first; in production untouched parts take no memory.
#[cfg(not(loom))]
pub struct Words(crate::memory::Mapping);

#[cfg(not(loom))]
impl Words {
    pub fn new(count: usize) -> Result<Self, Errno> {
        crate::memory::Mapping::anonymous(count * size_of::<AtomicU64>()).map(Words)
    }

    pub fn get(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.0.bytes() / size_of::<AtomicU64>());
        // SAFETY: inside the mapping, which is aligned to pages, zero at first, and reached as
        // atomic words alone.
        unsafe { &*self.0.start().as_ptr().cast::<AtomicU64>().add(index) }
    }
}

#[cfg(loom)]
pub struct Words(Vec<AtomicU64>);

#[cfg(loom)]
impl Words {
    pub fn new(count: usize) -> Result<Self, Errno> {
        Ok(Words((0..count).map(|_| AtomicU64::new(0)).collect()))
    }

    pub fn get(&self, index: usize) -> &AtomicU64 {
        &self.0[index]
    }
}

/// Orders what other threads, and readers in other processes, see of this one.
#[inline(always)]
pub fn fence(order: Ordering) {
    #[cfg(not(loom))]
    std::sync::atomic::fence(order);
    // A model must notice that it is missing.
    #[cfg(loom)]
    if !crate::SKIPS_FENCES.get() {
        loom::sync::atomic::fence(order);
    }
}

/// Whether `Pieces::unmap` looks before it clears, which a model must notice.
#[inline(always)]
pub fn looks_first() -> bool {
    #[cfg(loom)]
    return crate::LOOKS_FIRST.get();
    #[cfg(not(loom))]
    false
}
