//! The list of workloads that `bench` and `compare` know.

use super::workload::Workload;
use super::{
    drain, fragmentation, giveback, hot, mass_exit, mixed, netperf, pagealloc, pft,
    process_magazines, producer_consumer, purger, replay_build, ring_stream, touch,
};

/// All workloads of `bench`. What a new one needs besides stands at the top of `mod.rs`.
pub const ALL: &[&Workload] = &[
    &hot::WORKLOAD,
    &pagealloc::WORKLOAD,
    &touch::WORKLOAD,
    &pft::WORKLOAD,
    &producer_consumer::WORKLOAD,
    &drain::WORKLOAD,
    &ring_stream::WORKLOAD,
    &netperf::WORKLOAD,
    &replay_build::WORKLOAD,
    &process_magazines::WORKLOAD,
    &fragmentation::WORKLOAD,
    &mixed::WORKLOAD,
    &mass_exit::WORKLOAD,
    &purger::WORKLOAD,
    &giveback::WORKLOAD,
];

/// The workload called `name`.
///
/// # Errors
/// Lists the names there are.
pub fn parse(name: &str) -> Result<&'static Workload, String> {
    let found = ALL.iter().copied().find(|workload| workload.name == name);
    found.ok_or_else(|| format!("no such workload; there are {}", names()))
}

/// The names of all workloads, separated by commas.
pub fn names() -> String {
    ALL.iter().map(|workload| workload.name).collect::<Vec<_>>().join(", ")
}
