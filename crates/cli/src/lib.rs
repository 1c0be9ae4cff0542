//! The `pagedepot` command: measures page allocators and replays what a kernel asked of its own.
//!
//! A library so that `pagedepot-lab` can add designs, workloads and commands, and so that the tests
//! in `tests/` can call its parts; programs run the command.
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
//! | `workloads` | everything that `bench` measures |
//! | `soak` | processes that share a depot and are killed |
//! | `inspect` | the contents of a segment |
//! | `top` | a live view of a running program |
//! | `cli`, `commands` | options, and what each command does with them |

#![allow(missing_docs, reason = "public items exist for the lab and for the tests in tests/ alone")]

pub mod args;
pub mod cli;
pub mod commands;
pub mod conclusion;
pub mod design;
pub mod failure;
pub mod harness;
pub mod inspect;
pub mod names;
pub mod replay;
pub mod report;
pub mod soak;
pub mod top;
pub mod workloads;

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use failure::Failure;
use report::{printable, terminal};

/// Functions that the tests in `tests/` call. No interface for programs: it changes without notice.
#[doc(hidden)]
pub mod tested {
    pub use crate::design::variant::{FreeHighPages, Store, Variant};
    pub use crate::names::Design;
    pub use crate::replay::depot::{ReplayMachine, with_depot};
    pub use crate::replay::engine::run;
    pub use crate::replay::outcome::{Outcome, ReplayError};
    pub use crate::replay::plan::{InitialBlock, InitialList, Op, Plan};
    pub use crate::replay::replayed::ReplayResult;
    pub use crate::replay::target::{ReplayCounts, ReplayTarget};
    pub use crate::replay::verify::Verify;
    pub use crate::replay::watched::WatchedTarget;
    pub use crate::replay::zoneinfos::Zoneinfos;
    pub use crate::report::rows::Report;

    /// Replays into designs of this command.
    ///
    /// # Errors
    /// When the trace needs more than the allocator can manage, or the allocator fails the replay.
    pub fn replay(
        plan: &Plan,
        zoneinfos: &Zoneinfos,
        designs: (&[Design], &Variant),
        runs: usize,
        progress: impl FnMut(),
    ) -> Result<ReplayResult, crate::replay::error::Error> {
        crate::replay::replay::<crate::design::Product>(plan, zoneinfos, designs, runs, progress)
    }
}

/// Runs the command with this process's arguments.
pub fn main() -> ExitCode {
    run("pagedepot", commands::run)
}

/// Runs the command of this name with this process's arguments.
pub fn run(name: &str, command: fn(Vec<OsString>) -> Result<(), Failure>) -> ExitCode {
    // A limit on the size of files (`ulimit -f`) must be an error of writing, as a full disk is:
    // the default action of its signal would end this process before it can clean up.
    // SAFETY: no other thread exists yet, and ignoring a signal needs no handler.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    match command(std::env::args_os().collect()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.is_silent() {
                let message = format!("{name}: {}", printable(&failure.to_string()));
                // Best effort: stderr may be closed.
                let _ = writeln!(io::stderr(), "{}", terminal::fitted_to_stderr(&message));
            }
            ExitCode::from(failure.exit_code())
        }
    }
}
