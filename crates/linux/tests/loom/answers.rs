//! Requests that ring, and a monitor that answers.

use loom::sync::Arc;

use crate::system::prim::{AtomicU32, Ordering};
use crate::waiting::answers::Answers;
use crate::{WAKES_NONE, explore};

/// A bell, and how often it was rung.
#[derive(Default)]
struct Door {
    answers: Answers,
    rings: AtomicU32,
}

impl Door {
    /// A request that rings once, and gets an answer with what that one freed.
    fn request(&self, requests: u32) {
        // As the kernel's eventfd: orders what is before it.
        let ring = || {
            self.rings.fetch_add(1, Ordering::SeqCst);
            true
        };
        let freed = self.answers.after(ring);
        assert!((1..=requests.into()).contains(&freed), "{freed}");
    }

    /// A monitor that answers while there are rings it has not seen.
    fn monitor(&self, requests: u32) {
        let (mut seen, mut answers) = (0, 0);
        while seen < requests {
            let rings = self.rings.load(Ordering::SeqCst);
            if rings == seen {
                loom::thread::yield_now();
                continue;
            }
            seen = rings;
            answers += 1;
            self.answers.give(answers);
        }
    }
}

fn requests_are_answered(requests: u32) {
    explore(move || {
        let door = Arc::new(Door::default());
        let spawn = |act: fn(&Door, u32)| {
            let door = door.clone();
            loom::thread::spawn(move || act(&door, requests))
        };
        let monitor = spawn(Door::monitor);
        let others: Vec<_> = (1..requests).map(|_| spawn(Door::request)).collect();
        door.request(requests);
        others.into_iter().chain([monitor]).for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn a_request_is_answered() {
    requests_are_answered(1);
}

#[test]
fn two_requests_are_answered() {
    requests_are_answered(2);
}

/// Checks that the model sees a monitor that wakes no request.
#[test]
#[should_panic(expected = "deadlock")]
fn an_answer_must_wake() {
    WAKES_NONE.set(true);
    requests_are_answered(1);
}
