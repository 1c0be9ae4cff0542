//! What a depot that grows keeps: see [`Depot::grow`](crate::Depot::grow).

use pagedepot::PageSize;

use crate::cpus::ForkMark;
use crate::memory::Mapping;
use crate::sync::ForkLock;

/// Frames that memory is added by, see [`Allocator::add_memory`](pagedepot::Allocator::add_memory).
const UNIT_FRAMES: usize = 1 << 18;

/// The same in bytes.
pub(crate) fn unit(page_size: PageSize) -> usize {
    UNIT_FRAMES << page_size.shift()
}

/// How a depot grows.
pub(crate) struct Growth {
    pub is_bound: bool,
    pub is_populated: bool,
    /// The metadata of what was added, which the allocator refers to; the caller that adds locks it. Behind a
    /// pointer, because it changes (see `Depot`).
    pub metadata: Box<ForkLock<Vec<Mapping>>>,
}

impl Growth {
    pub fn new(is_bound: bool, is_populated: bool, fork_mark: ForkMark<'static>) -> Self {
        Growth { is_bound, is_populated, metadata: Box::new(ForkLock::new(fork_mark, Vec::new())) }
    }
}
