//! Magazines of two orders: one frame, and two frames. Compiled apart, with
//! `PAGEDEPOT_MODEL_ORDERS=2`, because each order makes every drain of every model longer.
//!
//! 1. A full drain takes the magazines of both orders beside an owner that uses both, each as what
//!    it is; without its fence it loses or doubles some.
//! 2. A CPU at its limit empties the coldest front of another order, while another thread of the
//!    CPU uses that front.
//! 3. An empty magazine serves one order after the other.

use std::sync::Arc;

use super::cpus::{Rseq, run_on};
use super::depot::{Depot, Setup};
use super::{Mutant, explore_large, explore_mutant, spawn};
use crate::{Flags, Mode, Order, Scope};

const PAIR: Order = match Order::new(1) {
    Some(order) => order,
    None => unreachable!(),
};

/// An allocator with two orders.
fn depot(cpus: u32, high: u64) -> Arc<Depot<Rseq>> {
    assert_eq!(Order::CACHED, 2, "compile with PAGEDEPOT_MODEL_ORDERS=2");
    let depot = Depot::new(&Setup { cpus, frames: 8, high, ..Setup::default() }, Rseq::new(cpus));
    run_on(0);
    depot
}

fn turn(depot: &Depot<Rseq>, order: Order) {
    let own = depot.alloc_block(order, Flags::default()).expect("blocks are free");
    depot.free_block(own, order);
}

fn owner_of_two_classes_and_a_drainer() {
    let depot = depot(2, 8);
    turn(&depot, PAIR);
    turn(&depot, Order::BASE);
    let drainer = spawn(1, &depot, |depot| {
        depot.allocator.drain(Scope::ALL, Mode::Full);
    });
    let pair = depot.alloc_block(PAIR, Flags::default()).unwrap();
    let frame = depot.alloc().unwrap();
    depot.free_block(pair, PAIR);
    depot.free(frame);
    drainer.join().unwrap();
    depot.finish();
}

#[test]
#[ignore = "compile with PAGEDEPOT_MODEL_ORDERS=2"]
fn a_full_drain_of_two_classes() {
    explore_large(owner_of_two_classes_and_a_drainer);
}

#[test]
#[ignore = "compile with PAGEDEPOT_MODEL_ORDERS=2"]
#[should_panic(expected = "Doubled {")]
fn a_full_drain_of_two_classes_without_a_fence() {
    explore_mutant(Mutant::NoFence, owner_of_two_classes_and_a_drainer);
}

/// The CPU may cache one magazine. An allocation of a pair has seen the front of single frames; its
/// free finds that front unchanged, so cold, and empties it.
fn coldest_front_in_use() {
    let depot = depot(1, 2);
    turn(&depot, Order::BASE);
    let pair = depot.alloc_block(PAIR, Flags::default()).unwrap();
    let other = spawn(0, &depot, |depot| {
        depot.alloc().expect("frames are free");
    });
    depot.free_block(pair, PAIR);
    other.join().unwrap();
    depot.finish();
}

#[test]
#[ignore = "compile with PAGEDEPOT_MODEL_ORDERS=2"]
fn the_coldest_front_is_emptied_while_it_is_used() {
    explore_large(coldest_front_in_use);
}

#[test]
#[ignore = "compile with PAGEDEPOT_MODEL_ORDERS=2"]
#[should_panic(expected = "frames were lost")]
fn the_coldest_front_is_emptied_while_it_is_used_and_aborts_neither() {
    explore_mutant(Mutant::NoPreemption, coldest_front_in_use);
}
