//! `pagealloc`: batches of all sizes and orders (as mmtests' benchmark of that name), a random
//! rhythm of allocations and frees, memory filled page by page and freed in random order, and what
//! the allocator's metadata cost.

mod batches;
mod fill;
mod metadata;
mod walk;

use super::settings::Settings;
use super::workload::Workload;
use crate::design::{self, Allocator, Lineup};
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

/// Allocates a block for each slot.
///
/// This and the loops around it get the allocator alone, and no value with locks beside it: the
/// compiler would read the allocator's fields again for each block, and so the processor would wait
/// longer for the front word (decision 0004, "Whose method the loop is in").
#[inline(always)]
fn alloc_each<A: Allocator, const ORDER: u32>(allocator: &A, slots: &mut [A::Block]) {
    // No closure: the compiler does not always inline that, and a call is half of a batch of one.
    for slot in slots {
        *slot = design::alloc::<A, ORDER>(allocator);
    }
}

/// Frees blocks one by one, as [`alloc_each`] allocates them.
#[inline(always)]
fn free_each<A: Allocator, const ORDER: u32>(
    allocator: &A,
    blocks: impl Iterator<Item = A::Block>,
) {
    for block in blocks {
        allocator.free::<ORDER>(block);
    }
}
