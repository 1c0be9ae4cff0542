//! Requests that find a monitor's ceiling reached wake the monitor, and wait for it.
//!
//! The monitor's thread then looks at the limit again, and calls the program's callbacks. Without
//! this a request would fail while the monitor, which looks but once a second, has memory to free.
//! [`Answers`] has the protocol.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use pagedepot::{Pressure, Reclaim};

use crate::system::prim::thread_id;
use crate::waiting::answers::Answers;

/// A depot's bell, which a monitor answers while its ceiling is in force.
#[derive(Default)]
pub(crate) struct Bell {
    listener: Mutex<Option<Listener>>,
    pub(crate) answers: Answers,
}

/// The thread that answers.
#[derive(Clone)]
pub(crate) struct Listener {
    /// Makes the thread wake up.
    pub wake: Arc<OwnedFd>,
    /// Id of the thread, which does not ring itself.
    pub thread: u32,
}

impl Bell {
    /// Has `listener` answer from now on; `None`: requests no longer ring.
    pub(crate) fn listen(&self, listener: Option<Listener>) {
        if let Ok(mut now) = self.listener.lock() {
            *now = listener;
        }
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
        // Not waited for: a signal handler may have interrupted the thread that holds the lock.
        let listener = self.listener.try_lock().ok().and_then(|listener| listener.clone());
        let Some(listener) = listener.filter(|listener| listener.thread != thread_id()) else {
            return 0;
        };
        self.answers.after(|| rustix::io::write(&*listener.wake, &1u64.to_ne_bytes()).is_ok())
    }
}
