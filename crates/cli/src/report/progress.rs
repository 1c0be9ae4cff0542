//! Progress on stderr: a bar on a terminal, else a line per task.

use std::io::{IsTerminal, Write, stderr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::printable;
use super::terminal::{moves_cursor, width_of_stderr};

/// Least milliseconds between two drawings of the bar.
const REDRAW_MS: u64 = 100;
/// Columns of the bar itself.
const BAR: u64 = 20;

/// Shows how far a measurement is.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    terminal: bool,
}

impl Progress {
    /// A bar if stderr is a terminal that can draw it, else a line per task.
    pub fn on_stderr() -> Self {
        Progress { terminal: stderr().is_terminal() && moves_cursor() }
    }

    /// Begins a task of `ticks` parts.
    pub fn task(self, what: &str, ticks: u64) -> Task {
        let what = printable(what);
        if !self.terminal {
            // Best effort: a closed stderr is no reason to stop measuring.
            let _ = writeln!(stderr(), "{what}");
        }
        let task = Task {
            what,
            ticks,
            terminal: self.terminal,
            done: AtomicU64::new(0),
            begun: Instant::now(),
            drawn_ms: AtomicU64::new(0),
        };
        task.draw();
        task
    }
}

/// A task; ends when dropped.
pub struct Task {
    what: String,
    ticks: u64,
    terminal: bool,
    done: AtomicU64,
    begun: Instant,
    /// Milliseconds from the beginning to the last drawing.
    drawn_ms: AtomicU64,
}

impl Task {
    /// Counts a part as done.
    pub fn tick(&self) {
        // Relaxed, here and below: what is drawn depends on nothing else.
        self.done.fetch_add(1, Ordering::Relaxed);
        if self.elapsed_ms() >= self.drawn_ms.load(Ordering::Relaxed) + REDRAW_MS {
            self.draw();
        }
    }

    fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn draw(&self) {
        if self.terminal {
            self.drawn_ms.store(self.elapsed_ms(), Ordering::Relaxed);
            let done = self.done.load(Ordering::Relaxed);
            let line = line(&self.what, (done, self.ticks), self.begun.elapsed());
            let line: String = line.chars().take(width_of_stderr().saturating_sub(1)).collect();
            // Best effort, here and below: as for lines.
            let _ = write!(stderr(), "\r\x1b[K{line}");
        }
    }
}

/// `hot, 2 CPUs  ########------------  40%  3 s left`.
fn line(what: &str, (done, ticks): (u64, u64), elapsed: Duration) -> String {
    let (done, ticks) = (done.min(ticks), ticks.max(1));
    let full = (done * BAR / ticks) as usize;
    let bar = "#".repeat(full) + &"-".repeat(BAR as usize - full);
    let left = elapsed.as_secs_f64() * (ticks - done) as f64 / done as f64;
    let left = if done == 0 { String::new() } else { format!("  {left:.0} s left") };
    format!("{what}  {bar}  {:.0}%{left}", done as f64 * 100.0 / ticks as f64)
}

impl Drop for Task {
    fn drop(&mut self) {
        if self.terminal {
            let _ = write!(stderr(), "\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_tells_the_share_and_the_time_left() {
        let at = |done| line("hot", (done, 10), Duration::from_secs(4));
        assert_eq!(at(0), "hot  --------------------  0%");
        assert_eq!(at(4), "hot  ########------------  40%  6 s left");
        assert_eq!(at(11), "hot  ####################  100%  0 s left");
    }
}
