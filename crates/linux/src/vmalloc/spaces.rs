//! The address spaces of this process, which share its mappings.
//!
//! Memory that was freed stays mapped, whether the space that freed it is used again or not. A
//! request whose own space has purged in vain has the others purge, once.
//!
//! # Argument
//! A request that asks holds no lock, and neither does a thread that adds or removes a space, but
//! for `validate`, which pauses the callbacks of the space's depot before. A purge asks for no
//! frames, and so for no callback. So the list's lock comes before those of each space, after that
//! of a depot's callbacks, and no thread waits in a circle. Under it each purge waits in bounds, as
//! under memory pressure: a space whose locks do not come free is left out.
//!
//! A space is alive while it is in the list: its end takes it out first, and waits for a request
//! that asks. Wakers, which may drop a space, run when the list is free. A child of a process that
//! had a space cannot lock the list: its own spaces are not in it, and do not ask.

use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use pagedepot::{Pressure, Reclaim, ZoneId};

use crate::system::first_panic::FirstPanic;
use crate::system::fork_mark::ForkMark;
use crate::system::sync::{ForkLock, Guard, LockError, OnceValue};
use crate::waiting::closed_cpus::ClosedCpus;
use crate::waiting::waiters::Waiters;

/// Longest wait for another request that asks, or for a thread that adds or removes a space.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// Address spaces that purge for each other.
pub(super) struct Spaces(ForkLock<Vec<SpaceRef>>);

/// An address space, alive while it is in the list.
pub(super) struct SpaceRef {
    pub space: NonNull<dyn Reclaim>,
    /// The address where its range begins.
    pub start: usize,
    /// Requests that wait for pages of its depot.
    pub waiters: Arc<Waiters<ClosedCpus>>,
}

// SAFETY: stands for a shared reference to an address space, which threads may share.
unsafe impl Send for SpaceRef {}

impl Spaces {
    /// An empty list.
    pub fn new() -> Self {
        Spaces(ForkLock::new(ForkMark::of_process(), Vec::new()))
    }

    /// The address spaces of this process.
    pub fn of_process() -> &'static Self {
        static SPACES: OnceValue<Spaces> = OnceValue::new();
        SPACES.get_or_make(Spaces::new)
    }

    /// Keeps others from asking until the guard is dropped.
    pub fn pause(&self) -> Result<Guard<'_, Vec<SpaceRef>>, LockError> {
        self.0.lock()
    }

    /// Adds a space.
    ///
    /// # Safety
    /// It lives until [`remove`](Self::remove) returns `true`. It is used by shared reference only,
    /// except during a [`pause`](Self::pause).
    pub unsafe fn add(&self, space: SpaceRef) -> Result<(), LockError> {
        self.pause()?.push(space);
        Ok(())
    }

    /// Removes the space whose range begins at `start`. `false`: this thread has the list, so the
    /// space stays there and must not be freed.
    #[must_use = "a space that is in the list must not be freed"]
    pub fn remove(&self, start: usize) -> bool {
        match self.pause() {
            Ok(mut list) => {
                list.retain(|space| space.start != start);
                true
            }
            Err(error) => error == LockError::Forked,
        }
    }

    /// Purges all spaces but that whose range begins at `start`. Returns whether there are any.
    pub fn purge_others(&self, start: usize) -> bool {
        let mut panics = FirstPanic::default();
        let mut asked = Vec::new();
        if let Ok(Some(list)) = self.0.lock_within(WAIT_MAX) {
            for other in list.iter().filter(|other| other.start != start) {
                asked.push(other.waiters.clone());
                // SAFETY: an address space is alive while it is in the list, and the list is
                // locked.
                let space = unsafe { other.space.as_ref() };
                let (zone, wanted_pages) = (ZoneId::new(0), u64::MAX);
                let everything = Pressure { zone, wanted_pages, is_last_resort: true };
                panics.catch(|| space.reclaim(everything));
            }
        }
        for waiters in asked.iter().filter(|waiters| waiters.are_marked()) {
            panics.catch(|| waiters.answer());
        }
        panics.resume();
        !asked.is_empty()
    }
}
