//! Locks and shared values for which a forked child never waits.
//!
//! A child has one thread, and memory as it was at the fork. If another thread of the parent held a
//! lock then, no thread of the child unlocks it. A [`OnceLock`](std::sync::OnceLock) that another
//! thread was filling is never filled. So nothing in this crate waits through the standard library.
//! These wait:
//!
//! | what | why a child does not wait |
//! |---|---|
//! | the locks of an address space, the locks of CPUs | they lie in memory that the kernel wipes in a child (`MADV_WIPEONFORK`), so they are free there |
//! | [`ForkLock`] | before and while it waits, it checks the [`ForkMark`], which lies in such memory too |
//! | [`OnceValue`] | no thread waits for another's value: each makes its own, and the first to publish wins |
//! | a [`Place`](crate::moving::place::Place) that is being copied | as a `ForkLock`; the copier has not changed the page |

use std::cell::UnsafeCell;
use std::convert::Infallible;
use std::ops::{Deref, DerefMut};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use pagedepot::cpus::Unusable;
use rustix::thread::futex;
use rustix::time::Timespec;

use crate::system::fork_mark::ForkMark;

/// The word of a lock that no thread holds. Otherwise it is the id of the holder's thread.
const FREE: u32 = 0;
/// The bit of a held lock that a thread may sleep on. Thread ids are smaller.
const AWAITED: u32 = 1 << 31;

/// The longest sleep before a waiter checks the mark again: a signal handler may fork while its
/// thread sleeps here, and the child continues in the same place.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// The reason why a lock cannot be had, however long the caller waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockError {
    /// This is a forked child, and the lock is its parent's.
    Forked,
    /// The calling thread holds the lock: the call was made by a signal handler, or by a callback.
    Reentrant,
}

impl From<Unusable> for LockError {
    fn from(_: Unusable) -> Self {
        LockError::Forked
    }
}

/// The longest sleep of a waiter with so much time left; `None`: there is none.
fn nap(left: Duration) -> Option<Timespec> {
    let nap = left.min(LOOK_AGAIN);
    (!nap.is_zero()).then(|| Timespec { tv_sec: 0, tv_nsec: nap.subsec_nanos().into() })
}

/// The kernel's number for this thread.
pub(crate) fn thread_id() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get() as u32
}

/// A mutex whose `lock` fails where it would wait for ever: in a forked child, and above a holder
/// of the same thread.
///
/// After Drepper, "Futexes Are Tricky" (2011), mutex 2, as `Lock` of `pagedepot-vmap`. The word
/// names the holder, as the word of a futex with priority inheritance does.
pub(crate) struct ForkLock<T> {
    word: AtomicU32,
    fork_mark: ForkMark<'static>,
    value: UnsafeCell<T>,
}

// SAFETY: a mutex. One thread at a time has the value, and threads pass it on.
unsafe impl<T: Send> Sync for ForkLock<T> {}

/// Proof that a [`ForkLock`] is held; dropping it unlocks.
pub(crate) struct Guard<'l, T>(&'l ForkLock<T>);

impl<T> ForkLock<T> {
    pub fn new(fork_mark: ForkMark<'static>, value: T) -> Self {
        ForkLock { word: AtomicU32::new(FREE), fork_mark, value: UnsafeCell::new(value) }
    }

