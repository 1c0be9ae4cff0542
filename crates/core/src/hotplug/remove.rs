//! Taking memory out again: isolate, claim, drain, forget.
//!
//! # Vocabulary
//! A pageblock is *isolated* while its tag says that a caller is adding or removing it (see
//! [`Isolation`](crate::seam::Isolation)). The *remover* is the caller of
//! [`remove_memory`](Allocator::remove_memory).
//!
//! # Argument
//! 1. *One remover per pageblock.* The compare-and-swap of the tag to its isolated form elects the
//!    remover; only the remover ends the isolation. A carver of a frame changes the same tag, so of
//!    a carver and a remover the second sees the first and gives up.
//! 2. *Nothing new.* A search that reads an isolated tag passes the pageblock by, and a free sends
//!    the frame to the store instead of a cache. So frames of the range move towards the store
//!    only. This is for progress alone: a search or free that read the tag before may still take or
//!    cache a frame, as if it had come before the isolation.
//! 3. *Ownership.* The remover takes every frame of the range from the store as a request for
//!    frames at a given address does: all of them or none. When it has all, no caller holds one and
//!    no cache has one, for each frame is in one place. Then it alone may change the tags, and
//!    counts and tags forget the frames.
//! 4. *No way back by an old search.* A search of the same zone that looked at the range before
//!    finds cleared bits, or, if the memory was added again, frames of its zone that are free. The
//!    tag of removed memory keeps its zone, and adding gives it back to that zone alone: such a
//!    search never hands out frames of another one.
//! 5. *Failure changes nothing.* What was claimed is put back before another attempt and before an
//!    error; dropping the [`Isolation`](crate::seam::Isolation) gives the pageblocks the mobility
//!    they had, also when a panic unwinds (a drain may report misuse). The remover's frames are
//!    announced as in flight from before the isolation until then, so that a request that would
//!    fail in between looks again.
//! 6. *It ends.* Attempts: at once; after a quiet drain of the zone; after up to three full ones,
//!    fewer when a full drain was undisturbed and frames are missing all the same. It waits for no
//!    holder of a frame.

use core::fmt;

use super::obstacle::{Obstacle, carved_in, missing_in};
use crate::cpus::Cpus;
use crate::seam::{NoAccess, PAGEBLOCK_FRAMES, PageblockIndex, PageblockState, ZoneAccess};
use crate::sync::model::{Mutant, bound, is_mutant};
use crate::sync::prim::spin_hint;
use crate::{Allocator, DrainResult, FrameRange, Mode, Pfn, ZoneId};

/// Drains before each attempt to claim the range.
const DRAINS: [Option<Mode>; 5] =
    [None, Some(Mode::Quiet), Some(Mode::Full), Some(Mode::Full), Some(Mode::Full)];
/// Spins before a drain is repeated, for pages in other callers' hands to arrive.
const DRAIN_SPINS: u32 = bound(1000, 1);

/// The reason why memory was not removed. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RemoveError {
    /// No zone has this number.
    NoSuchZone {
        /// The number.
        zone: u32,
    },
    /// The range is empty, does not consist of whole pageblocks (aligned runs of 512 frames), or
    /// ends at frame 2^32 or beyond.
    NotRemovable {
        /// The range.
        range: FrameRange,
    },
    /// The range cannot be removed as it is: it has no memory or memory of another zone, holds
    /// magazines, or another caller is adding or removing it.
    Obstacle(Obstacle),
    /// Frames are not in the store. Free them and call again.
    Busy {
        /// The first of them.
        first: Pfn,
        /// Number of pages, at the last look.
        pages: u64,
        /// CPUs whose fronts could not be drained, because they are isolated or did not answer:
        /// they may cache some of the pages. [`CpuCaches::disable`](crate::CpuCaches::disable)
        /// drains isolated ones too.
        skipped_cpus: u64,
    },
    /// The [`Backing`](crate::Backing) under this allocator cannot find frames at given addresses.
    Unsupported,
    /// This process is a fork of the one that made the allocator.
    Forked,
}

