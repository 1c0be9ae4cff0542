//! Models of the protocols, explored by loom in all interleavings with a few preemptions.
//!
//! | module | what |
//! |---|---|
//! | `cpus` | restartable sequences, step by step |
//! | `depot` | a whole allocator of a few frames, with a ledger of who holds which |
//! | `fronts` | fronts, gates, drains, re-entry |
//! | `shelf` | stacks of magazines |
//! | `store` | claims of all widths, hints, and marks of sections |
//! | `failing` | failing only when it must, watermarks |
//!
//! Constants are shrunk: a magazine has two rounds, a huge two words, a zone four frames. A *mutant*
//! leaves out what an argument rests on; its model must fail, or the model would see nothing.
//! `LOOM_MAX_PREEMPTIONS` goes deeper than the models' own bound, `LOOM_MAX_DURATION` (seconds) ends each early.
mod cpus;
mod depot;
mod failing;
mod fronts;
mod shelf;
mod store;

use std::cell::Cell;
use std::sync::Arc;

use cpus::{Rseq, run_on};
use depot::Depot;

/// Preemptions explored by default: with two, every protocol mistake made here so far was found.
const PREEMPTIONS: usize = 2;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutant {
    /// `Cpus::fence` of a model does nothing.
    NoFence,
    /// `dekker_fence` does nothing: stores may pass later loads.
    NoDekker,
    /// The flux shows no pages in flight.
    Unannounced,
    /// Blocks that come back by one atomic operation count as no move.
    Uncounted,
    /// A search that has cleared a mark of the summary does not look at the hints again.
    ClearsUnseen,
    /// The taker that clears the `whole` hint leaves it to others to mark the huge as partial.
    MarksByOneHint,
}

std::thread_local! {
    static MUTANT: Cell<Option<Mutant>> = const { Cell::new(None) };
}

pub fn is_mutant(mutant: Mutant) -> bool {
    MUTANT.get() == Some(mutant)
}

fn explore(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.max_branches = 10_000;
    builder.preemption_bound = builder.preemption_bound.or(Some(PREEMPTIONS));
    builder.check(model);
}

fn explore_mutant(mutant: Mutant, model: impl Fn() + Send + Sync + 'static) {
    MUTANT.set(Some(mutant));
    explore(model);
}

/// A thread of the model that begins on `cpu`.
fn spawn(
    cpu: u32,
    depot: &Arc<Depot<Rseq>>,
    body: impl FnOnce(&Depot<Rseq>) + 'static,
) -> loom::thread::JoinHandle<()> {
    let depot = depot.clone();
    loom::thread::spawn(move || {
        run_on(cpu);
        body(&depot);
    })
}
