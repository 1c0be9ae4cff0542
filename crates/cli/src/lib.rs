//! The `pagedepot` command: measures page allocators and replays what a kernel asked of its own.
//!
//! A library only so that the tests in `tests/` can call its parts; programs run the command.
//!
//! # Rooms
//! Each room uses those above it in this table, and none below (`tests/layers.rs` checks that).
//!
//! | room | what is in it |
//! |---|---|
//! | `failure`, `names`, `args` | errors of the command, the designs' names, numbers in arguments |
//! | `harness` | clocks, barriers, pinned threads, windows in turn, statistics of samples |
//! | `report` | result rows, JSON, tables, progress, the machine |
//! | `design` | the designs that are compared, and the one dispatch over them |
//! | `conclusion` | what figures say, in sentences |
//! | `replay` | a recorded trace, replayed exactly by one thread |
//! | `workloads` | everything that `bench`, `vmalloc` and `soak` measure |
//! | `compare` | tables of several results side by side |
//! | `page` | the page that `report` writes: tables and plots |
//! | `record` | recording a trace |
//! | `top` | a live view of a running program |
//! | `cli`, `commands` | options, and what each command does with them |

#![allow(missing_docs, reason = "public items exist for the tests in tests/ alone")]

mod args;
mod cli;
mod commands;
mod compare;
mod conclusion;
mod design;
mod failure;
mod harness;
mod names;
mod page;
mod record;
mod replay;
mod report;
mod top;
mod workloads;

use std::io::{self, Write};
use std::process::ExitCode;

use report::{printable, terminal};

/// Functions that the tests in `tests/` call. No interface for programs: it changes without notice.
#[doc(hidden)]
pub mod tested {
    pub use crate::design::variant::{Store, Variant};
    pub use crate::names::Design;
    pub use crate::replay::depot::{ReplayMachine, with_depot};
    pub use crate::replay::engine::run;
    pub use crate::replay::outcome::{Outcome, ReplayError};
    pub use crate::replay::plan::{InitialBlock, InitialList, Op, Plan};
    pub use crate::replay::replayed::ReplayResult;
    pub use crate::replay::runner::replay;
    pub use crate::replay::target::{ReplayCounts, ReplayTarget};
    pub use crate::replay::verify::Verify;
    pub use crate::replay::zoneinfos::Zoneinfos;
    pub use crate::report::rows::Report;
}

/// Runs the command with this process's arguments.
pub fn main() -> ExitCode {
    // A limit on the size of files (`ulimit -f`) must be an error of writing, as a full disk is:
    // the default action of its signal would end this process before it can clean up.
    // SAFETY: no other thread exists yet, and ignoring a signal needs no handler.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    match commands::run(std::env::args_os()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.is_silent() {
                let message = format!("pagedepot: {}", printable(&failure.to_string()));
                // Best effort: stderr may be closed.
                let _ = writeln!(io::stderr(), "{}", terminal::fitted_to_stderr(&message));
            }
            ExitCode::from(failure.exit_code())
        }
    }
}
