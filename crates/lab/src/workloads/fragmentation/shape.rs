//! How much memory is filled, how much of it becomes free, and how often it is reallocated.

use crate::design::PAGE_BYTES;
use crate::report::rows::{Params, params};
use crate::workloads::settings::{Effort, Settings};

/// Memory in MiB; 4 GiB as in LLFree's paper.
const MIB: u32 = 4096;
const MIB_QUICK: u32 = 64;
const FREE_PERCENT: u32 = 50;
const ROUNDS: u32 = 100;
const ROUNDS_QUICK: u32 = 10;
/// Runs, unless `--runs` says how many.
const RUNS: u32 = 3;
/// Of the free frames, in percent, how many a round reallocates.
const REALLOCATED_PERCENT: u64 = 10;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub pages: u64,
    pub free_percent: u32,
    pub rounds: u32,
    pub runs: u32,
    pub threads: usize,
    pub seed: u64,
}

impl Shape {
    /// What the options ask for.
    pub fn new(settings: &Settings) -> Self {
        let is_quick = settings.effort == Effort::Quick;
        let mib = settings.fill.memory_mib.unwrap_or(if is_quick { MIB_QUICK } else { MIB });
        let rounds = if is_quick { ROUNDS_QUICK } else { ROUNDS };
        let runs = if is_quick { 1 } else { RUNS };
        Shape {
            pages: (u64::from(mib) << 20) / PAGE_BYTES as u64,
            free_percent: settings.fill.free_percent.unwrap_or(FREE_PERCENT),
            rounds: settings.fill.rounds.unwrap_or(rounds),
            runs: if settings.rounds_given { settings.rounds } else { runs },
            threads: settings.cpus.len(),
            seed: settings.seed,
        }
    }

    /// Frames that stay held.
    pub fn held_pages(&self) -> u64 {
        self.pages * u64::from(100 - self.free_percent) / 100
    }

    /// Frames that each thread reallocates in a round.
    pub fn reallocated_by_thread(&self) -> usize {
        let all = (self.pages - self.held_pages()) * REALLOCATED_PERCENT / 100;
        all.div_ceil(self.threads as u64) as usize
    }

    /// Memory in MiB.
    pub fn mib(&self) -> u64 {
        self.pages * PAGE_BYTES as u64 >> 20
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
