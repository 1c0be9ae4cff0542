//! The allocator with production's constants and layout, under shuttle's schedulers.
//!
//! loom explores every interleaving of a few steps on shrunken constants. Shuttle takes one
//! schedule after another of whole runs: thousands of steps, several CPUs, refills and spills of
//! real magazines. It treats every access as sequentially consistent: mistakes in orderings are
//! loom's to find, and ThreadSanitizer's.
//!
//! | module | what |
//! |---|---|
//! | `scheduled` | atomics that shuttle interrupts; `sync::prim` has them in |
//! | `cpus` | restartable sequences, step by step |
//! | `machine` | CPUs with preemption, an allocator with a ledger of who holds which frame |
//! | `explore` | how a model is run |
//! | `depot` | owners beside drains, switches, added memory; failing only when it must |
//! | `in_flight` | the note of the caller that has pages in flight |
//!
//! Each model runs under a random scheduler and under PCT (Burckhardt et al., "A Randomized
//! Scheduler with Probabilistic Guarantees of Finding Bugs", ASPLOS 2010).
//! `PAGEDEPOT_SHUTTLE_SCHEDULES` says how many schedules of each kind; a failure prints the seed,
//! and `PAGEDEPOT_SEED` repeats it. A *mutant* leaves out what an argument rests on: its model must
//! fail.

mod cpus;
mod depot;
mod explore;
mod in_flight;
mod machine;
#[path = "../../tests/common/rng.rs"]
mod rng;

use crate::sync::model::set_mutant;
pub(crate) use crate::sync::model::{Mutant, is_mutant};
use explore::explore;

/// Runs a model that must fail; the panic of its failure goes on.
fn explore_mutant(name: &str, mutant: Mutant, model: fn()) {
    set_mutant(mutant);
    explore::explore_failing(name, model);
}
