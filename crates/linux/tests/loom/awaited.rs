//! Requests that wait for pages of other processes, and the thread that looks for them: it never
//! sleeps for long while there is one.

use std::sync::Arc;

use crate::shared::awaited::WaitFlag;
use crate::system::prim::{AtomicU32, Mutant, Ordering};
use crate::{MUTANT, explore, spawn};

#[derive(Default)]
struct Process {
    awaited: WaitFlag,
    /// The word that the thread sleeps on.
    asked: AtomicU32,
    /// Requests that are in the queue.
    waiting: AtomicU32,
}

impl Process {
    fn wait_for_pages(&self) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        self.awaited.begin(&self.asked);
    }

    fn look(&self) -> bool {
        self.awaited.look(|| self.waiting.load(Ordering::Relaxed) != 0)
    }

    /// The thread's steps before it sleeps: what it has read of the word, and whether it sleeps for
    /// a moment only.
    fn step(&self) -> (u32, bool) {
        let seen = self.asked.load(Ordering::Acquire);
        (seen, self.look())
    }
}

/// Requests begin to wait while the thread takes back the flag of one that has gone.
fn requests_beside_the_thread(requests: usize) {
    explore(move || {
        let process = Arc::new(Process::default());
        process.awaited.begin(&process.asked);
        let all: Vec<_> = (0..requests).map(|_| spawn(&process, Process::wait_for_pages)).collect();
        process.step();
        let (seen, is_awaited) = process.step();
        all.into_iter().for_each(|one| one.join().unwrap());
        let sleeps = !is_awaited && process.asked.load(Ordering::Relaxed) == seen;
        assert!(!sleeps, "a request is not looked for");
    });
}

#[test]
fn a_request_that_waits_is_looked_for() {
    requests_beside_the_thread(1);
    requests_beside_the_thread(2);
}

#[test]
#[should_panic(expected = "a request is not looked for")]
fn the_thread_must_look_at_the_queue_again() {
    MUTANT.set(Some(Mutant::EndsUnseen));
    requests_beside_the_thread(1);
}

#[test]
#[should_panic(expected = "a request is not looked for")]
fn a_request_must_set_the_flag_before_it_raises_the_word() {
    MUTANT.set(Some(Mutant::RaisesUnordered));
    requests_beside_the_thread(1);
}
