//! Interrupt handlers, which have fronts of their own on the CPU they interrupt and share its
//! shelves, its empty magazines and its accounts with the task.
//!
//! 1. A handler that allocates and frees between any two steps of the task it interrupted neither
//!    loses nor doubles a frame. With the task's own fronts it would.
//! 2. Magazines that both put on the CPU's shelf and take from it have one owner at a time.
//! 3. A full drain takes the fronts of both contexts, once; without its fence it does not.
//! 4. Once caches are disabled, neither context holds anything.
//! 5. Code that has no fronts, such as a nested handler, is served by the store.
//! 6. The same holds for sequences that a caller runs under a guard of its own, for one block or
//!    many, and for the exchange of a magazine under that guard: beside drains, decay, a handler
//!    that shares the shelf, and while caches are disabled.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::sync::Arc;

use super::cpus::{Kernel, run_as_handler_of, run_nowhere, run_on};
use super::depot::{Depot, Setup};
use super::{Mutant, explore, explore_large, explore_mutant, spawn};
use crate::cpus::{Context, PinnedCpus, Processor};
use crate::front::SLOTS;
use crate::{CacheLimits, CpuId, Flags, Mobility, Mode, Order, Pfn, Scope, ZoneId};

type Machine = Depot<PinnedCpus<Kernel>>;

const OWNERS: CpuId = CpuId::new(0);

fn machine(frames: u32) -> Arc<Machine> {
    machine_of(&Setup { frames, ..Setup::default() })
}

fn machine_of(setup: &Setup) -> Arc<Machine> {
    let depot = Depot::new(setup, PinnedCpus(Kernel::new(2)));
    run_on(0);
    depot
}

/// A frame allocated and freed.
fn turn(depot: &Machine) {
    let own = depot.alloc().unwrap();
    depot.free(own);
}

/// A task that frees what it holds, and its handler.
fn task_and_handler() {
    let depot = machine(4);
    let held = depot.alloc().unwrap();
    let handler = spawn(0, &depot, |depot| {
        run_as_handler_of(0);
        turn(depot);
    });
    let next = depot.alloc().unwrap();
    depot.free(held);
    depot.free(next);
    handler.join().unwrap();
    depot.finish();
}

#[test]
fn a_task_and_its_handler() {
    explore(task_and_handler);
}

#[test]
#[should_panic(expected = "Doubled {")]
fn a_task_and_a_handler_in_its_fronts() {
    explore_mutant(Mutant::OneContext, task_and_handler);
}

/// The task takes a magazine from the shelf while the handler puts one there, and again.
#[test]
fn a_task_and_its_handler_share_a_shelf() {
    explore_large(|| {
        let depot = machine(9);
        run_as_handler_of(0);
        let handlers: Vec<_> = (0..4).map(|_| depot.alloc().unwrap()).collect();
        run_on(0);
        let all: Vec<_> = (0..5).map(|_| depot.alloc().unwrap()).collect();
        all.into_iter().for_each(|pfn| depot.free(pfn));
        let handler = spawn(0, &depot, |depot| {
            run_as_handler_of(0);
            handlers.into_iter().for_each(|pfn| depot.free(pfn));
        });
        let own = [(); 4].map(|()| depot.alloc().unwrap());
        own.into_iter().for_each(|pfn| depot.free(pfn));
        handler.join().unwrap();
        depot.finish();
    });
}

/// Both contexts have something, and both use it while a drainer takes it.
fn contexts_and_a_drainer() {
    let depot = machine(8);
    run_as_handler_of(0);
    turn(&depot);
    run_on(0);
    turn(&depot);
    let drainer = spawn(1, &depot, |depot| {
        depot.allocator.drain(Scope::cpu(OWNERS), Mode::Full);
    });
    let handler = spawn(0, &depot, |depot| {
        run_as_handler_of(0);
        depot.alloc().unwrap();
    });
    depot.alloc().unwrap();
    handler.join().unwrap();
    drainer.join().unwrap();
    depot.finish();
}

#[test]
fn a_full_drain_of_both_contexts() {
    explore_large(contexts_and_a_drainer);
}

#[test]
#[should_panic(expected = "Doubled {")]
fn a_full_drain_of_both_contexts_without_a_fence() {
    explore_mutant(Mutant::NoFence, contexts_and_a_drainer);
}

