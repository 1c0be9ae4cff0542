//! Requests that wait for pages, and the one that is told when pages come to the store.
//!
//! # Vocabulary
//! * *waiter*: a request that found no page and is in the queue until it has one or gives up.
//! * *look*: a waiter's search of the store and, if that has nothing, of the pools of address
//!   spaces: a purge, and the store again.
//! * *to tell* a waiter: to mark it and to call its waker. A told waiter will look.
//! * *bringer*: a thread that has brought pages to the store, as it freed them past the fronts, or
//!   to a pool. A purge is one, too, and so is a request that has moved blocks: what it
//!   gathered beyond its own block may be the larger block that a waiter wants.
//!
//! # Theory
//! While there are waiters, the caches of all CPUs are taken away ([`Queue::closed`]), so that
//! every free comes to the store and every thread that frees is a bringer. While there are none, a
//! free that its front takes does not know of any of this: no load, no branch. A bringer reads one
//! word ([`Waiters::waiting`]) that is written only when the first waiter comes and when the last
//! one goes.
//!
//! One waiter is told at a time, the first in the queue that is not told yet, and passes on:
//! * A told waiter that gets its page, or gives up, tells the next. There may be more pages.
//! * A told waiter that finds none tells the next that wants a smaller block: no larger one can
//!   be had. It stays in the queue.
//!
//! So a free costs two looks, however many wait. Waiters are told in the order in which they came,
//! but a request that does not wait may be faster.
//!
//! # Argument: no waiter sleeps while the store or a pool has what it wants
//! 1. *Before the waiter is in the queue.* It raises `waiting`, takes the caches away, and then
//!    looks. A free that a front took before the caches were taken is in the store by then. A
//!    bringer puts its pages into the store or a pool, and then reads `waiting`. Between the two,
//!    each has a SeqCst fence. So either the look finds the pages, or the bringer sees that there
//!    are waiters.
//! 2. *A bringer that sees waiters* leaves a mark (`pending`) and takes the queue. If another
//!    thread has the queue, that thread finds the mark after it has given the queue back: both have
//!    a SeqCst fence between the two, as in 1. So a bringer never waits for the queue, and may be
//!    a signal handler. A bringer that holds locks under which no waker may run leaves the mark
//!    there, and takes the queue when it has given them up ([`Waiters::answer`]). It then finds its
//!    own mark, unless another thread has answered that meanwhile, when the pages were there. A
//!    thread that sets a ceiling calls callbacks under its lock, which may free pages and give up
//!    waiting ([`Waiters::leaving_marks`]). Where it would tell a waiter it leaves a mark, and it
//!    leaves those that it finds after a use of the queue. It answers them when it has given the
//!    lock up. Its own requests wait outside the queue, and look again and again: it could not pass
//!    a tell on.
//! 3. *A mark tells one waiter that is not told yet.* A waiter takes its tell back before it looks
//!    ([`Waiters::arm`]). So a told waiter looks after the pages came, and by the rules above tells
//!    the next or leaves none that could be served. If all are told, all will look. Several marks
//!    that are found together need one tell, for the same reason.
//! 4. *A look that cannot tell* whether it missed pages that others were moving is repeated without
//!    waiting ([`Refusal::is_proven`](pagedepot::Refusal)), and so is each look while the caches of
//!    some CPU could not be taken away, or another thread has the list of address spaces. What a
//!    waiter owes by the rules it keeps until a look is proven.
//!
//! A waiter that is told and never polled again, nor dropped, keeps the others from pages.
//!
//! # Panics and forks
//! A report of misuse may panic while caches are taken away. Then they are given back, and marks
//! are answered as after any other use of the queue. A forked child does not use the queue, which a
//! thread of its parent may hold: all calls but [`Waiters::tell`], which waits for nothing, do
//! nothing there.
//!
//! Explored by `tests/loom/waiting.rs`.

use std::collections::BTreeMap;
use std::task::Waker;

