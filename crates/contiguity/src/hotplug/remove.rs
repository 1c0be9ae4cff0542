//! Taking memory out again: isolate, claim, drain, forget; and giving it other requests to serve.
//!
//! # Vocabulary
//! A pageblock is *isolated* while its tag says that a caller is adding or removing it (see
//! [`Isolation`](pagedepot::seam::Isolation)). The *remover* is the caller of
//! [`remove_memory`](crate::Contiguity::remove_memory).
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
//!    error; dropping the [`Isolation`](pagedepot::seam::Isolation) gives the pageblocks the
//!    mobility they had, also when a panic unwinds (a drain may report misuse). The remover's
//!    frames are announced as in flight from before the isolation until then, so that a request
//!    that would fail in between looks again.
//! 6. *Reassigned in one step.* A caller that gives the range to other requests does the same up to
//!    the claim, and claims nothing: once it has seen each isolated pageblock whole, it sets what
//!    they serve, and ends the isolation. The zone has the memory throughout; what is not present,
//!    or reported, stays so. A search that read a tag before may take frames for the mobility that
//!    they had, as it might after a claim: no caller relies on that of a frame. Such a pageblock is
//!    not noted as mixed, which is a hint.
//! 7. *It ends.* Attempts: at once; after a quiet drain of the zone; after up to three full ones,
//!    fewer when a full drain was undisturbed and frames are missing all the same. It waits for no
//!    holder of a frame.
//! 8. *A removal reports no misuse* but by its drains, while nothing is claimed. The report may
//!    panic, and a caller that unwinds would not learn that it owns the range. What was noted since
//!    is for the next call.

use core::fmt;

use pagedepot::cpus::Cpus;
use pagedepot::seam::{
    Isolation, NoAccess, PAGEBLOCK_FRAMES, PageblockIndex, PageblockState, ZoneAccess,
};
use pagedepot::sync::model::{Mutant, bound, is_mutant};
use pagedepot::sync::prim::spin_hint;
use pagedepot::{Allocator, DrainResult, Flags, FrameRange, Mode, Pfn, ZoneId};

use super::obstacle::{Obstacle, carved_in, missing_in, refused_in};

/// Drains before each attempt to claim the range.
const DRAINS: [Option<Mode>; 5] =
    [None, Some(Mode::Quiet), Some(Mode::Full), Some(Mode::Full), Some(Mode::Full)];
/// Spins before a drain is repeated, for pages in other callers' hands to arrive.
const DRAIN_SPINS: u32 = bound(1000, 1);

/// The reason why memory was neither removed nor reassigned. Nothing was changed.
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
    /// magazines, another caller is adding or removing it, or the reporting device refuses to give
    /// it back.
    Obstacle(Obstacle),
    /// Frames are not in the store. Free them and call again.
    Busy {
        /// The first of them; if there was none at the last look, the first of the range.
        first: Pfn,
        /// Number of pages, at the last look. 0: none, as where other callers have taken some of
        /// them and given them back since.
        pages: u64,
        /// CPUs whose fronts could not be drained, because they are isolated or did not answer:
        /// they may cache some of the pages. [`CpuCaches::disable`](pagedepot::CpuCaches::disable)
        /// drains isolated ones too.
        skipped_cpus: u64,
    },
    /// The [`Backing`](pagedepot::Backing) under this allocator cannot find frames at given
    /// addresses.
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
            RemoveError::Busy { pages: 0, .. } => {
                f.write_str("all pages are free, but could not be taken at any attempt: try again")
            }
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

/// Implements [`Contiguity::remove_memory`](crate::Contiguity::remove_memory).
pub fn remove_memory<C: Cpus>(
    allocator: &Allocator<'_, C>,
    zone: ZoneId,
    range: FrameRange,
) -> Result<(), RemoveError> {
    let zone = access(allocator, zone)?;
    with_whole(zone, range, || zone.claim(range), |isolation| zone.remove(isolation))
}

/// Implements [`Contiguity::reassign`](crate::Contiguity::reassign).
pub fn reassign<C: Cpus>(
    allocator: &Allocator<'_, C>,
    zone: ZoneId,
    range: FrameRange,
    flags: Flags,
) -> Result<(), RemoveError> {
    let zone = access(allocator, zone)?;
    let nothing_to_claim = || true;
    with_whole(zone, range, nothing_to_claim, |isolation| {
        let pageblocks = isolation.pageblocks().map(PageblockIndex);
        pageblocks.for_each(|pageblock| zone.reassign(pageblock, flags));
    })
}

fn access<'a, 'm, C: Cpus>(
    allocator: &'a Allocator<'m, C>,
    zone: ZoneId,
) -> Result<ZoneAccess<'a, 'm, C>, RemoveError> {
    ZoneAccess::of(allocator, zone).map_err(|why| match why {
        NoAccess::Forked => RemoveError::Forked,
        NoAccess::NoSuchZone => RemoveError::NoSuchZone { zone: zone.get() },
    })
}

/// Calls `then` when all frames of a range were free, isolated as they are, and `claim` has
/// succeeded.
fn with_whole<'a, 'm, C: Cpus>(
    zone: ZoneAccess<'a, 'm, C>,
    range: FrameRange,
    claim: impl Fn() -> bool,
    then: impl FnOnce(Isolation<'a, 'm>),
) -> Result<(), RemoveError> {
    let is_whole = range.start.get().is_multiple_of(PAGEBLOCK_FRAMES)
        && range.frames.is_multiple_of(PAGEBLOCK_FRAMES);
    if range.frames == 0 || !is_whole || range.end() >= 1 << 32 {
        return Err(RemoveError::NotRemovable { range });
    }
    if !zone.has_ranges() {
        return Err(RemoveError::Unsupported);
    }
    // See 5. A range that no zone has may be of more pages than the word of those in flight can
    // count.
    let _moving = zone.announce(u64::from(range.frames).min(zone.managed_pages()));
    let isolation = zone.isolate(range).map_err(|(pageblock, state)| {
        RemoveError::Obstacle(obstacle(zone, range, pageblock, state))
    })?;
    claim_patiently(zone, range, claim)?;
    then(isolation);
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

/// Claims all frames of an isolated range by `claim`, with drains in between.
fn claim_patiently<C: Cpus>(
    zone: ZoneAccess<'_, '_, C>,
    range: FrameRange,
    claim: impl Fn() -> bool,
) -> Result<(), RemoveError> {
    let mut missing = None;
    let mut drained = DrainResult::default();
    zone.forget_refusals();
    for mode in DRAINS {
        if let Some(mode) = mode {
            drained = zone.drain(mode);
        }
        missing = missing_in(zone, range);
        if missing.is_none() && claim() {
            return Ok(());
        }
        if is_mutant(Mutant::RemovesHeld) {
            return Ok(());
        }
        // No drain helps against that.
        if missing.is_none()
            && let Some(refused) = refused_in(zone, range)
        {
            return Err(RemoveError::Obstacle(refused));
        }
        if mode == Some(Mode::Full) {
            if missing.is_some() && is_undisturbed(drained) {
                break;
            }
            (0..DRAIN_SPINS).for_each(|_| spin_hint());
        }
    }
    let (first, pages) = missing.unwrap_or((range.start, 0));
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
