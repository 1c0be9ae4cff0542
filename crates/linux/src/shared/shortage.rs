//! Requests that run short, and what other processes give up for them.
//!
//! # How a process asks
//! Each slot has two numbers: of the last request that another process made of it, and of the last
//! one that it has answered. A request that would fail raises the first of each live process, and
//! waits for the second, 50 ms at most: a process that is stopped does not answer. A thread in each
//! process sleeps on the first number. It calls the action that the program has named
//! ([`on_shortage`](super::SharedDepot::on_shortage)), drains this process's caches, and answers.
//! A process that joins the slot of an ended one first answers what that one was asked.
//!
//! A signal handler may make such a request, above any code of the program. So nothing that a
//! request does for its own process allocates memory of the C library, whose locks that code may
//! hold: all of it is on the stack. `errno` is afterwards what it was.
//!
//! # Requests that wait
//! A process that frees pages tells waiting requests of its own (`waiting/waiters.rs`), and none of
//! other processes: it would have to look for them at each free. So the thread of a process whose
//! requests wait tells one of them every 10 ms, as a free would. Every 100 ms it takes back the
//! pages of processes that have ended, which the looks of a waiting request do not, and asks the
//! others for what they cache. A told request that finds a page tells the next. Without such a
//! thread the request does all of this by itself.
//!
//! The thread sleeps for longer while no request waits. A request that is in the queue and finds
//! nothing wakes it, by a flag: see [`awaited`](super::awaited).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pagedepot::{Backing, Mode, Scope, ZoneId};

use super::error::SegmentError;
use super::process::has_ended;
use super::segment::Segment;
use super::slots::{ANSWERED, ASKED, SLOTS, Stage};
use super::store::SharedStore;
use crate::depot::handle::{Depot, WeakDepot};
use crate::error::CallbackError;
use crate::system::fork_mark::ForkMark;
use crate::system::prim::{self, ForkLock, Ordering};
use crate::system::threads;

/// Longest time for which a request that runs short waits for what other processes give up.
const ANSWER_LIMIT: Duration = Duration::from_millis(50);
/// Longest time for which a request that runs short waits for another thread of this process that
/// takes back the pages of dead processes, and may be stopped, or wait for the requesting thread.
const BURIAL_LIMIT: Duration = Duration::from_millis(500);
/// Milliseconds after which a thread looks whether there is still a handle, when pages have
/// outlived the last one: a store that is dropped wakes it.
const REST_MS: u32 = if cfg!(test) { 600_000 } else { 1000 };
/// Milliseconds between two looks for pages that other processes have freed.
const LOOK_MS: u32 = 10;
/// Milliseconds between two requests for what other processes cache, at least.
const ASK_MS: u64 = 100;

/// The action of a process when another one runs short.
pub struct OnShortage(ForkLock<Option<Action>>);

type Action = Box<dyn FnMut() + Send>;

impl OnShortage {
    /// No action.
    pub fn new() -> Self {
        OnShortage(ForkLock::new(ForkMark::of_process(), None))
    }

    /// Puts an action in the place of the one before.
    pub fn set(&self, action: impl FnMut() + Send + 'static) -> Result<(), CallbackError> {
        let before = self.0.lock()?.replace(Box::new(action));
        // Dropped when the lock is free: it may own pages.
        drop(before);
        Ok(())
    }

    fn act(&self) {
        let Ok(mut action) = self.0.lock() else { return };
        if let Some(action) = &mut *action {
            guarded(action);
        }
    }
}

/// Calls code of the program, whose panic the program is told by its panic hook: other processes
/// still get what this one caches, and its requests are still looked for.
fn guarded(act: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(act));
}

/// The C library's `errno` of this thread, which is written back when this is dropped.
struct ErrnoGuard(libc::c_int);

impl ErrnoGuard {
    fn new() -> Self {
        // SAFETY: points to a variable of this thread.
        ErrnoGuard(unsafe { *libc::__errno_location() })
    }
}

impl Drop for ErrnoGuard {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { *libc::__errno_location() = self.0 };
    }
}

impl SharedStore {
    /// Makes room for a request that runs short. Returns the pages that have become free, at least.
    pub fn when_short(&self) -> u64 {
        let _errno = ErrnoGuard::new();
        // Nothing that others give up can be had beyond the ceiling.
        if self.reserve(1, 0).blocks == 0 {
            return 0;
        }
        let found = self.find_unseen(BURIAL_LIMIT);
        if found > 0 {
            return found;
        }
        let free_pages = || self.free_pages(ZoneId::new(0));
        let before = free_pages();
        self.ask(ANSWER_LIMIT);
        free_pages().saturating_sub(before)
    }

    /// Makes pages free that processes held when they ended, or have freed and not yet shown.
    /// Returns how many, at least.
    fn find_unseen(&self, limit: Duration) -> u64 {
        // Whoever hid a page may be stopped.
        let (shown, before) = (self.segment().owners().show_free(), self.recovered());
        self.recover_within(limit);
        // What another thread freed while this one waited serves this request as well.
        shown + self.recovered() - before
    }