/// The owner uses its front by single sequences under a guard of its own, and the allocator where
/// the front has nothing or no room.
fn owner_by_handles_and_a_drainer() {
    let depot = machine(4);
    let mut held = depot.alloc().unwrap();
    let drainer = spawn(1, &depot, |depot| {
        depot.allocator.drain(Scope::ALL, Mode::Full);
    });
    let front =
        depot.allocator.fronts().find(Context::Task, Order::BASE, Mobility::Movable).unwrap();
    for _ in 0..2 {
        let popped = depot.allocator.cpus().0.pin().and_then(|_guard| {
            // SAFETY: under the guard of that CPU and context.
            unsafe { depot.allocator.fronts().pop(OWNERS, front) }
        });
        let next =
            popped.or_else(|| depot.allocator.try_alloc(Order::BASE, Flags::default())).unwrap();
        depot.note_got(next, Order::BASE);
        depot.note_freed(held);
        let pushed = depot.allocator.cpus().0.pin().is_some_and(|_guard| {
            // SAFETY: as above; the frame is this thread's.
            unsafe { depot.allocator.fronts().push(OWNERS, front, held) }
        });
        if !pushed {
            depot.allocator.free_as(held, Order::BASE, Mobility::Movable).unwrap();
        }
        held = next;
    }
    depot.free(held);
    drainer.join().unwrap();
    depot.finish();
}

#[test]
fn sequences_of_the_caller_and_a_full_drain() {
    explore_large(owner_by_handles_and_a_drainer);
}

#[test]
#[should_panic(expected = "Charge {")]
fn sequences_of_the_caller_and_a_full_drain_without_a_fence() {
    explore_mutant(Mutant::NoFence, owner_by_handles_and_a_drainer);
}

/// Runs an owner that takes as many as there are by one sequence, beside a drainer.
fn owner_of_many_and_a_drainer() {
    let depot = machine(4);
    let held = depot.alloc().unwrap();
    depot.free(held);
    let drainer = spawn(1, &depot, |depot| {
        depot.allocator.drain(Scope::ALL, Mode::Full);
    });
    let front =
        depot.allocator.fronts().find(Context::Task, Order::BASE, Mobility::Movable).unwrap();
    let mut room = [MaybeUninit::uninit(); SLOTS + 1];
    let popped = depot.allocator.cpus().0.pin().map_or(&[][..], |_guard| {
        // SAFETY: under the guard of that CPU and context.
        unsafe { depot.allocator.fronts().pop_many(OWNERS, front, &mut room) }
    });
    popped.iter().for_each(|&pfn| depot.note_got(pfn, Order::BASE));
    popped.iter().for_each(|&pfn| depot.free(pfn));
    drainer.join().unwrap();
    depot.finish();
}

#[test]
fn a_sequence_for_many_and_a_full_drain() {
    explore(owner_of_many_and_a_drainer);
}

#[test]
#[should_panic(expected = "Doubled {")]
fn a_sequence_for_many_and_a_full_drain_without_a_fence() {
    explore_mutant(Mutant::NoFence, owner_of_many_and_a_drainer);
}

