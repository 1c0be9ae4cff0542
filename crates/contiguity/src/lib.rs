//! Compaction, memory hotplug and free page reporting for [`pagedepot`].
//!
//! # Vocabulary
//! | word | meaning |
//! |---|---|
//! | pageblock | an aligned run of 512 frames, which has one mobility |
//! | whole | of a pageblock: all its frames are free in the store |
//! | isolated | of a pageblock: a caller is adding, removing or emptying it, and requests pass it by |
//! | [`Mover`] | the embedder's code that knows who holds a block, and can move it |
//! | [`Compactor`] | the mover for requests, registered with an allocator |
//! | report | to offer a whole pageblock to the [device](ReportingDevice) that provides the memory |
//!
//! # Modules
//! | module | what |
//! |---|---|
//! | `compaction` | held blocks are moved, so that pageblocks become whole |
//! | `hotplug` | memory is taken out of use; obstacles to that |
//! | `pageblocks` | what the pageblocks of a zone are like, and how many are whole |
//! | `reporting` | whole pageblocks are reported to a hypervisor |
//!
//! All of them reach the allocator through [`pagedepot::seam`] alone. What pageblocks evacuate (see
//! [`pagedepot::Evacuation`]) is the core's own affair: `free` pays nothing for it.
#![cfg_attr(not(test), no_std)]
#![cfg_attr(not(loom), forbid(unsafe_code))]

// Models need its thread-local values.
#[cfg(loom)]
extern crate std;

mod compaction;
mod hotplug;
#[cfg(all(test, loom))]
mod loom_tests;
mod pageblocks;
mod reporting;

pub use compaction::{
    CompactEnd, CompactError, CompactResult, Compaction, Compactor, Move, Mover, MoverRegistered,
    Occupant,
};
pub use hotplug::{Obstacle, RemoveError};
pub use pageblocks::{PageblockInfo, PageblockStats, Pageblocks};
pub use pagedepot::Compactions;
pub use pagedepot::seam::{DeviceRegistered, ReportCounts, ReportingDevice};
pub use reporting::{ReportEnd, ReportError, ReportPass, Reporting};

use pagedepot::cpus::Cpus;
use pagedepot::{Allocator, Flags, FrameRange, ZoneId};

/// Calls of an allocator that work on whole pageblocks.
pub trait Contiguity {
    /// Moves held blocks by `mover` until the target is there: whole pageblocks, or a contiguous
    /// range, in one zone.
    ///
    /// The pageblocks to be emptied are isolated meanwhile, 8 at a time, or a window of the range's
    /// size: requests pass them by, and frees of their frames go past the caches. Everything else
    /// goes on. Nothing is isolated, or stays so, when that would leave the zone's free memory
    /// below its `low` watermark, without what this and other compactions isolate. A request that
    /// would fail meanwhile looks again, as beside [`remove_memory`](Self::remove_memory).
    ///
    /// Destinations are allocated for the mover from the densest pageblocks, past the watermarks,
    /// since as many frames come back. Several compactions may run at once; they take different
    /// pageblocks.
    ///
    /// O(zone) per 64 candidates, and what the mover costs.
    ///
    /// # Errors
    /// [`CompactError`], before anything was done. A compaction that did not reach its target is
    /// none: [`CompactResult::end`] says why.
    ///
    /// # Panics
    /// When the mover does. What it had marked as moved is moved; nothing is lost. And when frames
    /// were freed that were free already, which `moved` for a block that the caller does not hold
    /// may be: see [`Config::on_misuse`](pagedepot::Config::on_misuse).
    fn compact(
        &self,
        zone: ZoneId,
        compaction: Compaction,
        mover: &dyn Mover,
    ) -> Result<CompactResult, CompactError>;

