//! Threads that have brought pages, and the requests that wait for them.
//!
//! Explored by `tests/loom/waiting.rs`.

use crate::system::prim::{AtomicU32, ForkMark, Mutant, Ordering, is_mutant, thread_id};
use crate::waiting::waiters::Waiters;

/// Tells requests that wait, by threads that may run a waker.
pub(crate) struct Teller<C> {
    pub waiters: Waiters<C>,
    /// The id of the thread that leaves marks and runs no waker, or 0.
    marker: AtomicU32,
}

impl<C: Default> Teller<C> {
    pub fn new(fork_mark: ForkMark) -> Self {
        let waiters = Waiters::new(fork_mark, C::default());
        Teller { waiters, marker: AtomicU32::new(0) }
    }
}

impl<C> Teller<C> {
    /// Tells a request, like [`Waiters::tell`], or leaves a mark.
    #[cold]
    pub fn tell(&self) {
        self.waiters.mark();
        self.answer();
    }

    /// Answers marks, like [`Waiters::answer`], if the calling thread may run a waker.
    #[cold]
    pub fn answer(&self) {
        // Relaxed: each thread compares it with its own id.
        let marker = self.marker.load(Ordering::Relaxed);
        if marker == 0 || marker != thread_id() || is_mutant(Mutant::WakesUnderLocks) {
            self.waiters.answer();
        }
    }

    /// Has the calling thread run no waker until the returned value is dropped, not even in a
    /// callback that frees pages. For the one thread that has a lock under which no waker may run;
    /// it answers when it has given that up.
    pub fn leaving_marks(&self) -> MarkerGuard<'_> {
        // Relaxed: as in `answer`.
        self.marker.store(thread_id(), Ordering::Relaxed);
        MarkerGuard(&self.marker)
    }
}

/// A guard of the duty to run no waker: see [`Teller::leaving_marks`].
pub(crate) struct MarkerGuard<'t>(&'t AtomicU32);

impl Drop for MarkerGuard<'_> {
    fn drop(&mut self) {
        // Relaxed: as in `answer`.
        self.0.store(0, Ordering::Relaxed);
    }
}
