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
//! | `zero_and_check` | `Hooks`: what is done to blocks on their way out, and checked on their way in; calls that end in a panic |
//! | `walk` | a request of any kind, and one walk over the zones that it may use |
//! | `layout` | where the metadata lies in the caller's memory |
//! | `pressure` | `SlowPath`: what requests and frees do that a front does not serve; here below a watermark. `Relief`: what a request asks before it mixes pageblocks, and before it fails |
//! | `allocator` | [`Allocator`], the fast paths, and what single blocks do when a front does not serve them |
//! | `fronts` | [`Fronts`]: sequences under the caller's guard; requests that only try |
//! | `bulk` | many blocks at once |
//! | `range` | contiguous ranges, given addresses; [`Residency`]: which free memory is present |
//! | `control` | drains, [`Handover`] and callbacks; [`ZoneSettings`]; [`CpuCaches`]: caches that are taken away, decay, hand over |
//! | `add` | `MemoryAdder`: memory, at first and later |
//! | `stats` | counters and reports |
//! | `validate` | `Validation`: is every frame in exactly one place; and what CPUs cache |
//! | `build` | construction; an allocator in a static, made later |

pub mod add;
mod allocator;
mod build;
mod bulk;
pub mod config;
mod control;
pub mod error;
pub mod flags;
mod fronts;
pub(crate) mod layout;
pub(crate) mod pressure;
mod range;
mod stats;
#[cfg(all(test, not(loom)))]
pub(crate) mod tests;
mod validate;
pub(crate) mod walk;
pub(crate) mod zero_and_check;

pub use allocator::Allocator;
pub use build::{Builder, Global, InitError};
#[cfg(all(loom, test))]
pub(crate) use control::last_resort_for_block;
pub use control::{CpuCaches, Handover, ZoneSettings};
pub use fronts::{FrontHandle, Fronts};
pub use range::{Residency, ResidencyCounts};
pub use stats::{CpuStats, MetadataUse, Shortage, ZoneShortage, ZoneStats};
pub use validate::{Census, Fault};
