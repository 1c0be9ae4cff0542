//! Where results go.

use std::io::{self, Write};

use crate::failure::Failure;
use crate::harness::cpus;
use crate::report::json::{self, JsonOutput, More};
use crate::report::machine::Machine;
use crate::report::{Report, lines};
use crate::workloads::options::MeasureOptions;

/// Prints text for people on stdout.
///
/// # Errors
/// When stdout cannot be written.
pub fn show(text: &str) -> Result<(), Failure> {
    write_out(&lines(text))
}

/// Prints text for programs on stdout, unchanged.
///
/// # Errors
/// When stdout cannot be written.
pub fn write_out(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    Ok(stdout.flush()?)
}

/// The machine and a report's own tables, for people.
///
/// # Errors
/// None; [`finish`] takes functions that may fail.
pub fn with_machine(machine: &Machine, report: &Report) -> Result<String, Failure> {
    Ok(format!("{machine}\n\n{}", report.text()))
}

/// Measures, and writes the results where the options say: the samples first, so that neither a
/// closed stdout nor a table that cannot be made loses them.
///
/// # Errors
/// When measuring or writing fails.
pub fn finish(
    (command, more): (&str, More),
    options: &MeasureOptions,
    measure: impl FnOnce() -> Result<Report, Failure>,
    text: impl FnOnce(&Machine, &Report) -> Result<String, Failure>,
) -> Result<(), Failure> {
    let json = options.json.as_deref().map(JsonOutput::open).transpose()?;
    let machine = Machine::here(cpus::usable()?.len());
    let report = measure()?;
    let is_stdout_for_scripts = matches!(json, Some(JsonOutput::Stdout));
    let settings = json::FileSettings { quick: options.quick, more };
    let written = json
        .map_or(Ok(()), |json| json.write(&machine, command, (options.seed, settings), &report));
    let shown = text(&machine, &report).and_then(|text| {
        if is_stdout_for_scripts {
            // Best effort: stderr may be closed.
            let _ = io::stderr().lock().write_all(lines(&text).as_bytes());
            return Ok(());
        }
        show(&text)
    });
    written.and(shown)
}
