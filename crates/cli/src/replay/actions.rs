//! The actions of a trace on blocks, in its order: between the two passes that make a plan.

use pagedepot::{Mobility, Order};

/// An operation on a block, by the number of the allocation it came from.
#[derive(Clone, Copy, Debug)]
pub enum Action {
    Alloc {
        id: u32,
        zone: u8,
        order: Order,
        mobility: Mobility,
    },
    /// A movable block of the page cache.
    AllocCache {
        id: u32,
        zone: u8,
        order: Order,
    },
    /// A block allocated before the recording began; its free comes next.
    Known {
        id: u32,
        zone: u8,
        order: Order,
        mobility: Mobility,
        pageblock: u64,
    },
    /// `batch` counts from 1; 0 is a free on its own.
    Free {
        id: u32,
        order: Order,
        batch: u32,
        /// The zone that the CPU was refilling its lists from when this free interrupted it.
        nested: Option<u8>,
    },
    Halve {
        id: u32,
        order: Order,
        upper: u32,
    },
}

/// An action, where and when.
#[derive(Clone, Copy, Debug)]
pub struct ActionAt {
    pub action: Action,
    /// The kernel's number.
    pub cpu: u16,
    pub ms: u32,
}
