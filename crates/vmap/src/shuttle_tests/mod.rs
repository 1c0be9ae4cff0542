//! Tests `vmalloc`, mappings and purges over an allocator under shuttle's schedulers, with
//! production's constants and layout. `crates/core/src/shuttle_tests` says what these find, and how
//! to repeat a failure.
//!
//! | module | what |
//! |---|---|
//! | `machine` | CPUs with preemption, and an allocator |
//! | `vmalloc` | workers, purgers and readers of one vmap |

#![allow(unsafe_code)]

#[path = "../../../core/src/shuttle_tests/explore.rs"]
mod explore;
mod machine;
#[path = "../../../core/tests/common/rng.rs"]
mod rng;
mod vmalloc;

use explore::explore;

use pagedepot::sync::model::{Mutant, set_mutant};

/// Runs a model that must fail; the panic of its failure goes on.
fn explore_mutant(name: &str, mutant: Mutant, model: fn()) {
    set_mutant(mutant);
    explore::explore_failing(name, model);
}
