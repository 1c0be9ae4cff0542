//! Giving up pages when the depot runs short.

use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use pagedepot::{Pressure, Reclaim};

use super::LinuxVmap;

/// How often a caller who runs short yields while address spaces come or go. Bounded, because it
/// may be a signal handler on top of one who makes or drops one.
const WAITS_MAX: u32 = 100;

/// The address spaces over a depot that shrink when it runs short.
#[derive(Default)]
pub(crate) struct Shrinkers(Mutex<Vec<Registered>>);

/// Alive as long as it is in the list.
#[derive(PartialEq, Eq)]
pub(super) struct Registered(NonNull<LinuxVmap>);

// SAFETY: a reference in all but name, to something that threads share.
unsafe impl Send for Registered {}

impl Shrinkers {
    /// Keeps callbacks away until the guard is dropped.
    pub(super) fn pause(&self) -> MutexGuard<'_, Vec<Registered>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on `vmap` shrinks.
    ///
    /// # Safety
    /// It lives until [`remove`](Self::remove) returns, and is used by shared reference alone but
    /// during a [`pause`](Self::pause).
    pub(super) unsafe fn add(&self, vmap: NonNull<LinuxVmap>) {
        self.pause().push(Registered(vmap));
    }

    pub(super) fn remove(&self, vmap: NonNull<LinuxVmap>) {
        self.pause().retain(|other| *other != Registered(vmap));
    }

    fn try_pause(&self) -> Option<MutexGuard<'_, Vec<Registered>>> {
        for _ in 0..WAITS_MAX {
            match self.0.try_lock() {
                Ok(list) => return Some(list),
                Err(TryLockError::Poisoned(list)) => return Some(list.into_inner()),
                Err(TryLockError::WouldBlock) => std::thread::yield_now(),
            }
        }
        None
    }
}

impl Reclaim for Shrinkers {
    fn reclaim(&self, pressure: Pressure) -> u64 {
        let Some(list) = self.try_pause() else { return 0 };
        let mut freed = 0;
        for registered in list.iter() {
            if freed >= pressure.wanted_pages.max(1) {
                break;
            }
            let wanted_pages = pressure.wanted_pages.saturating_sub(freed);
            // SAFETY: alive while it is in the list, which is locked.
            let vmap = unsafe { registered.0.as_ref() };
            freed += vmap.reclaim(Pressure { wanted_pages, ..pressure });
        }
        freed
    }
}
