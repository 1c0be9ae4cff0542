//! Chores of this repository that take more than one command: `cargo xtask NAME`.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use xtask::{guest, install, kernel, pressure};

/// Chores of this repository. Those about other kernels and programs are in lab/.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", version)]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Debug, Subcommand)]
enum Chore {
    /// Boot Debian's Linux for another processor under QEMU and run the tests of core, rseq and
    /// linux there
    ///
    /// Builds them here, stops sequences at each instruction, and counts the instructions of a hot
    /// pair. Prints what it counted; the exit code is 0 when every test passed.
    Guest(guest::Options),
    /// Build examples/kernel, boot it under QEMU and run a test, or all of them
    ///
    /// What the kernel counts goes to stdout as name=value lines, progress to stderr. The exit
    /// code is 0 when every test passed.
    Kernel(kernel::Options),
    /// Build the C library and install it: header, libraries, pkg-config file
    Install(install::Options),
    /// Boot Debian's Linux under QEMU and test the monitor of memory pressure in cgroups of version
    /// 2 there
    Pressure(pressure::Options),
}

fn main() -> ExitCode {
    xtask::main(|cli: &Cli| match &cli.chore {
        Chore::Guest(options) => guest::run(options),
        Chore::Kernel(options) => kernel::run(options),
        Chore::Install(options) => install::run(options),
        Chore::Pressure(options) => pressure::run(options),
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
            ("kernel --frobnicate", "--frobnicate"),
            ("guest", "required"),
            ("guest --arch riscv64", "there are aarch64"),
            ("guest --arch aarch64 --page-size 8", "there are 4, 16, 64"),
        ] {
            let arguments = ["xtask"].into_iter().chain(arguments.split_whitespace());
            let error = Cli::try_parse_from(arguments).expect_err("bad arguments");
            assert!(error.use_stderr());
            let line = one_line(&error);
            assert!(line.contains(says) && !line.contains('\n'), "{line}");
        }
    }

    #[test]
    fn installs_that_pages_and_the_header_name_can_be_run() {
        const PAGES: [&str; 3] = [
            include_str!("../../capi/README.md"),
            include_str!("../../capi/include/pagedepot.h"),
            include_str!("../../../docs/how-to-c.md"),
        ];
        for page in PAGES {
            let mut installs = page.split("cargo xtask install --").skip(1).peekable();
            assert!(installs.peek().is_some(), "no command in {page}");
            for rest in installs {
                let options = rest.split(['`', ')', '\n']).next().unwrap_or_default();
                let command = format!("xtask install --{options}");
                if let Err(error) = Cli::try_parse_from(command.split_whitespace()) {
                    panic!("{command}: {error}");
                }
            }
        }
    }
}
