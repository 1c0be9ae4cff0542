//! A block of two pageblocks is moved out of a window that it lies in, or lies in with one of them.
//!
//! 1. Beside a free, a request or a removal, the block ends up in one place.
//! 2. All of the block is isolated while it is named for a move.
//! 3. Its destination is a block: aligned, and the mover's alone.
//! 4. Frames outside of the window are not hidden with it.

use std::sync::{Arc, Weak};

use loom::sync::atomic::{AtomicU32, Ordering};

use pagedepot::loom_tests::cpus::{Rseq, run_on};
use pagedepot::loom_tests::depot::{Depot, Setup};
use pagedepot::loom_tests::{Mutant, explore, explore_large, explore_mutant_within, spawn};
use pagedepot::seam::{PAGEBLOCK_FRAMES, PageblockIndex, PageblockState, ZoneAccess};
use pagedepot::{Flags, FrameRange, Order, Pfn, Watermarks, ZoneId};

use super::remove;
use crate::{CompactEnd, Compaction, Contiguity, Move, Mover, Occupant};

const ZONE: ZoneId = ZoneId::new(0);
/// The block was freed.
const FREED: u32 = u32::MAX;

/// A block of two pageblocks, whose place its holder and the mover agree upon by one atomic word.
struct Holder {
    place: AtomicU32,
    depot: Weak<Depot<Rseq>>,
}

impl Holder {
    fn depot(&self) -> Arc<Depot<Rseq>> {
        self.depot.upgrade().expect("a model's depot lives until it is finished")
    }

    /// Frees the block, wherever it is.
    fn free(&self) {
        let place = self.place.swap(FREED, Ordering::AcqRel);
        self.depot().free_block(Pfn::new(place), Order::MAX);
    }

    fn assert_isolated(&self, first: Pfn) {
        let depot = self.depot();
        let first = PageblockIndex::of(first);
        for pageblock in [first, PageblockIndex(first.0 + 1)] {
            let zone = ZoneAccess::of(&depot.allocator, ZONE).expect("the only zone");
            let is_isolated = zone.state(pageblock) == PageblockState::Isolated;
            assert!(is_isolated, "{pageblock:?} of the block is not isolated");
        }
    }
}

impl Mover for Holder {
    fn occupant(&self, frame: Pfn) -> Occupant {
        let first = self.place.load(Ordering::Acquire);
        match frame.get().wrapping_sub(first) < Order::MAX.frames() {
            true => Occupant::Movable { first: Pfn::new(first), order: Order::MAX },
            false => Occupant::Unknown,
        }
    }

    fn move_blocks(&self, moves: &mut [Move]) {
        let depot = self.depot();
        for this in moves {
            assert!(this.order() == Order::MAX && this.to().is_aligned(Order::MAX), "{this:?}");
            self.assert_isolated(this.from());
            let [from, to] =
                [this.from(), this.to()].map(|first| FrameRange::new(first, Order::MAX.frames()));
            // The ledger first: from here on the holder may free the block at its new place.
            depot.note_frames(to, true);
            let moved = self.place.compare_exchange(
                from.start.get(),
                to.start.get(),
                Ordering::AcqRel,
                Ordering::Acquire,
            );
            match moved {
                Ok(_) => {
                    depot.note_frames(from, false);
                    this.moved();
                }
                Err(_) => {
                    depot.note_frames(to, false);
                    this.gone();
                }
            }
        }
    }
}

/// The block's place, and the window that is emptied: the cheapest of six pageblocks.
#[derive(Clone, Copy)]
enum Scene {
    /// The block lies in the third and fourth pageblock; the first three are emptied.
    Across,
    /// The block lies in the first two; the first four are emptied.
    Inside,
}

impl Scene {
    fn first(self) -> u32 {
        match self {
            Scene::Across => 2 * PAGEBLOCK_FRAMES,
            Scene::Inside => 0,
        }
    }

