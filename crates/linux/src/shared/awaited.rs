//! The flag by which a request that waits wakes the thread of its process.
//!
//! The thread sleeps on a word, for longer while no request waits. Each time it reads the word, and
//! then [looks](WaitFlag::look) for requests. A request enters the queue, finds nothing, and
//! [begins](WaitFlag::begin): it sets the flag, and raises the word if the flag was not set. While
//! it is set, the thread looks every few milliseconds.
//!
//! # Argument
//! 1. The thread takes the flag back when the queue is empty, and looks at the queue once more.
//!    Both change the flag by a swap: either the request finds it taken back and raises the word,
//!    or the thread's swap comes after the request's and the thread finds it in the queue.
//! 2. A thread that finds the flag not set sleeps unless the word has changed since it read it. The
//!    request raises the word after it has set the flag, by a release. So a thread that has read
//!    the raised word sees the flag, and one that has not does not sleep. While a request is
//!    stopped between the two steps, others that wait find the flag set and raise nothing: they
//!    wait for the thread's next look, a second at most.
//!
//! Explored by `tests/loom/awaited.rs`.

use crate::system::prim::{AtomicU32, Mutant, Ordering, is_mutant};

/// Whether requests of this process wait, and its thread is to look for them; see the module.
#[derive(Default)]
pub struct WaitFlag(AtomicU32);

impl WaitFlag {
    /// Tells the thread of a request that is in the queue. `asked` is the word that the thread
    /// sleeps on; `true`: it was raised, and the caller wakes the thread.
    pub fn begin(&self, asked: &AtomicU32) -> bool {
        // AcqRel: pairs with `look`. Once is enough until the thread has looked.
        let is_first = self.0.swap(1, Ordering::AcqRel) == 0;
        if is_first {
            let is_early = is_mutant(Mutant::RaisesUnordered);
            // Release: pairs with the thread's Acquire of the word, for the flag.
            asked.fetch_add(1, if is_early { Ordering::Relaxed } else { Ordering::Release });
        }
        is_first
    }

    /// Whether requests wait: `are_there` looks at the queue. If there are none, the flag is taken
    /// back. The thread has read the word that it sleeps on before.
    pub fn look(&self, are_there: impl Fn() -> bool) -> bool {
        // Acquire: pairs with `begin`, for the request in the queue.
        self.0.load(Ordering::Acquire) != 0 && (are_there() || self.end(are_there))
    }

    /// Takes the flag back, unless there is a request after all: then returns `true`.
    fn end(&self, are_there: impl Fn() -> bool) -> bool {
        // AcqRel, both: pairs with `begin`.
        self.0.swap(0, Ordering::AcqRel);
        let is_one_there = !is_mutant(Mutant::EndsUnseen) && are_there();
        if is_one_there {
            self.0.swap(1, Ordering::AcqRel);
        }
        is_one_there
    }
}
