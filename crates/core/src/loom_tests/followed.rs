//! Sequences that go where their gate leads and do not look at its state.
//!
//! 1. Whatever drains and disables run beside an owner, every frame is in one place afterwards, and
//!    no frame was handed out that a caller held.
//! 2. No thread writes the words that closed gates lead to, so that they go on refusing.
//! 3. A CPU without a block has no front: its gate leads to the same words.
//! 4. Without the fence, or with a gate that is read before the sequence begins, 1. does not hold.

use super::cpus::{RseqFollowing, run_on};
use super::depot::{Depot, Setup};
use super::{Mutant, explore, explore_mutant, spawn};
use crate::{CpuId, Mode, Scope};

/// An owner that takes a frame and frees two, and another thread on a CPU of its own. (That the
/// words refuse is part of what `finish` validates.)
fn owner_and(other: fn(&Depot<RseqFollowing>)) -> impl Fn() + Send + Sync + 'static {
    move || {
        let depot = Depot::new(&Setup::default(), RseqFollowing::new(2));
        run_on(0);
        let held = depot.alloc().unwrap();
        let other = spawn(1, &depot, other);
        let next = depot.alloc().unwrap();
        depot.free(held);
        depot.free(next);
        other.join().unwrap();
        depot.finish();
    }
}

fn drain(depot: &Depot<RseqFollowing>) {
    depot.allocator.drain(Scope::ALL, Mode::Full);
}

fn retire(depot: &Depot<RseqFollowing>) {
    depot.allocator.cpu_caches().retire(CpuId::new(0));
}

fn turn(depot: &Depot<RseqFollowing>) {
    let own = depot.alloc().unwrap();
    depot.free(own);
}

#[test]
fn a_full_drain_of_gates_that_are_followed() {
    explore(owner_and(drain));
}

#[test]
#[should_panic(expected = "Doubled {")]
fn a_full_drain_of_gates_that_are_followed_without_a_fence() {
    explore_mutant(Mutant::NoFence, owner_and(drain));
}

#[test]
#[should_panic(expected = "frames were lost")]
fn a_full_drain_of_gates_that_are_followed_early() {
    explore_mutant(Mutant::GateReadEarly, owner_and(drain));
}

#[test]
fn disabled_while_its_gate_is_followed() {
    explore(owner_and(retire));
}

#[test]
fn a_cpu_without_a_block_goes_to_the_store() {
    explore(|| {
        let depot = Depot::new(&Setup { cpus: 1, ..Setup::default() }, RseqFollowing::new(2));
        run_on(0);
        let other = spawn(1, &depot, turn);
        turn(&depot);
        other.join().unwrap();
        depot.finish();
    });
}

#[test]
fn two_threads_on_one_cpu_that_follow_its_gate() {
    explore(|| {
        let depot = Depot::new(&Setup { cpus: 1, ..Setup::default() }, RseqFollowing::new(1));
        run_on(0);
        let held = depot.alloc().unwrap();
        let other = spawn(0, &depot, turn);
        depot.free(held);
        other.join().unwrap();
        depot.finish();
    });
}
