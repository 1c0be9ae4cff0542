//! Frames: what memory is counted in, and what is known of a frame by its number.
//!
//! | module | what |
//! |---|---|
//! | `units` | a newtype for each unit: frame numbers, orders, CPUs, zones, nodes, mobilities |
//! | `memory` | ranges of frames, and where they are mapped |
//! | [`pageblock`] | runs of 512 frames, and the tag of each |

mod memory;
pub mod pageblock;
mod units;

pub use memory::{FrameRange, LinearMap, PageSize};
pub use units::{CpuId, Mobility, NodeId, Order, Pfn, ZoneId};
