//! The command line.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::{ContextKind, ErrorKind};
use clap::{Args, CommandFactory, Parser, Subcommand};

use crate::compare;
use crate::design::Design;
use crate::design::variant::Variant;
use crate::failure::Failure;
use crate::record;
use crate::trace::ExpandLimit;
use crate::workloads::Workload;
use crate::workloads::vmalloc::VmallocOptions;

/// Benchmarks and trace replay for page allocators. Without a command: replays the shipped trace,
/// then measures the most important workloads, in about a minute.
#[derive(Debug, Parser)]
#[command(name = "pagedepot", version, after_help = "Progress goes to stderr, tables to stdout.")]
pub struct Cli {
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// The hidden command that a recorder runs.
pub const INSIDE: &str = "record-inside";

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Measure a workload
    Bench {
        /// hot, pagealloc, pft, producer-consumer, drain, udp-stream, sctp-many or kernbench
        #[arg(value_parser = Workload::parse)]
        workload: Workload,
        #[command(flatten)]
        options: Options,
        #[command(flatten)]
        more: BenchOptions,
        #[command(flatten)]
        variant: Variant,
    },
    /// Replay a recorded trace: the text of perf script, tracefs or trace-cmd report, plain or zstd
    Replay {
        /// The trace; - for standard input
        trace: PathBuf,
        #[command(flatten)]
        zoneinfo: ZoneinfoPaths,
        #[command(flatten)]
        expand: Expand,
        #[command(flatten)]
        options: Options,
        #[command(flatten)]
        variant: Variant,
    },
    /// Run the suite of the kernel's test_vmalloc over designs for address space
    Vmalloc {
        #[command(flatten)]
        vmalloc: VmallocOptions,
        #[command(flatten)]
        options: Options,
    },
    /// Use memory up in a loop, with drains forced behind it, and look for lost and doubled pages
    Soak {
        #[command(flatten)]
        options: SoakOptions,
    },
    /// Record a command's page events, and the machine before and after it, for replays
    Record(record::Options),
    /// What a recorder runs.
    #[command(name = INSIDE, hide = true)]
    RecordInside(record::Inside),
    /// Compare designs, or saved results, the way mmtests does: in columns, positive is better
    Compare(compare::Options),
}

/// The recorded machine. Default: NAME.zoneinfo.before.txt and NAME.zoneinfo.after.txt beside the
/// trace
#[derive(Clone, Debug, Default, Args)]
pub struct ZoneinfoPaths {
    /// /proc/zoneinfo from before the recording: zones, watermarks, batch, high and cached pages
    #[arg(long = "zoneinfo", value_name = "BEFORE")]
    pub before: Option<PathBuf>,
    /// /proc/zoneinfo from after it: what the kernel's CPUs then cached
    #[arg(long = "zoneinfo-after", value_name = "AFTER", requires = "before")]
    pub after: Option<PathBuf>,
}

/// What a compressed trace may expand to
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct Expand {
    /// Read so many MiB of a compressed trace at most (default: 256, or 100 times its size)
    #[arg(long = "expand-limit", value_name = "MIB", value_parser = positive, allow_negative_numbers = true)]
    pub mib: Option<NonZeroU32>,
}

impl Expand {
    /// In bytes.
    pub fn limit(self) -> ExpandLimit {
        ExpandLimit { bytes: self.mib.map(|mib| u64::from(mib.get()) << 20) }
    }
}

/// Options of every measurement.
#[derive(Clone, Debug, Default, Args)]
pub struct Options {
    /// Measure only this design; may be repeated. An unknown NAME is answered with those there are
    #[arg(long = "design", value_name = "NAME", value_parser = Design::parse)]
    pub designs: Vec<Design>,
    /// Use so many CPUs (default: all). A replay acts as so many of its trace's, which do what the
    /// others did, too
    #[arg(long, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    pub cpus: Option<NonZeroU32>,
    /// Take so many samples (default: 31, with --quick 11; replay 5)
    #[arg(long, value_name = "N", value_parser = whole::<RUNS_MAX>, allow_negative_numbers = true)]
    pub runs: Option<u32>,
    /// Shorter windows, smaller workloads: figures to look at, not to judge by
    #[arg(long)]
    pub quick: bool,
    /// Write results for scripts to FILE (-: stdout, and tables to stderr)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Seed of everything random
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = seed, allow_negative_numbers = true)]
    pub seed: u64,
}

/// Options of `bench` alone.
#[derive(Clone, Debug, Default, Args)]
pub struct BenchOptions {
    /// Force so many drains of all CPUs per second behind the workload
    #[arg(long, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    pub drains: Option<NonZeroU32>,
    /// udp-stream and sctp-many: vary --free-high, buffers in flight and streams
    #[arg(long)]
    pub tune: bool,
}

