//! Giving up pages when the depot runs short.

use std::ptr::NonNull;

use pagedepot::{Pressure, Reclaim};

use crate::system::fork_mark::ForkMark;
use crate::system::sync::{ForkLock, Guard, LockError};

/// Number of times that a request which runs short yields while address spaces are added or
/// removed. Bounded, because the request may be a signal handler that interrupted the thread which
/// adds or removes one.
const WAITS_MAX: u32 = 100;

/// The address spaces over a depot, which shrink when the depot runs short.
pub(crate) struct Shrinkers(ForkLock<Vec<SpaceRef>>);

/// An address space, alive while it is in the list.
pub(crate) struct SpaceRef(NonNull<dyn Reclaim>);

// SAFETY: stands for a shared reference to an address space, which threads may share.
unsafe impl Send for SpaceRef {}

impl Shrinkers {
    /// An empty list.
    pub(crate) fn new(fork_mark: ForkMark<'static>) -> Self {
        Shrinkers(ForkLock::new(fork_mark, Vec::new()))
    }

    /// Blocks callbacks until the guard is dropped. Fails in a forked child, where no callback
    /// runs.
    pub(crate) fn pause(&self) -> Result<Guard<'_, Vec<SpaceRef>>, LockError> {
        self.0.lock()
    }

    /// Adds `space`, so that it shrinks when the depot runs short.
    ///
    /// # Safety
    /// `space` lives until [`remove`](Self::remove) returns. It is used by shared reference only,
    /// except during a [`pause`](Self::pause).
    pub(crate) unsafe fn add(&self, space: NonNull<dyn Reclaim>) -> Result<(), LockError> {
        self.pause()?.push(SpaceRef(space));
        Ok(())
    }

    /// Removes `space`, after which it may be freed. In a forked child it stays in the list, which
    /// no callback reads there. `false`: this thread is in the list, in a callback or under a
    /// signal handler, so the space stays there and must not be freed.
    #[must_use = "a space that is in the list must not be freed"]
    pub(crate) fn remove(&self, space: NonNull<dyn Reclaim>) -> bool {
        match self.pause() {
            Ok(mut list) => {
                list.retain(|other| !std::ptr::addr_eq(other.0.as_ptr(), space.as_ptr()));
                true
            }
            Err(LockError::Forked) => true,
            Err(LockError::Reentrant) => false,
        }
    }

    fn try_pause(&self) -> Option<Guard<'_, Vec<SpaceRef>>> {
        (0..WAITS_MAX).find_map(|_| {
            let list = self.0.try_lock();
            if list.is_none() {
                std::thread::yield_now();
            }
            list
        })
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
            // SAFETY: an address space is alive while it is in the list, and the list is locked.
            let space = unsafe { registered.0.as_ref() };
            freed += space.reclaim(Pressure { wanted_pages, ..pressure });
        }
        freed
    }
}
