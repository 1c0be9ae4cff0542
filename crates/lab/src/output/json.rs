//! Results for scripts: `{"schema":1,"machine":{...},"command":"...","seed":N,
//! "settings":{...},"results":[...]}`.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::machine::Machine;
use super::report::{Report, Row};
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
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Settings {
    /// Shorter windows, smaller workloads.
    pub quick: bool,
}

/// Where to write: opened before anything is measured, so that a wrong path costs no time. What the file
/// held stays until there is something to replace it with.
pub enum JsonOutput {
    /// `--json -`.
    Stdout,
    /// `--json FILE`.
    File(File, PathBuf),
}

impl JsonOutput {
    /// Opens what `--json` names.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        if path == Path::new("-") {
            return Ok(JsonOutput::Stdout);
        }
        let file = File::options().write(true).create(true).truncate(false).open(path).map_err(|e| {
            let path = path.display();
            Failure::Usage(format!(
                "cannot write {path}: {e}; give --json a file in a directory that you may write to, or -"
            ))
        })?;
        Ok(JsonOutput::File(file, path.to_owned()))
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
        let document = Document { schema: SCHEMA, machine, command, seed, settings, results: report.rows() };
        let mut text = serde_json::to_string(&document).map_err(io::Error::other)?;
        text.push('\n');
        match self {
            JsonOutput::Stdout => io::stdout().lock().write_all(text.as_bytes()).map_err(Failure::Output),
            JsonOutput::File(mut file, path) => {
                // Pipes and devices have no length.
                let _ = file.set_len(0);
                file.write_all(text.as_bytes()).map_err(|e| {
                    Failure::Run(format!("cannot write {}: {e}; is the disk full?", path.display()))
                })
            }
        }
    }
}
