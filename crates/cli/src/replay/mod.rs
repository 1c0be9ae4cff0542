//! Replays a recorded trace into an allocator.
//!
//! # Vocabulary
//! * *plan*: a trace turned into operations on numbered slots, ready to run without a look at the
//!   trace.
//! * *slot*: where a run keeps the block an allocation got, until the matching free.
//! * *held*: allocated and not freed when the trace ends.
//! * *unknown free*: of a block allocated before the recording began; replayed when a zoneinfo
//!   tells the machine's zones, because then the block can be held from the beginning.
//! * *target*: a design as a replay uses it.
//! * *missed free*: one the recording lacks. A block handed out while still held must have been
//!   freed in between; the plan frees it right before.
//! * *implausible*: an order that no kernel has, or a frame that is no multiple of its block's
//!   size; not replayed. Blocks above order 10, which kernels with large pages have, are counted
//!   apart.
//! * *volume*: a number of blocks and of the pages in them.
//!
//! # Theory
//! Everything that needs the trace happens before the clock starts: the kernel's frame numbers are
//! matched once, when the plan is made, so that a run is a walk over an array: call the allocator,
//! store a number. Runs are single-threaded: the target is told which CPU each event ran on, so the
//! result does not depend on the machine, and counts are the same in every run.
//!
//! Runs are exact in order and in CPU; the trace's time is passed on as a coarse clock, for caches
//! that decay.
//!
//! A plan can be [folded](Plan::fold) onto fewer CPUs than were recorded.
//!
//! # API
//! ```text
//! let zoneinfos = Zoneinfos::find(path, None, None)?;
//! let plan = Plan::load(path, zoneinfos.before.as_ref(), ExpandLimit::default())?;
//! let replayed = replay(&plan, &zoneinfos, (&[Design::Depot], &variant), runs, || ...)?;
//! println!("{replayed}");          // tables
//! replayed.to_report()             // tables and rows
//! error.is_bad_input()             // exit code 2
//! ```

mod actions;
mod calibrate;
pub mod contiguity;
pub mod depot;
pub mod engine;
pub mod error;
mod fold;
mod highs;
mod initial;
mod live;
mod load;
mod look;
pub mod options;
pub mod outcome;
pub mod plan;
mod planner;
pub mod replayed;
mod rows;
pub mod runner;
mod schedule;
pub mod shipped;
mod show;
pub mod target;
pub mod threads;
mod ticks;
pub mod verify;
pub mod watched;
mod zone_map;
pub mod zoneinfos;

pub use plan::Plan;
pub use runner::replay;
pub use zoneinfos::Zoneinfos;
