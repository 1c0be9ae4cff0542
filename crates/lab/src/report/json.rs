//! Results for scripts: `{"schema":1,"machine":{...},"command":"...","seed":N,
//! "settings":{...},"results":[...]}`.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;

use super::machine::Machine;
use super::rows::{Report, Row};
use crate::failure::Failure;

/// Changes when a script would have to.
const SCHEMA: u32 = 1;

#[derive(Serialize)]
struct Document<'r> {
    schema: u32,
    machine: &'r Machine,
    command: &'r str,
    seed: u64,
    settings: Settings,
    results: Vec<Row>,
}

/// What else changes figures, so that results with other settings are not compared by mistake.
#[derive(Clone, Debug, Serialize)]
pub struct Settings {
    /// Shorter windows, smaller workloads.
    pub quick: bool,
    #[serde(flatten)]
    pub more: More,
}

/// Options of one command that change figures, where no param of theirs tells, by name.
pub type More = BTreeMap<&'static str, Value>;

/// Where to write. What a file held stays until there is all of something to replace it with.
pub enum JsonOutput {
    /// `--json -`.
    Stdout,
    /// `--json FILE`.
    File(PathBuf),
}

impl JsonOutput {
    /// What `--json` names, tried before anything is measured, so that a wrong path costs no time.
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
                "cannot write {path}: {e}; give --json a file in a directory that you may write to, or -"
            ))
        })?;
        Ok(JsonOutput::File(path.to_owned()))
    }

    /// Writes the document.
    ///
    /// # Errors
    /// As writing has.
    pub fn write(
        self,
        machine: &Machine,
        command: &str,
        (seed, settings): (u64, Settings),
        report: &Report,
    ) -> Result<(), Failure> {
        let document =
            Document { schema: SCHEMA, machine, command, seed, settings, results: report.rows() };
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

/// Replaces a file by its successor, whole or not at all. Links, pipes and devices are written to
/// as they are.
fn replace(path: &Path, contents: &[u8]) -> io::Result<()> {
    if fs::symlink_metadata(path).is_ok_and(|it| !it.is_file()) {
        return fs::write(path, contents);
    }
    let beside = beside(path);
    let replaced = fs::write(&beside, contents).and_then(|()| fs::rename(&beside, path));
    replaced.inspect_err(|_| {
        // It may not even be there.
        let _ = fs::remove_file(&beside);
    })
}

/// A name that nobody's file has.
fn beside(path: &Path) -> PathBuf {
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}.tmp", std::process::id()));
    PathBuf::from(beside)
}
