//! 1. A request fails only when every frame is in callers' hands: not while one is in a front, on a
//!    shelf, on its way between them and the store, or in a drainer's hands.
//! 2. The same of a request for contiguous frames, and of one that loses frames to a claim that is
//!    rolled back.
//! 3. What a watermark keeps is there for a request that may not wait.
//!
//! Blocks of one word go between a caller and the store by one atomic operation. That they are
//! never in flight is modelled beside what has to be: a search that takes more than it gives, a
//! count on its way from a CPU to the zone. A mutant of each shows that the model would find it
//! missing.

use std::sync::Arc;

use super::cpus::{Rseq, run_on};
use super::depot::{Depot, Setup};
use super::{Mutant, explore, explore_large, explore_mutant, is_mutant, spawn};
use crate::alloc::last_resort_for_block;
use crate::frame::pageblock::SECTION_FRAMES;
use crate::sync::prim::{AtomicBool, AtomicU32, Ordering};
use crate::{CpuId, Flags, FrameRange, Mobility, Mode, Order, Pfn, Scope, Watermarks, ZoneId};

fn depot(frames: u32) -> Arc<Depot<Rseq>> {
    let depot = Depot::new(&Setup { frames, ..Setup::default() }, Rseq::new(2));
    run_on(0);
    depot
}

/// A request beside a CPU that frees the only frame: into a magazine that it has in its front, or
/// into an empty front, for which it is neither asked nor fenced.
fn freed_before(has_magazine: bool) {
    let depot = depot(1);
    let mut held = depot.alloc().unwrap();
    if has_magazine {
        depot.free(held);
        held = depot.alloc().unwrap();
    }
    let stats = depot.allocator.cpu_stats(CpuId::new(0), ZoneId::new(0)).unwrap();
    assert!((stats.charged_pages > 0) == has_magazine || is_mutant(Mutant::Uncharged));
    let done = Arc::new(AtomicBool::new(false));
    let set = done.clone();
    let owner = spawn(0, &depot, move |depot| {
        depot.free(held);
        set.store(true, Ordering::Release);
    });
    run_on(1);
    let freed = done.load(Ordering::Acquire);
    assert!(depot.alloc().is_ok() || !freed, "it is free");
    owner.join().unwrap();
    depot.finish();
}

#[test]
fn freed_before_into_a_magazine() {
    explore(|| freed_before(true));
}

#[test]
fn freed_before_into_an_empty_front() {
    explore(|| freed_before(false));
}

#[test]
#[should_panic(expected = "Charge {")]
fn freed_before_into_a_front_that_counts_as_empty() {
    explore_mutant(Mutant::Uncharged, || freed_before(true));
}

/// A request beside a drainer that takes what a CPU keeps of two frames, which no caller holds.
fn beside_a_drainer(request: impl Fn(&Arc<Depot<Rseq>>)) {
    let depot = depot(2);
    let held = depot.alloc().unwrap();
    depot.free(held);
    let drainer = spawn(1, &depot, |depot| {
        depot.allocator.drain(Scope::cpu(CpuId::new(0)), Mode::Full);
    });
    run_on(1);
    request(&depot);
    drainer.join().unwrap();
    depot.finish();
}

fn drained_beside_a_request() {
    beside_a_drainer(|depot| {
        depot.alloc().expect("no thread holds a frame");
    });
}

#[test]
fn in_a_drainers_hands() {
    explore_large(drained_beside_a_request);
}

#[test]
#[should_panic = "no thread holds a frame"]
fn in_a_drainers_hands_unannounced() {
    explore_mutant(Mutant::Unannounced, drained_beside_a_request);
}

