//! The allocator: what callers call. All but the fast paths delegates to the rooms below.
//!
//! | module | what |
//! |---|---|
//! | `allocator` | [`Allocator`], and the fast paths |
//! | `slow` | what a request does when a front does not serve it |
//! | `request` | a request of any kind, on its way down the watermarks |
//! | `pressure` | requests below a watermark |
//! | `bulk` | many blocks at once |
//! | `range` | contiguous ranges, given addresses |
//! | `drain` | drains, decay, CPUs that go and come back |
//! | `tuning` | watermarks and cache limits |
//! | `checked` | exact checks of what is freed, splitting |
//! | `undo` | calls that end in a panic |
//! | `stats` | counters and reports |
//! | `validate` | is every frame in exactly one place |
//! | `config` | what an allocator is made from |
//! | `globals` | what changes, and belongs to no zone and no CPU |
//! | `layout` | where the metadata lies in the caller's memory |
//! | `build` | construction |
//! | `add` | memory, at first and later |
//! | `obstacle` | why frames at a given address cannot be had |
//! | `remove` | taking memory out again |
//! | `global` | an allocator in a static, made later |
//! | `late_init` | how that is published |
//! | `error`, `flags` | what callers get and say |

mod add;
mod allocator;
mod build;
mod bulk;
mod checked;
pub mod config;
mod drain;
pub mod error;
pub mod flags;
mod global;
mod globals;
pub(crate) mod late_init;
pub(crate) mod layout;
mod obstacle;
mod pressure;
mod range;
mod remove;
mod request;
mod slow;
mod stats;
mod tuning;
mod undo;
mod validate;

pub use allocator::{Allocator, FrontsAt};
pub use bulk::FreeManyError;
pub use global::{Global, InitError};
pub use obstacle::Obstacle;
pub use remove::RemoveError;
pub use stats::{CpuStats, MetadataUse, Shortage, ZoneShortage, ZoneStats};
pub use validate::{Census, Fault};
