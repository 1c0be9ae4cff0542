//! `pagealloc`: batches of all sizes and orders (as mmtests' benchmark of that name), a random
//! rhythm of allocations and frees, memory filled page by page and freed in random order, and what
//! the allocator's metadata cost.

mod batches;
mod fill;
mod metadata;
mod walk;

use super::settings::Settings;
use super::workload::Workload;
use crate::failure::Failure;
use crate::names::Design;
use crate::report::Report;

/// The workload `pagealloc`.
pub const WORKLOAD: Workload =
    Workload { orders: true, ..Workload::new("pagealloc", Design::BLOCKS, run) };

/// Measures all three.
fn run(settings: &Settings) -> Result<Report, Failure> {
    let designs = settings.designs(WORKLOAD.name, WORKLOAD.designs)?;
    let mut report = batches::run(settings, &designs)?;
    report.append(fill::run(settings, &designs)?);
    report.append(metadata::run(settings, &designs)?);
    Ok(report)
}
