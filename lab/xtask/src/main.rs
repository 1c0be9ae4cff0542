//! Chores about other kernels and programs: `cargo xtask NAME` in lab/.

mod linux;
mod ostd;
mod redis;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Chores about other kernels and programs. The product's are those of the folder above.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", version)]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Debug, Subcommand)]
enum Chore {
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
}

fn main() -> ExitCode {
    xtask::main(|cli: &Cli| match &cli.chore {
        Chore::Redis(options) => redis::run(options),
        Chore::Linux(options) => linux::run(options),
        Chore::Ostd(options) => ostd::run(options),
    })
}

#[cfg(test)]
mod tests {
    use xtask::one_line;

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
            ("linus", "linus"),
            ("redis --rounds 0", "1..=1000"),
            ("redis --drain-ms 0", "1..=60000"),
            ("redis --frobnicate", "--frobnicate"),
        ] {
            let arguments = ["xtask"].into_iter().chain(arguments.split_whitespace());
            let error = Cli::try_parse_from(arguments).expect_err("bad arguments");
            assert!(error.use_stderr());
            let line = one_line(&error);
            assert!(line.contains(says) && !line.contains('\n'), "{line}");
        }
    }
}
