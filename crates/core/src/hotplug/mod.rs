//! Memory that an allocator takes out of use, and why frames at a given address cannot be had.
//!
//! `alloc/add.rs` adds memory: at first, and later.

mod obstacle;
mod remove;

pub use obstacle::Obstacle;
pub use remove::RemoveError;
