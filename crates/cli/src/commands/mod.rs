//! The commands.

mod compare;
mod finish;
mod manual;
mod replay;
mod soak;
mod tour;

use std::ffi::OsString;
use std::io::{self, Write};

use self::finish::{finish, for_people, show};
use crate::cli::{self, CliOutcome, Command};
use crate::failure::Failure;
use crate::page;
use crate::record;
use crate::report::json::ExtraOptions;
use crate::top;
use crate::workloads::options::MeasureOptions;
use crate::workloads::simulate::options::SimulateOptions;
use crate::workloads::simulate::{self, SimulatedWorkload};
use crate::workloads::vmalloc::{self, options::VmallocOptions};
use crate::workloads::{Effort, Settings, Workload};

/// Runs the command that the arguments name.
///
/// # Errors
/// Why it failed; the process exits with the failure's code.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> Result<(), Failure> {
    let cli = match cli::parse(arguments)? {
        CliOutcome::Text(text) => return Ok(write!(io::stdout(), "{text}")?),
        CliOutcome::Run(cli) => cli,
    };
    match cli.command {
        None => tour::tour(cli.full),
        Some(Command::Bench { workload, options, more, fill, variant }) => {
            let settings = Settings::new(&options, effort(&options))?;
            let (drains, tune, orders) = (more.drains, more.tune, more.orders);
            bench(workload, &options, &Settings { variant, drains, tune, orders, fill, ..settings })
        }
        Some(Command::Replay { trace, zoneinfo, expand, options, variant }) => {
            let command = format!("replay {}", trace.display());
            let trace = (trace.as_path(), expand.limit());
            let measure = || replay::replay_file(trace, &zoneinfo, (&options, &variant));
            finish((&command, ExtraOptions::new()), &options, measure, for_people)
        }
        Some(Command::Vmalloc { vmalloc, options }) => run_vmalloc(&vmalloc, &options),
        Some(Command::Simulate { workload, options }) => simulate(workload, &options),
        Some(Command::Soak { options }) => soak::soak(options),
        Some(Command::Record(options)) => record(&options),
        Some(Command::RecordInside(inside)) => inside.run_alone(),
        Some(Command::Compare(options)) if options.is_to_measure() => compare::designs(&options),
        Some(Command::Compare(options)) => compare::files(&options),
        Some(Command::Report(options)) => show(&page::write(&options)?),
        Some(Command::Top(options)) => match top::run(&options)? {
            Some(text) => show(&text),
            None => Ok(()),
        },
        Some(Command::Completions { shell }) => manual::completions(shell),
        Some(Command::Man { dir }) => manual::man(dir.as_deref()),
    }
}

fn effort(options: &MeasureOptions) -> Effort {
    if options.quick { Effort::Quick } else { Effort::Full }
}

fn bench(
    workload: &Workload,
    options: &MeasureOptions,
    settings: &Settings,
) -> Result<(), Failure> {
    let command = format!("bench {}", workload.name);
    finish((&command, ExtraOptions::new()), options, || workload.run(settings), for_people)
}

fn run_vmalloc(vmalloc: &VmallocOptions, options: &MeasureOptions) -> Result<(), Failure> {
    let settings = Settings::new(options, effort(options))?;
    let more = vmalloc.settings(settings.cpus.len(), options.quick);
    finish(("vmalloc", more), options, || vmalloc::run(vmalloc, &settings), for_people)
}

fn simulate(workload: SimulatedWorkload, given: &SimulateOptions) -> Result<(), Failure> {
    let (topology, more) = simulate::machine(given)?;
    let options =
        MeasureOptions { json: given.json.clone(), seed: given.seed, ..MeasureOptions::default() };
    let command = format!("simulate {}", workload.name());
    let measure = || simulate::run(workload, given, &topology);
    finish((&command, more), &options, measure, for_people)
}

fn record(options: &record::RecordOptions) -> Result<(), Failure> {
    let recorded = record::record(options)?;
    match (show(&recorded.text), recorded.exit_code) {
        // How the recorded command ended matters more than a reader that has gone.
        (Err(failure), _) if !failure.is_silent() => Err(failure),
        (shown, 0) => shown,
        (_, code) => Err(Failure::Command(code)),
    }
}
