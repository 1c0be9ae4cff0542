//! Pageblocks that are free as one, beside all that takes and makes them.
//!
//! 1. Nothing of them is handed out twice, whether they are taken as one, in a pair or by parts. It
//!    is if they are taken by a look and a store.
//! 2. No mark stays clear against one, alone or in a pair with a neighbour that becomes whole in
//!    its words at the same time. It does if the caller that puts one leaves the mark to others, or
//!    without the fences.
//! 3. No request fails while another breaks one up, where enough is free.

use std::sync::Arc;

use super::cpus::{Rseq, run_on};
use super::depot::{Depot, Setup};
use super::store::{check, check_of, marked, put_pageblock, section, spawn};
use super::{Mutant, explore, explore_large, explore_mutant};
use crate::frame::pageblock::PAGEBLOCK_FRAMES;
use crate::store::hints::Sort;
use crate::store::section::Section;
use crate::{Flags, Order};

const BOTH: u32 = 2 * PAGEBLOCK_FRAMES;

/// A section of two entire pageblocks.
fn pair() -> Arc<Section<'static>> {
    let section = section();
    assert!(section.claim(0, PAGEBLOCK_FRAMES));
    assert_eq!(section.put(0, BOTH), 0);
    assert!(section.is_entire(0) && section.is_entire(1));
    section
}

/// Claims a run; returns how many frames it got.
fn claim(section: &Section<'_>, start: u32, frames: u32) -> u32 {
    if section.claim(start, frames) { frames } else { 0 }
}

fn two_claims(mine: (u32, u32), theirs: (u32, u32)) {
    let section = pair();
    let other = spawn(&section, move |section| claim(section, theirs.0, theirs.1));
    let mine = claim(&section, mine.0, mine.1);
    let theirs = other.join().unwrap();
    assert!(mine + theirs > 0, "both failed");
    check_of(&section, BOTH, mine + theirs);
}

#[test]
fn two_claims_of_one() {
    explore(|| two_claims((0, PAGEBLOCK_FRAMES), (0, PAGEBLOCK_FRAMES)));
}

#[test]
#[should_panic = "frames were lost, or given twice"]
fn two_claims_of_one_in_two_steps() {
    explore_mutant(Mutant::TakesTwice, || {
        two_claims((0, PAGEBLOCK_FRAMES), (0, PAGEBLOCK_FRAMES));
    });
}

#[test]
fn a_claim_of_a_pair_beside_one_of_a_half() {
    explore(|| two_claims((0, BOTH), (PAGEBLOCK_FRAMES, PAGEBLOCK_FRAMES)));
}

#[test]
fn a_claim_of_all_beside_one_of_a_frame() {
    explore(|| two_claims((0, PAGEBLOCK_FRAMES), (1, 1)));
}

#[test]
fn two_claims_of_frames() {
    explore(|| two_claims((0, 1), (PAGEBLOCK_FRAMES - 1, 1)));
}

/// One takes the pageblock and gives it back, another claims a frame of it.
#[test]
fn a_claim_of_a_frame_beside_a_pageblock_that_comes_back() {
    explore(|| {
        let section = pair();
        let other = spawn(&section, |section| {
            if section.claim(0, PAGEBLOCK_FRAMES) {
                assert_eq!(section.put(0, PAGEBLOCK_FRAMES), 0);
            }
            0
        });
        let mine = claim(&section, 0, 1);
        other.join().unwrap();
        check_of(&section, BOTH, mine);
    });
}

fn put_entire(section: &Section<'_>) {
    assert_eq!(section.put(0, PAGEBLOCK_FRAMES), 0);
}

fn put_entire_neighbour(section: &Section<'_>) {
    assert_eq!(section.put(PAGEBLOCK_FRAMES, PAGEBLOCK_FRAMES), 0);
}

#[test]
fn mark_of_an_entire_pageblock() {
    explore(|| marked(Sort::Warm, &[put_entire]));
}

#[test]
#[should_panic = "no mark leads"]
fn mark_of_an_entire_pageblock_left_to_others() {
    explore_mutant(Mutant::EntireUnmarked, || marked(Sort::Warm, &[put_entire]));
}

#[test]
#[should_panic = "no mark leads"]
fn mark_of_an_entire_pageblock_cleared_unseen() {
    explore_mutant(Mutant::ClearsUnseen, || marked(Sort::Warm, &[put_entire]));
}

#[test]
fn mark_of_an_entire_pair() {
    explore(|| marked(Sort::WarmPair, &[put_entire, put_entire_neighbour]));
}

#[test]
fn mark_of_a_pair_of_which_one_is_entire() {
    explore(|| marked(Sort::WarmPair, &[put_pageblock, put_entire_neighbour]));
}

#[test]
#[should_panic = "no mark leads"]
fn mark_of_a_pair_of_which_one_is_entire_without_the_fences() {
    explore_mutant(Mutant::UnorderedHints, || {
        marked(Sort::WarmPair, &[put_pageblock, put_entire_neighbour]);
    });
}

/// A pageblock comes back, one frame of which is free already, while another claims that frame.
#[test]
fn a_frame_freed_twice_is_free_once() {
    explore(|| {
        let section = section();
        assert!(section.claim(0, PAGEBLOCK_FRAMES));
        assert_eq!(section.put(5, 1), 0);
        let other = spawn(&section, |section| section.put(0, PAGEBLOCK_FRAMES));
        let taken = claim(&section, 5, 1);
        let doubled = other.join().unwrap();
        // Whichever came first: the frame was taken before the rest came, or found there.
        assert!(doubled <= 1);
        check(&section, taken.min(doubled));
    });
}

/// A zone of one pageblock, which is entire.
fn depot() -> Arc<Depot<Rseq>> {
    let depot = Depot::new(&Setup { frames: PAGEBLOCK_FRAMES, ..Setup::default() }, Rseq::new(2));
    run_on(0);
    let block = depot.alloc_block(Order::PAGEBLOCK, Flags::default().atomic()).unwrap();
    depot.free_block(block, Order::PAGEBLOCK);
    depot
}

/// An order that is not cached.
const SMALL: Order = match Order::new(1) {
    Some(order) => order,
    None => unreachable!(),
};

fn two_requests() {
    let depot = depot();
    let request = |depot: &Depot<Rseq>| {
        depot.alloc_block(SMALL, Flags::default().atomic()).expect("frames are free");
    };
    let other = super::spawn(1, &depot, move |depot| request(depot));
    request(&depot);
    other.join().unwrap();
    depot.finish();
}

#[test]
fn two_requests_that_need_a_part() {
    explore_large(two_requests);
}

#[test]
#[should_panic = "frames are free"]
fn two_requests_of_which_one_breaks_it_up_unannounced() {
    explore_mutant(Mutant::Unannounced, two_requests);
}

/// A pageblock is freed and allocated while another request needs a part of it: that one may fail
/// only while all is held.
#[test]
fn a_request_beside_a_pageblock() {
    explore_large(|| {
        let depot = depot();
        let other = super::spawn(1, &depot, |depot| {
            let whole = depot.alloc_block(Order::PAGEBLOCK, Flags::default().atomic());
            let part = depot.alloc_block(SMALL, Flags::default().atomic());
            assert!(whole.is_ok() || part.is_ok(), "one of the two can be had");
            whole.map(|pfn| depot.free_block(pfn, Order::PAGEBLOCK)).ok();
        });
        let part = depot.alloc_block(SMALL, Flags::default().atomic());
        other.join().unwrap();
        part.map(|pfn| depot.free_block(pfn, SMALL)).ok();
        depot.finish();
    });
}
