//! The allocator and `vmap` with production's constants and layout, under shuttle's schedulers.
//!
//! loom explores every interleaving of a few steps on shrunken constants. Shuttle takes one
//! schedule after another of whole runs: thousands of steps, several CPUs, refills and spills of
//! real magazines. It treats every access as sequentially consistent: mistakes in orderings are
//! loom's to find, and ThreadSanitizer's.
//!
//! | module | what |
//! |---|---|
//! | `cpus` | restartable sequences, step by step |
//! | `machine` | CPUs with preemption, an allocator with a ledger of who holds which frame |
//! | `depot` | owners beside drains, switches, added memory; failing only when it must |
//! | `vmap` | `vmalloc`, mappings and purges over the frames of an allocator |
//!
//! Each model runs under a random scheduler and under PCT (Burckhardt et al., "A Randomized
//! Scheduler with Probabilistic Guarantees of Finding Bugs", ASPLOS 2010).
//! `PAGEDEPOT_SHUTTLE_SCHEDULES` says how many schedules of each kind; a failure prints the seed,
//! and `PAGEDEPOT_SEED` repeats it. A *mutant* leaves out what an argument rests on: its model must
//! fail.

mod cpus;
mod depot;
mod machine;
#[path = "../../tests/common/rng.rs"]
mod rng;
mod vmap;

use std::cell::Cell;

use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, FailurePersistence, MaxSteps, Runner};

use crate::vmap::Broken;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutant {
    /// `Cpus::fence` of a model does nothing.
    NoFence,
    /// The in_flight shows no pages in flight.
    Unannounced,
    /// Blocks that come back by one atomic operation count as no move.
    Uncounted,
}

// All threads of a model are run by the test's own.
std::thread_local! {
    static MUTANT: Cell<Option<Mutant>> = const { Cell::new(None) };
    static BROKEN: Cell<Option<Broken>> = const { Cell::new(None) };
}

pub fn is_mutant(mutant: Mutant) -> bool {
    MUTANT.get() == Some(mutant)
}

pub fn is_broken(part: Broken) -> bool {
    BROKEN.get() == Some(part)
}

/// Schedules of each kind, unless `PAGEDEPOT_SHUTTLE_SCHEDULES` says otherwise.
const SCHEDULES: u64 = 12;
/// Schedules within which a mutant must be found.
const SCHEDULES_MUTANT: u64 = 2000;
/// Schedules that a seed means: the first one tells a PCT scheduler how long a run is.
const RUNS: u64 = 6;
/// Changes of priority in a run, plus one: the depth of the mistakes that PCT looks for.
const PCT_DEPTH: usize = 3;

/// Says how to repeat the run that a panic ended.
struct Repeat<'r> {
    name: &'r str,
    scheduler: &'r str,
    seed: u64,
}

impl Drop for Repeat<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Repeat { name, scheduler, seed } = self;
            eprintln!(
                "{name}: failed under the {scheduler} scheduler; PAGEDEPOT_SEED={seed} repeats it"
            );
        }
    }
}

fn explore(name: &str, model: fn()) {
    let schedules = std::env::var("PAGEDEPOT_SHUTTLE_SCHEDULES").map_or(SCHEDULES, |schedules| {
        schedules.parse().expect("PAGEDEPOT_SHUTTLE_SCHEDULES is a number of schedules, as in 1000")
    });
    explore_schedules(name, schedules, model);
}

/// Runs a model that must fail; the panic of its failure goes on.
fn explore_mutant(name: &str, mutant: Mutant, model: fn()) {
    MUTANT.set(Some(mutant));
    explore_schedules(name, SCHEDULES_MUTANT, model);
}

/// As [`explore_mutant`].
fn explore_broken(name: &str, part: Broken, model: fn()) {
    BROKEN.set(Some(part));
    explore_schedules(name, SCHEDULES_MUTANT, model);
}

fn explore_schedules(name: &str, schedules: u64, model: fn()) {
    let seeds = rng::seed(name)..;
    let start = std::time::Instant::now();
    for seed in seeds.take(schedules.div_ceil(RUNS) as usize) {
        let random = RandomScheduler::new_from_seed(seed, RUNS as usize);
        run(Repeat { name, scheduler: "random", seed }, random, model);
        let pct = PctScheduler::new_from_seed(seed, PCT_DEPTH, RUNS as usize);
        run(Repeat { name, scheduler: "PCT", seed }, pct, model);
    }
    println!("{name}: {schedules} schedules of each kind, {:.1?}", start.elapsed());
}

fn run(repeat: Repeat<'_>, scheduler: impl Scheduler + 'static, model: fn()) {
    let mut config = Config::new();
    config.stack_size = 1 << 18;
    config.silence_warnings = true;
    // The seed says it shorter than the schedule.
    config.failure_persistence = FailurePersistence::None;
    config.max_steps = MaxSteps::FailAfter(5_000_000);
    Runner::new(scheduler, config).run(model);
    drop(repeat);
}
