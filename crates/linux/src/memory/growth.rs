//! The state of a depot that can grow: see [`Depot::grow`](crate::Depot::grow).

use pagedepot::PageSize;

use crate::system::fork_mark::ForkMark;
use crate::system::mapping::Mapping;
use crate::system::sync::ForkLock;

/// Frames per unit of added memory, see
/// [`Allocator::add_memory`](pagedepot::Allocator::add_memory).
const UNIT_FRAMES: usize = 1 << 18;

/// Bytes per unit of added memory.
pub(crate) fn unit(page_size: PageSize) -> usize {
    UNIT_FRAMES << page_size.shift()
}

/// The state of a depot that can grow.
pub(crate) struct Growth {
    pub is_bound: bool,
    pub is_populated: bool,
    /// The metadata of added memory, which the allocator refers to. A caller that adds memory holds
    /// the lock. Boxed, because growing changes it (see `Depot`).
    pub metadata: Box<ForkLock<Vec<Mapping>>>,
}

impl Growth {
    pub fn new(is_bound: bool, is_populated: bool, fork_mark: ForkMark<'static>) -> Self {
        Growth { is_bound, is_populated, metadata: Box::new(ForkLock::new(fork_mark, Vec::new())) }
    }
}
