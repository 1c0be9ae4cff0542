//! Requests that ring, a monitor that answers, and another one that ends.

use loom::sync::Arc;

use crate::system::prim::{AtomicU32, Ordering};
use crate::waiting::answers::{Answers, Ring};
use crate::{WAKES_NONE, explore_within};

/// A bell, how often it was rung, and how many requests have left.
#[derive(Default)]
struct Door {
    answers: Answers,
    rings: AtomicU32,
    left: AtomicU32,
}

impl Door {
    /// A request that rings, again after an end, and gets an answer with what that one freed.
    fn request(&self) {
        // As the kernel's eventfd: orders what is before it.
        let ring = |_| {
            self.rings.fetch_add(1, Ordering::SeqCst);
            Ring::Rung
        };
        let freed = self.answers.after(ring);
        let rings = self.rings.load(Ordering::SeqCst);
        assert!((1..=rings.into()).contains(&freed), "{freed}");
        self.left.fetch_add(1, Ordering::SeqCst);
    }

    /// A monitor that answers the rings it has not seen, until there were so many or so many
    /// requests have left.
    fn monitor(&self, rings_max: u32, requests: u32) {
        let (mut seen, mut answers) = (0, 0);
        while seen < rings_max && self.left.load(Ordering::SeqCst) < requests {
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

/// Explores requests that a monitor answers, while so many others end.
fn requests_are_answered(requests: u32, ends: u32) {
    let preemptions = if ends > 0 { 2 } else { 3 };
    explore_within(preemptions, move || {
        let door = Arc::new(Door::default());
        let spawn = |act: fn(&Door)| {
            let door = door.clone();
            loom::thread::spawn(move || act(&door))
        };
        let monitor = {
            let door = door.clone();
            // An end may be seen twice: with the number of an answer, and with its own.
            let rings_max = requests * (1 + 2 * ends);
            loom::thread::spawn(move || door.monitor(rings_max, requests))
        };
        let ends = (0..ends).map(|_| spawn(|door| door.answers.end()));
        let others = (1..requests).map(|_| spawn(Door::request));
        let threads: Vec<_> = ends.chain(others).chain([monitor]).collect();
        door.request();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn a_request_is_answered() {
    requests_are_answered(1, 0);
}

#[test]
fn two_requests_are_answered() {
    requests_are_answered(2, 0);
}

/// The end of another monitor is no answer.
#[test]
fn a_request_is_answered_beside_an_end() {
    requests_are_answered(1, 1);
}

/// Checks that the model sees a monitor that wakes no request.
#[test]
#[should_panic(expected = "deadlock")]
fn an_answer_must_wake() {
    WAKES_NONE.set(true);
    requests_are_answered(1, 0);
}
