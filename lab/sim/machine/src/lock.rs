//! A mutex with the interface of the standard library's, whose waiters stand in a queue.
#![allow(unsafe_code, reason = "a lock gives out references")]

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::{LockResult, TryLockError, TryLockResult};

use crate::atomic::{AtomicU32, Ordering};
use crate::engine::{queue_for, spin, wait_begins, wait_ends};

/// A lock around a value. Results are never poisoned: a task that panics ends its machine.
#[derive(Default)]
pub struct Mutex<T> {
    held: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: one holder at a time reaches the value.
unsafe impl<T: Send> Sync for Mutex<T> {}

/// Holds a [`Mutex`] until dropped.
pub struct MutexGuard<'m, T>(&'m Mutex<T>);

impl<T> Mutex<T> {
    /// A free lock.
    pub const fn new(value: T) -> Self {
        Mutex { held: AtomicU32::new(0), value: UnsafeCell::new(value) }
    }

    /// Takes the lock, waiting for it.
    ///
    /// # Errors
    /// None.
    #[track_caller]
    pub fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        if !self.take() {
            self.wait();
        }
        Ok(MutexGuard(self))
    }

    /// Takes the lock if it is free.
    ///
    /// # Errors
    /// It is not free.
    #[track_caller]
    pub fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
        if self.take() { Ok(MutexGuard(self)) } else { Err(TryLockError::WouldBlock) }
    }

    /// The value, of a lock that has no other user.
    ///
    /// # Errors
    /// None.
    pub fn get_mut(&mut self) -> LockResult<&mut T> {
        Ok(self.value.get_mut())
    }

    #[track_caller]
    fn take(&self) -> bool {
        self.held.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[cold]
    #[track_caller]
    fn wait(&self) {
        if queue_for(self.held.as_ptr().addr()) {
            return;
        }
        wait_begins();
        while self.held.load(Ordering::Relaxed) != 0 || !self.take() {
            spin();
        }
        wait_ends();
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the lock is held.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held, by this guard alone.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        self.0.held.unlock();
    }
}
