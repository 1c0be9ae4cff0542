//! Every operation of the allocator in lockstep with a naive model, on one thread.
//!
//! # Properties, checked after each operation
//! 1. A block handed out is managed memory of one zone that the request may use, aligned, and
//!    disjoint from all that is held.
//! 2. A request fails only if the store has nothing that satisfies it and, where it may reclaim, if
//!    nothing is cached any more.
//! 3. Of each zone: free + cached + carved + held pages are the managed ones.
//! 4. Of each zone: refilled - spilled - drained + freed - allocated pages are the change of the
//!    cached ones.
//! 5. Drains report what they did, and leave nothing that they can reach; disabled caches stay
//!    empty.
//! 6. No CPU is charged with more than the largest limit that it was seen to have; where limits
//!    adapt, and rise and fall within an operation, not with a batch more than that, or with more
//!    than they may grow to.
//! 7. With `checked`, wrong use is refused and changes nothing.
//! 8. Held frames keep their contents (where they are mapped), zeroed ones are zero.
//! 9. The metadata is consistent: `validate`.
//!
//! `PAGEDEPOT_SEED=n` repeats a run, `PAGEDEPOT_SOAK_SECONDS=n` goes on for n seconds.

mod arena;
mod checks;
#[path = "../common/mod.rs"]
mod common;
mod lockstep;
mod naive;
mod op;
mod perform;
mod world;

use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestRunner};

/// Runs per seed.
const CASES: u32 = 150;
const OPERATIONS_MAX: usize = 80;

#[test]
fn the_allocator_does_what_the_model_does() {
    let end = Instant::now() + common::soak(Duration::ZERO);
    let mut seed = common::rng::seed("model");
    loop {
        let config = Config {
            cases: CASES,
            rng_seed: RngSeed::Fixed(seed),
            failure_persistence: None,
            ..Config::default()
        };
        let runs = (world::world(), prop::collection::vec(op::op(), 1..OPERATIONS_MAX));
        let result = TestRunner::new(config).run(&runs, |(world, ops)| {
            lockstep::run(&world, &ops);
            Ok(())
        });
        if let Err(error) = result {
            panic!("PAGEDEPOT_SEED={seed}: {error}");
        }
        if Instant::now() >= end {
            return;
        }
        seed += 1;
    }
}
