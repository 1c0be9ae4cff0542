//! Everything that is measured.
//!
//! | folder or file | command | what |
//! |---|---|---|
//! | `hot` | `bench hot` | one page allocated and freed, again and again |
//! | `pagealloc` | `bench pagealloc` | batches of all sizes and orders, filling memory, metadata |
//! | `producer_consumer` | `bench producer-consumer` | allocated on one CPU, freed on another |
//! | `drain` | `bench drain` | taking back what a CPU caches |
//! | `fragmentation` | `bench fragmentation` | frames reallocated at random, and what stays contiguous |
//! | `giveback` | `bench giveback --busy` | memory given back after a peak while threads go on working |
//! | `shared` | `bench shared` | a depot that processes share, beside a private one and a robust mutex |
//!
//! The lab has more. `shape` is what workloads share that fill memory.
//!
//! # A new workload of `bench`
//! 1. Add a file or folder here or, if it answers a question beside these, in the lab. Its `run`
//!    asks `Settings` for the designs and a demand, makes a
//!    [`Contender`](crate::harness::Contender) of each design by
//!    [`Lineup::with_allocator`](crate::design::Lineup::with_allocator), has
//!    `Settings::interleave` run them in turn, and puts rows and tables into a
//!    [`Report`](crate::report::Report). `hot.rs` is the shortest.
//! 2. Describe it by a function `workload`, and add that to the list in `all.rs`. Command line and
//!    help read the list; the lab has a list of its own.
//! 3. If it has something to say in a sentence, add that in `conclusion/cost.rs`; test its rows in
//!    `tests/command/results.rs`.

pub mod all;
pub mod clients;
pub mod drain;
pub mod fragmentation;
pub mod giveback;
pub mod hot;
pub mod options;
pub mod pagealloc;
pub mod producer_consumer;
pub mod settings;
pub mod shape;
pub mod shared;
pub mod workload;

pub use settings::{Effort, Settings};
pub use workload::Workload;
