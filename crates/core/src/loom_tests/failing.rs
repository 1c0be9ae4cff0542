//! 1. A request fails only when every frame is in callers' hands: not while one is in a front, on a
//!    shelf, on its way between them and the store, or in a drainer's hands.
//! 2. What a watermark keeps is there for a request that may not wait.

use std::sync::Arc;

use super::cpus::{Rseq, run_on};
use super::depot::{Depot, Setup};
use super::{explore, spawn};
use crate::prim::{AtomicBool, Ordering};
use crate::{CpuId, Flags, Mode, Order, Scope, Watermarks, ZoneId};

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
