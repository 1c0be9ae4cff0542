//! A free list in memory that processes share, behind a robust mutex: what is used where there is
//! no allocator for it.
//!
//! A process that dies with the mutex leaves it to the next, which makes it consistent. What the
//! dead process held is not known, so it is lost.
#![allow(unsafe_code, reason = "calls the C library's mutex")]

use std::cell::UnsafeCell;
use std::io;
use std::mem::MaybeUninit;

use crate::harness::fork::{Shared, SharedSlice};

struct State {
    mutex: UnsafeCell<libc::pthread_mutex_t>,
    /// Pages that are free: so many numbers of the list.
    free: UnsafeCell<usize>,
}

/// A pool of page numbers.
pub struct MutexPool {
    state: Shared<State>,
    list: SharedSlice<UnsafeCell<u32>>,
}

// SAFETY: the mutex guards the rest.
unsafe impl Sync for MutexPool {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for MutexPool {}

impl MutexPool {
    /// A pool of so many pages, all free.
    ///
    /// # Errors
    /// When the system refuses memory or a robust mutex.
    pub fn new(pages: u32) -> io::Result<Self> {
        // SAFETY: all zeros are a mutex's storage, which `init` fills before it is used.
        let mutex = unsafe { MaybeUninit::zeroed().assume_init() };
        let free = UnsafeCell::new(pages as usize);
        let state = Shared::new(State { mutex: UnsafeCell::new(mutex), free })?;
        init(state.mutex.get())?;
        let mut numbers = (0..pages).rev();
        let list = SharedSlice::new(pages as usize, || UnsafeCell::new(numbers.next().unwrap()))?;
        Ok(MutexPool { state, list })
    }

    /// Locks, also after the last holder has died.
    fn with<T>(&self, work: impl FnOnce(&mut usize) -> T) -> T {
        let mutex = self.state.mutex.get();
        // SAFETY: an initialised mutex; the count is of the thread that has it.
        unsafe {
            match libc::pthread_mutex_lock(mutex) {
                0 => {}
                libc::EOWNERDEAD => assert_eq!(libc::pthread_mutex_consistent(mutex), 0),
                error => panic!("{}", io::Error::from_raw_os_error(error)),
            }
            let done = work(&mut *self.state.free.get());
            libc::pthread_mutex_unlock(mutex);
            done
        }
    }

    /// Takes a page.
    #[inline]
    pub fn alloc(&self) -> Option<u32> {
        self.with(|free| {
            *free = free.checked_sub(1)?;
            // SAFETY: the list is the thread's that has the mutex.
            Some(unsafe { *self.list[*free].get() })
        })
    }

    /// Frees a page.
    #[inline]
    pub fn free(&self, page: u32) {
        self.with(|free| {
            // SAFETY: as in `alloc`.
            unsafe { *self.list[*free].get() = page };
            *free += 1;
        });
    }

    /// Pages that are free.
    pub fn free_pages(&self) -> usize {
        self.with(|free| *free)
    }

    /// Takes the mutex, calls a function and never gives it back: for a process that is killed.
    pub fn lock_and(&self, work: impl FnOnce()) {
        self.with(|_| work());
    }
}

fn init(mutex: *mut libc::pthread_mutex_t) -> io::Result<()> {
    let mut attributes = MaybeUninit::uninit();
    let checked = |error: i32| match error {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    };
    // SAFETY: each pointer is to storage of its type, and attributes are initialised first.
    unsafe {
        checked(libc::pthread_mutexattr_init(attributes.as_mut_ptr()))?;
        let attributes = attributes.as_mut_ptr();
        checked(libc::pthread_mutexattr_setpshared(attributes, libc::PTHREAD_PROCESS_SHARED))?;
        checked(libc::pthread_mutexattr_setrobust(attributes, libc::PTHREAD_MUTEX_ROBUST))?;
        checked(libc::pthread_mutex_init(mutex, attributes))?;
        checked(libc::pthread_mutexattr_destroy(attributes))
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::Signal;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::harness::fork::{Child, bump, sleep_while};

    #[test]
    fn a_dead_process_leaves_the_mutex_and_takes_its_pages_along() {
        let pool = MutexPool::new(10).unwrap();
        let told = Shared::new(AtomicU32::new(0)).unwrap();
        let hold = || {
            assert!(pool.alloc().is_some() && pool.alloc().is_some());
            pool.lock_and(|| {
                bump(&told);
                std::thread::sleep(std::time::Duration::MAX);
            });
        };
        let mut child = Child::fork(hold).unwrap();
        while told.load(Ordering::Acquire) == 0 {
            sleep_while(&told, 0);
        }
        child.signal(Signal::KILL);
        child.wait();
        assert_eq!(pool.free_pages(), 8);
        let mut pages: Vec<u32> = std::iter::from_fn(|| pool.alloc()).collect();
        pages.sort_unstable();
        assert_eq!(pages, [2, 3, 4, 5, 6, 7, 8, 9]);
        pages.into_iter().for_each(|page| pool.free(page));
        assert_eq!(pool.free_pages(), 8);
    }
}
