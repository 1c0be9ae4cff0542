//! Models of the protocols, explored by loom.
mod cpus;
mod depot;
mod failing;
mod sanity;

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutant {
    /// `Cpus::fence` of a model does nothing.
    NoFence,
    /// `dekker_fence` does nothing: stores may pass later loads.
    NoDekker,
    /// Moves are not announced.
    SilentMoves,
}

std::thread_local! {
    static MUTANT: Cell<Option<Mutant>> = const { Cell::new(None) };
}

pub fn is_mutant(mutant: Mutant) -> bool {
    MUTANT.get() == Some(mutant)
}

pub fn explore(name: &str, preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.max_branches = 10_000;
    builder.preemption_bound = builder.preemption_bound.or(Some(preemptions));
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    let start = std::time::Instant::now();
    builder.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        model();
    });
    println!(
        "{name}: {} executions, at most {:?} preemptions, {:.1?}",
        count.load(Ordering::Relaxed),
        builder.preemption_bound,
        start.elapsed()
    );
}

pub fn explore_mutant(mutant: Mutant, preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    MUTANT.set(Some(mutant));
    explore(&format!("{mutant:?}"), preemptions, model);
}
