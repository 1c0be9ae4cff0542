//! Compaction for a request that would fail otherwise.
//!
//! One request at a time compacts: the mover may allocate, and a request of its own that compacted
//! would enter it again. Another request that comes meanwhile fails as it would without a mover.
//!
//! What was emptied is claimed while it is still isolated, so no other request can take it. The
//! claim takes whole pageblocks: they become ones of the request's mobility, as with any request
//! that takes whole pageblocks, and what is too much goes back.

use super::compaction::{CompactEnd, Compaction};
use super::compactor::Compactor;
use super::evacuate::{Evacuator, SourceRest};
use super::mover::Mover;
use super::sources;
use crate::alloc::hooks::Hooks;
use crate::alloc::isolation::Claims;
use crate::alloc::walk::{Request, Walk, Want};
use crate::cpus::Cpus;
use crate::frame::pageblock::{PAGEBLOCK_FRAMES, Tag};
use crate::frame::{FrameRange, Pfn, ZoneId};

/// Candidates that a request empties at most.
const LOOKS_MAX: u64 = 16;

/// Allocates by moving held blocks, if the request may; `None`: there is nothing to have. `None`:
/// nothing.
#[cold]
pub(super) fn make_room<C: Cpus>(
    compactor: &Compactor<'_>,
    hooks: &Hooks<'_, '_, C>,
    request: Request,
) -> Option<Pfn> {
    if !request.flags.may_compact() || request.pages() < 2 {
        return None;
    }
    let (mover, _turn) = compactor.begin()?;
    let walk = Walk { caches: hooks.caches };
    walk.zones_of(request).find_map(|zone| {
        let may_give = hooks.caches.may_give(zone, request.pages(), request.reserve());
        may_give.then(|| make_room_in(hooks, zone, mover, request)).flatten()
    })
}

/// Allocates by moving held blocks, like [`make_room`], in one zone.
fn make_room_in<C: Cpus>(
    hooks: &Hooks<'_, '_, C>,
    zone: ZoneId,
    mover: &dyn Mover,
    request: Request,
) -> Option<Pfn> {
    let frames = request.pages() as u32;
    let align = match request.want {
        Want::Block(order) => order.frames(),
        Want::Run { align, .. } => align,
        Want::At { .. } => 1,
    };
    let rules = Compaction::range(frames, align)
        .moves_max(4 * u64::from(frames.max(PAGEBLOCK_FRAMES)))
        .looks_max(LOOKS_MAX);
    let claims = Claims(hooks.caches);
    let mut evacuation = Evacuator::new(hooks, hooks.caches.store.bitmap()?, zone, mover, rules);
    let mut claimed = None;
    let mut claim = |range| {
        let is_ours = claims.claim(zone, range);
        claimed = is_ours.then_some(range);
        is_ours
    };
    evacuation.done.end = match request.want {
        Want::At { start, frames, .. } => {
            empty_at(&mut evacuation, FrameRange::new(start, frames), claim)
        }
        _ => sources::empty_window(&mut evacuation, frames, align, &mut claim),
    };
    let done = evacuation.done;
    let state = hooks.caches.zones.get(zone);
    state.compactions.count(&done.counts());
    let claimed = claimed?;
    // What is claimed is not isolated any more.
    let tag = Tag::new(zone, request.flags.mobility());
    hooks.caches.store.note_run(tag, claimed.start, claimed.frames);
    claims.put(zone, claimed.start.add(frames), claimed.frames - frames);
    hooks.caches.direct(hooks.caches.here(), zone).count_allocs(0, u64::from(frames));
    Some(claimed.start)
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
    let held = evacuation.held_in(range);
    let Some(mut source) = evacuation.isolate(range, held) else {
        return evacuation.refusal.unwrap_or(CompactEnd::NothingLeft);
    };
    evacuation.drain();
    match evacuation.empty(&mut source, None) {
        SourceRest::Nothing if take(range) => CompactEnd::Reached,
        SourceRest::Ended(end) => end,
        _ => CompactEnd::NothingLeft,
    }
}
