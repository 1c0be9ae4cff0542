//! Interrupt handlers, which have fronts of their own on the CPU they interrupt and share its
//! shelves, its empty magazines and its accounts with the task.
//!
//! 1. A handler that allocates and frees between any two steps of the task it interrupted neither
//!    loses nor doubles a frame. With the task's own fronts it would.
//! 2. Magazines that both put on the CPU's shelf and take from it have one owner at a time.
//! 3. A full drain takes the fronts of both contexts, once; without its fence it does not.
//! 4. Once caches are disabled, neither context holds anything.
//! 5. Code that has no fronts, such as a nested handler, is served by the store.
//! 6. So it is with sequences that a caller runs under a guard of its own, for one block or many.

use std::mem::MaybeUninit;
use std::sync::Arc;

use super::cpus::{Kernel, run_as_handler_of, run_nowhere, run_on};
use super::depot::{Depot, Setup};
use super::{Mutant, explore, explore_large, explore_mutant, spawn};
use crate::cpus::{Context, Pinned, Processor};
use crate::front::SLOTS;
use crate::{CpuId, Flags, Mobility, Mode, Order, Scope, ZoneId};

type Machine = Depot<Pinned<Kernel>>;

const OWNERS: CpuId = CpuId::new(0);

fn machine(frames: u32) -> Arc<Machine> {
    let depot = Depot::new(&Setup { cpus: 2, frames, ..Setup::default() }, Pinned(Kernel::new(2)));
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
#[should_panic]
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
#[should_panic]
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
#[should_panic]
fn sequences_of_the_caller_and_a_full_drain_without_a_fence() {
    explore_mutant(Mutant::NoFence, owner_by_handles_and_a_drainer);
}

/// As above, an owner that takes as many as there are by one sequence.
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
#[should_panic]
fn a_sequence_for_many_and_a_full_drain_without_a_fence() {
    explore_mutant(Mutant::NoFence, owner_of_many_and_a_drainer);
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
