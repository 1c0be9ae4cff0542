//! Pageblocks that begin and end to evacuate beside everything that reads or changes their tags.
//!
//! 1. After all threads have ended, the copy of tags that searches read is right, and the count of
//!    evacuating pageblocks is too (`Depot::finish` validates both). A thread that changes a tag
//!    and copies it only once breaks that.
//! 2. No frame is lost or handed out twice, whichever of two fronts a free finds.
//! 3. No request fails while frames are free in pageblocks that evacuate, or in a front for
//!    evacuated frames of its own CPU.
//! 4. A pageblock that becomes whole can be had in one piece, also when it is marked late.
//! 5. All of that holds when it is a CPU's hand that marks or settles, by counters that others
//!    change meanwhile.
//!
//! The main thread marks: it runs first, and loom compares what others load with its changes.

use std::sync::Arc;

use super::cpus::{Rseq, run_on};
use super::depot::{Depot, Setup};
use super::{Mutant, explore, explore_large, explore_mutant, explore_mutant_within, spawn};
use crate::frame::pageblock::{PAGEBLOCK_FRAMES, PageblockIndex};
use crate::seam::ZoneAccess;
use crate::{Evacuation, Flags, FrameRange, Mobility, Mode, Order, Pfn, Scope, ZoneId};

const ZONE: ZoneId = ZoneId::new(0);
/// The pageblock that evacuates.
const FIRST: PageblockIndex = PageblockIndex(0);
/// An order that is not cached.
const PAIR: Order = match Order::new(1) {
    Some(order) => order,
    None => unreachable!(),
};

/// A zone of so many pageblocks, all frames of the first held but for `free` at its end.
fn depot(pageblocks: u32, free: u32) -> Arc<Depot<Rseq>> {
    let setup = Setup {
        frames: pageblocks * PAGEBLOCK_FRAMES,
        evacuation: Evacuation::Goal { percent: 100 },
        ..Setup::default()
    };
    let depot = Depot::new(&setup, Rseq::new(2));
    run_on(0);
    if free < PAGEBLOCK_FRAMES {
        let held = FrameRange::new(Pfn::new(0), PAGEBLOCK_FRAMES - free);
        depot.allocator.alloc_at(held.start, held.frames, Flags::default()).unwrap();
        depot.note_frames(held, true);
    }
    depot
}

fn mark(depot: &Depot<Rseq>) {
    let bitmap = depot.allocator.caches.store.bitmap().unwrap();
    bitmap.avoid(bitmap.section(0).unwrap(), FIRST, ZONE);
}

fn settle(depot: &Depot<Rseq>) {
    let bitmap = depot.allocator.caches.store.bitmap().unwrap();
    bitmap.settle(bitmap.section(0).unwrap(), FIRST);
}

fn evacuates(depot: &Depot<Rseq>) -> bool {
    depot.allocator.caches.store.bitmap().unwrap().tags.with_carved(FIRST).is_avoided()
}

fn must_alloc(depot: &Depot<Rseq>) -> Pfn {
    depot.alloc_block(Order::BASE, Flags::default().atomic()).expect("frames are free")
}

fn marked_and_settled() {
    let depot = depot(1, 2);
    let other = spawn(1, &depot, settle);
    mark(&depot);
    other.join().unwrap();
    depot.finish();
}

#[test]
fn a_mark_beside_a_settler() {
    explore(marked_and_settled);
}

#[test]
#[should_panic = "Avoided"]
fn a_mark_that_is_copied_once() {
    explore_mutant(Mutant::CopiesOnce, marked_and_settled);
}

/// One marks and settles while the other marks.
#[test]
fn two_mark() {
    explore(|| {
        let depot = depot(1, 2);
        let other = spawn(1, &depot, mark);
        mark(&depot);
        settle(&depot);
        other.join().unwrap();
        depot.finish();
    });
}

