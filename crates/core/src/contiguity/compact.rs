//! Compaction for callers: held blocks are moved out of some pageblocks into others, so that the
//! former become whole.

use super::compaction::{CompactError, CompactResult, Compaction, Target};
use super::evacuate::Evacuator;
use super::mover::Mover;
use super::sources;
use crate::cpus::Cpus;
use crate::seam::{PAGEBLOCK_FRAMES, ZoneAccess};
use crate::{Allocator, ZoneId};

impl<C: Cpus> Allocator<'_, C> {
    /// Moves held blocks by `mover` until the target is there: whole pageblocks, or a contiguous
    /// range, in one zone.
    ///
    /// The pageblocks to be emptied are isolated meanwhile, 8 at a time, or a window of the range's
    /// size: requests pass them by, and frees of their frames go past the caches. Everything else
    /// goes on. Nothing is isolated, or stays so, when that would leave the zone's other free
    /// memory below its `low` watermark. A request that would fail meanwhile looks again, as beside
    /// [`remove_memory`](Self::remove_memory).
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
    /// may be: see [`Config::on_misuse`](crate::Config::on_misuse).
    pub fn compact(
        &self,
        zone: ZoneId,
        compaction: Compaction,
        mover: &dyn Mover,
    ) -> Result<CompactResult, CompactError> {
        let zone = ZoneAccess::of(self, zone).map_err(|why| CompactError::of(why, zone))?;
        if !zone.has_own_store() {
            return Err(CompactError::Unsupported);
        }
        let managed = zone.managed_pages() / u64::from(PAGEBLOCK_FRAMES);
        let wanted = match compaction.target {
            Target::Pageblocks(count) => count.map_or(0, u64::from),
            Target::Range { frames, align } if frames == 0 || !align.is_power_of_two() => {
                return Err(CompactError::BadRange { frames, align });
            }
            Target::Range { frames, .. } => u64::from(frames.div_ceil(PAGEBLOCK_FRAMES)),
        };
        if wanted > managed {
            return Err(CompactError::TooLarge { wanted, managed });
        }
        let mut evacuation = Evacuator::new(zone, mover, compaction);
        evacuation.done.end = match compaction.target {
            Target::Pageblocks(count) => sources::empty_pageblocks(&mut evacuation, count),
            Target::Range { frames, align } => {
                sources::empty_window(&mut evacuation, frames, align, |_| true)
            }
        };
        evacuation.done.whole_pageblocks = evacuation.whole_pageblocks();
        let done = evacuation.done;
        zone.count_compaction(&done.counts());
        zone.end_call();
        Ok(done)
    }
}
