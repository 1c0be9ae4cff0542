//! 1. Whatever drains run beside an owner, every frame is in one place afterwards, and no thread
//!    was given a frame that another held.
//! 2. Without the fence that is not so.
//! 3. A handler that allocates and frees between any two steps of the owner does no harm. It is
//!    modelled by a thread on the same CPU: that interleaves in more ways than a handler, which
//!    always ends first.
//! 4. Once caches are disabled, the CPU holds nothing, whatever was on its way, and also when two
//!    disable it at once.
//! 5. Two threads on one CPU neither lose nor double a frame, though each aborts the sequences of
//!    the other. If the kernel did not abort them, they would.
//! 6. An owner that is aborted at any of its steps, or moved to another CPU, gets and frees its
//!    frames all the same.
//! 7. A gate that is read before the sequence begins is no gate.
//! 8. A batch leaves or enters a front as one, beside a drain and beside a thread on the same CPU.
//!    If it copied its blocks after its commit, it would get others.
//! 9. Two magazines go to the shelf as one, and come back as one. If the front's two were linked
//!    before they had left it, a drain would have others behind them.

use super::cpus::{Rseq, place, run_on};
use super::depot::{Depot, Setup};
use super::{Mutant, explore, explore_large, explore_mutant, explore_mutant_within, spawn};
use crate::{CacheLimits, CpuId, Mode, Scope, ZoneId};

const OWNERS: CpuId = CpuId::new(0);

/// An owner that allocates and frees `cycles` times, and others that drain everything.
fn owner_and_drainers(drains: &'static [Mode], cycles: usize) -> impl Fn() + Send + Sync + 'static {
    move || {
        let depot = Depot::new(&Setup::default(), Rseq::new(2));
        run_on(0);
        let mut held = depot.alloc().unwrap();
        let drainers: Vec<_> = drains
            .iter()
            .map(|&mode| {
                spawn(1, &depot, move |depot| {
                    depot.allocator.drain(Scope::ALL, mode);
                })
            })
            .collect();
        for _ in 0..cycles {
            let next = depot.alloc().unwrap();
            depot.free(held);
            held = next;
        }
        depot.free(held);
        drainers.into_iter().for_each(|drainer| drainer.join().unwrap());
        depot.finish();
    }
}

/// An owner that takes a magazine from its shelf and puts one there, and another thread.
fn owner_of_a_shelf(other: fn(&Depot<Rseq>)) -> impl Fn() + Send + Sync + 'static {
    move || {
        let depot = Depot::new(&Setup::shelving(), Rseq::new(2));
        run_on(0);
        let held = depot.shelve_one();
        let other = spawn(1, &depot, other);
        let next = depot.alloc().unwrap();
        held.into_iter().chain([next]).for_each(|pfn| depot.free(pfn));
        other.join().unwrap();
        depot.finish();
    }
}

/// An owner that puts two magazines on its shelf at once, and takes both back, and another thread
/// on `cpu`.
fn owner_of_a_pair(cpu: u32, other: fn(&Depot<Rseq>)) -> impl Fn() + Send + Sync + 'static {
    move || {
        let depot = Depot::new(&Setup { frames: 7, ..Setup::default() }, Rseq::new(2));
        run_on(0);
        let [last, _held] = depot.fill_pair();
        let other = spawn(cpu, &depot, other);
        depot.free(last);
        let held = [depot.alloc(), depot.alloc()];
        held.into_iter().flatten().for_each(|pfn| depot.free(pfn));
        other.join().unwrap();
        depot.finish();
    }
}

/// An owner at the boundary of its front's magazines, which then divides a full one, and another
/// thread. The owner frees what it has.
fn owner_that_divides(other: fn(&Depot<Rseq>)) -> impl Fn() + Send + Sync + 'static {
    move || {
        let depot = Depot::new(&Setup::default(), Rseq::new(2));
        run_on(0);
        // A full magazine, and one block in the loaded one.
        let refilled = depot.alloc().unwrap();
        depot.free(refilled);
        let held = depot.alloc().unwrap();
        let other = spawn(1, &depot, other);
        let next = depot.alloc().unwrap();
        depot.free(held);
        depot.free(next);
        other.join().unwrap();
        depot.finish();
    }
}

