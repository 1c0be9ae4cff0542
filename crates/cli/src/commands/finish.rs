//! The destinations of results.

use std::io::{self, Write};

use crate::conclusion;
use crate::failure::Failure;
use crate::harness::noise::{self, Noise};
use crate::harness::{cpus, stop};
use crate::report::baseline;
use crate::report::block::wrapped;
use crate::report::document::ResultRow;
use crate::report::json::{self, ExtraOptions, JsonOutput};
use crate::report::machine::Machine;
use crate::report::terminal::{WARNING, painted, width};
use crate::report::{Report, lines};
use crate::workloads::options::MeasureOptions;

/// Prints text for people on stdout.
///
/// # Errors
/// When stdout cannot be written.
pub fn show(text: &str) -> Result<(), Failure> {
    write_out(&painted(lines(text)))
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

/// The result of a run.
pub struct RunResult {
    pub machine: Machine,
    pub report: Report,
    pub noise: Noise,
}

impl RunResult {
    /// Measures, and watches the machine meanwhile. From here on Ctrl-C ends measuring, not the
    /// process.
    ///
    /// # Errors
    /// When measuring fails.
    pub fn new(measure: impl FnOnce() -> Result<Report, Failure>) -> Result<Self, Failure> {
        stop::listen().map_err(|e| Failure::Run(format!("cannot listen for signals: {e}")))?;
        let cpus = cpus::usable()?;
        let machine = Machine::here(cpus.len());
        noise::begin(&cpus);
        let report = measure();
        let noise = noise::end();
        Ok(RunResult { machine, report: report?, noise })
    }

    /// The rows, as files have them.
    pub fn rows(&self) -> Vec<ResultRow> {
        self.report.rows().into_iter().map(ResultRow::from).collect()
    }

    /// The conclusion, with a heading; empty without figures.
    pub fn conclusion(&self, width: usize) -> String {
        let sentences = conclusion::sentences(&self.rows());
        let sentences: String =
            sentences.iter().map(|sentence| wrapped(&format!("- {sentence}"), width)).collect();
        if sentences.is_empty() { sentences } else { format!("In short\n{sentences}") }
    }

    /// Describes how quiet the machine was, with warnings.
    pub fn quietness(&self, width: usize) -> String {
        let summary = self.noise.summary();
        let summary = if summary.is_empty() { summary } else { wrapped(&summary, width) };
        let warnings = self.noise.warnings();
        let warnings: String =
            warnings.iter().map(|line| wrapped(&format!("{WARNING}{line}"), width)).collect();
        summary + &warnings
    }
}

/// The machine, a report's own tables, what they come to, and how quiet the machine was.
///
/// # Errors
/// None; [`finish`] takes functions that may fail.
pub fn for_people(measured: &RunResult) -> Result<String, Failure> {
    let width = width();
    let parts = [
        wrapped(&measured.machine.to_string(), width),
        measured.report.text(width),
        measured.conclusion(width),
        measured.quietness(width),
    ];
    Ok(parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n"))
}

/// Measures, and writes the results where the options say: the samples first, so that neither a
/// closed stdout nor a table that cannot be made loses them. What Ctrl-C left unmeasured is missing
/// there, and the process says so.
///
/// # Errors
/// When measuring or writing fails, or the user stopped it.
pub fn finish(
    (command, more): (&str, ExtraOptions),
    options: &MeasureOptions,
    measure: impl FnOnce() -> Result<Report, Failure>,
    text: impl FnOnce(&RunResult) -> Result<String, Failure>,
) -> Result<(), Failure> {
    let baseline = options.save_baseline.as_deref().map(baseline::to_save).transpose()?;
    let files = options.json.iter().chain(&baseline);
    let outputs = files.map(|path| JsonOutput::open(path)).collect::<Result<Vec<_>, _>>()?;
    let is_stdout_for_scripts = outputs.iter().any(|output| matches!(output, JsonOutput::Stdout));
    let mut measured = RunResult::new(measure)?;
    let figures = measured.report.rows().len();
    if let Some(signal) = stop::signal()
        && figures == 0
    {
        return Err(Failure::Signal(signal));
    }
    let drawings = measured.report.take_drawings();
    let header = json::Header {
        machine: &measured.machine,
        command,
        seed: options.seed,
        settings: json::FileSettings { quick: options.quick, more },
        noise: &measured.noise,
        stopped: stop::is_asked(),
    };
    let mut written = Ok(());
    for output in outputs {
        written = written.and(output.write(&header, &measured.report));
    }
    for (file, drawing) in drawings {
        written = written.and(json::written(file, drawing.as_bytes()));
    }
    let shown = text(&measured).and_then(|text| {
        if is_stdout_for_scripts {
            // Best effort: stderr may be closed.
            let _ = io::stderr().lock().write_all(lines(&text).as_bytes());
            return Ok(());
        }
        show(&text)
    });
    let stopped = stop::signal().map_or(Ok(()), |signal| Err(Failure::Stopped(signal, figures)));
    settled(written.and(shown), stopped)
}

/// The end of a command that has shown its results: what it found matters more than a reader that
/// has gone.
///
/// # Errors
/// When showing failed, or with what was found.
pub fn settled(shown: Result<(), Failure>, found: Result<(), Failure>) -> Result<(), Failure> {
    match shown {
        Err(failure) if !failure.is_silent() => Err(failure),
        shown => found.and(shown),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_has_gone_hides_no_verdict() {
        let gone = || Err(Failure::Output(io::ErrorKind::BrokenPipe.into()));
        let code =
            |end: Result<(), Failure>| end.map_or_else(|failure| failure.exit_code(), |()| 0);
        let worse = || Err(Failure::Worse("worse".to_owned()));
        assert_eq!(code(settled(gone(), worse())), 3);
        assert_eq!(code(settled(gone(), Ok(()))), 0);
        assert_eq!(code(settled(Ok(()), worse())), 3);
        let full = Err(Failure::Output(io::ErrorKind::StorageFull.into()));
        assert_eq!(code(settled(full, worse())), 1);
    }
}