use crate::system::prim::{
    AtomicU32, ForkGuard, ForkLock, ForkMark, LockError, Mutant, Ordering, fence, is_mutant,
    thread_id,
};

/// The state that waiters and bringers share.
pub(crate) struct Waiters<C> {
    /// Whether there are waiters: 1, or 0.
    waiting: AtomicU32,
    /// Marks of bringers that no tell has answered.
    pending: AtomicU32,
    /// The id of the thread that leaves marks and runs no waker, or 0.
    marker: AtomicU32,
    queue: ForkLock<Queue<C>>,
}

/// The waiters, in the order in which they came.
struct Queue<C> {
    next: u64,
    waiters: BTreeMap<u64, Waiter>,
    /// The caches that were taken away for the waiters, to be given back.
    closed: C,
}

struct Waiter {
    /// The order of the block that it wants.
    order: u32,
    is_told: bool,
    /// `None` once told.
    waker: Option<Waker>,
}

/// A waiter's place in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    number: u64,
    order: u32,
}

impl<C> Queue<C> {
    /// Tells the first waiter that is not told yet and wants a block of an order below `below`.
    fn tell(&mut self, below: u32) -> Option<Waker> {
        let wants = |waiter: &&mut Waiter| !waiter.is_told && waiter.order < below;
        let waiter = self.waiters.values_mut().find(wants)?;
        waiter.is_told = true;
        waiter.waker.take()
    }
}

/// Orders are smaller.
const ANY_ORDER: u32 = u32::MAX;

impl<C> Waiters<C> {
    pub fn new(fork_mark: ForkMark, closed: C) -> Self {
        let queue = Queue { next: 0, waiters: BTreeMap::new(), closed };
        let [waiting, pending, marker] = [0; 3].map(AtomicU32::new);
        Waiters { waiting, pending, marker, queue: ForkLock::new(fork_mark, queue) }
    }

    /// Whether a bringer, which has put its pages into the store, has to [`tell`](Self::tell).
    #[inline]
    pub fn are_there(&self) -> bool {
        // Pairs with the fence in `enter`: see 1.
        fence(Ordering::SeqCst);
        // Relaxed: the fences order it.
        self.waiting.load(Ordering::Relaxed) != 0
    }

    /// Tells a waiter. Never waits for another thread.
    #[cold]
    pub fn tell(&self) {
        self.mark();
        self.answer();
    }

    /// Leaves a mark, which the caller [answers](Self::answer) when it may run a waker.
    #[cold]
    pub fn mark(&self) {
        // Relaxed: the fence in `answer` orders it.
        self.pending.store(1, Ordering::Relaxed);
    }

    /// Whether there is a mark that no thread has answered.
    #[inline]
    pub fn are_marked(&self) -> bool {
        // Relaxed: a thread finds its own mark, or what another thread did later.
        self.pending.load(Ordering::Relaxed) != 0
    }

