//! The memory of a depot: that of its frames, and the allocator's metadata.

pub(crate) mod frames;
pub(crate) mod growth;
pub(crate) mod metadata;
pub(crate) mod region;
