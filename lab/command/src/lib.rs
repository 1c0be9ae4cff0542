//! The `pagedepot-lab` command: every design, every workload, and what is done with their figures.
//! Designs of the product, harness, reports and replays are those of the command `pagedepot`, whose
//! library this one adds to.
//!
//! A library only so that the tests in `tests/` can check its layers; programs run the command.
//!
//! # Rooms
//! Each room uses those above it in this table, and none below (`tests/layers.rs` checks that).
//!
//! | room | what is in it |
//! |---|---|
//! | `design` | the designs that the product has not, and the dispatch over all |
//! | `workloads` | what `bench`, `vmalloc`, `simulate` and `soak` measure beside the product's |
//! | `compare` | tables of several results side by side |
//! | `page` | the page that `report` writes: tables and plots |
//! | `record` | recording a trace |
//! | `cli`, `commands` | options, and what each command does with them |

mod cli;
mod commands;
mod compare;
mod design;
mod page;
mod record;
#[cfg(test)]
#[path = "../../../crates/core/tests/common/skip.rs"]
mod skip;
mod workloads;

use std::process::ExitCode;

/// Runs the command with this process's arguments.
pub fn main() -> ExitCode {
    pagedepot_cli::run("pagedepot-lab", commands::run)
}
