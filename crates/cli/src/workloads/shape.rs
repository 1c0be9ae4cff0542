//! The memory that a workload fills, the share of it that becomes free, and the number of rounds.

use crate::design::{Demand, page_bytes};
use crate::failure::Failure;
use crate::harness::{Pace, Schedule, stop};
use crate::report::rows::{Params, params};
use crate::workloads::settings::{Effort, Settings};

/// Runs, unless `--runs` says how many.
const RUNS: u32 = 3;

/// Values that a workload takes where the options have none: the first of each pair in a full run,
/// the second in a short one.
#[derive(Clone, Copy, Debug)]
pub struct DefaultShape {
    pub mib: [u32; 2],
    pub free_percent: u32,
    pub rounds: [u32; 2],
}

/// The size of a workload's memory, and the number of its rounds.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub pages: u64,
    pub free_percent: u32,
    pub rounds: u32,
    /// Size of the surges, in percent of what is published.
    pub surges_percent: u32,
    /// Whether designs that can move blocks during the rounds.
    pub moves: bool,
    pub runs: u32,
    pub threads: usize,
    pub seed: u64,
}

impl Shape {
    /// Takes the values of the options, or the usual ones.
    pub fn new(settings: &Settings, usual: &DefaultShape) -> Self {
        let is_quick = settings.effort == Effort::Quick;
        let mib = settings.fill.memory_mib.unwrap_or(usual.mib[usize::from(is_quick)]);
        let rounds = usual.rounds[usize::from(is_quick)];
        let runs = if is_quick { 1 } else { RUNS };
        Shape {
            pages: (u64::from(mib) << 20) / page_bytes() as u64,
            free_percent: settings.fill.free_percent.unwrap_or(usual.free_percent),
            rounds: settings.fill.rounds.unwrap_or(rounds),
            surges_percent: settings.fill.surges.unwrap_or(100),
            moves: !settings.fill.no_moves,
            runs: if settings.rounds_given { settings.rounds } else { runs },
            threads: settings.cpus.len(),
            seed: settings.seed,
        }
    }

    /// Runs the workload as often as asked for, or until the user stops it. `run` gets the number
    /// of the run, from 1.
    ///
    /// # Errors
    /// The first error of a run.
    pub fn each_run(&self, run: impl FnMut(u32) -> Result<(), Failure>) -> Result<(), Failure> {
        (1..=self.runs).take_while(|_| !stop::is_asked()).try_for_each(run)
    }

    /// The demand on each design: all of the memory, and a seat per thread.
    pub fn demand(&self, settings: &Settings) -> Demand {
        Demand {
            memory_pages: Some(self.pages),
            fills_memory: true,
            ..settings.demand(self.threads, (self.pages / self.threads as u64) as u32, 1)
        }
    }

    /// A window per round.
    pub fn schedule(&self) -> Schedule {
        Schedule { rounds: self.rounds, pace: Pace::Units(1), drains: None }
    }

    /// Frames that stay held.
    pub fn held_pages(&self) -> u64 {
        self.pages * u64::from(100 - self.free_percent) / 100
    }

    /// Sees that each seat of the workload called `name` holds a frame.
    ///
    /// # Errors
    /// When there are fewer frames than seats.
    pub fn check_seats(&self, name: &str) -> Result<(), Failure> {
        let (held, seats) = (self.held_pages(), self.threads);
        if held < seats as u64 {
            return Err(Failure::Usage(format!(
                "`bench {name}` holds {held} frames, fewer than it has threads ({seats}): give \
                 --memory-mib more, --free-percent less or --cpus fewer"
            )));
        }
        Ok(())
    }

    /// Memory in MiB.
    pub fn mib(&self) -> u64 {
        (self.pages * page_bytes() as u64) >> 20
    }

    /// The params of the rows of a round.
    pub fn params(&self, round: u32) -> Params {
        params([
            ("threads", self.threads as i64),
            ("memory_mib", self.mib() as i64),
            ("free_percent", self.free_percent.into()),
            ("round", round.into()),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_seat_must_hold_a_frame() {
        let shape = |threads| Shape {
            pages: 4096,
            free_percent: 99,
            rounds: 1,
            surges_percent: 100,
            moves: true,
            runs: 1,
            threads,
            seed: 1,
        };
        assert!(shape(40).check_seats("x").is_ok());
        let Err(Failure::Usage(why)) = shape(41).check_seats("x") else { panic!("41 seats") };
        assert!(why.contains("40 frames") && why.contains("--memory-mib more"), "{why}");
    }
}