impl fmt::Display for RemoveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            RemoveError::NoSuchZone { zone } => write!(
                f,
                "there is no zone {zone}: zones are numbered from 0, as they stand in Config::zones"
            ),
            RemoveError::NotRemovable { range } => write!(
                f,
                "cannot remove {} frames from {}: give one or more whole runs of \
                 {PAGEBLOCK_FRAMES} frames, aligned to their size",
                range.frames, range.start
            ),
            RemoveError::Obstacle(obstacle) => obstacle.fmt(f),
            RemoveError::Busy { first, pages, skipped_cpus: 0 } => write!(
                f,
                "{pages} pages are allocated, frame {first} first: free them and try again"
            ),
            RemoveError::Busy { first, pages, skipped_cpus } => write!(
                f,
                "{pages} pages are allocated, or cached by {skipped_cpus} CPUs that could not be \
                 drained, frame {first} first: free them, or call cpu_caches().disable(), and \
                 try again"
            ),
            RemoveError::Unsupported => f.write_str(
                "the backing has no ranges: implement Backing::ranges, or take the frames out of \
                 the backing yourself",
            ),
            RemoveError::Forked => f.write_str(
                "this process is a fork of the one that made the allocator, whose pages it does \
                 not own",
            ),
        }
    }
}

impl core::error::Error for RemoveError {}

impl<C: Cpus> Allocator<'_, C> {
    /// Takes memory from a zone, of whole pageblocks (aligned runs of 512 frames), while all other
    /// calls go on. Afterwards the frames are the caller's, unknown to this allocator; the range
    /// may be added again, to the same zone. A range may be part of one that was added, or span
    /// several, and may come from the configuration.
    ///
    /// Every frame must be free or cached. Cached ones are drained: first quietly, then fully, with
    /// a fence per CPU as [`drain`](Self::drain); so call it from where the environment can fence.
    /// New allocations pass the range by meanwhile. It does not wait for holders: on
    /// [`RemoveError::Busy`] free or move what they hold and call again. Frames of a pageblock that
    /// were never given (a range that was added ends inside of it) count as held: such a pageblock
    /// can't be removed.
    ///
    /// The metadata stays in use, and the zone's watermarks and limits are as before.
    ///
    /// Over a [`Backing`](crate::Backing) with [`ranges`](crate::Backing::ranges) the frames are
    /// claimed there and so leave the backing too. The backing may hand out others of the range
    /// until the claim succeeds; a kernel isolates in its own store first.
    ///
    /// O(frames / 64) per attempt, at most five of them.
    ///
    /// # Errors
    /// [`RemoveError`]; nothing has changed then.
    pub fn remove_memory(&self, zone: ZoneId, range: FrameRange) -> Result<(), RemoveError> {
        let access = ZoneAccess::of(self, zone).map_err(|why| match why {
            NoAccess::Forked => RemoveError::Forked,
            NoAccess::NoSuchZone => RemoveError::NoSuchZone { zone: zone.get() },
        })?;
        remove(access, range)
    }
}

fn remove<C: Cpus>(zone: ZoneAccess<'_, '_, C>, range: FrameRange) -> Result<(), RemoveError> {
    let is_whole = range.start.get().is_multiple_of(PAGEBLOCK_FRAMES)
        && range.frames.is_multiple_of(PAGEBLOCK_FRAMES);
    if range.frames == 0 || !is_whole || range.end() >= 1 << 32 {
        return Err(RemoveError::NotRemovable { range });
    }
    if !zone.has_ranges() {
        return Err(RemoveError::Unsupported);
    }
    // See 5.
    let _moving = zone.announce(range.frames.into());
    let isolation = zone.isolate(range).map_err(|(pageblock, state)| {
        RemoveError::Obstacle(obstacle(zone, range, pageblock, state))
    })?;
    claim_patiently(zone, range)?;
    // All frames are this caller's.
    zone.remove(isolation);
    Ok(())
}

