//! Compaction for a request that would fail otherwise.
//!
//! One request at a time compacts: the mover may allocate, and a request of its own that compacted
//! would enter it again. Another request that comes meanwhile fails as it would without a mover.
//!
//! Frames that were emptied are claimed while they are isolated, so no other request can take them.
//! A range that is free already is claimed without isolation where memory is low, unless another
//! caller has isolated it. The claim takes whole pageblocks: they become ones of the request's
//! mobility, as with any request that takes whole pageblocks, and the surplus goes back.
//!
//! Windows from which a block does not move are left, with what was freed around it. That may be
//! all that the request needs, so it looks once more at what is free before it fails.

use pagedepot::cpus::Cpus;
use pagedepot::seam::{PAGEBLOCK_FRAMES, PageblockIndex, PendingRequest, Want, ZoneAccess};
use pagedepot::{FrameRange, Pfn};

use super::compactor::Compactor;
use super::evacuate::{Evacuator, SourceRest};
use super::mover::Mover;
use super::params::{CompactEnd, Compaction};
use super::sources;
use super::survey::Key;

/// Candidates that a request empties at most.
const LOOKS_MAX: u64 = 16;

/// Allocates by moving held blocks. `None`: the request goes without.
#[cold]
pub(super) fn make_room<C: Cpus>(
    compactor: &Compactor<'_>,
    request: &PendingRequest<'_, '_, C>,
) -> Option<Pfn> {
    if request.pages() < 2 {
        return None;
    }
    let (mover, _turn) = compactor.begin()?;
    request.zones().find_map(|zone| make_room_in(zone, mover, request))
}

/// Allocates by moving held blocks, like [`make_room`], in one zone.
fn make_room_in<C: Cpus>(
    zone: ZoneAccess<'_, '_, C>,
    mover: &dyn Mover,
    request: &PendingRequest<'_, '_, C>,
) -> Option<Pfn> {
    if !zone.has_own_store() {
        return None;
    }
    let frames = request.pages() as u32;
    let align = match request.want() {
        Want::Block(order) => order.frames(),
        Want::Run { align, .. } => align,
        Want::At { .. } => 1,
    };
    let rules = Compaction::range(frames, align)
        .moves_max(4 * u64::from(frames.max(PAGEBLOCK_FRAMES)))
        .looks_max(LOOKS_MAX);
    let mut evacuation = Evacuator::new(zone, mover, rules);
    // Until what is claimed beyond the request has gone back.
    let _moving = zone.announce(request.pages());
    let mut claimed = None;
    let mut claim = |range| {
        let is_ours = zone.claim(range);
        claimed = is_ours.then_some(range);
        is_ours
    };
    evacuation.done.end = match request.want() {
        Want::At { start, frames, .. } => {
            empty_at(&mut evacuation, FrameRange::new(start, frames), claim)
        }
        _ => sources::empty_window(&mut evacuation, frames, align, &mut claim),
    };
    zone.count_compaction(&evacuation.done.counts());
    // What is claimed is not isolated any more.
    claimed.map(|claimed| zone.hand_out(claimed, request))
}

/// Empties one range, wherever it begins and ends.
fn empty_at<C: Cpus>(
    evacuation: &mut Evacuator<'_, '_, C>,
    range: FrameRange,
    take: impl FnOnce(FrameRange) -> bool,
) -> CompactEnd {
    if !evacuation.may_look() {
        return CompactEnd::Budget;
    }
    let key = Key { cost: evacuation.held_in(range), first: PageblockIndex::of(range.start).0 };
    let Some(mut source) = evacuation.isolate(range, key) else {
        return match evacuation.is_free(range) && take(range) {
            true => CompactEnd::Reached,
            false => evacuation.refusal.unwrap_or(CompactEnd::NothingLeft),
        };
    };
    evacuation.drain();
    match evacuation.empty(&mut source, None) {
        SourceRest::Nothing if take(range) => CompactEnd::Reached,
        SourceRest::Ended(end) => end,
        _ => CompactEnd::NothingLeft,
    }
}
