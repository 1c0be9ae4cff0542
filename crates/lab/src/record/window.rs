//! The part of a recording that counts: zoneinfo, the command, zoneinfo.

use std::fs;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};

use clap::Args;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::{files, signals};
use crate::failure::Failure;

/// Arguments of the hidden command that perf runs.
#[derive(Clone, Debug, Args)]
pub struct Inside {
    before: PathBuf,
    after: PathBuf,
    window: PathBuf,
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

/// When the window was, on `CLOCK_MONOTONIC`, and how the command ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Window {
    pub start_ns: u64,
    pub end_ns: u64,
    /// The exit code, or the signal as a negative number; why it did not start.
    pub status: Result<i32, String>,
}

impl Inside {
    /// For the files of a recording.
    pub fn new(files: &super::Files, command: &[String]) -> Self {
        Inside {
            before: files.before.clone(),
            after: files.after.clone(),
            window: files.window.clone(),
            command: command.to_vec(),
        }
    }

    /// The arguments that make this command run it.
    pub fn arguments(&self) -> Vec<std::ffi::OsString> {
        let paths = [&self.before, &self.after, &self.window].map(|path| path.clone().into_os_string());
        let command = self.command.iter().map(Into::into);
        [super::super::cli::INSIDE.into()]
            .into_iter()
            .chain(paths)
            .chain(["--".into()])
            .chain(command)
            .collect()
    }

    /// Looks at the machine, runs the command, looks again, and leaves a note of when that was.
    ///
    /// # Errors
    /// When files cannot be read or written.
    pub fn run(&self) -> Result<(), Failure> {
        signals::leave_to_the_command();
        let (start_ns, before) = look()?;
        let status = run(&self.command);
        let (end_ns, after) = look()?;
        if status.is_ok() {
            files::write(&self.before, before.as_bytes())?;
            files::write(&self.after, after.as_bytes())?;
        }
        let window = Window { start_ns, end_ns, status };
        let note = serde_json::to_vec(&window).map_err(|error| Failure::Run(error.to_string()))?;
        files::write(&self.window, &note)
    }
}

impl Window {
    /// The note that [`Inside::run`] left; `None` when it did not come to that.
    pub fn read(files: &super::Files) -> Option<Window> {
        serde_json::from_slice(&fs::read(&files.window).ok()?).ok()
    }

    /// How long it was.
    pub fn seconds(&self) -> f64 {
        self.end_ns.saturating_sub(self.start_ns) as f64 / 1e9
    }

    /// How the command ended, unless all went well.
    pub fn status_text(&self) -> Option<String> {
        match self.status {
            Ok(0) => None,
            Ok(code @ 1..) => Some(format!("exited with {code}")),
            Ok(signal) => Some(format!("was ended by signal {}", -signal)),
            Err(ref why) => Some(format!("did not start: {why}")),
        }
    }

    /// The window, if the command ran.
    ///
    /// # Errors
    /// When it could not be started.
    pub fn started(self, command: &[String]) -> Result<Self, Failure> {
        match self.status {
            Err(why) => Err(Failure::Usage(format!("cannot run {}: {why}; is its name right?", command[0]))),
            Ok(_) => Ok(self),
        }
    }
}

/// Now, and `/proc/zoneinfo`.
fn look() -> Result<(u64, String), Failure> {
    let text = fs::read_to_string("/proc/zoneinfo");
    let now = clock_gettime(ClockId::Monotonic);
    let now_ns = now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs();
    text.map(|text| (now_ns, text))
        .map_err(|error| Failure::Run(format!("cannot read /proc/zoneinfo: {error}")))
}

fn run(command: &[String]) -> Result<i32, String> {
    let status: io::Result<ExitStatus> = Command::new(&command[0]).args(&command[1..]).status();
    let status = status.map_err(|error| error.to_string())?;
    Ok(status.code().unwrap_or_else(|| -status.signal().unwrap_or(0)))
}
