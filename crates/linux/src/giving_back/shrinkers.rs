//! Lists of address spaces, and giving up pages when the depot runs short.

use std::ptr::NonNull;
use std::time::Duration;

use pagedepot::{Pressure, Reclaim};

use crate::system::fork_mark::ForkMark;
use crate::system::sync::{ForkLock, Guard, LockError};

/// Longest wait of a request that runs short for a thread that adds, removes or shrinks address
/// spaces, equal to that for other callbacks. Pages that the thread is about to return are counted
/// nowhere until then.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// Address spaces, each with what callers of the list need to know of it.
pub(crate) struct SpaceList<T>(ForkLock<Vec<SpaceRef<T>>>);

/// The address spaces over a depot, which shrink when the depot runs short.
pub(crate) type Shrinkers = SpaceList<()>;

/// An address space, alive while it is in the list.
pub(crate) struct SpaceRef<T> {
    space: NonNull<dyn Reclaim>,
    pub about: T,
}

// SAFETY: stands for a shared reference to an address space, which threads may share.
unsafe impl<T: Send> Send for SpaceRef<T> {}

impl<T> SpaceRef<T> {
    pub(crate) fn space(&self) -> &dyn Reclaim {
        // SAFETY: alive while it is in the list, out of which only a lock of the list lends it.
        unsafe { self.space.as_ref() }
    }
}

impl<T> SpaceList<T> {
    /// An empty list.
    pub(crate) fn new(fork_mark: ForkMark<'static>) -> Self {
        SpaceList(ForkLock::new(fork_mark, Vec::new()))
    }

    /// Blocks callbacks until the guard is dropped. Fails in a forked child, where no callback
    /// runs.
    pub(crate) fn pause(&self) -> Result<Guard<'_, Vec<SpaceRef<T>>>, LockError> {
        self.0.lock()
    }

    /// The list. `None`: another thread had it for too long, or this thread has it: a signal
    /// handler above the list of its own thread does not wait.
    pub(crate) fn lock_soon(&self) -> Option<Guard<'_, Vec<SpaceRef<T>>>> {
        self.0.lock_within(WAIT_MAX).ok().flatten()
    }

    /// Adds `space`, so that it shrinks when the list is asked.
    ///
    /// # Safety
    /// `space` lives until [`remove`](Self::remove) returns. It is used by shared reference only,
    /// except during a [`pause`](Self::pause).
    pub(crate) unsafe fn add(
        &self,
        space: NonNull<dyn Reclaim>,
        about: T,
    ) -> Result<(), LockError> {
        self.pause()?.push(SpaceRef { space, about });
        Ok(())
    }

    /// Removes `space`, after which it may be freed. In a forked child it stays in the list, which
    /// no callback reads there. `false`: this thread is in the list, in a callback or under a
    /// signal handler, so the space stays there and must not be freed.
    #[must_use = "a space that is in the list must not be freed"]
    pub(crate) fn remove(&self, space: NonNull<dyn Reclaim>) -> bool {
        match self.pause() {
            Ok(mut list) => {
                list.retain(|other| !std::ptr::addr_eq(other.space.as_ptr(), space.as_ptr()));
                true
            }
            Err(LockError::Forked) => true,
            Err(LockError::Reentrant) => false,
        }
    }
}

impl Shrinkers {
    /// Has the spaces give up what they keep, until it is enough. Returns the number of pages.
    /// `None`: another thread had the list for too long, or this thread has it.
    pub(crate) fn shrink(&self, pressure: Pressure) -> Option<u64> {
        let list = self.lock_soon()?;
        let mut freed = 0;
        for registered in list.iter() {
            if freed >= pressure.wanted_pages.max(1) {
                break;
            }
            let wanted_pages = pressure.wanted_pages.saturating_sub(freed);
            freed += registered.space().reclaim(Pressure { wanted_pages, ..pressure });
        }
        Some(freed)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::time::Duration;

    use pagedepot::{Flags, Order};

    use crate::{Depot, MemoryKind, Vmalloc};

    /// A request waits for a thread that is shrinking the address spaces.
    #[test]
    fn a_request_waits_for_the_list_of_address_spaces() {
        let depot = Depot::builder(4 << 20).memory(MemoryKind::Memfd).build().unwrap();
        let space = Vmalloc::builder(&depot).bytes(16 << 20).build().unwrap();
        let bufs: Vec<_> = std::iter::from_fn(|| space.buf(64 << 10).ok()).collect();
        let take = || depot.page_with(Order::BASE, Flags::default().no_reclaim()).ok();
        let _rest: Vec<_> = std::iter::from_fn(take).collect();
        drop(bufs);
        let shared = depot.shared();
        let list = shared.callbacks().shrinkers(shared).unwrap();
        let is_held = Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _pause = list.pause().unwrap();
                is_held.wait();
                std::thread::sleep(Duration::from_millis(50));
            });
            is_held.wait();
            depot.page(Order::BASE).unwrap();
        });
    }
}
