//! The depot: the state that its handles share, the handles, and making one.

pub mod builder;
pub(crate) mod handle;
pub mod raw;
pub(crate) mod relief;
pub(crate) mod state;
pub mod stats;
pub(crate) mod teardown;
pub mod tune;
