//! Progress on stderr: a bar on a terminal, else a line per step.

use std::io::{IsTerminal, Write, stderr};

use indicatif::{ProgressBar, ProgressStyle};

use super::printable;

/// Whether and how to tell.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    terminal: bool,
}

impl Progress {
    /// As stderr allows.
    pub fn on_stderr() -> Self {
        Progress { terminal: stderr().is_terminal() }
    }

    /// Begins a step of `ticks` parts.
    pub fn step(self, what: &str, ticks: u64) -> Step {
        let what = printable(what);
        if !self.terminal {
            // Nobody may be reading: no reason to stop measuring.
            let _ = writeln!(stderr(), "{what}");
            return Step(ProgressBar::hidden());
        }
        let style = ProgressStyle::with_template("{msg} {wide_bar} {percent}% {eta}");
        let bar =
            ProgressBar::new(ticks).with_style(style.expect("a valid template")).with_message(what);
        Step(bar)
    }
}

/// A step; ends when dropped.
pub struct Step(ProgressBar);

impl Step {
    /// A part is done.
    pub fn tick(&self) {
        self.0.inc(1);
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
