//! Per-CPU pages: what a CPU caches of a zone, and all that moves pages between it and the store.
//!
//! | module | what |
//! |---|---|
//! | `cached` | [`Pcp`]: what a CPU keeps for a zone besides its front words |
//! | [`shelf`] | stacks of magazines |
//! | `listed` | which magazines a shelf has, for drainers to prefetch |
//! | `pcps` | [`Pcps`]: the memory of all CPUs' caches |
//! | `share` | [`CpuZone`]: one CPU's caches of one zone, at work |
//! | `front` | how slow paths name fronts: the theory of refill and spill |
//! | `exchange` | magazines between a front and the CPU's shelf |
//! | `refill`, `spill` | pages from the store to a CPU, and back |
//! | `evacuate` | which pageblocks evacuate, and what becomes of their frames |
//! | `high` | how much a CPU may cache |
//! | [`free_high`] | how much of that a CPU may cache that only frees |
//! | `magazines` | where empty magazines come from |
//! | `pool` | those of the caller's memory |
//! | `carved` | which frames were cut into magazines |
//! | `direct` | single blocks between callers and the store, past the caches |
//! | `caches` | [`Caches`]: all CPUs and zones, and the watermarks |
//! | `part` | a magazine with what it holds |
//! | `parts` | taking fronts, and what came from them |
//! | [`asks`] | how a drain knows that its ask was answered |
//! | `drain` | taking back what CPUs cache |
//! | `handover` | asking owners for their fronts |

pub mod asks;
mod cached;
mod caches;
mod carved;
mod direct;
mod drain;
mod evacuate;
mod exchange;
pub mod free_high;
mod front;
mod handover;
mod high;
mod listed;
mod magazines;
mod part;
mod parts;
mod pcps;
mod pool;
mod refill;
mod share;
pub mod shelf;
mod spill;

pub use asks::HandoverCounts;
pub use cached::{CpuShared, LEVELS, NO_ZONE, Pcp};
pub use caches::{Caches, RefillTerms};
pub use carved::CarvedFrames;
pub use drain::{DrainResult, Mode, Scope};
pub use exchange::Exchange;
pub use front::Front;
pub use handover::Ask;
pub use pcps::{Pcps, PcpsState, Places};
pub use pool::Magazines;