#[test]
fn pair_beside_a_full_drain() {
    explore_large(owner_of_a_pair(1, |depot| {
        depot.allocator.drain(Scope::ALL, Mode::Full);
    }));
}

#[test]
fn pair_beside_a_quiet_drain() {
    explore_large(owner_of_a_pair(1, |depot| {
        depot.allocator.drain(Scope::ALL, Mode::Quiet);
    }));
}

#[test]
fn pair_of_an_owner_that_is_preempted() {
    explore_large(owner_of_a_pair(0, |depot| {
        depot.alloc().into_iter().for_each(|pfn| depot.free(pfn));
    }));
}

#[test]
fn pair_while_disabled() {
    explore_large(owner_of_a_pair(1, |depot| {
        depot.allocator.cpu_caches().retire(OWNERS);
    }));
}

/// The owner does nothing but take two magazines from its shelf, in the places of two empty ones.
#[test]
#[should_panic(expected = "Charge {")]
fn pair_that_is_linked_early() {
    explore_mutant_within(2, Mutant::LinksEarly, || {
        let depot = Depot::new(&Setup { frames: 7, ..Setup::default() }, Rseq::new(2));
        run_on(0);
        let [last, _held] = depot.fill_pair();
        depot.free(last);
        let shelved = || depot.allocator.cpu_stats(OWNERS, ZoneId::new(0)).unwrap().shelved_pages;
        assert_eq!(shelved(), 4, "a pair was put");
        depot.alloc().unwrap();
        let drainer = spawn(1, &depot, |depot| {
            depot.allocator.drain(Scope::ALL, Mode::Full);
        });
        depot.alloc().unwrap();
        drainer.join().unwrap();
        depot.finish();
    });
}

#[test]
fn divided_beside_a_full_drain() {
    explore_large(owner_that_divides(|depot| {
        depot.allocator.drain(Scope::ALL, Mode::Full);
    }));
}

#[test]
fn divided_by_an_owner_that_is_preempted() {
    explore_large(owner_that_divides(|depot| {
        run_on(0);
        let pfn = depot.alloc().unwrap();
        depot.free(pfn);
    }));
}

#[test]
fn divided_while_disabled() {
    explore_large(owner_that_divides(|depot| {
        depot.allocator.cpu_caches().retire(OWNERS);
    }));
}

#[test]
#[should_panic(expected = "frames came back that were free")]
fn divided_in_the_word() {
    explore_mutant_within(
        2,
        Mutant::DividesInPlace,
        owner_that_divides(|depot| {
            depot.allocator.drain(Scope::ALL, Mode::Full);
        }),
    );
}

#[test]
fn owner_and_full_drain() {
    explore(owner_and_drainers(&[Mode::Full], 1));
}

#[test]
fn owner_and_quiet_drain() {
    explore(owner_of_a_shelf(|depot| {
        depot.allocator.drain(Scope::ALL, Mode::Quiet);
    }));
}

#[test]
fn owner_and_two_full_drains() {
    explore_large(owner_and_drainers(&[Mode::Full, Mode::Full], 1));
}

#[test]
fn owner_and_drains_of_both_kinds() {
    explore(owner_and_drainers(&[Mode::Full, Mode::Quiet], 1));
}

#[test]
fn long_owner_and_two_full_drains() {
    explore_large(owner_and_drainers(&[Mode::Full, Mode::Full], 2));
}

#[test]
#[should_panic(expected = "Doubled {")]
fn full_drain_without_a_fence() {
    explore_mutant(Mutant::NoFence, owner_and_drainers(&[Mode::Full], 1));
}

#[test]
#[should_panic(expected = "frames were lost")]
fn full_drain_of_sequences_that_read_their_gate_early() {
    explore_mutant(Mutant::GateReadEarly, owner_and_drainers(&[Mode::Full], 1));
}

#[test]
fn handler_on_the_owners_cpu() {
    explore(|| {
        let depot = Depot::new(&Setup::default(), Rseq::new(1));
        run_on(0);
        let held = depot.alloc().unwrap();
        let handler = spawn(0, &depot, |depot| {
            let own = depot.alloc().unwrap();
            depot.free(own);
        });
        let next = depot.alloc().unwrap();
        depot.free(held);
        depot.free(next);
        handler.join().unwrap();
        depot.finish();
    });
}

