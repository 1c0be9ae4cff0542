//! Pages in flight, and the note of the caller that moves them.
//!
//! 1. No note of pages in flight outlives its move, whatever other callers move.
//! 2. A caller never takes more pages for its own than it has in flight.
//! 3. A caller that moves alone takes all for its own.
//!
//! Not in loom: it lets a thread read a store that is older than the one that it has read before.

use std::num::NonZeroUsize;
use std::sync::Arc;

use super::{Mutant, explore, explore_mutant, is_mutant};
use crate::sync::{Caller, InFlight};

/// Moves beside each other, in one run.
const ROUNDS: u32 = 20;

fn caller(name: usize) -> Caller {
    Caller::of(NonZeroUsize::new(name))
}

/// A move, with what a handler does above it, which moves pages, too.
fn move_pages(in_flight: &InFlight, name: usize, pages: u64) {
    let check = |own: u64| {
        let word = in_flight.read();
        let others = in_flight.others_pages(word, caller(name));
        let taken = InFlight::in_flight_pages(word) - others;
        assert!(taken <= own || is_mutant(Mutant::NotesBeside), "{taken} pages, of {own}");
    };
    let _moving = in_flight.begin(pages, caller(name));
    check(pages);
    let above = in_flight.begin(1, caller(name));
    check(pages + 1);
    drop(above);
    check(pages);
}

fn callers_move() {
    for _ in 0..ROUNDS {
        let in_flight = Arc::new(InFlight::default());
        let others = [(2, 20), (3, 30)].map(|(name, pages)| {
            let in_flight = in_flight.clone();
            shuttle::thread::spawn(move || move_pages(&in_flight, name, pages))
        });
        move_pages(&in_flight, 1, 10);
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!(InFlight::in_flight_pages(in_flight.read()), 0);
        assert!(!in_flight.is_noted(), "a note was left");
    }
}

#[test]
fn no_note_outlives_its_move() {
    explore("in_flight::no_note_outlives_its_move", callers_move);
}

#[test]
#[should_panic = "a note was left"]
fn a_note_beside_another() {
    explore_mutant("in_flight::a_note_beside_another", Mutant::NotesBeside, callers_move);
}