#[test]
fn between_shelf_and_front() {
    explore_large(|| {
        let depot = depot(5);
        let all: Vec<_> = (0..5).map(|_| depot.alloc().unwrap()).collect();
        all.into_iter().for_each(|pfn| depot.free(pfn));
        let _held: Vec<_> = (0..3).map(|_| depot.alloc().unwrap()).collect();
        let stats = depot.allocator.cpu_stats(CpuId::new(0), ZoneId::new(0)).unwrap();
        assert_eq!(stats.shelved_pages, 2);
        let owner = spawn(0, &depot, |depot| {
            depot.alloc().expect("two are free");
        });
        run_on(1);
        depot.alloc().expect("two are free");
        owner.join().unwrap();
        depot.finish();
    });
}

#[test]
fn between_store_and_front() {
    explore_large(|| {
        let depot = depot(2);
        let held = depot.alloc().unwrap();
        let owner = spawn(0, &depot, move |depot| {
            depot.free(held);
            depot.alloc().expect("two are free");
        });
        run_on(1);
        depot.alloc().expect("one is free");
        owner.join().unwrap();
        depot.finish();
    });
}

/// A refill takes a magazine and the frame that was asked for: all there are. Another request needs
/// one while they are in its hands.
fn refill_beside_a_request() {
    let depot = depot(3);
    let owner = spawn(0, &depot, |depot| {
        depot.alloc().expect("two are left at least");
    });
    run_on(1);
    depot.alloc().expect("two are left at least");
    owner.join().unwrap();
    depot.finish();
}

#[test]
fn in_a_refill() {
    explore_large(refill_beside_a_request);
}

#[test]
#[should_panic = "two are left"]
fn in_a_refill_unannounced() {
    explore_mutant(Mutant::Unannounced, refill_beside_a_request);
}

/// The only pair of frames is in a CPU's front. Two threads that may not fence request a pair, one
/// of them on that CPU: it brings the pair to the store, where one of the two finds it.
#[test]
fn in_its_own_front() {
    explore_large(|| {
        let depot = depot(2);
        let held = [(); 2].map(|()| depot.alloc().unwrap());
        held.into_iter().for_each(|pfn| depot.free(pfn));
        let request =
            |depot: &Depot<Rseq>| depot.alloc_block(PAIR, Flags::default().no_reclaim()).is_ok();
        let found = Arc::new(AtomicBool::new(false));
        let set = found.clone();
        // Relaxed: read after the join.
        let other = spawn(1, &depot, move |depot| set.store(request(depot), Ordering::Relaxed));
        let is_served = request(&depot);
        other.join().unwrap();
        assert!(is_served || found.load(Ordering::Relaxed), "a pair is free");
        depot.finish();
    });
}

/// A request that may not fence, on a CPU whose front a drainer takes meanwhile.
#[test]
fn in_its_own_front_beside_a_drainer() {
    explore_large(|| {
        let depot = depot(2);
        let held = depot.alloc().unwrap();
        depot.free(held);
        let drainer = spawn(1, &depot, |depot| {
            depot.allocator.drain(Scope::cpu(CpuId::new(0)), Mode::Full);
        });
        // It fails if it meets both frames in the drainer's hands in all rounds.
        let _ = depot.alloc_block(PAIR, Flags::default().no_reclaim());
        drainer.join().unwrap();
        depot.finish();
    });
}

/// Frames that a drainer has taken are in the way of a range, and not for long.
#[test]
fn a_range_in_a_drainers_hands() {
    explore_large(|| {
        beside_a_drainer(|depot| {
            let start = depot
                .allocator
                .alloc_contiguous(2, 1, Flags::default())
                .expect("no thread holds a frame");
            [start, start.add(1)].into_iter().for_each(|pfn| depot.note_got(pfn, Order::BASE));
        });
    });
}

