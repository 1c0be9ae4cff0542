//! The allocator: what callers call.
//!
//! [`Allocator`] owns the state of the rooms below, and the fast paths. Everything else delegates
//! to a struct of its own file, which borrows what it works with. From the ground up, each uses
//! only those above it in this list:
//!
//! | module | what |
//! |---|---|
//! | `config` | what an allocator is made from |
//! | `error`, `flags` | what callers get and say |
//! | `hooks` | `Hooks`: what is done to blocks on their way out, and checked on their way in; calls that end in a panic |
//! | `drain` | drains, and what they sum up; [`Handover`]: one that asks owners for their fronts, and waits for them |
//! | `walk` | a request of any kind, and one walk over the zones that it may use |
//! | `relief` | `Relief`: what a request asks before it mixes pageblocks, and before it fails |
//! | `layout` | where the metadata lies in the caller's memory |
//! | `pressure` | `SlowPath`: what requests and frees do that a front does not serve; here below a watermark |
//! | `cached_blocks` | `CachedBlocks`: what CPUs cache, magazine by magazine |
//! | `allocator` | [`Allocator`], the fast paths, and what single blocks do when a front does not serve them |
//! | `fronts` | [`Fronts`]: sequences under the caller's guard |
//! | `bulk` | many blocks at once |
//! | `range` | contiguous ranges, given addresses |
//! | `control` | drains and callbacks; [`ZoneSettings`]; [`CpuCaches`]: caches that are taken away, decay, hand over |
//! | `add` | `MemoryAdder`: memory, at first and later |
//! | `residency` | [`Residency`]: which free memory is present |
//! | `stats` | counters and reports, and what pageblocks are like |
//! | `validate` | `Validation`: is every frame in exactly one place |
//! | `build` | construction |
//! | `global` | an allocator in a static, made later |

pub mod add;
mod allocator;
mod build;
mod bulk;
pub(crate) mod cached_blocks;
pub mod config;
mod control;
pub(crate) mod drain;
pub mod error;
pub mod flags;
mod fronts;
mod global;
pub(crate) mod hooks;
pub(crate) mod layout;
#[cfg(all(test, not(loom)))]
pub(crate) mod one_cpu;
mod pressure;
mod range;
pub(crate) mod relief;
mod residency;
mod stats;
mod validate;
pub(crate) mod walk;

pub use allocator::{Allocator, FrontsAt};
pub use build::Builder;
pub use bulk::FreeManyError;
#[cfg(all(loom, test))]
pub(crate) use control::last_resort_for_block;
pub use control::{CpuCaches, ZoneSettings};
pub use drain::Handover;
pub use fronts::{FrontHandle, Fronts};
pub use global::{Global, InitError};
pub use residency::{Residency, ResidencyCounts};
pub use stats::{
    CpuStats, MetadataUse, PageblockInfo, PageblockStats, Pageblocks, Shortage, ZoneShortage,
    ZoneStats,
};
pub use validate::{Census, Fault};
