//! The pages that compaction moves, and the pages that nothing moves or takes.

pub(crate) mod movables;
pub(crate) mod pins;
pub(crate) mod place;
pub(crate) mod table;