/// A frame is freed to either front.
#[test]
fn a_free_beside_a_mark() {
    explore(|| {
        let depot = depot(1, 2);
        let held = must_alloc(&depot);
        let owner = spawn(0, &depot, move |depot| depot.free(held));
        mark(&depot);
        owner.join().unwrap();
        assert!(evacuates(&depot));
        depot.finish();
    });
}

/// Runs as many requests as frames are free, while the pageblock begins to evacuate.
#[test]
fn a_refill_beside_a_mark() {
    explore(|| {
        let depot = depot(1, 2);
        let owner = spawn(0, &depot, |depot| {
            must_alloc(depot);
            must_alloc(depot);
        });
        mark(&depot);
        owner.join().unwrap();
        depot.finish();
    });
}

/// Checks that a CPU can allocate again what it has freed of an evacuating pageblock, whichever
/// front has it.
#[test]
fn a_request_beside_evacuated_frames() {
    explore(|| {
        let depot = depot(1, 1);
        let held = must_alloc(&depot);
        let owner = spawn(0, &depot, move |depot| {
            depot.free(held);
            must_alloc(depot);
        });
        mark(&depot);
        owner.join().unwrap();
        depot.finish();
    });
}

/// The last pair of a pageblock comes back while it is marked.
#[test]
fn a_mark_beside_the_free_that_makes_it_whole() {
    explore(|| {
        let depot = depot(1, PAGEBLOCK_FRAMES);
        let held = depot.alloc_block(PAIR, Flags::default()).unwrap();
        mark(&depot);
        let owner = spawn(0, &depot, move |depot| depot.free_block(held, PAIR));
        settle(&depot);
        mark(&depot);
        owner.join().unwrap();
        depot.alloc_block(Order::PAGEBLOCK, Flags::default()).expect("it is whole");
        assert!(!evacuates(&depot), "it was taken as a whole one");
        depot.finish();
    });
}

/// A full drain takes evacuated frames while their owner spills them. Then all are in the store,
/// the pageblock is whole, and has ended to evacuate.
#[test]
fn a_drain_beside_a_spill_that_makes_it_whole() {
    explore_large(|| {
        let depot = depot(1, PAGEBLOCK_FRAMES);
        let held = [must_alloc(&depot), must_alloc(&depot), must_alloc(&depot)];
        depot.allocator.drain(Scope::ALL, Mode::Full);
        mark(&depot);
        let other = spawn(1, &depot, |depot| {
            depot.allocator.drain(Scope::ALL, Mode::Full);
        });
        held.into_iter().for_each(|pfn| depot.free(pfn));
        other.join().unwrap();
        depot.allocator.drain(Scope::ALL, Mode::Full);
        assert!(!evacuates(&depot));
        let census = depot.finish();
        assert_eq!((census.free_pages, census.cached_pages), (census.managed_pages, 0));
    });
}

/// The owner of all frames gives them another mobility while others mark the pageblock.
#[test]
fn a_mark_beside_a_change_of_mobility() {
    explore(|| {
        let depot = depot(1, PAGEBLOCK_FRAMES);
        let owner = spawn(0, &depot, |depot| {
            let unmovable = Flags::new(Mobility::Unmovable);
            let pfn = depot.alloc_block(PAIR, unmovable).expect("all is free");
            let tag = depot.allocator.caches.store.bitmap().unwrap().tags.of(FIRST);
            assert_eq!(tag.kind().mobility(), Mobility::Unmovable);
            depot.free_block(pfn, PAIR);
        });
        mark(&depot);
        owner.join().unwrap();
        depot.finish();
    });
}

/// Removes a pageblock if all of it is free.
fn remove(depot: &Depot<Rseq>, range: FrameRange) -> Result<(), &'static str> {
    depot.remove_by(range, |allocator| {
        let zone = ZoneAccess::of(allocator, ZONE).expect("the only zone");
        let _moving = zone.announce(range.frames.into());
        let isolation = zone.isolate(range).expect("no other thread isolates");
        zone.claim(range).then(|| zone.remove(isolation)).ok_or("a frame is missing")
    })
}