    /// Locks, and waits if another thread holds the lock.
    pub fn lock(&self) -> Result<Guard<'_, T>, LockError> {
        self.lock_while(|| Duration::MAX).map(|guard| guard.expect("waits until it has the lock"))
    }

    /// Locks if it can within about `limit`, for callers that must not hang when the holder is
    /// stopped. `None`: another thread held the lock all the time.
    pub fn lock_within(&self, limit: Duration) -> Result<Option<Guard<'_, T>>, LockError> {
        let began = Instant::now();
        self.lock_while(|| limit.saturating_sub(began.elapsed()))
    }

    /// Locks, or gives up when it would sleep and no time is left.
    fn lock_while(&self, left: impl Fn() -> Duration) -> Result<Option<Guard<'_, T>>, LockError> {
        if let Some(guard) = self.try_lock() {
            self.fork_mark.check()?;
            return Ok(Some(guard));
        }
        let thread = thread_id();
        loop {
            self.fork_mark.check()?;
            // Relaxed: a thread that holds the lock reads the id that it stored itself.
            let word = self.word.load(Ordering::Relaxed);
            if word & !AWAITED == thread {
                return Err(LockError::Reentrant);
            }
            // A lock taken here stays marked as awaited, because its holder cannot know whether
            // another thread sleeps.
            let new = if word == FREE { thread | AWAITED } else { word | AWAITED };
            // Acquire: as in `try_lock`.
            let changed =
                self.word.compare_exchange(word, new, Ordering::Acquire, Ordering::Relaxed);
            if changed.is_ok() && word == FREE {
                return Ok(Some(Guard(self)));
            }
            if changed.is_ok() {
                let Some(nap) = nap(left()) else { return Ok(None) };
                // Woken, timed out, interrupted by a signal, or the word had changed: try again.
                let _ = futex::wait(&self.word, futex::Flags::PRIVATE, new, Some(&nap));
            }
        }
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        // Acquire: pairs with the Release in `Guard::drop`; what the last holder wrote is seen.
        let taken =
            self.word.compare_exchange(FREE, thread_id(), Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok().then(|| Guard(self))
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the lock is held.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held, by this guard.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        // Release: pairs with the Acquire of the next holder.
        if self.0.word.swap(FREE, Ordering::Release) & AWAITED != 0 {
            let _ = futex::wake(&self.0.word, futex::Flags::PRIVATE, 1);
        }
    }
}

/// A value that is made when it is first needed, and stays.
pub(crate) struct OnceValue<T>(AtomicPtr<T>);

// SAFETY: owns a `T`, and any thread may drop it.
unsafe impl<T: Send> Send for OnceValue<T> {}
// SAFETY: lends the `T` to all threads, and one of them may have made it.
unsafe impl<T: Send + Sync> Sync for OnceValue<T> {}

impl<T: Send + Sync> OnceValue<T> {
    pub const fn new() -> Self {
        OnceValue(AtomicPtr::new(ptr::null_mut()))
    }

    /// The value, if it was made.
    #[inline]
    pub fn get(&self) -> Option<&T> {
        // Acquire: pairs with the Release in `set`; the value is seen whole.
        // SAFETY: from a box that is freed by `take` or `drop` alone.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    /// Publishes a value, unless there is one: then the new one comes back.
    pub fn set(&self, value: T) -> Result<(), T> {
        let made = Box::into_raw(Box::new(value));
        // Release: publishes the value. Relaxed: of a value that was there nothing is read.
        let stored =
            self.0.compare_exchange(ptr::null_mut(), made, Ordering::Release, Ordering::Relaxed);
        match stored {
            Ok(_) => Ok(()),
            // SAFETY: made above, and not published.
            Err(_) => Err(*unsafe { Box::from_raw(made) }),
        }
    }

    /// Returns the value. If several threads make it at the same moment, all use the one published
    /// first.
    pub fn get_or_make(&self, make: impl FnOnce() -> T) -> &T {
        self.get_or_try_make(|| Ok::<_, Infallible>(make())).unwrap_or_else(|never| match never {})
    }

    /// Makes the value like [`get_or_make`](Self::get_or_make), if it can be had.
    pub fn get_or_try_make<E>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<&T, E> {
        if self.get().is_none() {
            // The value of a faster thread is as good.
            let _ = self.set(make()?);
        }
        Ok(self.get().expect("it was set above, or before"))
    }

    /// Takes the value out.
    ///
    /// # Safety
    /// No reference to the value is in use.
    pub unsafe fn take(&self) -> Option<T> {
        // Acquire: as in `get`.
        let value = self.0.swap(ptr::null_mut(), Ordering::Acquire);
        // SAFETY: from a box, which no other caller gets; and the caller's promise.
        (!value.is_null()).then(|| *unsafe { Box::from_raw(value) })
    }
}

impl<T> Drop for OnceValue<T> {
    fn drop(&mut self) {
        let value = *self.0.get_mut();
        if !value.is_null() {
            // SAFETY: from a box; no reference outlives this value.
            drop(unsafe { Box::from_raw(value) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Threads that add to what it protects lose nothing.
    #[test]
    fn one_has_it_at_a_time() {
        let lock = ForkLock::new(ForkMark::by_pid(), 0u64);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10_000).for_each(|_| *lock.lock().unwrap() += 1));
            }
        });
        assert_eq!(*lock.lock().unwrap(), 40_000);
    }