    /// Takes memory from a zone, of whole pageblocks (aligned runs of 512 frames), while all other
    /// calls go on. Afterwards the frames are the caller's, unknown to this allocator; the range
    /// may be added again, to the same zone. A range may be part of one that was added, or span
    /// several, and may come from the configuration.
    ///
    /// Every frame must be free or cached. Cached ones are drained: first quietly, then fully, with
    /// a fence per CPU as [`drain`](Allocator::drain); so call it from where the environment can
    /// fence. New allocations pass the range by meanwhile. It does not wait for holders: on
    /// [`RemoveError::Busy`] free or move what they hold and call again. Frames of a pageblock that
    /// were never given (a range that was added ends inside of it) count as held: such a pageblock
    /// can't be removed.
    ///
    /// The metadata stays in use, and the zone's watermarks and limits are as before.
    ///
    /// Over a [`Backing`](pagedepot::Backing) with [`ranges`](pagedepot::Backing::ranges) the
    /// frames are claimed there and so leave the backing too. The backing may hand out others of
    /// the range until the claim succeeds; a kernel isolates in its own store first.
    ///
    /// O(frames / 64) per attempt, at most five of them.
    ///
    /// # Errors
    /// [`RemoveError`]; nothing has changed then.
    ///
    /// # Panics
    /// When one of its drains finds frames that were freed twice: see
    /// [`Config::on_misuse`](pagedepot::Config::on_misuse). Nothing has changed then, either.
    fn remove_memory(&self, zone: ZoneId, range: FrameRange) -> Result<(), RemoveError>;

    /// Gives whole pageblocks to requests with such flags in one step: of a mobility, and of a
    /// class that the [configuration](pagedepot::Config::classes) keeps apart. Requests and frees
    /// go on meanwhile, and the zone never lacks the memory in its counts. It frees nothing: as for
    /// [`remove_memory`](Self::remove_memory), every frame must be free or cached. Memory that is
    /// [reported](Reporting), or [not present](pagedepot::Residency), stays so; the device is not
    /// asked for it.
    ///
    /// The flags are a preference, not a promise: each of the pageblocks was whole a moment before,
    /// and may serve other requests when these find no room elsewhere.
    ///
    /// # Errors
    /// Fails like [`remove_memory`](Self::remove_memory).
    ///
    /// # Panics
    /// Panics like [`remove_memory`](Self::remove_memory).
    fn reassign(&self, zone: ZoneId, range: FrameRange, flags: Flags) -> Result<(), RemoveError>;

    /// Finds the obstacle that keeps [`alloc_at`](Allocator::alloc_at) from having these frames at
    /// this moment; `None`: they are free. For messages: beside other callers the answer may be out
    /// of date when it is returned. Waits for no caller; O(frames), and O(pages cached) where the
    /// first frame that is not free might be cached.
    fn obstacle(&self, range: FrameRange) -> Option<Obstacle>;

    /// Counts a zone's [pageblocks](Pageblocks); `None` when there is no such zone. Beside other
    /// callers each count is as of some moment. Over a [`Backing`](pagedepot::Backing) only `all`
    /// is known.
    ///
    /// O(frames of the zone / 64).
    fn pageblock_stats(&self, zone: ZoneId) -> Option<PageblockStats>;
}

impl<C: Cpus> Contiguity for Allocator<'_, C> {
    fn compact(
        &self,
        zone: ZoneId,
        compaction: Compaction,
        mover: &dyn Mover,
    ) -> Result<CompactResult, CompactError> {
        compaction::compact(self, zone, compaction, mover)
    }

    fn remove_memory(&self, zone: ZoneId, range: FrameRange) -> Result<(), RemoveError> {
        hotplug::remove_memory(self, zone, range)
    }

    fn reassign(&self, zone: ZoneId, range: FrameRange, flags: Flags) -> Result<(), RemoveError> {
        hotplug::reassign(self, zone, range, flags)
    }

    fn obstacle(&self, range: FrameRange) -> Option<Obstacle> {
        hotplug::obstacle(self, range)
    }

    fn pageblock_stats(&self, zone: ZoneId) -> Option<PageblockStats> {
        Pageblocks::of(self, zone).map(Pageblocks::stats)
    }
}

/// The README's program, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
