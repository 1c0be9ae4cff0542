//! 1. A block that is freed, drained or allocated while compaction would move it ends up in one
//!    place: its holder's, or the store.
//! 2. Whatever the mover says, no frame is lost.
//! 3. Of two compactions, or one and a removal, each pageblock is emptied by one; two hide no more
//!    together than the zone can spare.
//! 4. A pageblock is thinned for an unmovable request beside frees, allocations and another such
//!    request: each is served, and no frame is lost.

use std::sync::{Arc, Weak};

use loom::sync::atomic::{AtomicU32, Ordering};

use pagedepot::loom_tests::cpus::{Rseq, run_on};
use pagedepot::loom_tests::depot::{Depot, Setup};
use pagedepot::loom_tests::{Mutant, explore_large, explore_mutant, spawn};
use pagedepot::seam::{PAGEBLOCK_FRAMES, ZoneAccess};
use pagedepot::{Flags, FrameRange, Order, Pfn, Watermarks, ZoneId};

use super::remove;
use crate::{Compaction, Compactor, Contiguity, Move, Mover, Occupant};

const ZONE: ZoneId = ZoneId::new(0);
const PAIR: Order = match Order::new(1) {
    Some(order) => order,
    None => unreachable!(),
};
/// The block was freed.
const FREED: u32 = u32::MAX;

/// One block, whose place its holder and the mover agree upon by one atomic word.
struct Holder {
    place: AtomicU32,
    depot: Weak<Depot<Rseq>>,
}

impl Holder {
    /// Frees the block, wherever it is.
    fn free(&self) {
        let place = self.place.swap(FREED, Ordering::AcqRel);
        self.depot().free_block(Pfn::new(place), PAIR);
    }

    fn depot(&self) -> Arc<Depot<Rseq>> {
        self.depot.upgrade().expect("a model's depot lives until it is finished")
    }
}

impl Mover for Holder {
    fn occupant(&self, frame: Pfn) -> Occupant {
        let first = self.place.load(Ordering::Acquire);
        match first & !1 == frame.get() & !1 {
            true => Occupant::Movable { first: Pfn::new(first), order: PAIR },
            false => Occupant::Unknown,
        }
    }

    fn move_blocks(&self, moves: &mut [Move]) {
        let depot = self.depot();
        for this in moves {
            let (from, to) = (this.from().get(), this.to().get());
            // The ledger first: from here on the holder may free the block at its new place.
            depot.note_frames(FrameRange::new(this.to(), 2), true);
            let moved = self.place.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire);
            match moved {
                Ok(_) => {
                    depot.note_frames(FrameRange::new(this.from(), 2), false);
                    this.moved();
                }
                Err(_) => {
                    depot.note_frames(FrameRange::new(this.to(), 2), false);
                    this.gone();
                }
            }
        }
    }
}

/// Two pageblocks; one has a held pair, the other four frames, so that it is the denser one.
fn scene() -> (Arc<Depot<Rseq>>, Arc<Holder>) {
    let setup = Setup { frames: 2 * PAGEBLOCK_FRAMES, high: 0, ..Setup::default() };
    let depot = Depot::new(&setup, Rseq::new(2));
    run_on(0);
    let flags = Flags::default();
    depot.allocator.alloc_at(Pfn::new(PAGEBLOCK_FRAMES), 4, flags).unwrap();
    depot.note_frames(FrameRange::new(Pfn::new(PAGEBLOCK_FRAMES), 4), true);
    depot.allocator.alloc_at(Pfn::new(2), 2, flags).unwrap();
    depot.note_frames(FrameRange::new(Pfn::new(2), 2), true);
    let holder = Arc::new(Holder { place: AtomicU32::new(2), depot: Arc::downgrade(&depot) });
    (depot, holder)
}

fn compact(depot: &Depot<Rseq>, holder: &Holder) {
    let rules = Compaction::all().looks_max(1);
    depot.allocator.compact(ZONE, rules, holder).unwrap();
}

/// Frees what the scene holds besides, and checks that no frame was lost.
fn finish(depot: Arc<Depot<Rseq>>, holder: Arc<Holder>) {
    depot.note_frames(FrameRange::new(Pfn::new(PAGEBLOCK_FRAMES), 4), false);
    depot.allocator.free_contiguous(Pfn::new(PAGEBLOCK_FRAMES), 4).unwrap();
    depot.finish();
    drop(holder);
}

fn beside_a_free() {
    let (depot, holder) = scene();
    let other = {
        let holder = holder.clone();
        spawn(1, &depot, move |_| holder.free())
    };
    compact(&depot, &holder);
    other.join().unwrap();
    finish(depot, holder);
}

#[test]
fn a_block_is_freed_while_it_is_named_for_a_move() {
    explore_large(beside_a_free);
}

#[test]
#[should_panic(expected = "frames came back that were free")]
fn gone_blocks_are_freed_once_more() {
    explore_mutant(Mutant::FreesGone, beside_a_free);
}

#[test]
#[should_panic = "frames were lost"]
fn destinations_are_kept() {
    explore_mutant(Mutant::KeepsDestination, beside_a_free);
}