/// A claim that loses its last frame puts the others back: a request for those finds them.
#[test]
fn a_claim_that_is_rolled_back() {
    explore(|| {
        let (depot, flags) = (depot(66), Flags::default().no_reclaim());
        depot.allocator.alloc_at(Pfn::new(0), 63, flags).expect("no other thread is there");
        // What is left lies in two words, claimed in turn.
        let other = spawn(0, &depot, move |depot| {
            if depot.allocator.alloc_at(Pfn::new(63), 3, flags).is_ok() {
                depot.allocator.free_contiguous(Pfn::new(63), 3).expect("they were ours");
            }
        });
        run_on(1);
        if depot.allocator.alloc_at(Pfn::new(65), 1, flags).is_ok() {
            let found = depot.allocator.alloc_contiguous(2, 1, flags);
            assert_eq!(found, Ok(Pfn::new(63)));
        }
        other.join().unwrap();
    });
}

/// Rolls back a claim of frames in two sections, which is made of two.
fn rolled_back_across_sections() {
    let flags = Flags::default().no_reclaim();
    let (depot, border) = (depot(2 * SECTION_FRAMES), Pfn::new(SECTION_FRAMES));
    let alloc_at = |start, frames| depot.allocator.alloc_at(start, frames, flags);
    alloc_at(Pfn::new(0), SECTION_FRAMES - 2).expect("no other thread is there");
    alloc_at(border.add(2), SECTION_FRAMES - 2).expect("no other thread is there");
    let other = spawn(0, &depot, move |depot| {
        let start = Pfn::new(SECTION_FRAMES - 2);
        if depot.allocator.alloc_at(start, 3, flags).is_ok() {
            depot.allocator.free_contiguous(start, 3).expect("they were ours");
        }
    });
    run_on(1);
    if alloc_at(border, 1).is_ok() {
        let found = depot.allocator.alloc_contiguous(2, 1, flags);
        assert_eq!(found, Ok(Pfn::new(SECTION_FRAMES - 2)), "put back");
    }
    other.join().unwrap();
}

#[test]
fn a_claim_across_sections_that_is_rolled_back() {
    explore(rolled_back_across_sections);
}

#[test]
#[should_panic = "put back"]
fn a_claim_across_sections_that_is_rolled_back_unannounced() {
    explore_mutant(Mutant::Unannounced, rolled_back_across_sections);
}

/// Ten free frames across a border, and two that want five in a row, wherever they begin: the
/// lowest five lie in both sections. One at least has them, and no frame is given twice or lost.
fn runs_across_sections() {
    const RUN: u32 = 5;
    let flags = Flags::default().no_reclaim();
    let (depot, start) = (depot(2 * SECTION_FRAMES), SECTION_FRAMES - 3);
    for (start, frames) in [(0, start), (start + 2 * RUN, SECTION_FRAMES + 3 - 2 * RUN)] {
        depot.allocator.alloc_at(Pfn::new(start), frames, flags).expect("no other thread is there");
        (start..start + frames).for_each(|frame| depot.note_got(Pfn::new(frame), Order::BASE));
    }
    let take = move |depot: &Depot<Rseq>| {
        let found = depot.allocator.alloc_contiguous(RUN, 1, flags).ok()?;
        (0..RUN).for_each(|i| depot.note_got(found.add(i), Order::BASE));
        Some(found)
    };
    let theirs = Arc::new(AtomicBool::new(false));
    let set = theirs.clone();
    let other = spawn(0, &depot, move |depot| set.store(take(depot).is_some(), Ordering::Relaxed));
    run_on(1);
    let mine = take(&depot).is_some();
    other.join().unwrap();
    assert!(mine || theirs.load(Ordering::Relaxed), "neither has a run");
    depot.finish();
}

#[test]
fn two_runs_across_sections() {
    explore(runs_across_sections);
}

#[test]
#[should_panic = "FreeCount"]
fn two_runs_across_sections_of_which_one_keeps_a_part() {
    explore_mutant(Mutant::KeepsPart, runs_across_sections);
}

