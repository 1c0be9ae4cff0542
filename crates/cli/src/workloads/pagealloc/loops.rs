//! The loops that are timed: a block allocated for each slot, and freed.

use crate::design::{self, Allocator};

/// Allocates a block for each slot.
///
/// This and the loops around it get the allocator alone, and no value with locks beside it: the
/// compiler would read the allocator's fields again for each block, and so the processor would wait
/// longer for the front word (decision 0004, "Whose method the loop is in").
#[inline(always)]
pub fn alloc_each<A: Allocator, const ORDER: u32>(allocator: &A, slots: &mut [A::Block]) {
    // No closure: the compiler does not always inline that, and a call is half of a batch of one.
    for slot in slots {
        *slot = design::alloc::<A, ORDER>(allocator);
    }
}

/// Frees blocks one by one, as [`alloc_each`] allocates them.
#[inline(always)]
pub fn free_each<A: Allocator, const ORDER: u32>(
    allocator: &A,
    blocks: impl Iterator<Item = A::Block>,
) {
    for block in blocks {
        allocator.free::<ORDER>(block);
    }
}

/// A block that was allocated and freed again: contents for slots that each loop overwrites.
pub fn some_block<A: Allocator, const ORDER: u32>(allocator: &A) -> A::Block {
    let block = design::alloc::<A, ORDER>(allocator);
    allocator.free::<ORDER>(block);
    block
}
