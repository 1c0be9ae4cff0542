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
//! | `globals` | what changes, and belongs to no zone and no CPU |
//! | `layout` | where the metadata lies in the caller's memory |
//! | `checked` | `FrameBytes`: exact checks of what is freed |
//! | `hooks` | `Hooks`: what is done to blocks on their way out, and checked on their way in |
//! | `undo` | `Undo`: calls that end in a panic |
//! | `drain` | `Drains`: drains, and what they sum up |
//! | `handover` | `Handover`: a drain that asks owners for their fronts, and waits for them |
//! | `request` | a request of any kind, on its way down the watermarks |
//! | `walk` | `Walk`: one walk over the zones that a request may use |
//! | `isolation` | `Isolation`: pageblocks that one caller has for itself; `Claims` of all their frames |
//! | `compaction`, `mover` | what compaction is asked for, and what the code that moves blocks implements |
//! | `evacuate` | `Evacuation`: emptying one pageblock, or a window of them |
//! | `sources` | which ones |
//! | `registered_mover`, `compact_request` | the same for a request that would fail |
//! | `confine` | for one that would mix unmovable blocks among movable ones |
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
//! | `add` | `Adding`: memory, at first and later |
//! | `obstacle` | `Obstacles`: why frames at a given address cannot be had |
//! | `remove` | `Removal`: taking memory out again |
//! | `compact` | compaction for callers |
//! | `pageblocks` | what pageblocks are like |
//! | `reporting` | [`Reporting`]: free pageblocks reported to what provides the memory |
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
mod cached_blocks;
mod checked;
mod compact;
mod compact_request;
mod compaction;
pub mod config;
mod confine;
mod control;
mod cpu_caches;
mod drain;
pub mod error;
mod evacuate;
pub mod flags;
mod fronts;
mod global;
mod globals;
mod handover;
mod hooks;
mod isolation;
pub(crate) mod layout;
mod mover;
mod obstacle;
#[cfg(all(test, not(loom)))]
mod one_cpu;
mod pageblocks;
mod pressure;
mod range;
mod registered_mover;
mod remove;
mod reporting;
mod request;
mod settings;
mod sources;
mod stats;
mod undo;
mod validate;
mod walk;

pub use allocator::{Allocator, FrontsAt};
pub use build::Builder;
pub use bulk::FreeManyError;
pub use compaction::{CompactEnd, CompactError, Compacted, Compaction};
#[cfg(all(loom, test))]
pub(crate) use control::last_resort_for_block;
pub use cpu_caches::CpuCaches;
pub use fronts::{FrontHandle, Fronts};
pub use global::{Global, InitError};
pub use handover::Handover;
pub use mover::{Move, Mover, Occupant};
pub use obstacle::Obstacle;
pub use pageblocks::{PageblockInfo, PageblockStats, Pageblocks};
pub use registered_mover::MoverRegistered;
pub use remove::RemoveError;
pub use reporting::{ReportEnd, ReportError, ReportPass, Reporting};
pub use settings::ZoneSettings;
pub use stats::{CpuStats, MetadataUse, Shortage, ZoneShortage, ZoneStats};
pub use validate::{Census, Fault};