#[test]
fn reserve_is_there_for_who_may_not_wait() {
    explore(|| {
        let watermarks = Watermarks { min: 1, low: 1, high: 1 };
        let depot = Depot::new(&Setup { frames: 2, watermarks, ..Setup::default() }, Rseq::new(2));
        let other = spawn(0, &depot, |depot| {
            // May find only what the other left above the watermark: nothing.
            let _ = depot.alloc();
        });
        run_on(1);
        let got = depot.allocator.alloc(Order::BASE, Flags::default().atomic());
        depot.note_got(got.expect("the watermark keeps one"), Order::BASE);
        other.join().unwrap();
        depot.finish();
    });
}

/// Blocks that are not cached: a pair of frames, which a CPU of a zone of two pageblocks need not
/// report at once, two of these, and a quarter of a word.
const PAIR: Order = order(1);
const QUAD: Order = order(2);
const SMALL: Order = order(4);

const fn order(n: u32) -> Order {
    match Order::new(n) {
        Some(order) => order,
        None => unreachable!(),
    }
}

/// One pageblock is whole, of the other a block is missing. Its owner frees it and takes one of the
/// first; another does the same in the other direction: at every moment one pageblock is whole, but
/// not the one that a search has just seen. A search looks twice, which is why there are two of
/// them.
fn whole_huge_moves() {
    let setup = Setup { frames: 2 * Order::PAGEBLOCK.frames(), ..Setup::default() };
    let depot = Depot::new(&setup, Rseq::new(2));
    run_on(0);
    let missing = depot.alloc_block(PAIR, Flags::default()).unwrap();
    assert!(missing.get() < Order::PAGEBLOCK.frames());
    // What the owner took, for the other; 0: nothing yet.
    let taken = Arc::new(AtomicU32::new(0));
    let handed = taken.clone();
    let owner = spawn(1, &depot, move |depot| {
        depot.free_block(missing, PAIR);
        let taken = depot.alloc_block(PAIR, Flags::default()).expect("a pageblock is whole");
        handed.store(taken.get(), Ordering::Release);
    });
    let other = spawn(0, &depot, move |depot| {
        let missing = Pfn::new(taken.load(Ordering::Acquire));
        if missing.get() >= Order::PAGEBLOCK.frames() {
            depot.free_block(missing, PAIR);
            depot.alloc_block(PAIR, Flags::default()).expect("a pageblock is whole");
        }
    });
    // One search per round, and no others before: each would have to miss.
    let flags = Flags::default().atomic();
    let got = last_resort_for_block(&depot.allocator, Order::PAGEBLOCK, flags);
    depot.note_got(got.expect("a pageblock is whole"), Order::PAGEBLOCK);
    owner.join().unwrap();
    other.join().unwrap();
    depot.finish();
}

#[test]
fn whole_huge_moves_behind_a_search() {
    explore(whole_huge_moves);
}

#[test]
#[should_panic = "a pageblock is whole"]
fn whole_huge_moves_uncounted() {
    explore_mutant(Mutant::Uncounted, whole_huge_moves);
}

/// Two pairs of frames are free, and no four in a row. One thread searches for four, and another
/// frees the pair between: it sees no note, and then the search notes that there are no four. Until
/// the search looks again, a second request passes by four frames that no caller holds. One of the
/// two gets them all the same: the search that looks again removes its note and finds them.
fn noted_as_lacking() {
    // All of the first pageblock is held: searches begin there, whatever is noted.
    let first = Order::PAGEBLOCK.frames();
    let depot = Depot::new(&Setup { frames: first + 8, ..Setup::default() }, Rseq::new(2));
    run_on(0);
    let flags = Flags::default().atomic();
    for (start, frames) in [(first + 2, 2), (first + 6, 2), (0, first)] {
        depot.allocator.alloc_at(Pfn::new(start), frames, flags).expect("no other is there");
        depot.note_frames(FrameRange::new(Pfn::new(start), frames), true);
    }
    let request = move |depot: &Depot<Rseq>| {
        let got = last_resort_for_block(&depot.allocator, QUAD, flags);
        got.inspect(|&pfn| depot.note_got(pfn, QUAD)).is_ok()
    };
    let found = Arc::new(AtomicBool::new(false));
    let set = found.clone();
    // Relaxed: read after the join.
    let search = spawn(0, &depot, move |depot| set.store(request(depot), Ordering::Relaxed));
    spawn(1, &depot, move |depot| depot.free_block(Pfn::new(first + 2), PAIR)).join().unwrap();
    run_on(1);
    let is_served = request(&depot);
    search.join().unwrap();
    assert!(is_served || found.load(Ordering::Relaxed), "four are free");
    depot.finish();
}

