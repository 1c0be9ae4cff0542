//! `pagealloc`: batches of all sizes and orders (as mmtests' benchmark of that name), a random
//! rhythm of allocations and frees, memory filled page by page and freed in random order, and what
//! the allocator's metadata cost.

mod batches;
mod fill;
mod loops;
mod metadata;
mod walk;

use super::settings::Settings;
use super::workload::Workload;
use crate::design::Lineup;
use crate::failure::Failure;
use crate::names::Design;
use crate::report::Report;

/// The workload `pagealloc`.
pub const fn workload<L: Lineup + Default>() -> Workload {
    Workload { orders: true, ..Workload::new(NAME, Design::BLOCKS, run::<L>) }
}

const NAME: &str = "pagealloc";

/// Measures all three.
fn run<L: Lineup + Default>(settings: &Settings) -> Result<Report, Failure> {
    let designs = settings.designs(NAME, Design::BLOCKS)?;
    let mut report = batches::run::<L>(settings, &designs)?;
    report.append(fill::run::<L>(settings, &designs)?);
    report.append(metadata::run(settings, &designs)?);
    Ok(report)
}
