//! `vmalloc`, mappings and purges over an allocator, with production's constants and layout, under
//! shuttle's schedulers; see `crates/core/src/shuttle_tests` for what these find, and how to repeat
//! a failure.
//!
//! | module | what |
//! |---|---|
//! | `machine` | CPUs with preemption, and an allocator |
//! | `vmalloc` | workers, purgers and readers of one vmap |

#[path = "../../../core/src/shuttle_tests/explore.rs"]
mod explore;
mod machine;
#[path = "../../../core/tests/common/rng.rs"]
mod rng;
mod vmalloc;

use std::cell::Cell;

use explore::explore;

use crate::Broken;

// All threads of a model are run by the test's own.
std::thread_local! {
    static BROKEN: Cell<Option<Broken>> = const { Cell::new(None) };
}

pub fn is_broken(part: Broken) -> bool {
    BROKEN.get() == Some(part)
}

/// Runs a model that must fail; the panic of its failure goes on.
fn explore_broken(name: &str, part: Broken, model: fn()) {
    BROKEN.set(Some(part));
    explore::explore_failing(name, model);
}
