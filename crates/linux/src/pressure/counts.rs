//! Counters of a monitor.

use super::policy::Level;
use super::step::Step;
use crate::system::prim::{AtomicU64, Ordering};

/// Counts of a [`Monitor`](super::Monitor) since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MonitorCounts {
    /// The level now.
    pub level: Level,
    /// Times that it looked.
    pub looks: u64,
    /// Looks for which the kernel woke it.
    pub wakes: u64,
    /// Sources that said nothing that could be understood, over all looks.
    pub unreadable: u64,
    /// Rounds of steps at `Low`, `Medium` and `Critical`.
    pub rounds: [u64; 3],
    /// Rounds because nothing was allocated or freed past the fronts for a while.
    pub idle_rounds: u64,
    /// Rounds because memory was free all the while that other memory was in use.
    pub surplus_rounds: u64,
    /// Bytes that were present and were given back to the system: by steps, and because a ceiling
    /// sank. A byte that stays away counts once.
    pub given_back_bytes: u64,
    /// Times that giving back ended early because a thread of this process ran on an isolated CPU.
    pub postponed: u64,
    /// Callbacks that panicked, and were dropped.
    pub panics: u64,
    /// Bytes that the depots may have together, below the limit of the container; 0: there is no
    /// limit to follow.
    pub ceiling_bytes: u64,
    /// Depots that cannot have a ceiling, although there is a limit.
    pub unprotected: u64,
    /// Times that requests woke the monitor because they had reached a ceiling.
    pub rings: u64,
    /// Each step, by its place in [`Step::ALL`].
    pub steps: [StepCounts; Step::ALL.len()],
}

impl MonitorCounts {
    /// The counts of one step.
    pub fn step(&self, step: Step) -> StepCounts {
        self.steps[step as usize]
    }
}

/// Counts of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepCounts {
    /// Number of times that the step was taken, of each depot.
    pub runs: u64,
    /// Bytes that it took back: into the depot's store, or to the system.
    pub bytes: u64,
}

/// A counter that one thread changes, and any may read: no order among counters.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, more: u64) {
        // Relaxed: a count publishes nothing.
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub fn set(&self, value: u64) {
        // Relaxed: as above.
        self.0.store(value, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        // Relaxed: as above.
        self.0.load(Ordering::Relaxed)
    }
}

/// The counters behind [`MonitorCounts`].
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub level: Counter,
    pub looks: Counter,
    pub wakes: Counter,
    pub unreadable: Counter,
    pub rounds: [Counter; 3],
    pub idle_rounds: Counter,
    pub surplus_rounds: Counter,
    pub postponed: Counter,
    pub panics: Counter,
    pub ceiling_bytes: Counter,
    /// Bytes that were given back because they lay above a ceiling.
    pub above_ceiling_bytes: Counter,
    pub unprotected: Counter,
    pub rings: Counter,
    pub steps: [(Counter, Counter); Step::ALL.len()],
}

impl Counters {
    pub fn count(&self, step: Step, bytes: u64) {
        let (runs, sum) = &self.steps[step as usize];
        runs.add(1);
        sum.add(bytes);
    }

    pub fn snapshot(&self) -> MonitorCounts {
        let levels = [Level::None, Level::Low, Level::Medium, Level::Critical];
        let steps = Step::ALL.map(|step| {
            let (runs, bytes) = &self.steps[step as usize];
            StepCounts { runs: runs.get(), bytes: bytes.get() }
        });
        MonitorCounts {
            level: levels[self.level.get() as usize],
            looks: self.looks.get(),
            wakes: self.wakes.get(),
            unreadable: self.unreadable.get(),
            rounds: [0, 1, 2].map(|at| self.rounds[at].get()),
            idle_rounds: self.idle_rounds.get(),
            surplus_rounds: self.surplus_rounds.get(),
            given_back_bytes: [Step::GiveBackWhole, Step::Trim]
                .map(|step| steps[step as usize].bytes)
                .iter()
                .sum::<u64>()
                .wrapping_add(self.above_ceiling_bytes.get()),
            postponed: self.postponed.get(),
            panics: self.panics.get(),
            ceiling_bytes: self.ceiling_bytes.get(),
            unprotected: self.unprotected.get(),
            rings: self.rings.get(),
            steps,
        }
    }
}
