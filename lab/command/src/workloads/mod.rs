//! Workloads beside those of the product.
//!
//! | folder or file | command | what |
//! |---|---|---|
//! | `touch` | `bench touch` | first touches of zeroed pages until memory is used up |
//! | `pft` | `bench pft` | page faults that each design serves, through `userfaultfd` |
//! | `mass_exit` | `bench mass-exit` | processes that free all their pages at once |
//! | `purger` | `bench purger` | one thread frees what the threads of other CPUs allocated |
//! | `ring_stream` | `bench ring-stream` | buffers filled on one CPU, read and freed on another |
//! | `netperf` | `bench netperf` | the same over sockets, with each limit of what a freeing CPU may cache |
//! | `replay_build` | `bench replay-build` | a build recorded, and its page events served by each design |
//! | `process_magazines` | `bench process-magazines` | processes that allocate much, with drains behind them |
//! | `mixed` | `bench mixed` | unmovable, page cache, anonymous and network memory, and what stays contiguous |
//! | `stress` | `bench stress` | memory filled to random levels, and how much of what is free is whole |
//! | `giveback` | `bench giveback` | memory given back while a program rests after a peak |
//! | `madvise` | `bench madvise` | the system calls that give free memory back, compared |
//! | `vmalloc` | `vmalloc` | the suite of the kernel's test_vmalloc, and pairs of requests |
//! | `simulate` | `simulate` | designs on virtual CPUs |
//! | `soak` | `soak` | memory used up in a loop, to look for lost and doubled pages |
//!
//! `paging` is what `touch` and `pft` share, `streams` what `ring_stream` and `netperf` share.
//!
//! # A new workload of `bench`
//! 1. Add a file or folder here. Its `run` asks `Settings` for the designs and a demand, makes a
//!    [`Contender`](pagedepot_cli::harness::Contender) of each design by
//!    [`with_design!`](crate::design::dispatch), has `Settings::interleave` run them in turn, and
//!    puts rows and tables into a [`Report`](pagedepot_cli::report::Report). `netperf.rs` is the
//!    shortest.
//! 2. Describe it by a constant `WORKLOAD`, and add that to the list in `all.rs`. Command line,
//!    help and `compare` read the list.
//! 3. If it has something to say in a sentence, add that in the product's `conclusion/cost.rs`;
//!    test its rows in `tests/command.rs`. What `simulate` runs is another list, in
//!    `sim/src/workloads.rs`.

pub mod all;
pub mod giveback;
mod madvise;
mod mass_exit;
mod mixed;
mod netperf;
mod paging;
pub mod pft;
mod process_magazines;
mod purger;
mod replay_build;
mod ring_stream;
pub mod simulate;
pub mod soak;
mod streams;
mod stress;
pub mod touch;
pub mod vmalloc;
