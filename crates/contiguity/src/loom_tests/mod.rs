//! Models of moving, removing and reporting memory, explored by loom on the core's small depots:
//! see the core's `loom_tests`.
//!
//! | module | what |
//! |---|---|
//! | `compacting` | moving blocks beside frees, requests, removals and one another |
//! | `compacting_pairs` | moving a block of two pageblocks, also out of a window that has one of them |
//! | `removing` | removing memory beside requests, frees and drains |
//! | `reporting` | free pageblocks that are reported, and needed again |

mod compacting;
mod compacting_pairs;
mod removing;
mod reporting;

use pagedepot::cpus::Cpus;
use pagedepot::loom_tests::depot::Depot;
use pagedepot::{FrameRange, ZoneId};

use crate::{Contiguity, RemoveError};

/// Removes frames from the zone of a depot; no thread holds one if that succeeds.
fn remove<C: Cpus>(depot: &Depot<C>, range: FrameRange) -> Result<(), RemoveError> {
    depot.remove_by(range, |allocator| allocator.remove_memory(ZoneId::new(0), range))
}
