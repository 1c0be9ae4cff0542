//! The commands.

mod compare;
mod soak;

use std::ffi::OsString;
use std::io::{self, Write};

use pagedepot_cli::cli::{CliOutcome, parse};
use pagedepot_cli::commands::finish::{finish, for_people, settled, show};
use pagedepot_cli::commands::{bench, effort, given, manual, replay, tour, watch};
use pagedepot_cli::failure::Failure;
use pagedepot_cli::workloads::Settings;
use pagedepot_cli::workloads::options::MeasureOptions;

use crate::cli::{Cli, Command};
use crate::design::Lab;
use crate::page;
use crate::record;
use crate::workloads::simulate::options::SimulateOptions;
use crate::workloads::simulate::{self, SimulatedWorkload};
use crate::workloads::vmalloc::{self, options::VmallocOptions};

/// Runs the command that the arguments name.
///
/// # Errors
/// Why it failed; the process exits with the failure's code.
pub fn run(arguments: Vec<OsString>) -> Result<(), Failure> {
    let cli: Box<Cli> = match parse(arguments)? {
        CliOutcome::Text(text) => return Ok(write!(io::stdout(), "{text}")?),
        CliOutcome::Run(cli) => cli,
    };
    match cli.command {
        None => tour::tour(cli.full),
        Some(Command::Bench { workload, options, more, fill, variant }) => {
            let settings = Settings::new(&Lab, &options, effort(&options))?;
            bench(workload, &options, &given(Settings { variant, ..settings }, more, fill))
        }
        Some(Command::Replay { traces, zoneinfo, expand, options, variant }) => {
            replay::<Lab>((&traces, &expand), &zoneinfo, (&options, &variant))
        }
        Some(Command::Vmalloc { vmalloc, options }) => run_vmalloc(&vmalloc, &options),
        Some(Command::Simulate { workload, options }) => simulate(workload, &options),
        Some(Command::Soak { options }) => soak::soak(options),
        Some(Command::Record(options)) => record(&options),
        Some(Command::RecordInside(inside)) => inside.run_alone(),
        Some(Command::Compare(options)) if options.is_to_measure() => compare::designs(&options),
        Some(Command::Compare(options)) => compare::files(&options),
        Some(Command::Report(options)) => show(&page::write(&options)?),
        Some(Command::Top(options)) => watch(&options),
        Some(Command::Completions { shell }) => manual::completions::<Cli>(shell),
        Some(Command::Man { dir }) => manual::man::<Cli>(dir.as_deref()),
    }
}

fn run_vmalloc(vmalloc: &VmallocOptions, options: &MeasureOptions) -> Result<(), Failure> {
    let settings = Settings::new(&Lab, options, effort(options))?;
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
    let ended = match recorded.exit_code {
        0 => Ok(()),
        code => Err(Failure::Command(code)),
    };
    settled(show(&recorded.text), ended)
}
