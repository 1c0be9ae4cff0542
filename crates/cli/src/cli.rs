//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::{ContextKind, ErrorKind};
use clap::{Parser, Subcommand};

use crate::design::variant::{self, Variant};
use crate::failure::Failure;
use crate::replay::options::{Expand, ZoneinfoPaths};
use crate::workloads::options::{BenchOptions, FillOptions, MeasureOptions};
use crate::workloads::{Workload, all};
use crate::{inspect, soak, top};

/// Benchmarks and trace replay for page allocators. Without a command: measures what a page and a
/// drain cost on this machine, replays a recorded kernel build, and says what came out, in about a
/// minute.
#[derive(Debug, Parser)]
#[command(name = "pagedepot", version, after_help = "Progress goes to stderr, tables to stdout.")]
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
    #[command(mut_args = variant::here)]
    Bench {
        #[arg(value_parser = all::parse, help = all::names(all::ALL))]
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
    #[command(mut_args = variant::here)]
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
    /// Kill processes that share a depot, at random, and check that no page is lost
    Soak(soak::SoakOptions),
    /// Show a segment that processes share: what each holds, also after all have ended
    Inspect(inspect::InspectOptions),
    /// Watch the depot of a running program: CPUs, zones, areas, call sites; drain it by keys
    Top(top::TopOptions),
    /// Print the completions of a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page, or write those of all commands to a folder
    Man {
        /// Write pagedepot.1 and a page for each command to DIR
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
    },
}

/// Arguments, read.
pub enum CliOutcome<C> {
    /// A command to run.
    Run(Box<C>),
    /// Help or version, to print.
    Text(String),
}

/// Reads the arguments of a command.
///
/// # Errors
/// Says what is wrong with the arguments, in one line.
pub fn parse<C: Parser>(
    arguments: impl IntoIterator<Item = OsString>,
) -> Result<CliOutcome<C>, Failure> {
    let arguments: Vec<_> = arguments.into_iter().collect();
    match C::try_parse_from(&arguments) {
        Ok(cli) => Ok(CliOutcome::Run(Box::new(cli))),
        Err(error) => match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
                Ok(CliOutcome::Text(error.render().to_string()))
            }
            _ => Err(Failure::Usage(one_line(
                &C::command(),
                &error,
                arguments.get(1).and_then(|name| name.to_str()),
            ))),
        },
    }
}

/// clap's message without its advice in further paragraphs, about arguments of `command`.
fn one_line(cli: &clap::Command, error: &clap::Error, command: Option<&str>) -> String {
    let own = cli.get_name();
    let mut commands =
        cli.get_subcommands().filter(|command| !command.is_hide_set()).map(clap::Command::get_name);
    if error.kind() == ErrorKind::InvalidSubcommand {
        let given =
            error.get(ContextKind::InvalidSubcommand).map(ToString::to_string).unwrap_or_default();
        return format!(
            "no command is called {given}; there are {}",
            commands.collect::<Vec<_>>().join(", ")
        );
    }
    let help = match command.and_then(|given| commands.find(|name| *name == given)) {
        Some(name) => format!("see `{own} {name} --help`"),
        None => format!("see `{own} --help`"),
    };
    if error.kind() == ErrorKind::MissingRequiredArgument {
        let names = error.get(ContextKind::InvalidArg).map(ToString::to_string).unwrap_or_default();
        return format!("{} is missing; {help}", names.replace('\n', ", "));
    }
    let runs_a_command = command
        .and_then(|name| cli.find_subcommand(name))
        .is_some_and(|command| command.get_arguments().any(clap::Arg::is_last_set));
    let text = error.render().to_string();
    let first = text.lines().next().unwrap_or_default();
    let what = first.strip_prefix("error: ").unwrap_or(first).trim_end_matches(':');
    match error.get(ContextKind::ValidValue).map(ToString::to_string) {
        Some(values) if !values.is_empty() => format!("{what}; there are {values}"),
        _ if runs_a_command && error.kind() == ErrorKind::UnknownArgument => {
            format!("{what}; put -- before the command that it runs; {help}")
        }
        _ => format!("{what}; {help}"),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn refused(arguments: &str) -> String {
        let arguments =
            ["pagedepot"].into_iter().chain(arguments.split_whitespace()).map(Into::into);
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
            ("bench cold", "there are hot, pagealloc, producer-consumer, drain, fragmentation"),
            ("bench hot --design slab", "there are depot, floor-tls"),
            ("bench hot --runs 0", "at least 1"),
            ("bench hot --runs -3", "at least 1"),
            ("bench hot --cpus two", "at least 1"),
            ("bench hot --frobnicate", "--frobnicate"),
            ("replay", "TRACE"),
            ("bench hot --seed -1", "at least 0"),
            ("inspect", "SEGMENT"),
            ("soak --kills 0", "at least 1"),
            ("soak --processes 17", "at most 16"),
            ("top --every 0", "at least 1"),
            ("top 1 2", "see `pagedepot top --help`"),
            ("bench hot --magazines -1", "at least 1, and at most 65536"),
            ("bench hot --frobnicate", "see `pagedepot bench --help`"),
            ("bench", "see `pagedepot bench --help`"),
            ("--frobnicate", "see `pagedepot --help`"),
            (
                "frobnicate",
                "no command is called frobnicate; there are bench, replay, soak, \
                 inspect, top, completions, man",
            ),
        ] {
            let line = refused(arguments);
            assert!(line.contains(says) && !line.contains('\n'), "{arguments}: {line}");
        }
    }
}
