//! The `pagedepot` command: measures page allocators and replays what a kernel asked of its own.

mod cli;
mod commands;
mod compare;
mod design;
mod failure;
mod harness;
mod record;
mod replay;
mod report;
mod trace;
mod workloads;

use std::io::{self, Write};
use std::process::ExitCode;

use report::printable;

fn main() -> ExitCode {
    // A limit on the size of files (`ulimit -f`) is an error of writing, as a full disk is: it must
    // not end this process with something left to take down.
    // SAFETY: before there are threads; ignoring a signal needs no handler.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    match commands::run(std::env::args_os()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.is_silent() {
                // Nobody may be reading stderr either.
                let _ = writeln!(io::stderr(), "pagedepot: {}", printable(&failure.to_string()));
            }
            ExitCode::from(failure.exit_code())
        }
    }
}
