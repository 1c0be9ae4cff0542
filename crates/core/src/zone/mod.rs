//! Zones: frames that serve the same requests on one NUMA node, with watermarks and a policy for
//! how many of them a CPU may cache.
//!
//! | module | what |
//! |---|---|
//! | `state` | [`Zone`]: span, free pages, in-flight pages of a zone |
//! | `watermarks` | below which level of free pages a zone becomes careful |
//! | `evacuation` | how many of its pageblocks evacuate |
//! | `cache_limits` | how many pages a CPU may cache of a zone: `batch`, and the bounds of `high` |
//! | `delta` | changes that are not in its count of free pages yet |
//! | `group_delta` | those of a group of CPUs |
//! | `drift_mark` | whether it is so far above them that requests need not read its free pages |
//! | [`compactions`] | counters of compaction |
//! | [`counts`] | counters of a zone, and of a CPU in it |
//! | `lists` | [`Zones`]: all of them, in the order that a node prefers |

mod cache_limits;
pub mod compactions;
pub mod counts;
pub(crate) mod delta;
pub(crate) mod drift_mark;
mod evacuation;
pub(crate) mod group_delta;
mod lists;
mod state;
mod watermarks;

pub use cache_limits::{CacheLimits, HighPolicy};
pub use evacuation::{Evacuation, HandPlan, State, TurnCounts};
pub use lists::Zones;
pub use state::{Zone, ZoneName};
pub(crate) use watermarks::Reserve;
pub use watermarks::Watermarks;
