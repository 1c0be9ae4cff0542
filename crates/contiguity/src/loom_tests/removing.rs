//! 1. Memory is removed only when no caller holds a frame of it and no cache has one: what is
//!    removed is handed out to no other caller, and is not lost.
//! 2. A removal that fails changes nothing, and succeeds once every frame has been freed.
//! 3. Removed memory can be added again beside searches that began before.

use pagedepot::loom_tests::cpus::{Rseq, run_on};
use pagedepot::loom_tests::depot::{Depot, Setup};
use pagedepot::loom_tests::{Mutant, explore_large, explore_mutant, spawn};
use pagedepot::seam::{PAGEBLOCK_FRAMES, SECTION_FRAMES};
use pagedepot::{Flags, FrameRange, Order, Pfn};

use super::remove;

/// A pair of frames: an order that is not cached.
const PAIR: Order = match Order::new(1) {
    Some(order) => order,
    None => unreachable!(),
};

/// The second of two pageblocks, where the second CPU's searches begin.
const SECOND: FrameRange = FrameRange::new(Pfn::new(PAGEBLOCK_FRAMES), PAGEBLOCK_FRAMES);

/// A block of `order` is allocated and freed while the pageblock is removed that it may lie in.
fn removed_beside_a_block(order: Order) {
    let setup = Setup { frames: 2 * PAGEBLOCK_FRAMES, ..Setup::default() };
    let depot = Depot::new(&setup, Rseq::new(2));
    run_on(0);
    let other = spawn(1, &depot, move |depot| {
        let flags = Flags::default().atomic();
        let pfn = depot.alloc_block(order, flags).expect("the first pageblock stays");
        depot.free_block(pfn, order);
    });
    let result = remove(&depot, SECOND);
    other.join().unwrap();
    if result.is_err() {
        remove(&depot, SECOND).expect("every frame has been freed");
    }
    assert_eq!(depot.finish().managed_pages, u64::from(PAGEBLOCK_FRAMES));
}

#[test]
fn removed_beside_a_block_of_the_store() {
    explore_large(|| removed_beside_a_block(PAIR));
}

#[test]
fn removed_beside_a_cached_block() {
    explore_large(|| removed_beside_a_block(Order::BASE));
}

#[test]
#[should_panic = "FreeCount"]
fn removed_though_a_frame_is_held() {
    explore_mutant(Mutant::RemovesHeld, || removed_beside_a_block(PAIR));
}

/// A range of two sections, in the second of which a search takes a block.
fn removed_across_sections() {
    let frames = SECTION_FRAMES + PAGEBLOCK_FRAMES;
    let depot = Depot::new(&Setup { cpus: 3, frames, ..Setup::default() }, Rseq::new(3));
    run_on(0);
    let other = spawn(2, &depot, |depot| {
        let flags = Flags::default().atomic();
        depot.alloc_block(PAIR, flags).expect("the first pageblock stays");
    });
    let across = FrameRange::new(SECOND.start, 2 * PAGEBLOCK_FRAMES);
    let removed = remove(&depot, across).is_ok();
    other.join().unwrap();
    let managed = if removed { PAGEBLOCK_FRAMES } else { frames };
    assert_eq!(depot.finish().managed_pages, u64::from(managed));
}

#[test]
fn removed_across_sections_beside_a_search() {
    explore_large(removed_across_sections);
}

#[test]
#[should_panic = "FreeCount"]
fn removed_across_sections_and_kept_in_part() {
    explore_mutant(Mutant::KeepsPart, removed_across_sections);
}

/// The memory comes back while a search that may have begun before goes on.
#[test]
fn removed_and_added_beside_a_search() {
    explore_large(|| {
        let setup = Setup { frames: 2 * PAGEBLOCK_FRAMES, ..Setup::default() };
        let depot = Depot::new(&setup, Rseq::new(2));
        run_on(0);
        let other = spawn(1, &depot, |depot| {
            let flags = Flags::default().atomic();
            depot.alloc_block(PAIR, flags).expect("the first pageblock stays");
        });
        if remove(&depot, SECOND).is_ok() {
            depot.add_again(SECOND);
        }
        other.join().unwrap();
        assert_eq!(depot.finish().managed_pages, u64::from(2 * PAGEBLOCK_FRAMES));
    });
}

/// Checks that one of two callers that remove the same pageblock succeeds.
#[test]
fn two_remove_the_same_pageblock() {
    explore_large(|| {
        let setup = Setup { frames: 2 * PAGEBLOCK_FRAMES, ..Setup::default() };
        let depot = Depot::new(&setup, Rseq::new(2));
        run_on(0);
        let other = spawn(1, &depot, |depot| {
            let _ = remove(&depot, SECOND);
        });
        let _ = remove(&depot, SECOND);
        other.join().unwrap();
        assert_eq!(depot.finish().managed_pages, u64::from(PAGEBLOCK_FRAMES));
    });
}
