//! Results for scripts: `{"schema":1,"machine":{...},"command":"...","seed":N,
//! "settings":{...},"noise":{...},"results":[...],"read":[...],"series":[...],"maps":[...]}`. The
//! last three are there where a run has them: what was read of a trace and what was not, figures
//! over time, and how full each pageblock was.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use super::account::Account;
use super::machine::Machine;
use super::output::OutputFile;
use super::rows::{BlockMap, Report, Row, Series};
use crate::failure::{Failure, advice};
use crate::harness::noise::Noise;

/// Counts changes of the format that scripts must follow.
const SCHEMA: u32 = 1;

#[derive(Serialize)]
struct ResultFile<'r> {
    schema: u32,
    #[serde(flatten)]
    header: &'r Header<'r>,
    results: Vec<Row>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    read: &'r [Account],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    series: &'r [Series],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    maps: &'r [BlockMap],
}

/// The header before the figures.
#[derive(Debug, Serialize)]
pub struct Header<'r> {
    pub machine: &'r Machine,
    pub command: &'r str,
    pub seed: u64,
    pub settings: FileSettings,
    pub noise: &'r Noise,
    /// Whether the user ended it before all was measured.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub stopped: bool,
}

/// Options that change figures; `compare` refuses results whose settings differ.
#[derive(Clone, Debug, Serialize)]
pub struct FileSettings {
    /// Shorter windows, smaller workloads.
    pub quick: bool,
    #[serde(flatten)]
    pub more: ExtraOptions,
}

/// Options of one command that change figures and are not among the rows' params, by name.
pub type ExtraOptions = BTreeMap<&'static str, Value>;

/// The place of a document. An existing file keeps its contents until the new ones are complete,
/// unless it is a link, or none can be made beside it.
pub enum JsonOutput {
    /// `--json -`.
    Stdout,
    /// `--json FILE`.
    File(OutputFile),
}

impl JsonOutput {
    /// The place that `--json` names. Checks that it can be written, so that a wrong path fails
    /// before anything is measured.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        if path == Path::new("-") {
            return Ok(JsonOutput::Stdout);
        }
        opened(path, "give --json a file in a directory that you may write to, or -")
            .map(JsonOutput::File)
    }

    /// Writes the document.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(self, header: &Header<'_>, report: &Report) -> Result<(), Failure> {
        let (series, maps, read) = (report.series(), report.maps(), report.accounts());
        let results = report.rows();
        let document = ResultFile { schema: SCHEMA, header, results, read, series, maps };
        let mut text = serde_json::to_string(&document).map_err(io::Error::other)?;
        text.push('\n');
        match self {
            JsonOutput::Stdout => {
                io::stdout().lock().write_all(text.as_bytes()).map_err(Failure::Output)
            }
            JsonOutput::File(file) => written(file, text.as_bytes()),
        }
    }
}

/// Opens a file for results.
///
/// # Errors
/// When it cannot be written; says what else to give.
pub fn opened(path: &Path, instead: &str) -> Result<OutputFile, Failure> {
    OutputFile::open(path).map_err(|error| {
        Failure::Usage(format!("cannot write {}: {error}; {instead}", path.display()))
    })
}

/// Writes the contents of a file for results.
///
/// # Errors
/// When they cannot be written.
pub fn written(file: OutputFile, contents: &[u8]) -> Result<(), Failure> {
    let path = file.path().display().to_string();
    file.write(contents)
        .map_err(|error| Failure::Run(format!("cannot write {path}: {error}{}", advice(&error))))
}