std::thread_local! {
    /// Exchanges that got a block, and those that took one, over all executions of a model.
    static EXCHANGED: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

/// A block by an exchange of this code's front, under a guard of its own; else by the allocator.
fn exchange_pop(depot: &Machine, context: Context) -> Pfn {
    let fronts = depot.allocator.fronts();
    let front = fronts.find(context, Order::BASE, Mobility::Movable).unwrap();
    let popped = depot.allocator.cpus().0.pin().and_then(|_guard| {
        // SAFETY: under the guard of that CPU and context.
        unsafe { fronts.pop_next(OWNERS, front) }
    });
    let (pops, pushes) = EXCHANGED.get();
    EXCHANGED.set((pops + u64::from(popped.is_some()), pushes));
    let pfn =
        popped.unwrap_or_else(|| depot.allocator.alloc(Order::BASE, Flags::default()).unwrap());
    depot.note_got(pfn, Order::BASE);
    pfn
}

/// Frees a block of this thread likewise; by a sequence first.
fn exchange_push(depot: &Machine, context: Context, pfn: Pfn) {
    let fronts = depot.allocator.fronts();
    let front = fronts.find(context, Order::BASE, Mobility::Movable).unwrap();
    depot.note_freed(pfn);
    let pushed = depot.allocator.cpus().0.pin().is_some_and(|_guard| {
        // SAFETY: as in `exchange_pop`; the block is this thread's.
        if unsafe { fronts.push(OWNERS, front, pfn) } {
            return true;
        }
        // SAFETY: as above.
        let exchanged = unsafe { fronts.push_next(OWNERS, front, pfn) };
        let (pops, pushes) = EXCHANGED.get();
        EXCHANGED.set((pops, pushes + u64::from(exchanged)));
        exchanged
    });
    if !pushed {
        depot.allocator.free_as(pfn, Order::BASE, Mobility::Movable).unwrap();
    }
}

/// An owner that takes a magazine from its shelf and puts one there, and another thread.
fn exchange_beside(other: fn(&Machine)) -> Arc<Machine> {
    let depot = machine_of(&Setup::shelving());
    let held = depot.shelve_one();
    let other = spawn(1, &depot, other);
    let next = exchange_pop(&depot, Context::Task);
    held.into_iter().chain([next]).for_each(|pfn| exchange_push(&depot, Context::Task, pfn));
    other.join().unwrap();
    depot
}

/// Explores that; some executions exchanged in both directions.
#[track_caller]
fn explore_exchange(other: fn(&Machine)) {
    EXCHANGED.set((0, 0));
    explore_large(move || {
        exchange_beside(other).finish();
    });
    let (pops, pushes) = EXCHANGED.get();
    assert!(pops > 0 && pushes > 0, "{pops} and {pushes}: the model sees no exchange");
}

fn drain_fully(depot: &Machine) {
    depot.allocator.drain(Scope::ALL, Mode::Full);
}

#[test]
fn an_exchange_and_a_quiet_drain() {
    explore_exchange(|depot| {
        depot.allocator.drain(Scope::ALL, Mode::Quiet);
    });
}

#[test]
fn an_exchange_and_a_full_drain() {
    explore_exchange(drain_fully);
}

#[test]
fn an_exchange_and_a_handover() {
    explore_exchange(|depot| {
        depot.allocator.drain(Scope::ALL, Mode::Handover);
    });
}

/// The owner puts two magazines on its shelf at once, and takes both back.
#[test]
fn an_exchange_of_a_pair_and_a_full_drain() {
    explore_large(|| {
        let depot = machine(7);
        let [last, _held] = depot.fill_pair();
        let drainer = spawn(1, &depot, drain_fully);
        exchange_push(&depot, Context::Task, last);
        let held = [(); 2].map(|()| exchange_pop(&depot, Context::Task));
        held.into_iter().for_each(|pfn| exchange_push(&depot, Context::Task, pfn));
        drainer.join().unwrap();
        depot.finish();
    });
}

/// The owner does nothing but exchange a magazine.
#[test]
#[should_panic(expected = "Doubled {")]
fn an_exchange_and_a_full_drain_without_a_fence() {
    explore_mutant(Mutant::NoFence, || {
        let depot = machine_of(&Setup::shelving());
        depot.shelve_one();
        let drainer = spawn(1, &depot, drain_fully);
        exchange_pop(&depot, Context::Task);
        drainer.join().unwrap();
        depot.finish();
    });
}

#[test]
fn an_exchange_and_decay() {
    explore_exchange(|depot| {
        let nothing = CacheLimits { batch: 1, high_min: 0, high_max: 0 };
        depot.allocator.settings(ZoneId::new(0)).unwrap().set_cache_limits(nothing);
        depot.allocator.cpu_caches().decay();
    });
}

/// Nothing is left with the CPU, though an exchange does not look whether its gate is closed for
/// good.
#[test]
fn an_exchange_while_caches_are_disabled() {
    explore_large(|| {
        let depot = exchange_beside(|depot| {
            let done = depot.allocator.cpu_caches().retire(OWNERS);
            assert_eq!(done.busy_cpus, 0);
        });
        let cached = depot.allocator.cpu_stats(OWNERS, ZoneId::new(0)).unwrap();
        assert_eq!((cached.shelved_pages, depot.finish().cached_pages), (0, 0));
    });
}

/// The handler takes a magazine from the shelf that the task takes one from.
#[test]
fn an_exchange_and_one_of_a_handler() {
    explore_exchange(|depot| {
        run_as_handler_of(0);
        let own = exchange_pop(depot, Context::Interrupt);
        exchange_push(depot, Context::Interrupt, own);
    });
}

#[test]
fn both_contexts_disabled_in_the_middle() {
    explore_large(|| {
        let depot = machine(8);
        let held = depot.alloc().unwrap();
        let handler = spawn(0, &depot, |depot| {
            run_as_handler_of(0);
            turn(depot);
        });
        let disabler = spawn(1, &depot, |depot| {
            let done = depot.allocator.cpu_caches().retire(OWNERS);
            assert_eq!(done.busy_cpus, 0);
        });
        depot.free(held);
        handler.join().unwrap();
        disabler.join().unwrap();
        assert!(!depot.allocator.cpu_caches().are_enabled(OWNERS));
        let cached = depot.allocator.cpu_stats(OWNERS, ZoneId::new(0)).unwrap();
        assert_eq!((cached.shelved_pages, depot.finish().cached_pages), (0, 0));
    });
}

#[test]
fn a_nested_handler_is_served_by_the_store() {
    explore(|| {
        let depot = machine(4);
        let nested = spawn(0, &depot, |depot| {
            run_nowhere();
            turn(depot);
        });
        turn(&depot);
        nested.join().unwrap();
        depot.finish();
    });
}
