//! Results for scripts: `{"schema":1,"machine":{...},"command":"...","seed":N,
//! "settings":{...},"noise":{...},"results":[...],"read":[...],"series":[...],"maps":[...]}`. The
//! last three are there where a run has them: what was read of a trace and what was not, figures
//! over time, and how full each pageblock was.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;

use super::account::Account;
use super::machine::Machine;
use super::rows::{BlockMap, Report, Row, Series};
use crate::failure::Failure;
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

/// The file that `--json` writes. An existing file keeps its contents until the new ones are
/// complete.
pub enum JsonOutput {
    /// `--json -`.
    Stdout,
    /// `--json FILE`.
    File(PathBuf),
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
        let tried = if path.exists() {
            File::options().write(true).open(path).map(drop)
        } else {
            let beside = beside(path);
            File::create(&beside).and_then(|_| fs::remove_file(&beside))
        };
        tried.map_err(|e| {
            let path = path.display();
            Failure::Usage(format!(
                "cannot write {path}: {e}; give --json a file in a directory that you may write \
                 to, or -"
            ))
        })?;
        Ok(JsonOutput::File(path.to_owned()))
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
            JsonOutput::File(path) => replace(&path, text.as_bytes()).map_err(|e| {
                Failure::Run(format!("cannot write {}: {e}; is the disk full?", path.display()))
            }),
        }
    }
}

/// Replaces a file's contents completely or not at all. Links, pipes and devices are written to
/// directly.
fn replace(path: &Path, contents: &[u8]) -> io::Result<()> {
    if fs::symlink_metadata(path).is_ok_and(|it| !it.is_file()) {
        return fs::write(path, contents);
    }
    let beside = beside(path);
    let replaced = fs::write(&beside, contents).and_then(|()| fs::rename(&beside, path));
    replaced.inspect_err(|_| {
        // Best effort: the file may not exist.
        let _ = fs::remove_file(&beside);
    })
}

/// A name beside `path` that is unique to this process.
fn beside(path: &Path) -> PathBuf {
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}.tmp", std::process::id()));
    PathBuf::from(beside)
}
