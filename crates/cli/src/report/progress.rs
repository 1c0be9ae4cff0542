//! Progress on stderr: a bar on a terminal, else a line per task.

use std::io::{IsTerminal, Write, stderr};

use indicatif::{ProgressBar, ProgressStyle};

use super::printable;

/// Shows how far a measurement is.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    terminal: bool,
}

impl Progress {
    /// A bar if stderr is a terminal, else a line per task.
    pub fn on_stderr() -> Self {
        Progress { terminal: stderr().is_terminal() }
    }

    /// Begins a task of `ticks` parts.
    pub fn task(self, what: &str, ticks: u64) -> Task {
        let what = printable(what);
        if !self.terminal {
            // Best effort: a closed stderr is no reason to stop measuring.
            let _ = writeln!(stderr(), "{what}");
            return Task(ProgressBar::hidden());
        }
        let style = ProgressStyle::with_template("{msg} {wide_bar} {percent}% {eta}");
        let bar =
            ProgressBar::new(ticks).with_style(style.expect("a valid template")).with_message(what);
        Task(bar)
    }
}

/// A task; ends when dropped.
pub struct Task(ProgressBar);

impl Task {
    /// Counts a part as done.
    pub fn tick(&self) {
        self.0.inc(1);
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
