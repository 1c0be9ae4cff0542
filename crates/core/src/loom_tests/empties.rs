//! 1. A magazine is in one place: one CPU's, also while others steal empties.
//! 2. No request fails for want of a magazine: without one, blocks go past the caches.
//!
//! The models of thefts have one magazine, or two, for two CPUs: with as many as other models have,
//! no CPU would ever come to steal one.

use std::sync::Arc;

use super::cpus::{Rseq, run_on};
use super::depot::{Depot, Setup};
use super::{MAGAZINES, Mutant, explore, explore_mutant, spawn};
use crate::{CpuId, Mode, Scope};

fn depot() -> Arc<Depot<Rseq>> {
    let depot = Depot::new(&Setup { frames: 5, ..Setup::default() }, Rseq::new(2));
    run_on(0);
    depot
}

/// Allocates a frame and frees it, which takes a magazine if there is one.
fn pair(depot: &Depot<Rseq>) {
    let held = depot.alloc().expect("no thread holds more than one frame");
    depot.free(held);
}

/// A CPU has its empty magazines from a drain; it and another CPU take them at the same moment.
fn stolen() {
    let depot = depot();
    pair(&depot);
    depot.allocator.drain(Scope::cpu(CpuId::new(0)), Mode::Full);
    let owner = spawn(0, &depot, pair);
    run_on(1);
    pair(&depot);
    owner.join().unwrap();
    depot.finish();
}

#[test]
fn the_only_magazine_is_stolen() {
    MAGAZINES.set(1);
    explore(stolen);
}

#[test]
fn of_two_magazines_one_is_stolen() {
    MAGAZINES.set(2);
    explore(stolen);
}

#[test]
#[should_panic(expected = "Doubled {")]
fn the_only_magazine_is_stolen_and_left() {
    MAGAZINES.set(1);
    explore_mutant(Mutant::LeavesStolen, stolen);
}

/// The only magazine is one CPU's, with frames in it, and goes on a drain's way back; another CPU
/// does without, or has it from the drain.
fn exhausted() {
    let depot = depot();
    pair(&depot);
    let drainer = spawn(0, &depot, |depot| {
        depot.allocator.drain(Scope::cpu(CpuId::new(0)), Mode::Full);
    });
    run_on(1);
    let held = [(); 2].map(|()| depot.alloc().expect("no other thread holds a frame"));
    held.into_iter().for_each(|pfn| depot.free(pfn));
    drainer.join().unwrap();
    depot.finish();
}

#[test]
fn no_magazine_is_left() {
    MAGAZINES.set(1);
    explore(exhausted);
}

#[test]
#[should_panic(expected = "Magazines {")]
fn no_magazine_is_left_but_one_in_two_places() {
    MAGAZINES.set(1);
    explore_mutant(Mutant::LeavesStolen, exhausted);
}

/// A refill fills the front's second magazine, while a full drain takes what the front has.
fn refilled() {
    let depot = Depot::new(&Setup { frames: 9, ..Setup::default() }, Rseq::new(2));
    run_on(0);
    // What two refills brought: the front has two empty magazines.
    (0..6).for_each(|_| _ = depot.alloc().expect("no other thread holds a frame"));
    let drainer = spawn(1, &depot, |depot| {
        depot.allocator.drain(Scope::cpu(CpuId::new(0)), Mode::Full);
    });
    depot.alloc().expect("no other thread holds a frame");
    drainer.join().unwrap();
    depot.finish();
}

#[test]
fn a_front_is_drained_in_a_refill() {
    explore(refilled);
}

#[test]
#[should_panic(expected = "Charge {")]
fn a_front_is_drained_in_a_refill_that_leaves_it_its_magazine() {
    explore_mutant(Mutant::FillsUntaken, refilled);
}
