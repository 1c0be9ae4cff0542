//! A CPU behind a lock beside one with sequences, by the code that tells them apart.
//!
//! 1. Whatever drains, disables and asks run beside an owner behind a lock, every frame is in one
//!    place afterwards, and no thread was given a frame that another held. No drain fences that
//!    CPU.
//! 2. The same for two threads on that CPU, one of which may be a signal handler of the other, and
//!    for a thread that is moved from one kind of CPU to the other between any two of its steps.
//! 3. What the owner keeps in its front is taken without its help, unless the drain reports it as
//!    busy.
//! 4. If the drain does not take the lock, or the gate lets sequences in, 1. does not hold.

use std::sync::Arc;

use pagedepot::cpus::CpuLock;
use pagedepot::loom_tests::cpus::{Believed, RseqFollowing, place, run_on};
use pagedepot::loom_tests::depot::{Depot, Setup};
use pagedepot::loom_tests::{Mutant, explore, explore_large, explore_mutant, spawn};
use pagedepot::{CpuId, Mode, Scope, ZoneId};

use crate::cpus::mixed::{MaybeSequences, SequencesAndLocks};

impl MaybeSequences for RseqFollowing {
    fn exist(&self) -> bool {
        true
    }
}

type Mixed = Depot<SequencesAndLocks<'static, RseqFollowing, Believed>>;

/// The CPU behind a lock; CPU 1 has sequences.
const LOCKED: CpuId = CpuId::new(0);

/// Locks, freed after what uses them.
struct Locks(*mut [CpuLock]);

impl Drop for Locks {
    fn drop(&mut self) {
        // SAFETY: from a box, whose contents nothing uses any more.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

fn depot() -> Arc<Mixed> {
    let locks = Box::into_raw((0..2).map(|_| CpuLock::new()).collect::<Box<[_]>>());
    // SAFETY: the only reference; the depot drops the locks after its allocator.
    let all = unsafe { &mut *locks };
    let cpus = SequencesAndLocks::new(RseqFollowing::new(2), all, Believed, |cpu| cpu == LOCKED);
    let depot = Depot::keeping(&Setup::default(), cpus, Box::new(Locks(locks)));
    run_on(LOCKED.get());
    depot
}

/// An owner behind a lock that takes a frame and frees two, and another thread that begins on
/// `cpu`.
fn owner_and(
    cpu: u32,
    other: impl Fn(&Mixed) + Copy + Send + Sync + 'static,
) -> impl Fn() + Send + Sync + 'static {
    move || {
        let depot = depot();
        let held = depot.alloc().unwrap();
        let other = spawn(cpu, &depot, other);
        let next = depot.alloc().unwrap();
        depot.free(held);
        depot.free(next);
        other.join().unwrap();
        depot.finish();
    }
}

fn turn(depot: &Mixed) {
    let own = depot.alloc().unwrap();
    depot.free(own);
}

fn drain(depot: &Mixed) {
    let drained = depot.allocator.drain(Scope::cpu(LOCKED), Mode::Full);
    assert_eq!((drained.fences, drained.unfenced_cpus, drained.isolated_cpus), (0, 0, 0));
}

fn ask(depot: &Mixed) {
    depot.allocator.drain(Scope::cpu(LOCKED), Mode::Handover);
}

fn retire(depot: &Mixed) {
    depot.allocator.cpu_caches().retire(LOCKED);
}

#[test]
fn a_full_drain_of_a_cpu_behind_a_lock() {
    explore(owner_and(1, drain));
}

#[test]
#[should_panic(expected = "Doubled {")]
fn a_full_drain_of_a_cpu_behind_a_lock_that_is_not_taken() {
    explore_mutant(Mutant::TakesUnquiet, owner_and(1, drain));
}

#[test]
fn a_cpu_behind_a_lock_is_asked() {
    explore_large(owner_and(1, ask));
}

#[test]
fn a_cpu_behind_a_lock_is_retired() {
    explore_large(owner_and(1, retire));
}

#[test]
fn two_threads_on_a_cpu_behind_a_lock() {
    explore_large(owner_and(LOCKED.get(), turn));
}

#[test]
#[should_panic(expected = "Doubled {")]
fn two_threads_on_a_cpu_behind_a_lock_that_sequences_pass() {
    explore_mutant(Mutant::OpensToAll, owner_and(LOCKED.get(), turn));
}

/// Runs a thread that begins on one kind of CPU, and is moved to the other in the middle, where
/// another thread has its turn.
fn moved(from: u32, to: u32) {
    let depot = depot();
    run_on(from);
    let held = depot.alloc().unwrap();
    let owner = place();
    let scheduler = spawn(to, &depot, move |depot| {
        depot.allocator.cpus().sequences().migrate(&owner, CpuId::new(to));
        turn(depot);
    });
    depot.free(held);
    turn(&depot);
    scheduler.join().unwrap();
    depot.finish();
}

#[test]
fn moved_from_a_cpu_behind_a_lock_to_sequences() {
    explore_large(|| moved(0, 1));
}

#[test]
fn moved_from_sequences_to_a_cpu_behind_a_lock() {
    explore_large(|| moved(1, 0));
}

#[test]
fn what_lies_in_the_front_is_taken_without_the_owner() {
    explore(|| {
        let depot = depot();
        let held = depot.alloc().unwrap();
        let stats = depot.allocator.cpu_stats(LOCKED, ZoneId::new(0)).unwrap();
        assert!(stats.unreachable_pages > 0);
        let drainer = spawn(1, &depot, |depot| {
            let drained = depot.allocator.drain(Scope::cpu(LOCKED), Mode::Full);
            assert!(drained.taken_pages > 0 || drained.busy_cpus > 0, "{drained:?}");
        });
        depot.free(held);
        drainer.join().unwrap();
        depot.finish();
    });
}
