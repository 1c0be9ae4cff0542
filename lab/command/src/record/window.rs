//! The window of a recording: zoneinfo, the command, zoneinfo.

use std::ffi::OsString;
use std::fs;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use clap::Args;
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::Pid;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::files::{self, Files};
use super::signals::{self, Signals};
use pagedepot_cli::failure::{EXIT_USAGE, Failure};

/// The hidden command of this program that a recorder runs.
pub const INSIDE: &str = "record-inside";

/// Arguments of the hidden command that perf runs.
#[derive(Clone, Debug, Args)]
pub struct Inside {
    before: PathBuf,
    after: PathBuf,
    window: PathBuf,
    /// The descriptor of the command's stderr, where it is not this process's: that is perf's.
    #[arg(long)]
    stderr: Option<RawFd>,
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Begin and end of the window on `CLOCK_MONOTONIC`, and how the command ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Window {
    pub start_ns: u64,
    pub end_ns: u64,
    /// The exit code, or the signal as a negative number; an error when it did not start.
    pub status: Result<i32, String>,
}

impl Inside {
    /// Arguments for the files of a recording.
    pub fn new(files: &Files, command: &[OsString]) -> Self {
        Inside {
            before: files.before.clone(),
            after: files.after.clone(),
            window: files.window.clone(),
            stderr: None,
            command: command.to_vec(),
        }
    }

    /// The arguments that make this program run it, with that descriptor as the command's stderr.
    pub fn arguments(&self, stderr: RawFd) -> Vec<OsString> {
        let paths =
            [&self.before, &self.after, &self.window].map(|path| path.clone().into_os_string());
        [INSIDE.into(), format!("--stderr={stderr}").into()]
            .into_iter()
            .chain(paths)
            .chain(["--".into()])
            .chain(self.command.iter().cloned())
            .collect()
    }

    /// Runs the command like [`run`](Self::run), in a process of its own, which first writes its id
    /// to the window's file.
    ///
    /// # Errors
    /// Fails like [`run`](Self::run).
    pub fn run_alone(&self) -> Result<(), Failure> {
        let signals = Signals::block()?;
        files::write(&self.window, std::process::id().to_string().as_bytes())?;
        self.run(&signals)
    }

    /// Reads the zoneinfo, runs the command, reads it again, and writes the [`Window`] to a file.
    ///
    /// # Errors
    /// When files cannot be read or written, or a signal comes before the command starts.
    pub fn run(&self, signals: &Signals) -> Result<(), Failure> {
        signals.check()?;
        let free_before = look_at_free();
        let (start_ns, before) = look()?;
        let status = self.run_command(signals);
        let (end_ns, after) = look()?;
        if status.is_ok() {
            let free_after = look_at_free();
            for (path, text, free) in
                [(&self.before, before, free_before), (&self.after, after, free_after)]
            {
                files::write(path, text.as_bytes())?;
                for (what, text) in free {
                    files::write(&files::beside_zoneinfo(path, what), text.as_bytes())?;
                }
            }
        }
        let window = Window { start_ns, end_ns, status };
        let note = serde_json::to_vec(&window).map_err(|error| Failure::Run(error.to_string()))?;
        files::write(&self.window, &note)
    }

    fn run_command(&self, signals: &Signals) -> Result<i32, String> {
        let mut command = Command::new(&self.command[0]);
        command.args(&self.command[1..]);
        if let Some(stderr) = self.stderr {
            // SAFETY: the descriptor that `arguments` names was opened for this process, which uses
            // it here and nowhere else.
            let stderr = unsafe { OwnedFd::from_raw_fd(stderr) };
            // The command gets it as descriptor 2 only.
            fcntl_setfd(&stderr, FdFlags::CLOEXEC).map_err(|error| error.to_string())?;
            command.stderr(Stdio::from(stderr));
        }
        signals::unblock(&mut command);
        let status = signals.run(&mut command, |child| Some(Pid::from_child(child)));
        let status = status.map_err(|error| error.to_string())?;
        Ok(status.code().unwrap_or_else(|| -status.signal().unwrap_or(0)))
    }
}

impl Window {
    /// The window that [`Inside::run`] wrote; `None` when it did not get that far.
    pub fn read(files: &Files) -> Option<Window> {
        serde_json::from_slice(&fs::read(&files.window).ok()?).ok()
    }

    /// The process that will write the window, once it has begun.
    pub fn process(files: &Files) -> Option<Pid> {
        Pid::from_raw(fs::read_to_string(&files.window).ok()?.parse().ok()?)
    }

    /// Length in seconds.
    pub fn seconds(&self) -> f64 {
        self.end_ns.saturating_sub(self.start_ns) as f64 / 1e9
    }

    /// The end of the command in words, unless it exited with 0.
    pub fn status_text(&self) -> Option<String> {
        match self.status {
            Ok(0) => None,
            Ok(code @ 1..) => Some(format!("exited with {code}")),
            Ok(signal) => Some(format!("was ended by signal {}", -signal)),
            Err(ref why) => Some(format!("did not start: {why}")),
        }
    }

    /// The exit code that tells how the command ended.
    pub fn exit_code(&self) -> u8 {
        match self.status {
            // 128 plus the signal, as in shells.
            Ok(signal @ ..0) => 128_u8.saturating_add(u8::try_from(-signal).unwrap_or(u8::MAX)),
            Ok(code) => code as u8,
            Err(_) => EXIT_USAGE,
        }
    }

    /// The window, if the command ran.
    ///
    /// # Errors
    /// When it could not be started.
    pub fn started(self, command: &[OsString]) -> Result<Self, Failure> {
        match self.status {
            Err(why) => {
                let name = command[0].display();
                Err(Failure::Usage(format!("cannot run {name}: {why}; is its name right?")))
            }
            Ok(_) => Ok(self),
        }
    }
}

/// The texts about free blocks that this process may read: `pagetypeinfo` is for root, and kernels
/// without migratetypes have none.
fn look_at_free() -> Vec<(&'static str, String)> {
    let read = |what| Some((what, fs::read_to_string(format!("/proc/{what}")).ok()?));
    ["buddyinfo", "pagetypeinfo"].into_iter().filter_map(read).collect()
}

/// The time and the text of `/proc/zoneinfo`.
fn look() -> Result<(u64, String), Failure> {
    let text = fs::read_to_string("/proc/zoneinfo");
    let now = clock_gettime(ClockId::Monotonic);
    let now_ns = now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs();
    text.map(|text| (now_ns, text))
        .map_err(|error| Failure::Run(format!("cannot read /proc/zoneinfo: {error}")))
}