    /// Has the calling thread run no waker until the returned value is dropped, not even in a
    /// callback that frees pages or gives up waiting. For the one thread that has a lock under
    /// which no waker may run; it answers when it has given that up. Until then it enters no
    /// waiter, and takes one out before it looks for it.
    pub fn leaving_marks(&self) -> MarkerGuard<'_> {
        // Relaxed: as in `leaves_marks`.
        self.marker.store(thread_id(), Ordering::Relaxed);
        MarkerGuard(&self.marker)
    }

    /// Whether the calling thread runs no waker.
    pub fn leaves_marks(&self) -> bool {
        // Relaxed: each thread compares it with its own id.
        let marker = self.marker.load(Ordering::Relaxed);
        marker != 0 && marker == thread_id() && !is_mutant(Mutant::WakesUnderLocks)
    }

    /// Answers the marks of bringers, unless another thread has the queue: then that thread does.
    /// Leaves them if the calling thread runs no waker. Never waits for another thread.
    #[cold]
    pub fn answer(&self) {
        loop {
            // Of a bringer: its mark comes before its look at the queue's lock. Of a thread that
            // has given the queue back: that comes before its look for marks. See 2.
            fence(Ordering::SeqCst);
            // Relaxed: the fence orders it.
            if self.pending.load(Ordering::Relaxed) == 0 || self.leaves_marks() {
                return;
            }
            let Some(mut queue) = self.queue.try_lock() else { return };
            // Relaxed: of several threads that find the mark, the lock orders the swaps.
            let told = match self.pending.swap(0, Ordering::Relaxed) {
                0 => None,
                _ => queue.tell(ANY_ORDER),
            };
            drop(queue);
            // Not under the lock: a waker may drop a waiter.
            told.into_iter().for_each(Waker::wake);
        }
    }

    /// Calls `act` with the queue. `None`: this is a forked child.
    ///
    /// # Panics
    /// In a signal handler that interrupted its own thread in here.
    fn with<R>(&self, act: impl FnOnce(&mut Queue<C>) -> R) -> Option<R> {
        let queue = match self.queue.lock() {
            Ok(queue) => queue,
            Err(LockError::Forked) => return None,
            Err(LockError::Reentrant) => panic!(
                "a signal handler waits for a page, or gives up waiting, above the same of its own \
                 thread: use Depot::page in handlers"
            ),
        };
        let mut taken = Turn { queue, _serving: ServingGuard(self) };
        Some(act(&mut taken.queue))
    }

    /// Adds a waiter for a block of this order. Before the first one is added, `close` takes the
    /// caches away; if it panics, `open` gives them back. Look only afterwards. `None`: this is a
    /// forked child.
    pub fn enter(
        &self,
        order: u32,
        close: impl FnOnce(&mut C),
        open: impl FnOnce(&mut C),
    ) -> Option<Ticket> {
        self.with(|queue| {
            if queue.waiters.is_empty() {
                // Relaxed: the fence orders it.
                self.waiting.store(1, Ordering::Relaxed);
                // Pairs with the fence in `are_there`: see 1.
                fence(Ordering::SeqCst);
                let closed = &mut queue.closed;
                let mut closing = CloseGuard { waiting: &self.waiting, closed, open: Some(open) };
                close(closing.closed);
                closing.open = None;
            }
            let number = queue.next;
            queue.next += 1;
            queue.waiters.insert(number, Waiter { order, is_told: false, waker: None });
            Ticket { number, order }
        })
    }

    /// Calls `see` with what was taken away, under the lock. `None`: this is a forked child.
    pub fn with_closed<R>(&self, see: impl FnOnce(&mut C) -> R) -> Option<R> {
        self.with(|queue| see(&mut queue.closed))
    }

    /// Takes a waiter's tell back before it looks, and notes the waker for the next one. `true`: it
    /// had been told.
    pub fn arm(&self, ticket: Ticket, waker: &Waker) -> bool {
        // Made, and the one before dropped, not under the lock: as in `answer`.
        let mut waker = Some(waker.clone());
        let was_told = self.with(|queue| {
            let waiter = queue.waiters.get_mut(&ticket.number).expect("it waits");
            std::mem::swap(&mut waiter.waker, &mut waker);
            std::mem::replace(&mut waiter.is_told, false)
        });
        was_told.unwrap_or(false)
    }

    /// Passes a tell on after a look that found no block.
    pub fn pass_on(&self, ticket: Ticket) {
        let told = self.with(|queue| queue.tell(ticket.order));
        told.flatten().into_iter().for_each(Waker::wake);
    }

    /// Takes a waiter out that has its block or gives up, and tells the next, or leaves a mark if
    /// the calling thread runs no waker. After the last one has gone, `open` gives the caches back.
    pub fn leave(&self, ticket: Ticket, open: impl FnOnce(&mut C)) {
        let left = self.with(|queue| {
            let gone = queue.waiters.remove(&ticket.number);
            if queue.waiters.is_empty() {
                // Relaxed: a bringer that still finds it raised tells in vain.
                self.waiting.store(0, Ordering::Relaxed);
                open(&mut queue.closed);
            }
            if self.leaves_marks() {
                self.mark();
                return (gone, None);
            }
            (gone, queue.tell(ANY_ORDER))
        });
        // A waker that has gone is dropped here, not under the lock.
        if let Some((_gone, told)) = left {
            told.into_iter().for_each(Waker::wake);
        }
    }
}

