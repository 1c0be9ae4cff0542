//! Chores of this repository that take more than one command: `cargo xtask NAME`.

mod kernel;
mod machine;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Chores of this repository.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", version)]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Debug, Subcommand)]
enum Chore {
    /// Build examples/kernel, boot it under QEMU and run a test, or all of them
    ///
    /// What the kernel counts goes to stdout as name=value lines, progress to stderr. The exit
    /// code is 0 when every test passed.
    Kernel(kernel::Options),
}

fn main() -> ExitCode {
    let Cli { chore: Chore::Kernel(options) } = Cli::parse();
    match kernel::run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