#[test]
fn owner_that_moves_to_another_cpu() {
    explore(|| {
        let depot = Depot::new(&Setup::default(), Rseq::new(2));
        run_on(0);
        let held = depot.alloc().unwrap();
        let other = spawn(1, &depot, |depot| {
            let own = depot.alloc().unwrap();
            depot.free(own);
        });
        run_on(1);
        depot.free(held);
        other.join().unwrap();
        depot.finish();
    });
}

#[test]
fn disabled_in_the_middle() {
    explore(|| {
        let depot = Depot::new(&Setup::default(), Rseq::new(2));
        run_on(0);
        let (a, b) = (depot.alloc().unwrap(), depot.alloc().unwrap());
        let disabler = spawn(1, &depot, |depot| {
            depot.allocator.cpu_caches().retire(CpuId::new(0));
        });
        depot.free(a);
        depot.free(b);
        disabler.join().unwrap();
        assert!(!depot.allocator.cpu_caches().are_enabled(CpuId::new(0)));
        let cached = depot.allocator.cpu_stats(CpuId::new(0), ZoneId::new(0)).unwrap();
        assert_eq!((cached.shelved_pages, depot.finish().cached_pages), (0, 0));
    });
}

/// A CPU puts a magazine on its shelf while another one disables its caches.
fn shelved_while_disabled() {
    let depot = Depot::new(&Setup::shelving(), Rseq::new(2));
    run_on(0);
    let held = depot.shelve_one();
    let next = depot.alloc().unwrap();
    let disabler = spawn(1, &depot, |depot| {
        depot.allocator.cpu_caches().retire(OWNERS);
    });
    held.into_iter().chain([next]).for_each(|pfn| depot.free(pfn));
    disabler.join().unwrap();
    let cached = depot.allocator.cpu_stats(OWNERS, ZoneId::new(0)).unwrap();
    let left = (cached.shelved_pages, depot.finish().cached_pages);
    assert_eq!(left, (0, 0), "left behind a disabled gate");
}

#[test]
fn shelved_in_the_middle_of_a_disabling() {
    explore_large(shelved_while_disabled);
}

#[test]
#[should_panic = "left behind a disabled gate"]
fn a_shelf_and_a_gate_that_pass_each_other() {
    explore_mutant_within(2, Mutant::UnorderedShelves, shelved_while_disabled);
}

/// Both push into the slot that is next, unless one aborts the other.
fn two_frees_on_one_cpu() {
    let depot = Depot::new(&Setup { cpus: 1, ..Setup::default() }, Rseq::new(1));
    run_on(0);
    let (a, b) = (depot.alloc().unwrap(), depot.alloc().unwrap());
    let other = spawn(0, &depot, move |depot| depot.free(b));
    depot.free(a);
    other.join().unwrap();
    depot.finish();
}

#[test]
fn two_threads_free_on_one_cpu() {
    explore(two_frees_on_one_cpu);
}

#[test]
#[should_panic(expected = "frames were lost")]
fn two_threads_free_on_one_cpu_that_aborts_neither() {
    explore_mutant(Mutant::NoPreemption, two_frees_on_one_cpu);
}

#[test]
fn two_threads_allocate_on_one_cpu() {
    explore(|| {
        let depot = Depot::new(&Setup { cpus: 1, ..Setup::default() }, Rseq::new(1));
        run_on(0);
        let held = depot.alloc().unwrap();
        depot.free(held);
        let other = spawn(0, &depot, |depot| {
            depot.alloc().expect("four are free");
        });
        depot.alloc().expect("four are free");
        other.join().unwrap();
        depot.finish();
    });
}

/// Preemptions and signals abort an owner at any step, though its front does not change.
#[test]
fn owner_that_is_interrupted() {
    explore(|| {
        let depot = Depot::new(&Setup { cpus: 1, ..Setup::default() }, Rseq::new(1));
        run_on(0);
        let held = depot.alloc().unwrap();
        let other = spawn(1, &depot, |depot| {
            (0..3).for_each(|_| depot.allocator.cpus().interrupt(OWNERS));
        });
        let (b, c) = (depot.alloc().unwrap(), depot.alloc().unwrap());
        [held, b, c].into_iter().for_each(|pfn| depot.free(pfn));
        other.join().unwrap();
        depot.finish();
    });
}

