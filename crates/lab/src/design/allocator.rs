//! What workloads ask of a design that is all of an allocator: memory behind its pages, blocks of
//! any order, drains, and metadata that can be checked.

use std::ptr::NonNull;

use pagedepot::{CpuId, Mobility, Mode, Order, Pfn};
use pagedepot_designs::{Counts, Drained};

use super::Subject;

/// See the module.
pub trait Allocator: Subject<Block = Pfn> {
    /// Whether a full drain takes more than a quiet one. Others have one drain; it counts as quiet.
    const DRAINS_FULLY: bool;

    /// Allocates a block of 2^order frames; `None` when there is none.
    fn alloc_block(&self, order: Order, mobility: Mobility) -> Option<Pfn>;

    /// Frees a block that was allocated with this order, once.
    fn free_block(&self, block: Pfn, order: Order);

    /// Frees blocks by one call.
    fn free_many(&self, blocks: &[(Pfn, Order)]);

    /// Makes two blocks of `order - 1` of an allocated one.
    fn halve(&self, block: Pfn, order: Order);

    /// A zeroed page.
    fn zeroed(&self) -> Option<Pfn>;

    /// Where a block's memory is.
    fn address(&self, block: Pfn) -> NonNull<u8>;

    /// Takes back what a CPU, or all of them, cache.
    fn drain(&self, cpu: Option<CpuId>, mode: Mode) -> Drained;

    /// What a kernel does on each CPU about once a second: caches that idle shrink. Nothing where
    /// that rides on slow paths.
    fn tick(&self) {}

    /// What it did so far.
    fn counts(&self) -> Counts;
}

/// What to do with an allocator, whichever type it has.
pub trait WithAllocator {
    /// What comes of it.
    type Output;

    /// Does it.
    fn with<A: Allocator + 'static>(self, allocator: A) -> Self::Output;
}

/// Judges a census taken when callers hold nothing.
pub fn nothing_held(managed: u64, elsewhere: u64) -> Result<(), String> {
    match managed.cmp(&elsewhere) {
        std::cmp::Ordering::Equal => Ok(()),
        std::cmp::Ordering::Greater => {
            Err(format!("{} of {managed} pages are lost", managed - elsewhere))
        }
        std::cmp::Ordering::Less => Err(format!("{} pages are there twice", elsewhere - managed)),
    }
}
