//! The pageblocks that compaction empties, and their order.
//!
//! # Vocabulary
//! *Source*: a pageblock, or a window of them, to be emptied. *Destination*: a partly used
//! pageblock with more held frames than the source. *Mover*: see [`Mover`]. *Evacuation*: emptying
//! one source, see [`evacuate`](super::evacuate), which has the argument why nothing is lost.
//!
//! # Order
//! Pageblocks with the fewest held frames first: they free the most for the least. Windows
//! likewise, by the sum over their pageblocks. Pageblocks that serve unmovable requests come last,
//! when no other one can be emptied any more. They are no destinations, so what they hold goes to
//! any movable pageblock that is partly used. Most hold blocks that the mover does not know: these
//! pageblocks are not even isolated, which would have unmovable requests mix others meanwhile. A
//! frame that a CPU caches is such a block, so the drain that comes first is all that helps there.
//!
//! A source with one pinned block is left before any of its blocks is moved. Linux's compaction
//! (`mm/compaction.c`) moves from one end of a zone to the other and meets in the middle instead,
//! which needs no count per pageblock, and moves frames out of dense pageblocks too.
//!
//! A walk takes cached frames for held ones: a sparse pageblock looks dense, and the room of its
//! cached frames is missed. So caches are drained before the first walk, too.
//!
//! Each source is visited at most once, in ascending order of its key. A destination has a higher
//! key than its source, or is movable when all sources still to come are unmovable. So a compaction
//! ends, and frames never go back and forth.

use pagedepot::FrameRange;
use pagedepot::cpus::Cpus;
use pagedepot::seam::{PAGEBLOCK_FRAMES, PageblockIndex};
use pagedepot::sync::model::bound;

use super::evacuate::{Evacuator, SourceRest};
use super::params::CompactEnd;
use super::survey::{self, Key, KeyRanking, Windows};

/// Pageblocks that are isolated, and drained, at a time.
const GROUP: usize = bound(8, 1);

/// Empties the sparsest pageblocks, one group after the other.
pub(super) fn empty_pageblocks<C: Cpus>(
    evacuation: &mut Evacuator<'_, '_, C>,
    count: Option<u32>,
) -> CompactEnd {
    let zone = evacuation.zone;
    if count.is_none_or(|count| evacuation.whole_pageblocks() < u64::from(count)) {
        evacuation.drain();
    }
    let mut after = None;
    loop {
        let mut ranked = KeyRanking::after(after);
        let (mut whole, mut last) = (0, Key::NONE);
        evacuation.room_pages = 0;
        for usage in survey::usages(zone) {
            whole += u64::from(usage.is_whole());
            evacuation.room_pages += u64::from(survey::room(usage));
            let key = survey::key(usage);
            // A full one of movable blocks has no higher key to go to.
            let has_above = usage.held < PAGEBLOCK_FRAMES || key.is_unmovable();
            if !usage.is_whole() && has_above {
                ranked.add(key);
                last = last.max(key);
            }
        }
        let emptied_before = evacuation.done.emptied_pageblocks;
        let missing = |evacuation: &Evacuator<'_, '_, C>| {
            let now = whole + evacuation.done.emptied_pageblocks - emptied_before;
            count.map(|count| u64::from(count).saturating_sub(now))
        };
        if missing(evacuation) == Some(0) {
            return CompactEnd::Reached;
        }
        // The walk that comes before unmovable ones finds the room that the others have left.
        let mut keys = ranked.keys_of_a_kind();
        if keys.is_empty() {
            return CompactEnd::NothingLeft;
        }
        after = keys.last().copied();
        while !keys.is_empty() {
            let length = missing(evacuation).unwrap_or(u64::MAX).min(GROUP as u64) as usize;
            let group = &keys[..length.min(keys.len())];
            let looked = match empty_group(evacuation, group) {
                Ok(looked) => looked,
                Err(CompactEnd::NothingLeft) if last.is_unmovable() && !group[0].is_unmovable() => {
                    after = Some(Key::MOVABLE_MAX);
                    break;
                }
                Err(end) => return end,
            };
            keys = &keys[looked..];
            if missing(evacuation) == Some(0) {
                // The next walk tells whether other callers have taken some again.
                after = group[..looked].last().copied();
                break;
            }
        }
    }
}

