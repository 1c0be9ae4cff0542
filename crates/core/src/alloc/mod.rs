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
//! | `checked` | `FrameBytes`: exact checks of what is freed |
//! | `hooks` | `Hooks`: what is done to blocks on their way out, and checked on their way in |
//! | `undo` | `Undo`: calls that end in a panic |
//! | `drain` | `Drains`: drains, and what they sum up |
//! | `handover` | `Handover`: a drain that asks owners for their fronts, and waits for them |
//! | `request` | a request of any kind, on its way down the watermarks |
//! | `relief` | `Relief`: what a request asks before it mixes pageblocks, and before it fails |
//! | `globals` | what changes, and belongs to no zone and no CPU |
//! | `layout` | where the metadata lies in the caller's memory |
//! | `walk` | `Walk`: one walk over the zones that a request may use |
//! | `isolation` | `Isolation`: pageblocks that one caller has for itself; `Claims` of all their frames |
//! | `pressure` | `UnderPressure`: requests below a watermark |
//! | `blocks` | `Blocks`: what single blocks do when a front does not serve them |
//! | `cached_blocks` | `CachedBlocks`: what CPUs cache, magazine by magazine |
//! | `allocator` | [`Allocator`], and the fast paths |
//! | `attempt` | requests that only try |
//! | `fronts` | [`Fronts`]: sequences under the caller's guard |
//! | `bulk` | `Bulk`: many blocks at once |
//! | `range` | `Ranges`: contiguous ranges, given addresses |
//! | `control` | drains and callbacks, for callers |
//! | `cpu_caches` | [`CpuCaches`]: caches that are taken away and given back, that decay, that hand over |
//! | `settings` | [`ZoneSettings`]: a zone's watermarks, limits and policies, changed while it is used |
//! | `add` | `MemoryAdder`: memory, at first and later |
//! | `pageblocks` | what pageblocks are like |
//! | `residency` | [`Residency`]: which free memory is present |
//! | `stats` | counters and reports |
//! | `validate` | `Validation`: is every frame in exactly one place |
//! | `build` | construction |
//! | `global` | an allocator in a static, made later |

pub mod add;
mod allocator;
mod attempt;
mod blocks;
mod build;
mod bulk;
pub(crate) mod cached_blocks;
mod checked;
pub mod config;
mod control;
mod cpu_caches;
pub(crate) mod drain;
pub mod error;
pub mod flags;
mod fronts;
mod global;
mod globals;
mod handover;
pub(crate) mod hooks;
pub(crate) mod isolation;
pub(crate) mod layout;
#[cfg(all(test, not(loom)))]
pub(crate) mod one_cpu;
mod pageblocks;
mod pressure;
mod range;
pub(crate) mod relief;
pub(crate) mod request;
mod residency;
mod settings;
mod stats;
pub(crate) mod undo;
mod validate;
pub(crate) mod walk;

pub use allocator::{Allocator, FrontsAt};
pub use build::Builder;
pub use bulk::FreeManyError;
#[cfg(all(loom, test))]
pub(crate) use control::last_resort_for_block;
pub use cpu_caches::CpuCaches;
pub use fronts::{FrontHandle, Fronts};
pub use global::{Global, InitError};
pub use handover::Handover;
pub use pageblocks::{PageblockInfo, PageblockStats, Pageblocks};
pub use residency::{Residency, ResidencyCounts};
pub use settings::ZoneSettings;
pub use stats::{CpuStats, MetadataUse, Shortage, ZoneShortage, ZoneStats};
pub use validate::{Census, Fault};
