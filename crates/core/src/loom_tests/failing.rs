//! 1. A request fails only when every frame is in callers' hands: not while one is in a front, on a
//!    shelf, on its way between them and the store, or in a drainer's hands.
//! 2. The same of a request for contiguous frames, and of one that loses frames to a claim that is
//!    rolled back.
//! 3. What a watermark keeps is there for a request that may not wait.

use std::sync::Arc;

use super::cpus::{Rseq, run_on};
use super::depot::{Depot, Setup};
use super::{explore, spawn};
use crate::prim::{AtomicBool, Ordering};
use crate::{CpuId, Flags, Mode, Order, Pfn, Scope, Watermarks, ZoneId};

fn depot(frames: u32) -> Arc<Depot<Rseq>> {
    let depot = Depot::new(&Setup { frames, ..Setup::default() }, Rseq::new(2));
    run_on(0);
    depot
}

#[test]
fn freed_before_is_found() {
    explore(|| {
        let depot = depot(1);
        let held = depot.alloc().unwrap();
        let done = Arc::new(AtomicBool::new(false));
        let set = done.clone();
        let owner = spawn(0, &depot, move |depot| {
            depot.free(held);
            set.store(true, Ordering::Release);
        });
        run_on(1);
        let freed = done.load(Ordering::Acquire);
        assert!(depot.alloc().is_ok() || !freed);
        owner.join().unwrap();
        depot.finish();
    });
}

#[test]
fn in_a_drainers_hands() {
    explore(|| {
        let depot = depot(2);
        let held = depot.alloc().unwrap();
        depot.free(held);
        let drainer = spawn(1, &depot, |depot| {
            depot.allocator.drain(Scope::cpu(CpuId::new(0)), Mode::Full);
        });
        run_on(1);
        depot.alloc().expect("nobody holds a frame");
        drainer.join().unwrap();
        depot.finish();
    });
}

#[test]
fn between_shelf_and_front() {
    explore(|| {
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
    explore(|| {
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

/// Frames that a drainer has taken are in the way of a range, and not for long.
#[test]
fn a_range_in_a_drainers_hands() {
    explore(|| {
        let depot = depot(2);
        let held = depot.alloc().unwrap();
        depot.free(held);
        let drainer = spawn(1, &depot, |depot| {
            depot.allocator.drain(Scope::cpu(CpuId::new(0)), Mode::Full);
        });
        run_on(1);
        let start = depot.allocator.alloc_contiguous(2, 1, Flags::default()).expect("nobody holds a frame");
        [start, start.add(1)].into_iter().for_each(|pfn| depot.note_got(pfn));
        drainer.join().unwrap();
        depot.finish();
    });
}

/// A claim that loses its last frame puts the others back: who wants those finds them.
#[test]
fn a_claim_that_is_rolled_back() {
    explore(|| {
        let (depot, flags) = (depot(66), Flags::default().no_reclaim());
        depot.allocator.alloc_at(Pfn::new(0), 63, flags).expect("nobody else is there");
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
        depot.note_got(got.expect("the watermark keeps one"));
        other.join().unwrap();
        depot.finish();
    });
}