/// Isolates a group of pageblocks, as many of these as there is room for elsewhere, drains once,
/// and empties them. Returns how many, at least one.
fn empty_group<C: Cpus>(
    evacuation: &mut Evacuator<'_, '_, C>,
    group: &[Key],
) -> Result<usize, CompactEnd> {
    let mut sources = [const { None }; GROUP];
    let mut looked = 0;
    for (source, key) in sources.iter_mut().zip(group) {
        let room_pages = evacuation.room_pages;
        if evacuation.has_room(*key) && evacuation.may_look() {
            let range = FrameRange::new(PageblockIndex(key.first).first(), PAGEBLOCK_FRAMES);
            *source = evacuation.isolate(range, *key);
        }
        if evacuation.refusal.is_some() {
            // The next group begins with it.
            evacuation.room_pages = room_pages;
            break;
        }
        looked += 1;
    }
    if looked == 0 {
        evacuation.refusal.map_or(Ok(()), Err)?;
    }
    if sources.iter().any(Option::is_some) {
        evacuation.drain();
    }
    for (source, key) in sources.iter_mut().zip(&group[..looked]) {
        let left = match source.take() {
            Some(mut source) => {
                let floor = (!key.is_unmovable()).then_some(*key);
                evacuation.empty(&mut source, floor)
            }
            None => SourceRest::Blocks,
        };
        match left {
            SourceRest::Nothing => evacuation.done.emptied_pageblocks += 1,
            _ => evacuation.spare_room(*key),
        }
        evacuation.end_after(left).map_or(Ok(()), Err)?;
    }
    Ok(looked)
}

/// Empties windows, the cheapest first, until `take` takes one. It is isolated meanwhile, unless it
/// was free and memory is low.
pub(super) fn empty_window<C: Cpus>(
    evacuation: &mut Evacuator<'_, '_, C>,
    frames: u32,
    align: u32,
    mut take: impl FnMut(FrameRange) -> bool,
) -> CompactEnd {
    let windows = Windows {
        pageblocks: frames.div_ceil(PAGEBLOCK_FRAMES),
        step: (align / PAGEBLOCK_FRAMES).max(1),
    };
    let zone = evacuation.zone;
    let mut after = None;
    loop {
        let mut ranked = KeyRanking::after(after);
        windows.rank(zone, &mut ranked);
        let Some(&last) = ranked.keys().last() else { return CompactEnd::NothingLeft };
        for key in ranked.keys() {
            if !evacuation.may_look() {
                return CompactEnd::Budget;
            }
            let first = PageblockIndex(key.first).first();
            let range = FrameRange::new(first, windows.pageblocks * PAGEBLOCK_FRAMES);
            let used = (key.first..key.first + windows.pageblocks)
                .filter_map(|at| zone.usage(PageblockIndex(at)))
                .filter(|usage| !usage.is_whole())
                .count() as u64;
            let mut source = evacuation.isolate(range, *key);
            let left = match &mut source {
                Some(source) => {
                    if key.held() > 0 {
                        evacuation.drain();
                    }
                    evacuation.empty(source, None)
                }
                None if evacuation.is_free(range) => SourceRest::Nothing,
                None if evacuation.refusal.is_some() => {
                    return evacuation.refusal.unwrap_or_default();
                }
                None => SourceRest::Blocks,
            };
            if left == SourceRest::Nothing && take(range) {
                evacuation.done.emptied_pageblocks += used;
                evacuation.done.range = Some(FrameRange::new(first, frames));
                return CompactEnd::Reached;
            }
            drop(source);
            if let Some(end) = evacuation.end_after(left) {
                return end;
            }
        }
        after = Some(last);
    }
}
