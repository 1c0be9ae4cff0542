//! Giving up pages when the depot runs short.

use std::ptr::NonNull;

use pagedepot::cpus::Unusable;
use pagedepot::{Pressure, Reclaim};

use super::LinuxVmap;
use crate::cpus::ForkMark;
use crate::sync::{ForkLock, Guard};

/// How often a caller who runs short yields while address spaces come or go. Bounded, because it
/// may be a signal handler on top of one who makes or drops one.
const WAITS_MAX: u32 = 100;

/// The address spaces over a depot that shrink when it runs short.
pub(crate) struct Shrinkers(ForkLock<Vec<Registered>>);

/// Alive as long as it is in the list.
#[derive(PartialEq, Eq)]
pub(super) struct Registered(NonNull<LinuxVmap>);

// SAFETY: a reference in all but name, to something that threads share.
unsafe impl Send for Registered {}

impl Shrinkers {
    /// None yet.
    pub(crate) fn new(fork_mark: ForkMark<'static>) -> Self {
        Shrinkers(ForkLock::new(fork_mark, Vec::new()))
    }

    /// Keeps callbacks away until the guard is dropped. Fails in a forked child, where none comes.
    pub(super) fn pause(&self) -> Result<Guard<'_, Vec<Registered>>, Unusable> {
        self.0.lock()
    }

    /// From now on `vmap` shrinks.
    ///
    /// # Safety
    /// It lives until [`remove`](Self::remove) returns, and is used by shared reference alone but
    /// during a [`pause`](Self::pause).
    pub(super) unsafe fn add(&self, vmap: NonNull<LinuxVmap>) -> Result<(), Unusable> {
        self.pause()?.push(Registered(vmap));
        Ok(())
    }

    /// In a forked child it stays, where no callback looks for it.
    pub(super) fn remove(&self, vmap: NonNull<LinuxVmap>) {
        if let Ok(mut list) = self.pause() {
            list.retain(|other| *other != Registered(vmap));
        }
    }

    fn try_pause(&self) -> Option<Guard<'_, Vec<Registered>>> {
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
            // SAFETY: alive while it is in the list, which is locked.
            let vmap = unsafe { registered.0.as_ref() };
            freed += vmap.reclaim(Pressure { wanted_pages, ..pressure });
        }
        freed
    }
}
