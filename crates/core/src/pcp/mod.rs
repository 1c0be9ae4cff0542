//! Per-CPU pages: what a CPU caches of a zone, and all that moves pages between it and the store.
//!
//! | module | what |
//! |---|---|
//! | [`shelf`] | stacks of magazines, those of the caller's memory, frames that were cut into magazines, which of them a drainer prefetches, and magazines with what they hold |
//! | `state` | [`Pcp`]: what a CPU keeps for a zone besides its front words; how slow paths name fronts |
//! | `pcps` | [`Pcps`]: the memory of all CPUs' caches |
//! | `exchange` | magazines between a front and the CPU's shelf |
//! | `guarded` | the same under a guard that the caller holds |
//! | `refill`, `spill` | pages from the store to a CPU, and back, also to stay below `high` |
//! | `high` | how much a CPU may cache, and how much of that one that only frees |
//! | `magazines` | where empty magazines come from, those made of a zone's own frames included |
//! | `direct` | single blocks between callers and the store, past the caches |
//! | `caches` | [`Caches`]: all CPUs and zones, and the watermarks; `CpuZone`: one CPU's caches of one zone, at work |
//! | [`asks`] | how a drain knows that its ask was answered |
//! | `drain` | taking back what CPUs cache, fronts and what was handed over included; asking owners for their fronts |

pub mod asks;
mod caches;
mod direct;
mod drain;
mod exchange;
mod guarded;
mod high;
mod magazines;
mod pcps;
mod refill;
pub mod shelf;
mod spill;
mod state;

pub use asks::HandoverCounts;
pub use caches::Caches;
pub use direct::PastCaches;
pub use drain::{Ask, DrainResult, Mode, Scope};
pub use exchange::Exchange;
pub use high::FreeHigh;
pub use pcps::{CpuShared, LEVELS, NO_ZONE, Pcps, PcpsState, Places};
pub use shelf::{CarvedFrames, Magazines};
pub use spill::caches_batch;
pub use state::{Front, Pcp};