    fn rules(self) -> Compaction {
        let range = |pageblocks, align| {
            Compaction::range(pageblocks * PAGEBLOCK_FRAMES, align * PAGEBLOCK_FRAMES).looks_max(1)
        };
        match self {
            Scene::Across => range(3, 1),
            Scene::Inside => range(4, 4),
        }
    }

    /// Compacts beside what another CPU does; `is_held`: which leaves the block to its holder.
    fn beside(self, other: impl FnOnce(&Depot<Rseq>, &Holder) + 'static, is_held: bool) {
        let (depot, holder) = self.depot(0);
        let thread = {
            let holder = holder.clone();
            spawn(1, &depot, move |depot| other(depot, &holder))
        };
        depot.allocator.compact(ZONE, self.rules(), &*holder).unwrap();
        thread.join().unwrap();
        if is_held {
            holder.free();
        }
        depot.finish();
    }

    /// A zone with this watermark, and the holder of its block.
    fn depot(self, low: u64) -> (Arc<Depot<Rseq>>, Arc<Holder>) {
        let watermarks = Watermarks { min: 0, low, high: low };
        let frames = 6 * PAGEBLOCK_FRAMES;
        let setup = Setup { frames, watermarks, high: 0, ..Setup::default() };
        let depot = Depot::new(&setup, Rseq::new(2));
        run_on(0);
        let first = Pfn::new(self.first());
        let frames = FrameRange::new(first, Order::MAX.frames());
        depot.allocator.alloc_at(first, frames.frames, Flags::default()).unwrap();
        depot.note_frames(frames, true);
        let place = AtomicU32::new(first.get());
        let holder = Arc::new(Holder { place, depot: Arc::downgrade(&depot) });
        (depot, holder)
    }
}

fn freed(_: &Depot<Rseq>, holder: &Holder) {
    holder.free();
}

fn across_beside_a_free() {
    Scene::Across.beside(freed, false);
}

#[test]
fn across_an_edge_it_is_freed_meanwhile() {
    explore_large(across_beside_a_free);
}

#[test]
#[should_panic = "of the block is not isolated"]
fn a_window_leaves_the_other_pageblock() {
    explore_mutant_within(0, Mutant::LeavesEdge, across_beside_a_free);
}

#[test]
#[should_panic(expected = "frames came back that were free")]
fn across_an_edge_it_is_freed_once_more() {
    explore_mutant_within(1, Mutant::FreesGone, across_beside_a_free);
}

/// The zone can spare the window, and not the pageblock at its edge besides.
fn across_near_a_watermark() {
    let (depot, holder) = Scene::Across.depot(u64::from(PAGEBLOCK_FRAMES) - 1);
    let done = depot.allocator.compact(ZONE, Scene::Across.rules(), &*holder).unwrap();
    assert_eq!(done.end, CompactEnd::Reached);
    holder.free();
    depot.finish();
}

#[test]
fn a_window_is_kept_near_a_watermark() {
    // One thread: there is one interleaving.
    explore::explore_named("a window near a watermark", 0, across_near_a_watermark);
}

#[test]
fn inside_of_a_window_it_is_freed_meanwhile() {
    explore_large(|| Scene::Inside.beside(freed, false));
}

/// The request takes a frame of the destination, or of the edge, or neither.
#[test]
fn across_an_edge_beside_a_request() {
    explore_large(|| {
        let request = |depot: &Depot<Rseq>, _: &Holder| {
            let flags = Flags::default().atomic();
            let pfn = depot.alloc_block(Order::PAGEBLOCK, flags).expect("there are free frames");
            depot.free_block(pfn, Order::PAGEBLOCK);
        };
        Scene::Across.beside(request, true);
    });
}

/// The pageblock at the edge is the remover's or compaction's.
#[test]
fn across_an_edge_that_is_removed() {
    explore_large(|| {
        let remove = |depot: &Depot<Rseq>, _: &Holder| {
            let edge = FrameRange::new(Pfn::new(3 * PAGEBLOCK_FRAMES), PAGEBLOCK_FRAMES);
            let _ = remove(&depot, edge);
        };
        Scene::Across.beside(remove, true);
    });
}
