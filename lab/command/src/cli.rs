//! The command line.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::compare;
use crate::page;
use crate::record;
use crate::workloads::all;
use crate::workloads::simulate::SimulatedWorkload;
use crate::workloads::simulate::options::SimulateOptions;
use crate::workloads::soak::options::SoakOptions;
use crate::workloads::vmalloc::options::VmallocOptions;
use pagedepot_cli::design::variant::Variant;
use pagedepot_cli::replay::options::{Expand, ZoneinfoPaths};
use pagedepot_cli::top;
use pagedepot_cli::workloads::Workload;
use pagedepot_cli::workloads::options::{BenchOptions, FillOptions, MeasureOptions};

/// Benchmarks and trace replay for page allocators. Without a command: measures what a page and a
/// drain cost on this machine, replays a recorded kernel build, and says what came out, in about a
/// minute.
#[derive(Debug, Parser)]
#[command(
    name = "pagedepot-lab",
    version,
    after_help = "Progress goes to stderr, tables to stdout."
)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Cli {
    /// Also print every table (without a command)
    #[arg(long)]
    pub full: bool,
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// A command with its options.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Measure a workload
    Bench {
        #[arg(value_parser = all::parse, help = all::list())]
        workload: &'static Workload,
        #[command(flatten)]
        options: MeasureOptions,
        #[command(flatten)]
        more: BenchOptions,
        #[command(flatten)]
        fill: FillOptions,
        #[command(flatten)]
        variant: Variant,
    },
    /// Replay a recorded trace: the text of perf script, tracefs or trace-cmd report, plain or zstd
    Replay {
        /// The trace; - for standard input. Several: one after the other into one depot, which
        /// tells of contiguity alone
        #[arg(required = true, value_name = "TRACE")]
        traces: Vec<PathBuf>,
        #[command(flatten)]
        zoneinfo: ZoneinfoPaths,
        #[command(flatten)]
        expand: Expand,
        #[command(flatten)]
        options: MeasureOptions,
        #[command(flatten)]
        variant: Variant,
    },
    /// Run the suite of the kernel's test_vmalloc over designs for address space
    Vmalloc {
        #[command(flatten)]
        vmalloc: VmallocOptions,
        #[command(flatten)]
        options: MeasureOptions,
    },
    /// Run designs on up to 256 virtual CPUs: speed-up curves, and the lines that CPUs wait for
    Simulate {
        #[arg(value_parser = SimulatedWorkload::parse, help = SimulatedWorkload::NAMES)]
        workload: SimulatedWorkload,
        #[command(flatten)]
        options: SimulateOptions,
    },
    /// Use up memory in a loop beside forced drains, to find lost and doubled pages
    Soak {
        #[command(flatten)]
        options: SoakOptions,
    },
    /// Record a command's page events, and the machine's state before and after it, for replays
    Record(record::RecordOptions),
    /// The part of `record` that a recorder runs.
    #[command(name = record::INSIDE, hide = true)]
    RecordInside(record::Inside),
    /// Compare designs, or saved results: what is better or worse first, then tables as in mmtests
    Compare(Box<compare::CompareOptions>),
    /// Write an HTML page of tables and plots of saved results; it needs no network and no scripts
    Report(page::PageOptions),
    /// Watch the depot of a running program: CPUs, zones, areas, call sites; drain it by keys
    Top(top::TopOptions),
    /// Print the completions of a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page, or write those of all commands to a folder
    Man {
        /// Write pagedepot-lab.1 and a page for each command to DIR
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
    },
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;
    use pagedepot_cli::cli::parse;
    use pagedepot_cli::failure::Failure;

    use super::*;

    fn refused(arguments: &str) -> String {
        let arguments =
            ["pagedepot-lab"].into_iter().chain(arguments.split_whitespace()).map(Into::into);
        match parse::<Cli>(arguments) {
            Err(Failure::Usage(line)) => line,
            _ => panic!("accepted"),
        }
    }

    #[test]
    fn clap_itself_finds_no_fault() {
        Cli::command().debug_assert();
    }

    #[test]
    fn bad_arguments_get_one_line_each() {
        for (arguments, says) in [
            ("bench", "WORKLOAD"),
            ("bench cold", "there are hot, pagealloc, touch, pft, producer-consumer, drain"),
            ("bench hot --design slab", "there are depot, floor-tls"),
            ("bench hot --runs 0", "at least 1"),
            ("bench hot --runs -3", "at least 1"),
            ("bench hot --cpus two", "at least 1"),
            ("bench hot --frobnicate", "--frobnicate"),
            ("replay", "TRACE"),
            ("compare --clients 0", "at least 1"),
            ("compare --clients many", "give auto"),
            ("compare --runs 0", "at least 1"),
            ("compare a.json --quick", "--quick"),
            ("compare --threads 2013-magazine-i7 --clients 2", "--clients"),
            ("compare a.json --rule mine", "ours, threads, mmtests"),
            ("record -- true", "--output"),
            ("record -o x", "COMMAND"),
            ("record -o x --buffer 0 -- true", "at least 1, and at most 4096"),
            ("bench hot --seed -1", "at least 0"),
            ("top --every 0", "at least 1"),
            ("top 1 2", "see `pagedepot-lab top --help`"),
            ("simulate", "WORKLOAD"),
            ("simulate cold", "there are hot, pagealloc, touch, producer-consumer, ring-stream"),
            ("simulate hot --cpus 0", "1 to 256"),
            ("simulate hot --cpus 1,257", "1 to 256"),
            ("simulate hot --cpus 1,", "1 to 256"),
            ("simulate hot --drains 0", "at least 1"),
            ("simulate hot --milliseconds -1", "milliseconds"),
            ("bench hot --magazines -1", "at least 1, and at most 65536"),
            ("vmalloc --nr-threads 65536", "at most 65535"),
            ("vmalloc --run-test-mask 2147483648", "at most 2147483647"),
            ("vmalloc --trace t --run-test-mask 7", "--run-test-mask"),
            ("record -o x make -j2", "put -- before the command"),
            ("bench hot --frobnicate", "see `pagedepot-lab bench --help`"),
            ("bench", "see `pagedepot-lab bench --help`"),
            ("--frobnicate", "see `pagedepot-lab --help`"),
            (
                "frobnicate",
                "no command is called frobnicate; there are bench, replay, vmalloc, simulate, \
                 soak, record, compare, report, top, completions, man",
            ),
        ] {
            let line = refused(arguments);
            assert!(line.contains(says) && !line.contains('\n'), "{arguments}: {line}");
        }
    }
}
