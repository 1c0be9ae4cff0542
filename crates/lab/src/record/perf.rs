//! Recording with perf.

use std::fs::File;
use std::process::{Command, Stdio};

use super::text::{self, Kept};
use super::window::{Inside, Window};
use super::{Files, Options};
use crate::failure::Failure;

/// Records a command and writes the events of its window.
///
/// # Errors
/// What perf says.
pub fn record(options: &Options, events: &[&str], files: &Files) -> Result<(Window, Kept), Failure> {
    let own = std::env::current_exe().map_err(|e| Failure::Run(format!("cannot find this command: {e}")))?;
    let mut perf = Command::new("perf");
    perf.args(["record", "-q", "-a", "-N", "-B", "-k", "CLOCK_MONOTONIC", "-m"]);
    perf.arg(format!("{}M", options.buffer)).args(["-e", &events.join(",")]);
    perf.arg("-o").arg(&files.data).arg("--").arg(own).args(Inside::new(files, &options.command).arguments());
    let output = perf.stdout(Stdio::inherit()).stdin(Stdio::inherit()).stderr(Stdio::piped()).output();
    let output = output.map_err(|error| Failure::Run(format!("perf: {error}")))?;
    let Some(window) = Window::read(files) else {
        let said = String::from_utf8_lossy(&output.stderr);
        let first = said.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("nothing");
        return Err(Failure::Run(format!("perf record failed and said: {first}")));
    };
    let window = window.started(&options.command)?;
    let kept = script(files, &window)?;
    Ok((window, kept))
}

/// Turns perf's data into text.
fn script(files: &Files, window: &Window) -> Result<Kept, Failure> {
    let mut perf = Command::new("perf");
    perf.args(["script", "--ns", "--show-lost-events", "-F", "comm,tid,cpu,time,event,trace", "-i"]);
    perf.arg(&files.data).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = perf.spawn().map_err(|error| Failure::Run(format!("perf: {error}")))?;
    let out = File::create(&files.trace)?;
    let kept = child.stdout.take().map(|text| text::keep(text, out, window)).transpose()?.unwrap_or_default();
    let status = child.wait()?;
    if !status.success() {
        return Err(Failure::Run(format!("perf script failed ({status}): try --with tracefs")));
    }
    Ok(kept)
}