    #[test]
    fn a_child_is_refused_whether_it_is_held_or_not() {
        let lock = ForkLock::new(ForkMark::by_pid(), ());
        for held in [false, true] {
            let guard = held.then(|| lock.lock().unwrap());
            // SAFETY: the child calls the lock and ends.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                // SAFETY: ends this child when it waits for the lock; else it ends itself.
                unsafe {
                    libc::alarm(60);
                    libc::_exit(i32::from(lock.lock().is_ok()));
                }
            }
            let mut status = 0;
            // SAFETY: waits for our child.
            assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
            assert_eq!(status, 0);
            drop(guard);
        }
    }

    /// A signal handler, or a callback, above the holder gets an error. Other threads wait.
    #[test]
    fn a_thread_does_not_wait_for_itself() {
        let lock = ForkLock::new(ForkMark::by_pid(), 0);
        let mut guard = lock.lock().unwrap();
        assert_eq!(lock.lock().err(), Some(LockError::Reentrant));
        assert!(lock.try_lock().is_none());
        std::thread::scope(|scope| {
            let other = scope.spawn(|| *lock.lock().unwrap());
            // Another thread sleeps on the lock, or is about to, and marks it so.
            while lock.word.load(Ordering::Relaxed) & AWAITED == 0 {
                std::thread::yield_now();
            }
            assert_eq!(lock.lock().err(), Some(LockError::Reentrant));
            *guard = 7;
            drop(guard);
            assert_eq!(other.join().unwrap(), 7);
        });
        assert_eq!(*lock.lock().unwrap(), 7);
    }

    /// A wait with a limit ends while the lock is held, and has the lock when it comes free.
    #[test]
    fn a_wait_with_a_limit_ends() {
        let lock = ForkLock::new(ForkMark::by_pid(), ());
        let guard = lock.lock().unwrap();
        let other = || lock.lock_within(Duration::from_millis(1)).unwrap().is_some();
        assert_eq!(lock.lock_within(Duration::MAX).err(), Some(LockError::Reentrant));
        std::thread::scope(|scope| {
            assert!(!scope.spawn(other).join().unwrap());
            let patient = || lock.lock_within(Duration::from_secs(100)).unwrap().is_some();
            let patient = scope.spawn(patient);
            drop(guard);
            assert!(patient.join().unwrap());
        });
        assert!(other());
    }

    #[test]
    fn no_sleep_is_longer_than_the_time_left() {
        let nap_ms = |ms| nap(Duration::from_millis(ms)).map(|nap| nap.tv_nsec / 1_000_000);
        assert_eq!([0, 20, 1000].map(nap_ms), [None, Some(20), Some(100)]);
    }

    #[test]
    fn a_shared_value_is_made_once_and_stays() {
        static SHARED: OnceValue<u32> = OnceValue::new();
        assert_eq!((SHARED.get_or_make(|| 7), SHARED.get_or_make(|| 8)), (&7, &7));
        assert_eq!((SHARED.get(), SHARED.set(9)), (Some(&7), Err(9)));
        let own = OnceValue::new();
        assert_eq!(own.get_or_try_make(|| Err("none")), Err::<&Box<u32>, _>("none"));
        assert_eq!((own.get(), own.set(Box::new(1))), (None, Ok(())));
        // SAFETY: no reference is in use.
        assert_eq!(unsafe { (own.take(), own.take()) }, (Some(Box::new(1)), None));
        own.set(Box::new(2)).unwrap();
    }
}
