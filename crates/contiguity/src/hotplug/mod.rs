//! Memory that an allocator takes out of use, and why frames at a given address cannot be had.
//!
//! The core adds memory: at first, and later.

mod obstacle;
mod remove;

pub use obstacle::{Obstacle, obstacle};
pub use remove::{RemoveError, reassign, remove_memory};
