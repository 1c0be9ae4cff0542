//! Models of the state that this crate's threads share, explored by loom on the real modules.
//!
//! `.ci/steps/model` compiles it with the package `models/linux`, and runs it.

#![cfg(loom)]

#[path = "../../src/pressure/answers.rs"]
#[allow(dead_code, reason = "the clock of a model stands still")]
mod answers;
#[path = "../../src/bits.rs"]
mod bits;
#[path = "../../src/publish/board.rs"]
mod board;
#[path = "../../src/movable_place.rs"]
mod movable_place;
#[path = "../../src/movable_table.rs"]
mod movable_table;
#[path = "../../src/vmalloc/pieces.rs"]
#[allow(dead_code, reason = "each model uses its part")]
mod pieces;
#[path = "../../src/prim.rs"]
mod prim;
#[path = "../../src/teardown.rs"]
mod teardown;
#[path = "../../src/trim_state.rs"]
#[allow(dead_code, reason = "no model counts bytes")]
mod trim_state;
#[path = "../../src/waiters.rs"]
#[allow(dead_code, reason = "a model has no CPUs to close again")]
mod waiters;

#[path = "answers.rs"]
mod answer_models;
#[path = "board.rs"]
mod board_models;
mod mappings;
mod movable;
#[path = "teardown.rs"]
mod teardown_models;
mod trimming;
mod waiting;

use std::cell::Cell;

std::thread_local! {
    /// Whether the model is a forked child.
    static IS_CHILD: Cell<bool> = const { Cell::new(false) };
    /// The step that is left out.
    static MUTANT: Cell<Option<prim::Mutant>> = const { Cell::new(None) };
    /// Whether `prim::fence` does nothing (a mutant).
    static SKIPS_FENCES: Cell<bool> = const { Cell::new(false) };
    /// Whether waiters are not woken (a mutant).
    static WAKES_NONE: Cell<bool> = const { Cell::new(false) };
}