    /// Asks other processes for what they cache. Returns how many were asked, and how many have
    /// answered.
    pub fn ask(&self, limit: Duration) -> (u32, u32) {
        let (segment, slots) = (self.segment(), self.segment().slots());
        let (mut requests, mut asked) = ([(0, 0); SLOTS], 0);
        for slot in slots.at(Stage::Live).filter(|&slot| slot != self.slot()) {
            let futex = segment.futex(slot, ASKED);
            // Release: what this process has freed comes before; pairs with `answer`.
            requests[asked] = (slot, futex.fetch_add(1, Ordering::Release).wrapping_add(1));
            asked += 1;
            prim::wake_all_shared(futex);
        }
        let requests = &requests[..asked];
        // `None`: a time that the clock does not come to.
        let until = Instant::now().checked_add(limit);
        let left = || until.map_or(limit, |end| end.saturating_duration_since(Instant::now()));
        let has_answered = |&&(slot, request): &&(usize, u32)| loop {
            let futex = segment.futex(slot, ANSWERED);
            // Acquire: pairs with the Release of `answer`, for the pages that it has freed.
            let answered = futex.load(Ordering::Acquire);
            if answered.wrapping_sub(request) as i32 >= 0 {
                break true;
            }
            let left_ms = left().as_millis().min(10) as u32;
            if left_ms == 0 {
                break false;
            }
            prim::wait_shared(futex, answered, left_ms);
            // Acquire: as above. A process that has ended does not answer.
            let is_same = futex.load(Ordering::Acquire) == answered;
            if is_same && has_ended(slots.identity(slot), segment.locks(), slot) {
                break false;
            }
        };
        (requests.len() as u32, requests.iter().filter(has_answered).count() as u32)
    }
}

impl SharedStore {
    /// Tells a request of this process that waits. `false`: none does.
    fn look_for_waiters(&self, depot: &Depot) -> bool {
        let waiters = depot.shared().waiters();
        if !self.awaited.look(|| waiters.are_there()) {
            return false;
        }
        self.ask_now_and_then();
        waiters.tell();
        true
    }

    /// Looks for the pages of processes that have ended, and asks the others for what they cache,
    /// unless that was a moment ago: a tenth of the time at most, in a large segment too.
    pub fn ask_now_and_then(&self) {
        let (began, next) = (prim::now_ms(), &self.asks_from_ms);
        // Relaxed, also below: of two threads at once both may ask.
        if began >= next.load(Ordering::Relaxed) {
            next.store(began + ASK_MS, Ordering::Relaxed);
            let _errno = ErrnoGuard::new();
            self.find_unseen(Duration::ZERO);
            self.ask(Duration::ZERO);
            let took = prim::now_ms() - began;
            next.store(began + (10 * took).max(ASK_MS), Ordering::Relaxed);
        }
    }
}

/// Begins a thread that gives up what this process can do without when another asks. It ends when
/// the store is dropped, or within a second after the last handle.
pub fn answer(
    segment: Arc<Segment>,
    store: &Arc<SharedStore>,
    depot: WeakDepot,
    on_shortage: Arc<OnShortage>,
) -> Result<(), SegmentError> {
    let (slot, store) = (store.slot(), Arc::downgrade(store));
    let serve = move || {
        let (asked, answered) = (segment.futex(slot, ASKED), segment.futex(slot, ANSWERED));
        // Relaxed: this process's own. What was asked since it joined is answered at once.
        let mut seen = answered.load(Ordering::Relaxed);
        let mut is_awaited = false;
        loop {
            prim::wait_shared(asked, seen, if is_awaited { LOOK_MS } else { REST_MS });
            // While there is a handle, the slot is this process's.
            let (Some(depot), Some(store)) = (depot.upgrade(), store.upgrade()) else { return };
            // Acquire: pairs with the Release of `ask`, and of `WaitFlag::begin` for the flag.
            let now = asked.load(Ordering::Acquire);
            if now != seen {
                // A trim has pages of others in its hands.
                depot.shared().trimming().wait_for_pages();
                on_shortage.act();
                guarded(|| _ = depot.drain(Scope::ALL, Mode::Full));
                seen = now;
                // Release: what the drain has freed comes before.
                answered.store(now, Ordering::Release);
                prim::wake_all_shared(answered);
            }
            // If a waker panics, there are requests that wait, and that one was told.
            is_awaited = true;
            guarded(|| is_awaited = store.look_for_waiters(&depot));
        }
    };
    let thread = threads::spawn("pagedepot-shared", serve);
    let refused = |error: std::io::Error| rustix::io::Errno::from_io_error(&error);
    let errno = |error| refused(error).unwrap_or(rustix::io::Errno::AGAIN);
    thread.map(drop).map_err(errno).map_err(SegmentError::system("starting a thread"))
}
