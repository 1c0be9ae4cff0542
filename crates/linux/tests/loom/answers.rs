//! Requests that ring, a monitor that answers, and another one that ends.

use std::sync::Arc;

use crate::system::prim::{AtomicU32, Mutant, Ordering};
use crate::waiting::answers::{Answers, Ring};
use crate::{MUTANT, WAKES_NONE, explore_within, spawn};

/// The id of the monitor's thread.
const MONITOR: u32 = 1;

/// A depot's bell, and how often requests of the depot began to ring it.
#[derive(Default)]
struct Door {
    answers: Answers,
    rings: AtomicU32,
}

/// The depots of a monitor, the event that wakes it, and how many requests have left.
struct House {
    doors: Vec<Door>,
    event: AtomicU32,
    left: AtomicU32,
}

impl House {
    /// A request that rings, again after an end, and gets an answer that began after its ring, or
    /// after an earlier one at its door.
    fn request(&self, number: usize) {
        let Door { answers, rings } = &self.doors[number % self.doors.len()];
        let ring = |_| {
            rings.fetch_add(1, Ordering::SeqCst);
            answers.note_ring(MONITOR);
            // As the kernel's eventfd: orders what is before it.
            self.event.fetch_add(1, Ordering::SeqCst);
            Ring::Rung
        };
        let freed = answers.after(ring);
        let rings = rings.load(Ordering::SeqCst);
        assert!((1..=rings.into()).contains(&freed), "no answer to a ring: {freed} pages");
        self.left.fetch_add(1, Ordering::SeqCst);
    }

    /// A monitor that answers the rings it has not seen, until there were so many or so many
    /// requests have left. At each door it frees as many pages as there were rings.
    fn monitor(&self, rings_max: u32, requests: u32) {
        let mut seen = 0;
        while seen < rings_max && self.left.load(Ordering::SeqCst) < requests {
            let event = self.event.load(Ordering::SeqCst);
            if event == seen {
                loom::thread::yield_now();
                continue;
            }
            seen = event;
            let begin = |Door { answers, rings }: &Door| {
                let is_rung = answers.take_ring(MONITOR);
                is_rung.then(|| rings.load(Ordering::SeqCst))
            };
            let freed: Vec<_> = self.doors.iter().map(begin).collect();
            for (door, freed) in self.doors.iter().zip(freed) {
                freed.into_iter().for_each(|pages| door.answers.give(pages.into()));
            }
        }
    }
}

/// Explores requests that a monitor answers, by turns at so many doors, while so many other
/// monitors end.
fn requests_are_answered(requests: u32, doors: u32, ends: u32) {
    let preemptions = if ends > 0 { 2 } else { 3 };
    explore_within(preemptions, move || {
        let doors = (0..doors).map(|_| Door::default()).collect();
        let [event, left] = [0; 2].map(AtomicU32::new);
        let house = Arc::new(House { doors, event, left });
        // An end may be seen twice: with the number of an answer, and with its own.
        let rings_max = requests * (1 + 2 * ends);
        let monitor = spawn(&house, move |house| house.monitor(rings_max, requests));
        let ends = (0..ends).map(|_| spawn(&house, |house| house.doors[0].answers.end()));
        let others =
            (1..requests).map(|number| spawn(&house, move |house| house.request(number as usize)));
        let threads: Vec<_> = ends.chain(others).chain([monitor]).collect();
        house.request(0);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn a_request_is_answered() {
    requests_are_answered(1, 1, 0);
}

#[test]
fn two_requests_are_answered() {
    requests_are_answered(2, 1, 0);
}

/// The answer to a request of one depot is none for a request of another depot.
#[test]
fn requests_of_two_depots_are_answered() {
    requests_are_answered(2, 2, 0);
}

/// The end of another monitor is no answer.
#[test]
fn a_request_is_answered_beside_an_end() {
    requests_are_answered(1, 1, 1);
}

/// Checks that the model sees a monitor that wakes no request.
#[test]
#[should_panic(expected = "deadlock")]
fn an_answer_must_wake() {
    WAKES_NONE.set(true);
    requests_are_answered(1, 1, 0);
}

/// Checks that the model sees an answer at a depot that was not rung at.
#[test]
#[should_panic(expected = "no answer to a ring")]
fn an_answer_must_be_to_a_ring() {
    MUTANT.set(Some(Mutant::AnswersUnrung));
    requests_are_answered(2, 2, 0);
}