#[test]
fn made_behind_a_search_that_notes_that_there_is_none() {
    explore_large(noted_as_lacking);
}

#[test]
#[should_panic = "four are free"]
fn made_behind_a_search_that_does_not_look_again() {
    explore_mutant(Mutant::LacksUnseen, noted_as_lacking);
}

/// A search claims a whole pageblock, to change its mobility, and gives back what it does not need.
fn change_of_mobility() {
    let depot =
        Depot::new(&Setup { frames: Order::PAGEBLOCK.frames(), ..Setup::default() }, Rseq::new(2));
    let other = spawn(0, &depot, |depot| {
        let flags = Flags::new(Mobility::Reclaimable);
        depot.alloc_block(SMALL, flags).expect("eight are free");
    });
    run_on(1);
    depot.alloc_block(SMALL, Flags::default()).expect("eight are free, or seven");
    other.join().unwrap();
    depot.finish();
}

#[test]
fn while_another_changes_the_mobility() {
    explore_large(change_of_mobility);
}

#[test]
#[should_panic = "are free"]
fn while_another_changes_the_mobility_unannounced() {
    explore_mutant(Mutant::Unannounced, change_of_mobility);
}

/// One thread takes a block that is free and not counted yet, and subtracts it. Meanwhile the count
/// is one too low. Requests that may not go below a watermark must not fail for that.
fn taken_early() {
    let watermarks = Watermarks { min: 16, low: 16, high: 16 };
    let setup = Setup { frames: 3 * SMALL.frames(), watermarks, ..Setup::default() };
    let depot = Depot::new(&setup, Rseq::new(2));
    run_on(0);
    let first = depot.alloc_block(SMALL, Flags::default().atomic()).unwrap();
    let slow = spawn(0, &depot, move |depot| depot.free_block(first, SMALL));
    run_on(1);
    if depot.alloc_block(SMALL, Flags::default()) == Ok(first) {
        depot.alloc_block(SMALL, Flags::default()).expect("two are free, and one is kept back");
    }
    slow.join().unwrap();
    depot.finish();
}

#[test]
fn taken_before_it_is_counted() {
    explore(taken_early);
}

/// Two free on one CPU; what both freed is in the hands of one of them, on its way to the zone's
/// count, when the other is done.
fn count_on_its_way() {
    let watermarks = Watermarks { min: 16, low: 16, high: 16 };
    let setup = Setup { frames: 4 * SMALL.frames(), watermarks, ..Setup::default() };
    let depot = Depot::new(&setup, Rseq::new(2));
    run_on(0);
    let flags = Flags::default().atomic();
    let [first, second, _third] = [0; 3].map(|_| depot.alloc_block(SMALL, flags).unwrap());
    let slow = spawn(0, &depot, move |depot| depot.free_block(first, SMALL));
    let done = spawn(0, &depot, move |depot| depot.free_block(second, SMALL));
    done.join().unwrap();
    run_on(1);
    depot.alloc_block(SMALL, Flags::default()).expect("the watermark leaves one");
    slow.join().unwrap();
    depot.finish();
}

#[test]
fn freed_before_is_counted() {
    explore(count_on_its_way);
}

#[test]
#[should_panic = "the watermark leaves one"]
fn freed_before_is_counted_unannounced() {
    explore_mutant(Mutant::Unannounced, count_on_its_way);
}
