//! Re-entry. Code that allocates and frees runs between any two steps of the allocator on the same
//! CPU, as interrupt and signal handlers do. Other CPUs run while a slow path is preempted. No
//! frame is ever handed out twice, and the metadata is in order when all code has returned.
//!
//! One thread, deterministic by seed: `PAGEDEPOT_SEED=n` repeats a run,
//! `PAGEDEPOT_SOAK_SECONDS=n` goes on for n seconds.

mod blocks;
#[path = "../common/mod.rs"]
mod common;
mod machines;
mod source;
mod stress;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::rng::seed;
use common::sequences::Stepped;
use common::soak;
use machines::{Kernel, Lock, Processor, Restartable};
use pagedepot::cpus::{CpuLock, Cpus, LockedCpus, PinnedCpus};
use source::{CPUS_MAX, Source};

/// Runs per test, each with another seed.
const RUNS: u64 = 30;

fn stress<C: Cpus>(name: &str, make: impl Fn(Arc<Source>) -> C) {
    let end = Instant::now() + soak(Duration::ZERO);
    let mut seed = seed(name);
    loop {
        let mut total = [0; 4];
        for _ in 0..RUNS {
            let counts = stress::run(seed, &make);
            std::iter::zip(&mut total, counts).for_each(|(total, count)| *total += count);
            seed += 1;
        }
        let [interrupts, moves, reports, thinned] = total;
        assert!(
            interrupts > RUNS * 100,
            "{name}: {interrupts} interrupts are too few to prove anything"
        );
        assert!(moves > RUNS && reports > RUNS, "{name}: {moves} moves, {reports} reports");
        assert!(thinned > 0, "{name}: movable blocks gave way to no request");
        if Instant::now() >= end {
            return;
        }
    }
}

/// Interrupt handlers with fronts of their own, anywhere in a sequence.
#[test]
fn interrupts_in_a_kernel() {
    stress("interrupts_in_a_kernel", |source| Stepped(Kernel(source)));
}

/// Signal handlers with the same fronts; the sequence that they interrupt starts again.
#[test]
fn signals_in_restartable_sequences() {
    stress("signals_in_restartable_sequences", |source| Stepped(Restartable(source)));
}

/// The kernel's guard as this crate uses it.
#[test]
fn interrupts_around_guards() {
    stress("interrupts_around_guards", |source| PinnedCpus(Processor(source)));
}

/// Signal handlers around locks whose owners never wait.
#[test]
fn signals_around_locks() {
    let locks: Vec<CpuLock> = (0..CPUS_MAX).map(|_| CpuLock::new()).collect();
    stress("signals_around_locks", |source| LockedCpus::new(&locks, Lock(source)));
}
