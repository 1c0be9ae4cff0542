//! The lock front.
//!
//! 1. Threads and signal handlers that believe to be on one CPU never run sequences at the same
//!    time: the one that finds the lock taken goes to the store. No frame is lost or handed out
//!    twice. With a lock for each of the two, some are.
//! 2. A belief may be wrong, and may change between any two steps: it costs speed alone.
//! 3. A full drain beside an owner takes what the CPU had, once; without its fence it does not.
//! 4. A fence does not wait for ever: a drain that finds the lock taken for too long reports a busy
//!    CPU and leaves its fronts alone.
//! 5. Once caches are disabled the CPU holds nothing, unless the drain reported it as busy.
//! 6. The same holds where gates are laid out for sequences that follow them.
//! 7. No caller takes a lock for its own that it did not get, however many exchanges fail at once,
//!    and whichever of them a drainer saw.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering as Plain};

use super::cpus::{Locks, locked, place, run_as_handler_of, run_on};
use super::depot::{Depot, Setup};
use super::{Mutant, explore, explore_large, explore_mutant, explore_mutant_within, spawn};
use crate::cpus::CpuLock;
use crate::{CpuId, Mode, Scope, ZoneId};

const OWNERS: CpuId = CpuId::new(0);

fn depot<const FOLLOWS: bool>(cpus: u32) -> Arc<Depot<Locks<FOLLOWS>>> {
    let (front, locks) = locked(cpus);
    let depot = Depot::keeping(&Setup { cpus, ..Setup::default() }, front, locks);
    run_on(0);
    depot
}

/// An owner that takes a frame and frees two, and another thread that begins on `cpu`.
fn owner_and<const FOLLOWS: bool>(
    cpu: u32,
    other: impl Fn(&Depot<Locks<FOLLOWS>>) + Copy + Send + Sync + 'static,
) -> impl Fn() + Send + Sync + 'static {
    move || {
        let depot = depot::<FOLLOWS>(2);
        let held = depot.alloc().unwrap();
        let other = spawn(cpu, &depot, other);
        let next = depot.alloc().unwrap();
        depot.free(held);
        depot.free(next);
        other.join().unwrap();
        depot.finish();
    }
}

fn turn<const FOLLOWS: bool>(depot: &Depot<Locks<FOLLOWS>>) {
    let own = depot.alloc().unwrap();
    depot.free(own);
}

fn drain<const FOLLOWS: bool>(depot: &Depot<Locks<FOLLOWS>>) {
    depot.allocator.drain(Scope::ALL, Mode::Full);
}

/// Runs a turn of a signal handler, or of another thread that believes to be on this CPU.
fn turn_of_handler(depot: &Depot<Locks<false>>) {
    run_as_handler_of(0);
    turn(depot);
}

#[test]
fn two_that_believe_to_be_on_one_cpu() {
    explore_large(owner_and(0, turn_of_handler));
}

#[test]
#[should_panic(expected = "Doubled {")]
fn two_that_believe_to_be_on_one_cpu_and_take_two_locks() {
    explore_mutant(Mutant::TwoLocks, owner_and(0, turn_of_handler));
}

#[test]
fn a_full_drain_beside_an_owner_with_a_lock() {
    explore_large(owner_and::<false>(1, drain));
}

#[test]
#[should_panic(expected = "Doubled {")]
fn a_full_drain_beside_an_owner_with_a_lock_without_a_fence() {
    explore_mutant(Mutant::NoFence, owner_and::<false>(1, drain));
}

#[test]
fn locks_over_gates_laid_out_to_be_followed() {
    explore(owner_and::<true>(1, drain));
}

#[test]
fn an_owner_whose_belief_changes_in_the_middle() {
    explore_large(|| {
        let depot = depot::<false>(2);
        let held = depot.alloc().unwrap();
        let owner = place();
        let other = spawn(1, &depot, move |depot| {
            owner.move_to(1);
            turn(depot);
        });
        depot.free(held);
        let next = depot.alloc().unwrap();
        depot.free(next);
        other.join().unwrap();
        depot.finish();
    });
}

/// Disables caches beside an owner; `busy` counts executions in which the drain gave up.
fn disabled_beside_an_owner(busy: &AtomicU32) {
    let depot = depot::<false>(2);
    let (a, b) = (depot.alloc().unwrap(), depot.alloc().unwrap());
    let owner = spawn(0, &depot, move |depot| {
        depot.free(a);
        depot.free(b);
    });
    run_on(1);
    let done = depot.allocator.cpu_caches().retire(OWNERS);
    owner.join().unwrap();
    if done.busy_cpus > 0 {
        busy.fetch_add(1, Plain::Relaxed);
        depot.finish();
        return;
    }
    assert!(!depot.allocator.cpu_caches().are_enabled(OWNERS));
    let cached = depot.allocator.cpu_stats(OWNERS, ZoneId::new(0)).unwrap();
    assert_eq!((cached.shelved_pages, depot.finish().cached_pages), (0, 0));
}

#[test]
fn disabled_beside_an_owner_with_a_lock() {
    let busy = Arc::new(AtomicU32::new(0));
    let seen = busy.clone();
    let is_explored = explore(move || disabled_beside_an_owner(&seen));
    assert!(
        !is_explored || busy.load(Plain::Relaxed) > 0,
        "no fence gave up: the model does not see 4."
    );
}

/// Owners and a drainer try one lock, each under a name of its own.
fn owners_and_a_drainer<const OWNERS: usize>() {
    const DRAINER: usize = 9;
    let lock = Arc::new(CpuLock::new());
    let owner = |name: usize| {
        let lock = lock.clone();
        loom::thread::spawn(move || match lock.try_lock(|| name) {
            Some(held) => drop(held),
            None => assert!(!lock.is_held_by(name), "it names one who did not get it"),
        })
    };
    let others: [_; OWNERS] = std::array::from_fn(|index| owner(1 + index));
    lock.passes(DRAINER, 1);
    for other in others {
        other.join().unwrap();
    }
}

#[test]
fn no_caller_takes_a_lock_for_its_own_that_it_did_not_get() {
    explore(owners_and_a_drainer::<3>);
}

/// Doubts that come while a drainer has the lock take five preemptions.
#[test]
fn no_caller_takes_a_lock_for_its_own_beside_a_drainer_that_has_it() {
    super::explore::explore(5, owners_and_a_drainer::<2>);
}

#[test]
#[should_panic = "it names one who did not get it"]
fn no_caller_takes_a_lock_for_its_own_where_a_drainer_ends_later_doubts() {
    explore_mutant_within(5, Mutant::EndsLaterDoubts, owners_and_a_drainer::<2>);
}
