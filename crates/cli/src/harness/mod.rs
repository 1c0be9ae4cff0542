//! Measuring: threads on their CPUs, windows in turn, clocks, and statistics of samples.
//!
//! # Vocabulary
//! * *subject*: a design, as the harness sees it.
//! * *contender*: a subject doing a workload.
//! * *window*: one contender running for some milliseconds; it yields one sample per metric.
//! * *round*: one window of each contender, one after the other: A B C A B C ... A machine that
//!   becomes slower for a while does so for all contenders alike, and ratios within a round stay.
//! * *seat*: a thread pinned to a CPU. All seats run the same windows, in step.
//! * *unit*: the piece of work that a window repeats. The warm-up finds out how many units fill a
//!   window.

pub mod barrier;
pub mod clock;
pub mod cpus;
pub mod fork;
pub mod histogram;
pub mod interleave;
pub mod interrupts;
pub mod noise;
pub mod ring;
pub mod round_trip;
pub mod samples;
pub mod stop;
pub mod subject;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use interleave::{Contender, DrainTally, Drains, Pace, Schedule, Seat, Series, interleave};
pub use subject::Subject;

/// Locks a mutex, also one whose last holder panicked: that panic ends the run and is its report.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
