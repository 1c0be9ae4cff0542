//! The commands.

pub mod finish;
pub mod manual;
pub mod replay;
pub mod tour;

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use self::finish::{finish, for_people, settled, show};
use crate::cli::{self, Cli, CliOutcome, Command};
use crate::design::Product;
use crate::design::variant::Variant;
use crate::failure::Failure;
use crate::replay::options::{Expand, ZoneinfoPaths};
use crate::replay::threads::ReplayLineup;
use crate::report::json::ExtraOptions;
use crate::workloads::options::{BenchOptions, FillOptions, MeasureOptions};
use crate::workloads::{Effort, Settings, Workload};
use crate::{inspect, soak, top};

/// Runs the command that the arguments name.
///
/// # Errors
/// Why it failed; the process exits with the failure's code.
pub fn run(arguments: Vec<OsString>) -> Result<(), Failure> {
    let cli: Box<Cli> = match cli::parse(arguments)? {
        CliOutcome::Text(text) => return Ok(write!(io::stdout(), "{text}")?),
        CliOutcome::Run(cli) => cli,
    };
    match cli.command {
        None => tour::tour(cli.full),
        Some(Command::Bench { workload, options, more, fill, variant }) => {
            let settings = Settings::new(&Product, &options, effort(&options))?;
            bench(workload, &options, &given(Settings { variant, ..settings }, more, fill))
        }
        Some(Command::Replay { traces, zoneinfo, expand, options, variant }) => {
            replay::<Product>((&traces, &expand), &zoneinfo, (&options, &variant))
        }
        Some(Command::Soak(options)) => show(&soak::run(&options)?),
        Some(Command::Inspect(options)) => inspected(&options.segment),
        Some(Command::Top(options)) => watch(&options),
        Some(Command::Completions { shell }) => manual::completions::<Cli>(shell),
        Some(Command::Man { dir }) => manual::man::<Cli>(dir.as_deref()),
    }
}

/// The amount to measure that the options ask for.
pub fn effort(options: &MeasureOptions) -> Effort {
    if options.quick { Effort::Quick } else { Effort::Full }
}

/// Settings with the options of `bench` alone.
pub fn given(settings: Settings, more: BenchOptions, fill: FillOptions) -> Settings {
    let BenchOptions { drains, tune, busy, svg, orders } = more;
    Settings { drains, tune, busy, svg, orders, fill, ..settings }
}

/// Measures a workload.
///
/// # Errors
/// When it cannot be measured, or its results cannot be written.
pub fn bench(
    workload: &Workload,
    options: &MeasureOptions,
    settings: &Settings,
) -> Result<(), Failure> {
    let command = format!("bench {}", workload.name);
    finish((&command, ExtraOptions::new()), options, || workload.run(settings), for_people)
}

/// Replays the traces in files.
///
/// # Errors
/// When one cannot be replayed, or the results cannot be written.
pub fn replay<L: ReplayLineup>(
    (traces, expand): (&[PathBuf], &Expand),
    zoneinfo: &ZoneinfoPaths,
    (options, variant): (&MeasureOptions, &Variant),
) -> Result<(), Failure> {
    let names: Vec<_> = traces.iter().map(|trace| trace.display().to_string()).collect();
    let command = format!("replay {}", names.join(" "));
    let traces = (traces, expand.limit());
    let measure = || replay::replay_files::<L>(traces, zoneinfo, (options, variant));
    finish((&command, zoneinfo.settings()), options, measure, for_people)
}

/// Shows a segment.
///
/// # Errors
/// When it is none, or pages in it are lost.
fn inspected(path: &Path) -> Result<(), Failure> {
    let (text, fault) = inspect::page(path)?;
    settled(show(&text), fault)
}

/// Shows a program's depot, or a segment, once.
///
/// # Errors
/// When there is none, or no terminal.
pub fn watch(options: &top::TopOptions) -> Result<(), Failure> {
    let segment =
        options.program.as_deref().map(Path::new).filter(|path| inspect::is_segment(path));
    if let Some(segment) = segment {
        return inspected(segment);
    }
    match top::run(options)? {
        Some(text) => show(&text),
        None => Ok(()),
    }
}
