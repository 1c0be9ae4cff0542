//! Zones: frames that serve the same requests on one NUMA node, with watermarks and a policy for
//! how many of them a CPU may cache.
//!
//! | module | what |
//! |---|---|
//! | `state` | watermarks; how many pages a CPU may cache: `batch`, and the bounds of `high`; [`Zone`]: span, free pages, in-flight pages of a zone; [`Zones`]: all of them, in the order that a node prefers |
//! | `delta` | changes that are not in its count of free pages yet, and whether requests need to read that |
//! | [`counts`] | counters of a zone, of a CPU in it, and of compaction |

pub mod counts;
pub(crate) mod delta;
mod state;

pub(crate) use state::Reserve;
pub use state::{CacheLimits, GroupDelta, HighPolicy, Watermarks, Zone, ZoneName, Zones};
