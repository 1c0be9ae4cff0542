//! Models of the state that this crate's threads share, explored by loom on the real modules.
//!
//! `.ci/steps/model` compiles it with the package `models/linux`, and runs it.

#![cfg(loom)]

#[path = "../../src/cpus"]
mod cpus {
    pub mod mixed;
}
#[path = "../../src/depot"]
mod depot {
    pub mod teardown;
}
#[path = "../../src/giving_back"]
mod giving_back {
    #[allow(dead_code, reason = "no model counts bytes")]
    pub mod trim_state;
}
#[path = "../../src/moving"]
mod moving {
    pub mod place;
    pub mod table;
}
#[path = "../../src/publish"]
mod publish {
    pub mod board;
}
#[path = "../../src/shared"]
mod shared {
    pub mod awaited;
    #[allow(dead_code, reason = "each model uses its part")]
    pub mod messages;
    #[allow(dead_code, reason = "each model uses its part")]
    pub mod owners;
    #[allow(dead_code, reason = "each model uses its part")]
    pub mod slots;
}
#[path = "../../src/system"]
mod system {
    pub mod bits;
    pub mod prim;
}
#[path = "../../src/vmalloc"]
mod vmalloc {
    #[allow(dead_code, reason = "each model uses its part")]
    pub mod pieces;
}
#[path = "../../src/waiting"]
mod waiting {
    #[allow(dead_code, reason = "the clock of a model stands still")]
    pub mod answers;
    #[allow(dead_code, reason = "a model has no CPUs to close again")]
    pub mod waiters;
}

#[path = "answers.rs"]
mod answer_models;
#[path = "awaited.rs"]
mod awaited_models;
#[path = "board.rs"]
mod board_models;
mod mappings;
#[path = "messages.rs"]
mod message_models;
#[path = "mixed.rs"]
mod mixed_models;
#[path = "movable.rs"]
mod movable_models;
#[path = "owners.rs"]
mod owner_models;
#[path = "slots.rs"]
mod slot_models;
#[path = "teardown.rs"]
mod teardown_models;
mod trimming;
#[path = "waiting.rs"]
mod waiting_models;

use std::cell::Cell;
use std::sync::Arc;

use pagedepot::loom_tests::explore::{self, explore_mutant};

/// Explores a model with at most three preemptions, unless the environment says how many.
#[track_caller]
fn explore(model: impl Fn() + Send + Sync + 'static) {
    explore_within(3, model);
}

/// Explores a model of words that a thread looks at before it exchanges them, twice: in the first
/// exploration each [look](system::prim::look) is a change that leaves the value, and there is one
/// preemption less. Loom does not try an exchange before another thread's look if the exchange's
/// own thread has looked, too (`CONTRIBUTING.md`, Models).
#[track_caller]
fn explore_looks(model: impl Fn() + Send + Sync + Clone + 'static) {
    LOOKS_CHANGE.set(true);
    explore_within(2, model.clone());
    LOOKS_CHANGE.set(false);
    explore(model);
}

/// Explores a model with so many preemptions at most; a mutant, however long it takes until it
/// fails.
#[track_caller]
fn explore_within(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    if MUTANT.get().is_some() || SKIPS_FENCES.get() || WAKES_NONE.get() {
        explore_mutant(preemptions, model);
    } else {
        explore::explore(preemptions, model);
    }
}

/// Starts a thread that acts on what a model's threads share.
fn spawn<S: 'static, R: 'static>(
    shared: &Arc<S>,
    act: impl FnOnce(&S) -> R + 'static,
) -> loom::thread::JoinHandle<R> {
    let shared = shared.clone();
    loom::thread::spawn(move || act(&shared))
}

std::thread_local! {
    /// Whether the model is a forked child.
    static IS_CHILD: Cell<bool> = const { Cell::new(false) };
    /// The step that is left out.
    static MUTANT: Cell<Option<system::prim::Mutant>> = const { Cell::new(None) };
    /// Whether `prim::fence` does nothing (a mutant).
    static SKIPS_FENCES: Cell<bool> = const { Cell::new(false) };
    /// Whether `prim::look` changes its word as far as loom can tell.
    static LOOKS_CHANGE: Cell<bool> = const { Cell::new(false) };
    /// Whether waiters are not woken (a mutant).
    static WAKES_NONE: Cell<bool> = const { Cell::new(false) };
}
