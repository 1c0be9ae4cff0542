//! Requests that find a monitor's ceiling reached wake the monitor, and wait for it.
//!
//! The monitor's thread then looks at the limit again, and calls the program's callbacks. Without
//! this a request would fail while the monitor, which looks but once a second, has memory to free.
//! [`Answers`] has the protocol.
//!
//! A request finds the monitor whose ceiling is in force, and rings for it, under the lock of the
//! ceilings. A monitor that ends takes its ceilings out under that lock, and then has the requests
//! that wait ring again. So a request rings before that, and is woken, or does not find the
//! monitor.

use std::sync::Arc;

use pagedepot::{Pressure, Reclaim};

use crate::giving_back::ceiling::{Allowance, Ceiling};
use crate::giving_back::returnable::ReturnableFrames;
use crate::memory::frames::SharedFrames;
use crate::waiting::answers::Answers;

/// A depot's bell, which monitors answer while their ceilings are in force.
pub(crate) struct Bell {
    pub answers: Answers,
    frames: SharedFrames<ReturnableFrames>,
    allowance: Option<Arc<dyn Allowance>>,
}

impl Bell {
    /// The bell of a depot with these frames, of whose store this process has an allowance if
    /// others use it.
    pub fn new(frames: &ReturnableFrames, allowance: Option<Arc<dyn Allowance>>) -> Self {
        Bell { answers: Answers::default(), frames: SharedFrames::new(frames), allowance }
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
        // SAFETY: the allocator of these frames alone calls this, so they are there, in the
        // depot's state, which stays where it is.
        let frames = unsafe { self.frames.get() };
        let ceiling = Ceiling::over(frames, self.allowance.as_deref());
        self.answers.after(|limit| ceiling.ring(&self.answers, limit))
    }
}