/// Memory is removed while its pageblock begins and ends to evacuate.
#[test]
fn a_removal_beside_a_mark() {
    explore(|| {
        let depot = depot(2, PAGEBLOCK_FRAMES);
        let first = FrameRange::new(FIRST.first(), PAGEBLOCK_FRAMES);
        let other = spawn(1, &depot, |depot| {
            mark(depot);
            settle(depot);
        });
        mark(&depot);
        remove(&depot, first).expect("all is free");
        other.join().unwrap();
        assert_eq!(depot.finish().managed_pages, u64::from(PAGEBLOCK_FRAMES));
    });
}

/// A removal that fails leaves a pageblock that can be marked again.
#[test]
fn a_removal_that_fails_beside_a_mark() {
    explore(|| {
        let depot = depot(1, 2);
        let first = FrameRange::new(FIRST.first(), PAGEBLOCK_FRAMES);
        mark(&depot);
        let other = spawn(1, &depot, mark);
        remove(&depot, first).expect_err("frames are held");
        other.join().unwrap();
        mark(&depot);
        assert!(evacuates(&depot));
        depot.finish();
    });
}

/// A zone of two pageblocks of which half is free, and a hand on CPU 0 whose next step marks.
fn depot_to_mark() -> Arc<Depot<Rseq>> {
    let depot = depot(2, PAGEBLOCK_FRAMES);
    for first in [0, PAGEBLOCK_FRAMES] {
        let held = FrameRange::new(Pfn::new(first), PAGEBLOCK_FRAMES / 2);
        depot.allocator.alloc_at(held.start, held.frames, Flags::default()).unwrap();
        depot.note_frames(held, true);
    }
    (0..STEPS_BEFORE).for_each(|_| depot.allocator.step_hand(ZONE));
    assert_eq!(evacuating(&depot), 0);
    depot
}

/// Steps of a hand before the first that marks: each is a turn, and the first counts.
const STEPS_BEFORE: u32 = 1;

/// Pageblocks that evacuate.
fn evacuating(depot: &Depot<Rseq>) -> u32 {
    depot.allocator.caches.store.bitmap().unwrap().tags.avoided(ZONE)
}

fn step_hand(depot: &Depot<Rseq>) {
    depot.allocator.step_hand(ZONE);
}

/// Two hands may mark more than there is room for; no request fails for it.
#[test]
fn two_hands() {
    explore_large(|| {
        let depot = depot_to_mark();
        let other = spawn(1, &depot, step_hand);
        step_hand(&depot);
        other.join().unwrap();
        assert!((1..=2).contains(&evacuating(&depot)));
        must_alloc(&depot);
        depot.finish();
    });
}

/// A request takes a frame while the hand of another CPU marks.
#[test]
fn a_hand_beside_a_request() {
    explore_large(|| {
        let depot = depot_to_mark();
        let owner = spawn(1, &depot, |depot| {
            let pfn = must_alloc(depot);
            depot.free(pfn);
        });
        step_hand(&depot);
        owner.join().unwrap();
        depot.finish();
    });
}

/// One hand marks while the policy is switched off and another settles: the next turn settles all.
fn hands_beside_a_switch() {
    let depot = depot_to_mark();
    let other = spawn(1, &depot, |depot| {
        assert!(depot.allocator.settings(ZONE).unwrap().set_evacuation(Evacuation::Off));
        step_hand(depot);
    });
    step_hand(&depot);
    other.join().unwrap();
    step_hand(&depot);
    assert_eq!(evacuating(&depot), 0);
    depot.finish();
}

#[test]
fn hands_beside_a_switch_off() {
    explore_large(hands_beside_a_switch);
}

#[test]
#[should_panic = "Avoided"]
fn a_hand_that_copies_a_tag_once() {
    explore_mutant_within(1, Mutant::CopiesOnce, hands_beside_a_switch);
}
