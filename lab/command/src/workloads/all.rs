//! The list of workloads that `bench` and `compare` know.

use pagedepot_cli::workloads::all::{named, names};
use pagedepot_cli::workloads::{Workload, drain, fragmentation, hot, pagealloc, producer_consumer};

use super::{
    giveback, madvise, mass_exit, mixed, netperf, pft, process_magazines, purger, replay_build,
    ring_stream, stress, touch,
};
use crate::design::Lab;

/// All workloads of `bench`. What a new one needs besides stands at the top of `mod.rs`.
pub const ALL: &[&Workload] = &[
    &hot::workload::<Lab>(),
    &pagealloc::workload::<Lab>(),
    &touch::WORKLOAD,
    &pft::WORKLOAD,
    &producer_consumer::workload::<Lab>(),
    &drain::workload::<Lab>(),
    &ring_stream::WORKLOAD,
    &netperf::WORKLOAD,
    &replay_build::WORKLOAD,
    &process_magazines::WORKLOAD,
    &fragmentation::workload::<Lab>(),
    &mixed::WORKLOAD,
    &stress::WORKLOAD,
    &mass_exit::WORKLOAD,
    &purger::WORKLOAD,
    &giveback::WORKLOAD,
    &madvise::WORKLOAD,
];

/// The workload called `name`.
///
/// # Errors
/// Lists the names there are.
pub fn parse(name: &str) -> Result<&'static Workload, String> {
    named(ALL, name)
}

/// The names of all workloads, separated by commas.
pub fn list() -> String {
    names(ALL)
}
