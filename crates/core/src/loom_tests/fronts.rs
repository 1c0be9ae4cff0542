//! 1. Whatever drains run beside an owner, every frame is in one place afterwards, and nobody was
//!    given a frame that somebody held.
//! 2. Without the fence that is not so.
//! 3. A handler that allocates and frees between any two steps of the owner does no harm. It is
//!    modelled by a thread on the same CPU: that interleaves in more ways than a handler, which
//!    always ends first.
//! 4. Once caches are disabled, the CPU holds nothing, whatever was on its way.

use super::cpus::{Rseq, run_on};
use super::depot::{Depot, Setup};
use super::{Mutant, explore, explore_mutant, spawn};
use crate::{CpuId, Mode, Scope, ZoneId};

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

#[test]
fn owner_and_full_drain() {
    explore(owner_and_drainers(&[Mode::Full], 1));
}

#[test]
fn owner_and_quiet_drain() {
    explore(owner_and_drainers(&[Mode::Quiet], 2));
}

#[test]
fn owner_and_two_full_drains() {
    explore(owner_and_drainers(&[Mode::Full, Mode::Full], 1));
}

#[test]
fn owner_and_drains_of_both_kinds() {
    explore(owner_and_drainers(&[Mode::Full, Mode::Quiet], 1));
}

#[test]
fn long_owner_and_two_full_drains() {
    explore(owner_and_drainers(&[Mode::Full, Mode::Full], 2));
}

#[test]
#[should_panic]
fn full_drain_without_a_fence() {
    explore_mutant(Mutant::NoFence, owner_and_drainers(&[Mode::Full], 1));
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
            depot.allocator.retire_cpu(CpuId::new(0));
        });
        depot.free(a);
        depot.free(b);
        disabler.join().unwrap();
        assert!(!depot.allocator.has_caches(CpuId::new(0)));
        let cached = depot.allocator.cpu_stats(CpuId::new(0), ZoneId::new(0)).unwrap();
        assert_eq!((cached.shelved_pages, depot.finish().cached_pages), (0, 0));
    });
}
