//! Handovers: drains that ask.
//!
//! 1. Whatever asks, fences and disables beside an owner, or two on one CPU, every frame is in one
//!    place afterwards, and no frame was handed out that a caller held. So it is for sequences that
//!    follow gates, for guards with handlers above them, and for locks.
//! 2. A claim that is no sequence of its CPU, or a drain that takes what is not quiescent, loses
//!    frames.
//! 3. When a drain finds its ask answered, it has what lay in the fronts when it asked, also where
//!    another drain asked first. An owner that answers before it takes its fronts breaks that.
//! 4. A sleeper is woken by the answer that it waits for, unless stores may pass later loads.

use std::sync::Arc;

use loom::sync::{Condvar, Mutex};

use super::cpus::{
    Kernel, Locks, Rseq, RseqFollowing, handed_over, locked, run_as_handler_of, run_on,
};
use super::depot::{Depot, Setup};
use super::{Mutant, explore, explore_large, explore_mutant, spawn};
use crate::cpus::{Cpus, PinnedCpus};
use crate::pcp::asks::{Asks, Sleepers};
use crate::sync::prim::Ordering;
use crate::{CpuId, Mode, Scope, ZoneId};

const OWNERS: CpuId = CpuId::new(0);

fn depot<C: Cpus>(cpus: C) -> Arc<Depot<C>> {
    let depot = Depot::new(&Setup::default(), cpus);
    run_on(0);
    depot
}

/// An owner that takes a frame and frees two, and others on another CPU.
fn owner_and<C: Cpus + Send + 'static>(depot: &Arc<Depot<C>>, others: &[fn(&Depot<C>)]) {
    let held = depot.alloc().unwrap();
    let others: Vec<_> = others.iter().map(|&other| spawn(1, depot, other)).collect();
    let next = depot.alloc().unwrap();
    depot.free(held);
    depot.free(next);
    others.into_iter().for_each(|other| other.join().unwrap());
}

fn ask<C: Cpus>(depot: &Depot<C>) {
    depot.allocator.drain(Scope::ALL, Mode::Handover);
}

fn drain_fully<C: Cpus>(depot: &Depot<C>) {
    depot.allocator.drain(Scope::ALL, Mode::Full);
}

fn retire<C: Cpus>(depot: &Depot<C>) {
    depot.allocator.cpu_caches().retire(OWNERS);
    assert!(!depot.allocator.cpu_caches().are_enabled(OWNERS));
}

fn retire_and_restore<C: Cpus>(depot: &Depot<C>) {
    depot.allocator.cpu_caches().retire(OWNERS);
    depot.allocator.cpu_caches().restore(OWNERS);
}

/// Asks, and fences at once.
fn escalate<C: Cpus>(depot: &Depot<C>) {
    let mut handover = depot.allocator.drain_handover(Scope::cpu(OWNERS), Some(0));
    handover.poll();
}

fn owner_and_an_ask() {
    let depot = depot(Rseq::new(2));
    owner_and(&depot, &[ask]);
    depot.finish();
}

#[test]
fn an_owner_that_is_asked() {
    explore(owner_and_an_ask);
    assert!(handed_over() > 0, "no execution answered: the model does not see 1.");
}

#[test]
#[should_panic(expected = "Doubled {")]
fn an_owner_that_is_asked_and_taken() {
    explore_mutant(Mutant::TakesUnquiet, owner_and_an_ask);
}

#[test]
fn asked_by_two() {
    explore_large(|| {
        let depot = depot(Rseq::new(2));
        owner_and(&depot, &[ask, ask]);
        depot.finish();
    });
}

#[test]
fn asked_and_drained_fully() {
    explore_large(|| {
        let depot = depot(Rseq::new(2));
        owner_and(&depot, &[ask, drain_fully]);
        depot.finish();
    });
}

#[test]
fn asked_and_fenced() {
    explore(|| {
        let depot = depot(Rseq::new(2));
        owner_and(&depot, &[escalate]);
        depot.finish();
    });
}

#[test]
fn asked_and_retired() {
    explore_large(|| {
        let depot = depot(Rseq::new(2));
        owner_and(&depot, &[ask, retire]);
        let cached = depot.allocator.cpu_stats(OWNERS, ZoneId::new(0)).unwrap();
        // A drain may have handed over what it found between two answers.
        depot.allocator.drain(Scope::ALL, Mode::Quiet);
        assert_eq!((cached.shelved_pages, depot.finish().cached_pages), (0, 0));
    });
}

#[test]
fn asked_and_retired_for_a_while() {
    explore_large(|| {
        let depot = depot(Rseq::new(2));
        owner_and(&depot, &[ask, retire_and_restore]);
        depot.finish();
    });
}

