//! Contiguous memory by moving blocks that callers hold.
//!
//! Requests know nothing of this room: a [`Compactor`] registers itself as their
//! [relief](pagedepot::seam::Relief). From the ground up, each file uses only those above it:
//!
//! | module | what |
//! |---|---|
//! | `params`, `mover` | what compaction is asked for, and what the code that moves blocks implements |
//! | `survey` | how full pageblocks are, and how dear it is to empty them |
//! | `evacuate` | `Evacuator`: emptying one pageblock, or a window of them |
//! | `sources` | which pageblocks are emptied |
//! | `compactor` | [`Compactor`]: the mover for requests, one request at a time |
//! | `compact_request` | room for a request that would fail otherwise |
//! | `confine` | room for a request that would mix unmovable blocks among movable ones |
//! | `requests` | these two, registered with an allocator |
//! | `compact` | compaction for callers |

mod compact;
mod compact_request;
mod compactor;
mod confine;
mod evacuate;
mod mover;
mod params;
mod requests;
mod sources;
mod survey;

pub use compact::compact;
pub use compactor::{Compactor, MoverRegistered};
pub use mover::{Move, Mover, Occupant};
pub use params::{CompactEnd, CompactError, CompactResult, Compaction};
