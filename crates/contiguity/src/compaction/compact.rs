//! Compaction for callers: held blocks are moved out of some pageblocks into others, so that the
//! former become whole.

use pagedepot::cpus::Cpus;
use pagedepot::seam::{PAGEBLOCK_FRAMES, ZoneAccess};
use pagedepot::{Allocator, ZoneId};

use super::evacuate::Evacuator;
use super::mover::Mover;
use super::params::{CompactError, CompactResult, Compaction, Target};
use super::sources;

/// Implements [`Contiguity::compact`](crate::Contiguity::compact).
pub fn compact<C: Cpus>(
    allocator: &Allocator<'_, C>,
    zone: ZoneId,
    compaction: Compaction,
    mover: &dyn Mover,
) -> Result<CompactResult, CompactError> {
    let zone = ZoneAccess::of(allocator, zone).map_err(|why| CompactError::of(why, zone))?;
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
