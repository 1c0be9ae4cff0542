//! `pagealloc`: batches of all sizes and orders (as mmtests' benchmark of that name), memory filled
//! page by page and freed in random order, and what the allocator's metadata cost.

mod batches;
mod fill;
mod metadata;

use super::Settings;
use crate::failure::Failure;
use crate::report::Report;

const NAME: &str = "pagealloc";

/// Measures all three.
pub fn run(settings: &Settings) -> Result<Report, Failure> {
    let mut report = batches::run(settings)?;
    report.append(fill::run(settings)?);
    report.append(metadata::run(settings)?);
    Ok(report)
}