/// A guard of the duty to run no waker: see [`Waiters::leaving_marks`].
pub(crate) struct MarkerGuard<'w>(&'w AtomicU32);

impl Drop for MarkerGuard<'_> {
    fn drop(&mut self) {
        // Relaxed: as in `leaves_marks`.
        self.0.store(0, Ordering::Relaxed);
    }
}

/// The queue, and then the marks that came meanwhile: in this order they are given up, also while a
/// panic unwinds.
struct Turn<'w, C> {
    queue: ForkGuard<'w, Queue<C>>,
    _serving: ServingGuard<'w, C>,
}

/// Answers the marks of bringers when it is dropped.
struct ServingGuard<'w, C>(&'w Waiters<C>);

impl<C> Drop for ServingGuard<'_, C> {
    fn drop(&mut self) {
        self.0.answer();
    }
}

/// Caches that are being taken away for the first waiter: given back unless that succeeds.
struct CloseGuard<'q, C, O: FnOnce(&mut C)> {
    waiting: &'q AtomicU32,
    closed: &'q mut C,
    open: Option<O>,
}

impl<C, O: FnOnce(&mut C)> Drop for CloseGuard<'_, C, O> {
    fn drop(&mut self) {
        if let Some(open) = self.open.take() {
            // Relaxed: as in `leave`.
            self.waiting.store(0, Ordering::Relaxed);
            open(self.closed);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    /// A free that is reported as misuse while caches are taken away ends the request, and leaves
    /// the depot as it was.
    #[test]
    fn a_panic_while_caches_are_taken_away_gives_them_back() {
        let waiters = Waiters::new(ForkMark::by_pid(), false);
        let close = |is_closed: &mut bool| {
            *is_closed = true;
            // A bringer that finds the queue taken.
            waiters.tell();
            panic!("misuse");
        };
        let open = |is_closed: &mut bool| *is_closed = false;
        let entering = AssertUnwindSafe(|| waiters.enter(0, close, open));
        assert!(catch_unwind(entering).is_err());
        assert!(!waiters.are_there());
        assert_eq!(waiters.with_closed(|is_closed| *is_closed), Some(false));
        assert_eq!(waiters.pending.load(Ordering::Relaxed), 0, "the mark was answered");
        // The next one begins as the first.
        let ticket = waiters.enter(0, |is_closed| *is_closed = true, open).unwrap();
        assert_eq!(waiters.with_closed(|is_closed| *is_closed), Some(true));
        waiters.leave(ticket, open);
        assert_eq!(waiters.with_closed(|is_closed| *is_closed), Some(false));
    }

    /// A thread that waits above its own queue would wait for itself.
    #[test]
    fn a_wait_above_its_own_queue_panics_and_leaves_the_queue_usable() {
        let waiters = Waiters::new(ForkMark::by_pid(), ());
        let handler = || waiters.enter(0, |()| (), |()| ());
        let above = AssertUnwindSafe(|| waiters.with_closed(|()| handler().is_some()));
        let panic = catch_unwind(above).unwrap_err();
        let said = panic.downcast_ref::<&str>().unwrap();
        assert!(said.contains("use Depot::page in handlers"), "{said}");
        assert!(!waiters.are_there());
        let ticket = waiters.enter(0, |()| (), |()| ()).unwrap();
        assert!(waiters.are_there());
        waiters.leave(ticket, |()| ());
        assert!(!waiters.are_there());
    }
}