/// The obstacle that a pageblock in this state is.
fn obstacle<C: Cpus>(
    zone: ZoneAccess<'_, '_, C>,
    range: FrameRange,
    pageblock: PageblockIndex,
    state: PageblockState,
) -> Obstacle {
    let first = pageblock.first();
    match state {
        PageblockState::Absent => Obstacle::NoMemory { first },
        PageblockState::Isolated => Obstacle::Isolated { first },
        PageblockState::Carved(_) => {
            let (first, pages) = carved_in(zone, range).unwrap_or((first, 1));
            Obstacle::Carved { first, pages }
        }
        PageblockState::Serving(zone) => Obstacle::OtherZone { first, zone },
    }
}

/// Claims all frames of an isolated range, with drains in between.
fn claim_patiently<C: Cpus>(
    zone: ZoneAccess<'_, '_, C>,
    range: FrameRange,
) -> Result<(), RemoveError> {
    let mut missing = None;
    let mut drained = DrainResult::default();
    zone.forget_refusals();
    for mode in DRAINS {
        if let Some(mode) = mode {
            drained = zone.drain(mode);
        }
        missing = missing_in(zone, range);
        if missing.is_none() && zone.claim(range) {
            return Ok(());
        }
        if is_mutant(Mutant::RemovesHeld) {
            return Ok(());
        }
        if mode == Some(Mode::Full) {
            if missing.is_some() && is_undisturbed(drained) {
                break;
            }
            (0..DRAIN_SPINS).for_each(|_| spin_hint());
        }
    }
    let (first, pages) = missing.unwrap_or((range.start, 1));
    let skipped_cpus = drained.busy_cpus + drained.isolated_cpus;
    Err(RemoveError::Busy { first, pages, skipped_cpus })
}

/// Whether a full drain left no page in any cache, and none on the way.
fn is_undisturbed(drained: DrainResult) -> bool {
    drained.taken_pages == 0
        && drained.left_pages == 0
        && drained.in_flight_pages == 0
        && drained.busy_cpus == 0
}

#[cfg(all(test, not(loom)))]
mod tests {
    use core::mem::MaybeUninit;

    use crate::alloc::Allocator;
    use crate::alloc::config::Config;
    use crate::alloc::flags::Flags;
    use crate::alloc::one_cpu::{On, sections, zone};
    use crate::cpus::{CpuLock, Locked};
    use crate::frame::pageblock::PAGEBLOCK_FRAMES;
    use crate::frame::{FrameRange, Mobility, Order, ZoneId};

    /// Calls `test` with an allocator for one CPU over one section.
    fn with_allocator(test: impl FnOnce(&Allocator<'_, Locked<'_, On>>)) {
        let ranges = [sections(0..1)];
        let zones = [zone(&ranges)];
        let config = Config::new(1, &zones);
        let locks = [CpuLock::new()];
        let mut metadata = vec![
            MaybeUninit::uninit();
            Allocator::<Locked<'_, On>>::metadata_bytes(&config).unwrap()
        ];
        let cpus = Locked::new(&locks, On(0));
        test(&Allocator::new(&config, &mut metadata, cpus).unwrap());
    }

    /// Checks, for every mobility, that a pageblock which is allocated, freed and removed counts as
    /// unmovable no more, and can be added again.
    #[test]
    fn a_removed_pageblock_counts_as_unmovable_no_more() {
        with_allocator(|allocator| {
            let zone = ZoneId::new(0);
            let unmovable = || allocator.caches.store.section(0).unwrap().unmovable();
            for mobility in Mobility::ALL {
                let block = allocator.alloc(Order::PAGEBLOCK, Flags::new(mobility)).unwrap();
                allocator.free(block, Order::PAGEBLOCK).unwrap();
                let left = unmovable() - u32::from(mobility != Mobility::Movable);
                let range = FrameRange::new(block, PAGEBLOCK_FRAMES);
                allocator.remove_memory(zone, range).unwrap();
                assert_eq!(unmovable(), left, "{mobility:?}, removed");
                allocator.add_memory(zone, range, &mut []).unwrap();
                assert_eq!(unmovable(), left, "{mobility:?}, added again");
            }
        });
    }
}
