//! Models of the protocols, explored by loom in all interleavings with a few preemptions.
//!
//! | module | what |
//! |---|---|
//! | `adding` | adding memory, and taking away what lost a race |
//! | `explore` | how far a model is explored, and the line it prints |
//! | `cpus` | restartable sequences step by step, a kernel's guards, locks |
//! | `depot` | a whole allocator of a few frames, with a ledger of who holds which |
//! | `drift_mark` | whether a zone is far above its watermarks |
//! | `empties` | magazines of which there are too few, or other CPUs' |
//! | `fronts` | fronts, gates, drains, re-entry |
//! | `handover` | drains that ask owners for their fronts |
//! | `followed` | sequences that follow gates |
//! | `free_count` | pages that CPUs and groups of them have not added to a zone's count yet |
//! | `late_init` | a value in a static, made later by one of several callers |
//! | `locked` | the lock front |
//! | `contexts` | interrupt handlers with fronts of their own |
//! | `orders` | magazines of two orders; compiled with `PAGEDEPOT_MODEL_ORDERS=2` |
//! | `shelf` | stacks of magazines |
//! | `store` | claims of all widths, hints, and marks of sections |
//! | `entire` | pageblocks that are free as one, beside all that takes and makes them |
//! | `evacuating` | pageblocks that begin and end to evacuate |
//! | `failing` | failing only when it must, watermarks |
//! | `reclaim` | reclaim callbacks: which caller runs them, waiting for it |
//!
//! Constants are shrunk: a magazine has two rounds, a pageblock two words, a zone four frames;
//! there is one order of magazines, one context per CPU, and gates are not followed. `orders`,
//! `contexts` and `followed` are the other configurations. A *mutant* leaves out what an argument
//! rests on; its model must fail, or the model would see nothing.
//!
//! `LOOM_MAX_PREEMPTIONS` overrides the models' own bounds, `LOOM_MAX_DURATION` (seconds) ends each
//! early, and `--show-output` shows which it ended.
//!
//! The models of other crates run on `cpus`, `depot` and `explore`, too.
pub mod cpus;
pub mod depot;
pub mod explore;

#[cfg(test)]
mod adding;
#[cfg(test)]
mod contexts;
#[cfg(test)]
mod drift_mark;
#[cfg(test)]
mod empties;
#[cfg(test)]
mod entire;
#[cfg(test)]
mod evacuating;
#[cfg(test)]
mod failing;
#[cfg(test)]
mod followed;
#[cfg(test)]
mod free_count;
#[cfg(test)]
mod fronts;
#[cfg(test)]
mod handover;
#[cfg(test)]
mod late_init;
#[cfg(test)]
mod locked;
#[cfg(test)]
mod orders;
#[cfg(test)]
mod reclaim;
#[cfg(test)]
mod shelf;
#[cfg(test)]
mod store;

use std::cell::Cell;
use std::sync::Arc;

use cpus::run_on;
use depot::Depot;

use crate::cpus::Cpus;
pub use crate::sync::model::{Mutant, is_mutant, set_mutant};

/// Preemptions explored by default. Large models have one less.
const PREEMPTIONS: usize = 3;

std::thread_local! {
    static MAGAZINES: Cell<usize> = const { Cell::new(6) };
}

/// Magazines of an allocator.
pub fn magazines() -> usize {
    MAGAZINES.get()
}

/// Explores a model that is too large for the default bound.
#[track_caller]
pub fn explore_large(model: impl Fn() + Send + Sync + 'static) -> bool {
    explore::explore(PREEMPTIONS - 1, model)
}

/// Explores a model; `true`: to the end.
#[track_caller]
pub fn explore(model: impl Fn() + Send + Sync + 'static) -> bool {
    explore::explore(PREEMPTIONS, model)
}

/// Explores a model that must fail, however long that takes.
pub fn explore_mutant(mutant: Mutant, model: impl Fn() + Send + Sync + 'static) {
    explore_mutant_within(PREEMPTIONS, mutant, model);
}

/// Explores a mutant like [`explore_mutant`], with so many preemptions at most: a large model fails
/// sooner with no more than it needs.
pub fn explore_mutant_within(
    preemptions: usize,
    mutant: Mutant,
    model: impl Fn() + Send + Sync + 'static,
) {
    set_mutant(mutant);
    explore::explore_mutant(preemptions, model);
}

/// A thread of the model that begins on `cpu`.
pub fn spawn<C: Cpus + Send + 'static>(
    cpu: u32,
    depot: &Arc<Depot<C>>,
    body: impl FnOnce(&Depot<C>) + 'static,
) -> loom::thread::JoinHandle<()> {
    let depot = depot.clone();
    loom::thread::spawn(move || {
        run_on(cpu);
        body(&depot);
    })
}
