//! 1. A request fails only when every frame is in callers' hands, also while memory is added: not
//!    because it searched where that was not yet, and missed what was taken instead.
//! 2. Of several callers that add the same section one succeeds at least, and none of the others
//!    has added anything: what they asked for can be asked for again.
//! 3. No search finds a frame in a section that is taken away, or finds one twice.

use super::cpus::{Rseq, run_on};
use super::depot::{Depot, Setup};
use super::{Mutant, explore, explore_mutant, spawn};
use crate::alloc::last_resort_for_block;
use crate::frame::pageblock::SECTION_FRAMES;
use crate::{Flags, FrameRange, Order, Pfn};

/// A pair of frames: an order that is not cached.
const PAIR: Order = match Order::new(1) {
    Some(order) => order,
    None => unreachable!(),
};

/// The caller adds a pair of frames and then takes the one that was there before: at every moment
/// one is free.
fn added_beside_a_search() {
    let depot = Depot::new(
        &Setup { frames: 2, limit: 2 * SECTION_FRAMES, ..Setup::default() },
        Rseq::new(2),
    );
    run_on(0);
    let adder = spawn(1, &depot, |depot| {
        depot.add(FrameRange::new(Pfn::new(SECTION_FRAMES), 2)).expect("no other thread adds");
        depot
            .alloc_block(PAIR, Flags::default())
            .expect("two pairs were free, and one was taken at most");
    });
    // One search per round, and no others before: each would have to miss.
    let got = last_resort_for_block(&depot.allocator, PAIR, Flags::default().atomic());
    depot.note_got(got.expect("a pair is free"), PAIR);
    adder.join().unwrap();
    let census = depot.finish();
    assert_eq!(census.managed_pages, 4);
}

#[test]
fn memory_added_while_a_request_is_about_to_fail() {
    explore(added_beside_a_search);
}

#[test]
#[should_panic = "a pair is free"]
fn memory_added_unannounced() {
    explore_mutant(Mutant::AddsUnannounced, added_beside_a_search);
}

/// Two add the second of two sections, one of them the first as well, while a third searches.
fn same_section_twice() {
    let limit = 3 * SECTION_FRAMES;
    let depot = Depot::new(&Setup { frames: 1, limit, ..Setup::default() }, Rseq::new(2));
    run_on(0);
    let [both, second] = [(2 * SECTION_FRAMES - 2, 4), (2 * SECTION_FRAMES + 64, 2)]
        .map(|(start, frames)| FrameRange::new(Pfn::new(start), frames));
    let results = std::sync::Arc::new(std::sync::Mutex::new([None; 2]));
    let adders = [both, second].into_iter().enumerate().map(|(i, range)| {
        let results = results.clone();
        spawn(i as u32, &depot, move |depot| {
            let result = depot.add(range).is_ok();
            results.lock().unwrap()[i] = Some(result);
        })
    });
    let adders: Vec<_> = adders.collect();
    let found = depot.alloc_block(PAIR, Flags::default().atomic());
    adders.into_iter().for_each(|adder| adder.join().unwrap());
    let added = results.lock().unwrap().map(|result| result.expect("both have ended"));
    assert!(added[0] != added[1], "one of them, and not both: {added:?}");
    if !added[0] {
        // What was there for a moment is gone.
        assert!(found.is_err() || found.is_ok_and(|pfn| pfn.get() >= 2 * SECTION_FRAMES));
        let first = FrameRange::new(both.start, 2);
        depot.add(first).expect("nothing was added");
    }
    let managed = if added[0] { 1 + 4 } else { 1 + 2 + 2 };
    assert_eq!(depot.finish().managed_pages, managed);
}

#[test]
fn two_add_the_same_section() {
    explore(same_section_twice);
}

#[test]
#[should_panic = "nothing was added"]
fn two_add_the_same_section_and_leave_others() {
    explore_mutant(Mutant::LeavesTags, same_section_twice);
}
