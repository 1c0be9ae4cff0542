//! Values that own pages.

pub(crate) mod batch;
pub(crate) mod future;
pub(crate) mod movable;
pub(crate) mod page;
