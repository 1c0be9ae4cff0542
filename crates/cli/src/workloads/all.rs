//! The lists of workloads that commands know.

use super::workload::Workload;
use super::{drain, fragmentation, giveback, hot, pagealloc, producer_consumer, shared};
use crate::design::Product;

/// All workloads of this command. What a new one needs besides stands at the top of `mod.rs`.
pub const ALL: &[&Workload] = &[
    &hot::workload::<Product>(),
    &pagealloc::workload::<Product>(),
    &producer_consumer::workload::<Product>(),
    &drain::workload::<Product>(),
    &fragmentation::workload::<Product>(),
    &giveback::workload(),
    &shared::workload(),
];

/// Names of the workloads that `pagedepot-lab` alone has.
pub const OF_LAB: &[&str] = &[
    "touch",
    "pft",
    "ring-stream",
    "netperf",
    "replay-build",
    "process-magazines",
    "mixed",
    "stress",
    "mass-exit",
    "purger",
    "madvise",
];

/// The workload called `name`.
///
/// # Errors
/// Lists the names there are, here and in the lab.
pub fn parse(name: &str) -> Result<&'static Workload, String> {
    named(ALL, name).map_err(|error| format!("{error}; and in pagedepot-lab {}", OF_LAB.join(", ")))
}

/// The workload of a list that is called `name`.
///
/// # Errors
/// Lists the names there are.
pub fn named(all: &[&'static Workload], name: &str) -> Result<&'static Workload, String> {
    let found = all.iter().copied().find(|workload| workload.name == name);
    found.ok_or_else(|| format!("no such workload; there are {}", names(all)))
}

/// The names of workloads, separated by commas.
pub fn names(all: &[&Workload]) -> String {
    all.iter().map(|workload| workload.name).collect::<Vec<_>>().join(", ")
}
