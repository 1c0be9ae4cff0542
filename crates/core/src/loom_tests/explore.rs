//! The exploration of a model, and the report of its run. The models of all crates use this file.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Executions between two looks at the clock.
const EXECUTIONS_PER_LOOK: usize = 1000;

/// Explores `model` in all interleavings with at most `preemptions` preemptions, and prints a line
/// about it: whether it was explored to the end, or `LOOM_MAX_DURATION` or `LOOM_MAX_PERMUTATIONS`
/// ended it early. `LOOM_MAX_PREEMPTIONS` overrides the bound. `true`: to the end.
///
/// # Panics
/// When the model fails, or has one interleaving alone: then its threads share nothing.
#[track_caller]
pub fn explore(preemptions: usize, model: impl Fn() + Send + Sync + 'static) -> bool {
    let (executions, is_explored) = explore_named(&name(), preemptions, model);
    assert!(executions > 1, "one interleaving: the threads of this model share nothing");
    is_explored
}

/// Explores a model like [`explore`], with a name of its own, which may have one interleaving.
/// Returns its executions, too.
pub fn explore_named(
    name: &str,
    preemptions: usize,
    model: impl Fn() + Send + Sync + 'static,
) -> (usize, bool) {
    let builder = builder(preemptions);
    let (begun, counted) = (Instant::now(), Arc::new(AtomicUsize::new(0)));
    let count = counted.clone();
    builder.check(move || {
        count.fetch_add(1, Ordering::Relaxed);
        model();
    });
    let (executions, took) = (counted.load(Ordering::Relaxed), begun.elapsed());
    // Loom stops at a look, before the execution that would be due.
    let is_at_look = (executions + 1).is_multiple_of(builder.checkpoint_interval);
    let is_at_limit = builder.max_duration.is_some_and(|max| took >= max)
        || builder.max_permutations.is_some_and(|max| executions + 1 >= max);
    let is_explored = !(is_at_look && is_at_limit);
    let ending = if is_explored { "explored to the end" } else { "ended early" };
    println!(
        "model {name}: {ending}: {executions} executions, at most {} preemptions, {:.1} s",
        builder.preemption_bound.unwrap_or(preemptions),
        took.as_secs_f64(),
    );
    (executions, is_explored)
}

/// Explores a model that must fail with at most `preemptions` preemptions, however long that takes.
pub fn explore_mutant(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = builder(preemptions);
    builder.max_duration = None;
    builder.check(model);
}

/// The builder that explores a model with at most `preemptions` preemptions, or the environment's.
pub fn builder(preemptions: usize) -> loom::model::Builder {
    let mut builder = loom::model::Builder::new();
    builder.max_branches = 10_000;
    builder.preemption_bound = builder.preemption_bound.or(Some(preemptions));
    if std::env::var_os("LOOM_CHECKPOINT_INTERVAL").is_none() {
        builder.checkpoint_interval = EXECUTIONS_PER_LOOK;
    }
    builder
}

/// The test that runs, or where it asked for the model when it runs in the main thread.
#[track_caller]
fn name() -> String {
    match std::thread::current().name() {
        Some(name) if name != "main" => name.to_owned(),
        _ => std::panic::Location::caller().to_string(),
    }
}