/// Options of `soak`.
#[derive(Clone, Debug, Args)]
pub struct SoakOptions {
    /// For so many minutes; a fraction will do
    #[arg(long, value_name = "MINUTES", default_value = "5", value_parser = time, allow_negative_numbers = true)]
    pub minutes: Duration,
    /// Drains per second
    #[arg(long, value_name = "N", default_value = "100", value_parser = positive, allow_negative_numbers = true)]
    pub drains: NonZeroU32,
    /// Soak only this design; may be repeated
    #[arg(long = "design", value_name = "NAME", value_parser = Design::parse)]
    pub designs: Vec<Design>,
    /// Use so many CPUs (default: all)
    #[arg(long, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    pub cpus: Option<NonZeroU32>,
    /// Write results for scripts to FILE (-: stdout, and tables to stderr)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Seed of everything random
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = seed, allow_negative_numbers = true)]
    pub seed: u64,
    #[command(flatten)]
    pub variant: Variant,
}

/// A year.
const MINUTES_MAX: u32 = 365 * 24 * 60;

fn time(minutes: &str) -> Result<Duration, String> {
    let minutes: f64 = minutes.parse().unwrap_or(f64::NAN);
    let time = Duration::try_from_secs_f64(minutes * 60.0).ok();
    let time =
        time.filter(|time| !time.is_zero() && *time <= MINUTES_MAX * Duration::from_secs(60));
    time.ok_or_else(|| format!("give a number of minutes above 0, and at most {MINUTES_MAX}"))
}

/// Samples of each figure: all are kept.
pub const RUNS_MAX: u32 = 100_000;

/// A number of at least 1.
pub fn positive(text: &str) -> Result<NonZeroU32, String> {
    let number = whole::<{ u32::MAX }>(text)?;
    Ok(NonZeroU32::new(number).expect("at least 1"))
}

/// A number from 1 to `MAX`.
pub fn whole<const MAX: u32>(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|number| (1..=MAX).contains(number));
    number.ok_or_else(|| format!("give a whole number of at least 1, and at most {MAX}"))
}

/// Any number.
pub fn seed(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("give a whole number of at least 0, and at most {}", u64::MAX))
}

/// What the arguments ask for.
pub enum Parsed {
    /// To run.
    Run(Box<Cli>),
    /// Help or version, to be printed.
    Text(String),
}

/// Reads the arguments.
///
/// # Errors
/// One line, whatever clap would have said in several.
pub fn parse(arguments: impl IntoIterator<Item = std::ffi::OsString>) -> Result<Parsed, Failure> {
    let arguments: Vec<_> = arguments.into_iter().collect();
    match Cli::try_parse_from(&arguments) {
        Ok(cli) => Ok(Parsed::Run(Box::new(cli))),
        Err(error) => match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
                Ok(Parsed::Text(error.render().to_string()))
            }
            _ => Err(Failure::Usage(one_line(
                &error,
                arguments.get(1).and_then(|name| name.to_str()),
            ))),
        },
    }
}

/// clap's message without its advice in further paragraphs, about arguments of `command`.
fn one_line(error: &clap::Error, command: Option<&str>) -> String {
    let cli = Cli::command();
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
        Some(name) => format!("see `pagedepot {name} --help`"),
        None => "see `pagedepot --help`".to_owned(),
    };
    if error.kind() == ErrorKind::MissingRequiredArgument {
        let names = error.get(ContextKind::InvalidArg).map(ToString::to_string).unwrap_or_default();
        return format!("{} is missing; {help}", names.replace('\n', ", "));
    }
    let text = error.render().to_string();
    let first = text.lines().next().unwrap_or_default();
    let what = first.strip_prefix("error: ").unwrap_or(first).trim_end_matches(':');
    match error.get(ContextKind::ValidValue).map(ToString::to_string) {
        Some(values) if !values.is_empty() => format!("{what}; there are {values}"),
        _ if command == Some("record") && error.kind() == ErrorKind::UnknownArgument => {
            format!("{what}; put -- before the command to record; {help}")
        }
        _ => format!("{what}; {help}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(arguments: &str) -> String {
        let arguments =
            ["pagedepot"].into_iter().chain(arguments.split_whitespace()).map(Into::into);
        match parse(arguments) {
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
            ("bench cold", "there are hot, pagealloc, pft, producer-consumer, drain"),
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
            ("bench hot --magazines -1", "at least 1, and at most 65536"),
            ("vmalloc --nr-threads 65536", "at most 65535"),
            ("vmalloc --run-test-mask 2147483648", "at most 2147483647"),
            ("vmalloc --trace t --run-test-mask 7", "--run-test-mask"),
            ("record -o x make -j2", "put -- before the command"),
            ("bench hot --frobnicate", "see `pagedepot bench --help`"),
            ("bench", "see `pagedepot bench --help`"),
            ("--frobnicate", "see `pagedepot --help`"),
            (
                "frobnicate",
                "no command is called frobnicate; there are bench, replay, vmalloc, soak, record, compare",
            ),
        ] {
            let line = refused(arguments);
            assert!(line.contains(says) && !line.contains('\n'), "{arguments}: {line}");
        }
    }
}
