//! Chores of this repository that take more than one command: `cargo xtask NAME`.

mod archive;
mod boot;
mod console;
mod install;
mod kernel;
mod linux;
mod machine;
mod ostd;
mod pressure;
mod redis;
mod results;
mod tools;

use std::process::ExitCode;

use clap::error::{ContextKind, ErrorKind};
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
    /// Build the C library and install it: header, libraries, pkg-config file
    Install(install::Options),
    /// Run Debian's Redis with its extents from a depot, beside plain jemalloc
    ///
    /// Builds crates/capi/examples/jemalloc, which is preloaded. Compares throughput, with drains
    /// behind it, and the memory given back after a peak.
    Redis(redis::Options),
    /// Put the allocator into Linux, boot it and measure it beside Linux's own per-CPU lists
    Linux(linux::Options),
    /// Build the kernels of examples/ostd, boot them, test the allocator in one and compare it with
    /// the other's
    Ostd(ostd::Options),
    /// Boot Debian's Linux under QEMU and test the monitor of memory pressure in cgroups of version
    /// 2 there
    Pressure(pressure::Options),
}

/// Exit code for bad input, as of most Unix tools.
const EXIT_USAGE: u8 = 2;

fn main() -> ExitCode {
    let chore = match Cli::try_parse() {
        Ok(cli) => cli.chore,
        Err(error) if error.use_stderr() => {
            eprintln!("error: {}", one_line(&error));
            return ExitCode::from(EXIT_USAGE);
        }
        // Prints help or the version, and exits.
        Err(error) => error.exit(),
    };
    let done = match &chore {
        Chore::Kernel(options) => kernel::run(options),
        Chore::Install(options) => install::run(options),
        Chore::Redis(options) => redis::run(options),
        Chore::Linux(options) => linux::run(options),
        Chore::Ostd(options) => ostd::run(options),
        Chore::Pressure(options) => pressure::run(options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// clap's message without its advice in further paragraphs.
fn one_line(error: &clap::Error) -> String {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return "which chore? see `cargo xtask --help`".to_owned();
    }
    let text = error.render().to_string();
    let first = text.lines().next().unwrap_or_default();
    let what = first.strip_prefix("error: ").unwrap_or(first).trim_end_matches(':');
    match error.get(ContextKind::ValidValue).map(ToString::to_string) {
        Some(values) if !values.is_empty() => format!("{what}; there are {values}"),
        _ => format!("{what}; see `cargo xtask --help`, and each chore's"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clap_itself_finds_no_fault() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn bad_arguments_get_one_line_each() {
        for (arguments, says) in [
            ("", "which chore"),
            ("kernal", "kernal"),
            ("install", "required"),
            ("kernel vmaloc", "there are pft, vmalloc, producer-consumer, oom"),
            ("kernel pft oom", "oom"),
            ("kernel --cpus 0", "1..=64"),
            ("kernel --cpus 65", "1..=64"),
            ("kernel --cpus 99999999999999999999", "--cpus"),
            ("kernel --cpus two", "--cpus"),
            ("kernel --design slab isolate", "there are depot, local"),
            ("kernel --memory 1", "64..=65536"),
            ("kernel --timeout 0", "--timeout"),
            ("kernel --rounds 0", "--rounds"),
            ("redis --rounds 0", "1..=1000"),
            ("redis --drain-ms 0", "1..=60000"),
            ("kernel --frobnicate", "--frobnicate"),
        ] {
            let arguments = ["xtask"].into_iter().chain(arguments.split_whitespace());
            let error = Cli::try_parse_from(arguments).expect_err("bad arguments");
            assert!(error.use_stderr());
            let line = one_line(&error);
            assert!(line.contains(says) && !line.contains('\n'), "{line}");
        }
    }
}
