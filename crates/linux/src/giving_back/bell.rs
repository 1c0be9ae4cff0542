//! Requests that find a monitor's ceiling reached wake the monitor, and wait for it.
//!
//! The monitor's thread then looks at the limit again, and calls the program's callbacks. Without
//! this a request would fail while the monitor, which looks but once a second, has memory to free.
//! [`Answers`] has the protocol.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use pagedepot::{Pressure, Reclaim};

use crate::giving_back::balloon::Balloon;
use crate::system::prim::{AtomicU32, Ordering, thread_id};
use crate::system::sync::ForkLock;
use crate::waiting::answers::Answers;

/// A depot's bell, which monitors answer while their ceilings are in force.
pub(crate) struct Bell {
    /// The threads that answer, and whether their ceilings are in force. Requests ring for the last
    /// one whose ceiling is.
    listeners: Mutex<Vec<(Listener, bool)>>,
    /// Number of listeners that have hung up.
    ends: AtomicU32,
    pub(crate) answers: Answers,
    /// The lock that an answer takes, to set a ceiling.
    balloon: Arc<ForkLock<Balloon>>,
}

/// A thread that answers.
#[derive(Clone)]
pub(crate) struct Listener {
    /// Makes the thread wake up.
    pub wake: Arc<OwnedFd>,
    /// Id of the thread, which does not ring.
    pub thread: u32,
}

impl Bell {
    /// A bell that no thread answers, of a depot whose ceilings have this lock.
    pub(crate) fn new(balloon: Arc<ForkLock<Balloon>>) -> Self {
        let (listeners, ends) = (Mutex::default(), AtomicU32::new(0));
        Bell { listeners, ends, answers: Answers::default(), balloon }
    }

    /// Has `listener` answer from now on, while its ceiling is in force: by `is_in_force`, unless
    /// another one hangs up meanwhile, whose ceiling has ended.
    pub(crate) fn listen(&self, listener: &Listener, is_in_force: impl FnOnce() -> bool) {
        // Acquire: pairs with the Release in `hang_up`, before which that ceiling ended.
        let ends = self.ends.load(Ordering::Acquire);
        // Not below the lock: it waits for a ceiling that is being set.
        let is_in_force = is_in_force();
        if let Ok(mut listeners) = self.listeners.lock() {
            listeners.retain(|(other, _)| !other.is(listener));
            // Relaxed: the lock orders it with the change in `hang_up`.
            let is_in_force = is_in_force || self.ends.load(Ordering::Relaxed) != ends;
            listeners.push((listener.clone(), is_in_force));
        }
    }

    /// Has `listener`, whose ceiling has ended, answer no more. Another one's ceiling may be in
    /// force then, which that one finds at its next look.
    pub(crate) fn hang_up(&self, listener: &Listener) {
        if let Ok(mut listeners) = self.listeners.lock() {
            // Release: pairs with the Acquire in `listen`.
            self.ends.fetch_add(1, Ordering::Release);
            listeners.retain(|(other, _)| !other.is(listener));
            listeners.iter_mut().for_each(|(_, is_in_force)| *is_in_force = true);
        }
    }
}

impl Listener {
    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.wake, &other.wake)
    }
}

impl Reclaim for Bell {
    /// The callback only waits, so any number of requests may run it at once.
    fn is_shared(&self) -> bool {
        true
    }

    fn reclaim(&self, pressure: Pressure) -> u64 {
        if !pressure.is_last_resort || self.answers.was_in_vain() {
            return 0;
        }
        // A request for a lower ceiling: the answer would wait for its end.
        if self.balloon.is_held_here() {
            return 0;
        }
        // Not waited for: a signal handler may have interrupted the thread that holds the lock.
        let Ok(listeners) = self.listeners.try_lock() else { return 0 };
        // The thread of a monitor may hold up its own answers, and wait for another's.
        let is_own = listeners.iter().any(|(listener, _)| listener.thread == thread_id());
        let last = listeners.iter().rev().find(|&&(_, is_in_force)| is_in_force && !is_own);
        let Some((listener, _)) = last.cloned() else { return 0 };
        drop(listeners);
        self.answers.after(|| rustix::io::write(&*listener.wake, &1u64.to_ne_bytes()).is_ok())
    }
}