/// Runs an owner that the scheduler moves to a CPU where another thread runs.
#[test]
fn owner_that_is_moved_in_the_middle() {
    explore_large(|| {
        let depot = Depot::new(&Setup::default(), Rseq::new(2));
        run_on(0);
        let held = depot.alloc().unwrap();
        let owner = place();
        let scheduler = spawn(1, &depot, move |depot| {
            depot.allocator.cpus().migrate(&owner, CpuId::new(1));
            let own = depot.alloc().unwrap();
            depot.free(own);
        });
        let next = depot.alloc().unwrap();
        depot.free(held);
        depot.free(next);
        scheduler.join().unwrap();
        depot.finish();
    });
}

#[test]
fn disabled_by_two_at_once() {
    explore_large(|| {
        let depot = Depot::new(&Setup::default(), Rseq::new(2));
        run_on(0);
        let (a, b) = (depot.alloc().unwrap(), depot.alloc().unwrap());
        let disablers = [(); 2].map(|()| {
            spawn(1, &depot, |depot| {
                depot.allocator.cpu_caches().retire(OWNERS);
            })
        });
        depot.free(a);
        depot.free(b);
        disablers.into_iter().for_each(|disabler| disabler.join().unwrap());
        assert!(!depot.allocator.cpu_caches().are_enabled(OWNERS));
        let cached = depot.allocator.cpu_stats(OWNERS, ZoneId::new(0)).unwrap();
        assert_eq!((cached.shelved_pages, depot.finish().cached_pages), (0, 0));
    });
}

#[test]
fn retired_restored_and_drained() {
    explore_large(|| {
        let depot = Depot::new(&Setup::default(), Rseq::new(2));
        run_on(0);
        let (a, b) = (depot.alloc().unwrap(), depot.alloc().unwrap());
        let retirer = spawn(1, &depot, |depot| {
            depot.allocator.cpu_caches().retire(OWNERS);
            depot.allocator.cpu_caches().restore(OWNERS);
        });
        let drainer = spawn(1, &depot, |depot| {
            depot.allocator.drain(Scope::ALL, Mode::Full);
        });
        depot.free(a);
        depot.free(b);
        retirer.join().unwrap();
        drainer.join().unwrap();
        depot.finish();
    });
}

/// Another CPU, which decays caches, spills the shelf that its owner takes magazines from.
#[test]
fn decayed_beside_its_owner() {
    explore_large(owner_of_a_shelf(|depot| {
        let nothing = CacheLimits { batch: 1, high_min: 0, high_max: 0 };
        depot.allocator.settings(ZoneId::new(0)).unwrap().set_cache_limits(nothing);
        depot.allocator.cpu_caches().decay();
    }));
}

/// An owner that frees two frames by one batch and takes them by another, and another thread on
/// `cpu`.
fn owner_of_batches(cpu: u32, other: fn(&Depot<Rseq>)) -> impl Fn() + Send + Sync + 'static {
    move || {
        let depot = Depot::new(&Setup { frames: 5, ..Setup::default() }, Rseq::new(2));
        run_on(0);
        let held = [depot.alloc().unwrap(), depot.alloc().unwrap()];
        let other = spawn(cpu, &depot, other);
        depot.free_many(&held);
        let next = depot.alloc_many(2);
        depot.free_many(&next);
        other.join().unwrap();
        depot.finish();
    }
}

#[test]
fn batches_beside_a_full_drain() {
    explore(owner_of_batches(1, |depot| {
        depot.allocator.drain(Scope::ALL, Mode::Full);
    }));
}

/// Takes two frames, so that it holds what the owner's batch may have found, and frees them.
fn neighbour(depot: &Depot<Rseq>) {
    let own = [depot.alloc().unwrap(), depot.alloc().unwrap()];
    own.into_iter().for_each(|pfn| depot.free(pfn));
}

#[test]
fn batches_of_two_threads_on_one_cpu() {
    explore_large(owner_of_batches(0, neighbour));
}

#[test]
#[should_panic(expected = "Doubled {")]
fn batches_that_copy_after_their_commit() {
    explore_mutant(Mutant::CopiesLate, owner_of_batches(0, neighbour));
}
