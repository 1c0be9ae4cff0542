//! Recording with perf.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{Errno, fcntl_dupfd_cloexec};

use super::files::Files;
use super::options::RecordOptions;
use super::signals::{self, Signals};
use super::text::{self, KeptCounts};
use super::window::{Inside, Window};
use pagedepot_cli::failure::Failure;

/// Records a command and writes the events of its window.
///
/// # Errors
/// perf's own message.
pub fn record(
    options: &RecordOptions,
    events: &[&str],
    (files, signals): (&Files, &Signals),
) -> Result<(Window, KeptCounts), Failure> {
    let own = std::env::current_exe()
        .map_err(|e| Failure::Run(format!("cannot find this command: {e}")))?;
    // The command's stderr goes to the user; perf's stderr is read here.
    let stderr = rustix::io::dup(io::stderr()).map_err(|e| {
        Failure::Run(format!("cannot hand stderr on: {e}; free some file descriptors"))
    })?;
    let mut perf = Command::new("perf");
    perf.args(["record", "-a", "-N", "-B", "-k", "CLOCK_MONOTONIC", "-m"]);
    perf.arg(format!("{}M", options.buffer)).args(["-e", &events.join(",")]);
    perf.arg("-o").arg(&files.data).arg("--").arg(own);
    perf.args(Inside::new(files, &options.command).arguments(stderr.as_raw_fd()));
    // In memory: perf may complain about a full disk.
    let failed =
        |e: Errno| Failure::Run(format!("cannot listen to perf: {e}; free some file descriptors"));
    let mut said = File::from(memfd_create("perf", MemfdFlags::CLOEXEC).map_err(failed)?);
    perf.stderr(Stdio::from(fcntl_dupfd_cloexec(&said, 0).map_err(failed)?));
    signals::keep_blocked(&mut perf);
    signals.check()?;
    let status = signals.run(&mut perf, |_| Window::process(files));
    let status = status.map_err(|error| Failure::Run(format!("perf: {error}")))?;
    let Some(window) = Window::read(files) else {
        signals.check_caught()?;
        let mut text = Vec::new();
        // A memory file can be read; an error counts as no message.
        let _ = said.rewind().and_then(|()| said.read_to_end(&mut text));
        let said = complaint(&String::from_utf8_lossy(&text));
        return Err(files.full_disk().unwrap_or_else(|| match said {
            Some(said) => Failure::Run(format!("perf record failed and said: {said}")),
            None => Failure::Run(format!(
                "perf record failed ({status}) and said nothing: try --with tracefs"
            )),
        }));
    };
    let window = window.started(&options.command)?;
    let kept = script(files, (&window, signals))?;
    Ok((window, kept))
}

/// The line of perf's stderr that says why it failed, if there is one.
fn complaint(said: &str) -> Option<String> {
    let lines = || {
        said.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("[ perf"))
    };
    let is_error = |line: &&str| {
        let line = line.to_ascii_lowercase();
        ["pagedepot:", "error", "fail", "cannot", "can't", "denied"]
            .iter()
            .any(|word| line.contains(word))
    };
    let line = lines().find(is_error).or_else(|| lines().next())?;
    Some(line.strip_prefix("pagedepot: ").unwrap_or(line).to_owned())
}

/// Turns perf's data into text.
fn script(files: &Files, (window, signals): (&Window, &Signals)) -> Result<KeptCounts, Failure> {
    let mut perf = Command::new("perf");
    perf.args([
        "script",
        "--ns",
        "--show-lost-events",
        "-F",
        "comm,tid,cpu,time,event,trace",
        "-i",
    ]);
    perf.arg(&files.data).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    signals::keep_blocked(&mut perf);
    let out = files.create_trace()?;
    let mut child = perf.spawn().map_err(|error| Failure::Run(format!("perf: {error}")))?;
    let text = child.stdout.take();
    let kept = text.map(|text| text::keep(text, out, (window, signals))).transpose();
    if kept.is_err() {
        // Best effort: a process that cannot be killed stays.
        let _ = child.kill();
    }
    let status = child.wait()?;
    let kept = kept.map_err(|failure| files.named(failure))?.unwrap_or_default();
    if !status.success() {
        return Err(files.full_disk().unwrap_or_else(|| {
            Failure::Run(format!("perf script failed ({status}): try --with tracefs"))
        }));
    }
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_that_complains_is_found() {
        for (said, line) in [
            ("", None),
            ("[ perf record: Woken up 1 times to write data ]\n", None),
            (
                "Warning: short\nfailed to write perf data, error: No space left\n",
                Some("failed to write perf data, error: No space left"),
            ),
            ("\n  event syntax is odd\n", Some("event syntax is odd")),
            ("pagedepot: cannot write x\n", Some("cannot write x")),
        ] {
            assert_eq!(complaint(said).as_deref(), line, "{said}");
        }
    }
}