#[test]
fn asked_where_gates_are_followed() {
    explore(|| {
        let depot = depot(RseqFollowing::new(2));
        owner_and(&depot, &[ask]);
        depot.finish();
    });
}

/// One thread asks its own CPU, and so hands over at once, in the middle of what the other does.
fn two_on_one_cpu() {
    let depot = depot(Rseq::new(1));
    let (a, b) = (depot.alloc().unwrap(), depot.alloc().unwrap());
    let other = spawn(0, &depot, move |depot| depot.free(b));
    ask(&depot);
    depot.free(a);
    other.join().unwrap();
    depot.finish();
}

#[test]
fn two_on_one_cpu_that_is_asked() {
    explore(two_on_one_cpu);
}

#[test]
#[should_panic(expected = "frames were lost")]
fn two_on_one_cpu_that_is_claimed_outside_of_a_sequence() {
    explore_mutant(Mutant::ClaimsAnywhere, two_on_one_cpu);
}

/// A handler above the task hands over what both contexts have, unless it interrupted a guard.
fn a_handler_above_a_task() {
    let depot = depot(PinnedCpus(Kernel::new(1)));
    let held = depot.alloc().unwrap();
    let handler = spawn(0, &depot, |depot| {
        run_as_handler_of(0);
        ask(depot);
    });
    depot.free(held);
    handler.join().unwrap();
    depot.finish();
}

#[test]
fn a_handler_that_hands_over() {
    explore(a_handler_above_a_task);
}

#[test]
#[should_panic(expected = "Doubled {")]
fn a_handler_that_hands_over_above_a_guard() {
    explore_mutant(Mutant::ClaimsAnywhere, a_handler_above_a_task);
}

#[test]
fn an_owner_with_a_lock_is_asked() {
    explore_large(|| {
        let (front, locks) = locked::<false>(2);
        let depot: Arc<Depot<Locks<false>>> = Depot::keeping(&Setup::default(), front, locks);
        run_on(0);
        owner_and(&depot, &[ask]);
        depot.finish();
    });
}

/// Checks that frames which lie in the owner's front when it is asked have been taken when the ask
/// is answered.
fn answered_means_taken(is_asked_before: bool) {
    let depot = depot(Rseq::new(2));
    let held = depot.alloc().unwrap();
    let stats = depot.allocator.cpu_stats(OWNERS, ZoneId::new(0)).unwrap();
    assert_eq!(stats.unreachable_pages, 2);
    let drainer = spawn(1, &depot, move |depot| {
        if is_asked_before {
            depot.allocator.drain_handover(Scope::cpu(OWNERS), None);
        }
        let mut handover = depot.allocator.drain_handover(Scope::cpu(OWNERS), None);
        if handover.poll() {
            let taken = depot.allocator.free_pages(ZoneId::new(0));
            assert!(taken >= 3, "answered, and not taken");
        }
    });
    depot.free(held);
    drainer.join().unwrap();
    depot.finish();
}

#[test]
fn an_answer_means_that_the_fronts_were_taken() {
    explore(|| answered_means_taken(false));
}

#[test]
fn one_answer_for_two_asks() {
    explore_large(|| answered_means_taken(true));
}

#[test]
#[should_panic = "answered, and not taken"]
fn an_answer_before_the_fronts_are_taken() {
    explore_mutant(Mutant::AnswersEarly, || answered_means_taken(false));
}

/// A sleeper, and the holder of a gate that answers.
fn a_sleeper_and_an_answer() {
    struct Shared {
        asks: Asks,
        sleepers: Sleepers,
        bed: Mutex<()>,
        woken: Condvar,
    }
    let shared = Arc::new(Shared {
        asks: Asks::default(),
        sleepers: Sleepers::default(),
        bed: Mutex::new(()),
        woken: Condvar::new(),
    });
    let holder = shared.clone();
    let holder = loom::thread::spawn(move || {
        holder.asks.answer(1);
        if holder.sleepers.end().is_some() {
            let _bed = holder.bed.lock().unwrap();
            holder.woken.notify_all();
        }
    });
    let sleeping = shared.sleepers.begin();
    loop {
        let (word, seen) = sleeping.seen();
        if shared.asks.is_answered(1) {
            break;
        }
        let bed = shared.bed.lock().unwrap();
        // As a futex: nothing comes between this look and the sleep.
        if word.load(Ordering::Relaxed) == seen {
            drop(shared.woken.wait(bed).unwrap());
        }
    }
    holder.join().unwrap();
}

#[test]
fn a_sleeper_is_woken_by_its_answer() {
    explore(a_sleeper_and_an_answer);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_sleeper_and_an_answer_that_pass_each_other() {
    explore_mutant(Mutant::UnorderedAsks, a_sleeper_and_an_answer);
}