#[test]
fn a_block_is_allocated_beside_it() {
    explore_large(|| {
        let (depot, holder) = scene();
        let other = spawn(1, &depot, |depot| {
            let flags = Flags::default().atomic();
            let pfn = depot.alloc_block(PAIR, flags).expect("there are free frames");
            depot.free_block(pfn, PAIR);
        });
        compact(&depot, &holder);
        other.join().unwrap();
        holder.free();
        finish(depot, holder);
    });
}

#[test]
fn two_compact_at_once() {
    explore_large(|| {
        let (depot, holder) = scene();
        let other = {
            let holder = holder.clone();
            spawn(1, &depot, move |depot| compact(depot, &holder))
        };
        compact(&depot, &holder);
        other.join().unwrap();
        holder.free();
        finish(depot, holder);
    });
}

/// Two callers hide a pageblock each, of a zone that can spare one. `looks_first`: they look
/// whether it can before they hide theirs.
fn hidden_by_two(looks_first: bool) {
    let low = u64::from(PAGEBLOCK_FRAMES);
    let watermarks = Watermarks { min: 0, low, high: low };
    let setup = Setup { frames: 2 * PAGEBLOCK_FRAMES, watermarks, high: 0, ..Setup::default() };
    let depot = Depot::new(&setup, Rseq::new(2));
    let isolating = Arc::new(AtomicU32::new(0));
    let hide = move |depot: &Depot<Rseq>, isolating: &AtomicU32| {
        let zone = ZoneAccess::of(&depot.allocator, ZONE).expect("the only zone");
        let has_spare = looks_first && zone.has_spare(0);
        let _hidden = zone.hide(low);
        if has_spare || zone.has_spare(0) {
            assert_eq!(isolating.fetch_add(1, Ordering::AcqRel), 0, "memory is low");
            isolating.fetch_sub(1, Ordering::AcqRel);
        }
    };
    run_on(0);
    let other = {
        let isolating = isolating.clone();
        spawn(1, &depot, move |depot| hide(&depot, &isolating))
    };
    hide(&depot, &isolating);
    other.join().unwrap();
    depot.finish();
}

#[test]
fn two_hide_what_one_may() {
    explore_large(|| hidden_by_two(false));
}

#[test]
#[should_panic = "memory is low"]
fn two_look_before_they_hide() {
    explore_large(|| hidden_by_two(true));
}

#[test]
fn removed_and_compacted() {
    explore_large(|| {
        let (depot, holder) = scene();
        let first = FrameRange::new(Pfn::new(0), PAGEBLOCK_FRAMES);
        let other = spawn(1, &depot, move |depot| {
            let _ = remove(&depot, first);
        });
        compact(&depot, &holder);
        other.join().unwrap();
        holder.free();
        finish(depot, holder);
    });
}

/// The scene, with the holder registered as the mover of requests.
fn scene_for_requests() -> (Arc<Depot<Rseq>>, Arc<Holder>) {
    let (depot, holder) = scene();
    // SAFETY: `finish` drops the depot before the last handle of the holder.
    let mover = unsafe { &*Arc::as_ptr(&holder) };
    let compactor = Box::leak(Box::new(Compactor::new(mover)));
    compactor.register(&depot.allocator).unwrap();
    (depot, holder)
}

/// An unmovable request, for which the sparser pageblock is thinned.
fn request(depot: &Depot<Rseq>) -> Pfn {
    let flags = Flags::UNMOVABLE.compact();
    depot.alloc_block(Order::BASE, flags).expect("there are free frames")
}

fn thinned_beside_a_free() {
    let (depot, holder) = scene_for_requests();
    let other = {
        let holder = holder.clone();
        spawn(1, &depot, move |_| holder.free())
    };
    let pfn = request(&depot);
    other.join().unwrap();
    depot.free(pfn);
    finish(depot, holder);
}

#[test]
fn thinned_while_its_block_is_freed() {
    explore_large(thinned_beside_a_free);
}

#[test]
#[should_panic(expected = "frames came back that were free")]
fn thinning_frees_gone_blocks_once_more() {
    explore_mutant(Mutant::FreesGone, thinned_beside_a_free);
}

#[test]
fn thinned_while_another_block_is_allocated() {
    explore_large(|| {
        let (depot, holder) = scene_for_requests();
        let other = spawn(1, &depot, |depot| {
            let flags = Flags::default().atomic();
            let pfn = depot.alloc_block(PAIR, flags).expect("there are free frames");
            depot.free_block(pfn, PAIR);
        });
        let pfn = request(&depot);
        other.join().unwrap();
        depot.free(pfn);
        holder.free();
        finish(depot, holder);
    });
}

#[test]
fn thinned_for_one_of_two() {
    explore_large(|| {
        let (depot, holder) = scene_for_requests();
        let other = spawn(1, &depot, |depot| {
            let pfn = request(depot);
            depot.free(pfn);
        });
        let pfn = request(&depot);
        other.join().unwrap();
        depot.free(pfn);
        holder.free();
        finish(depot, holder);
    });
}
