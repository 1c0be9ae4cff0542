//! 1. Of several callers that make the value, one makes it; none waits.
//! 2. A reader finds no value, or all of it.
//! 3. After a maker that failed another may make it.

use std::sync::Arc;

use super::{Mutant, explore, explore_mutant};
use crate::sync::late_init::{LateInit, NotMade};

const MADE: [u64; 2] = [7, 11];

/// Two make it while a third reads.
fn made_by_one() {
    let place = Arc::new(LateInit::new());
    let maker = {
        let place = place.clone();
        loom::thread::spawn(move || place.init(|| Ok::<_, ()>(MADE)).map(drop))
    };
    let reader = {
        let place = place.clone();
        loom::thread::spawn(move || place.get().copied())
    };
    let first = place.init(|| Ok::<_, ()>(MADE)).map(drop);
    let second = maker.join().unwrap();
    match (first, second) {
        (Ok(()), Err(NotMade::Busy | NotMade::Ready))
        | (Err(NotMade::Busy | NotMade::Ready), Ok(())) => {}
        both => panic!("one of them, and not both: {both:?}"),
    }
    assert!(matches!(reader.join().unwrap(), None | Some(MADE)));
    assert_eq!(place.get(), Some(&MADE));
}

#[test]
fn one_of_two_makes_the_value() {
    explore(made_by_one);
}

#[test]
#[should_panic = "Causality violation"]
fn a_value_published_by_a_relaxed_store() {
    explore_mutant(Mutant::PublishesRelaxed, made_by_one);
}

/// One fails while the other tries once: the place is empty or has a value, and can be filled.
#[test]
fn a_maker_that_fails_leaves_the_place_to_others() {
    explore(|| {
        let place = Arc::new(LateInit::new());
        let failing = {
            let place = place.clone();
            loom::thread::spawn(move || place.init(|| Err::<[u64; 2], _>("no")).map(drop))
        };
        let made = place.init(|| Ok::<_, ()>(MADE)).is_ok();
        let failed = failing.join().unwrap();
        assert!(matches!(failed, Err(NotMade::Failed("no") | NotMade::Busy | NotMade::Ready)));
        assert_eq!(place.get().is_some(), made);
        if !made {
            place.init(|| Ok::<_, ()>(MADE)).expect("no other thread makes it");
        }
        assert_eq!(place.get(), Some(&MADE));
    });
}
