//! Movable blocks give way to a request that is not movable, before it mixes a pageblock.
//!
//! An unmovable block in a pageblock of movable ones keeps that from ever being whole again. When
//! neither a whole pageblock nor room in an akin one is left, a request with
//! [`Flags::compact`](pagedepot::Flags::compact) so has movable blocks moved away by the registered
//! mover. It *thins* a pageblock: what can be moved leaves it, what cannot stays. If the request
//! finds a block there then, it serves the request's mobility from then on, with room for hundreds
//! of requests. Movable blocks that the mover was asked to move, and did not, leave it when a later
//! request would mix a pageblock; those that it called pinned before are forgotten. The kernel has
//! these ideas apart: compaction makes whole pageblocks, and `steal_suitable_fallback`
//! (`mm/page_alloc.c`) retags those of which half is free or akin.
//!
//! # Order
//! First what is mixed already: pageblocks that are not movable, but serve movable blocks that came
//! when all else was taken, and movable ones that the request would have to share otherwise. Then
//! the sparsest of the next few movable ones; where no block can come of that, denser ones.
//!
//! # Argument
//! *Nothing is lost*: thinning is an [evacuation](super::evacuate) that leaves what is pinned or
//! unknown where it is; the argument there covers each block that moves. The tag's change is argued
//! in `store/section.rs`.
//!
//! *No request fails for it.* It happens above the `low` watermark alone, and whatever comes of it
//! the request goes on as it would have: over all of the zone, with all frames back.
//!
//! *It is bounded.* A request looks at [`MIXED_MAX`] and [`SPARSE_MAX`] pageblocks, moves at most
//! their blocks, and ranks at most [`RANKED`] for each of the latter. One request at a time does
//! so; others go on without it, as all do while it is [in vain](super::compactor).
//!
//! *Blocks do not go back and forth.* Destinations are movable pageblocks alone
//! ([`ZoneAccess::take`]), which become thinned ones only for requests that fill these.

use pagedepot::cpus::Cpus;
use pagedepot::seam::{PageblockIndex, PendingRequest, Want, ZoneAccess};
use pagedepot::sync::model::bound;
use pagedepot::{Mobility, Order, Pfn};

use super::compactor::{Compactor, ConfineState, PageblockKind};
use super::evacuate::{Evacuator, SourceRest};
use super::mover::Mover;
use super::params::{CompactEnd, Compaction};
use super::survey::{self, Key};

/// Mixed pageblocks that a request thins at most.
const MIXED_MAX: u32 = bound(4, 1);
/// Most sparse pageblocks that a request looks at.
const SPARSE_MAX: u32 = bound(4, 1);
/// Partly used pageblocks of which it takes the sparsest.
const RANKED: usize = bound(64, 2);

/// Allocates a block from a pageblock that is akin to a request which may move others, and would
/// mix pageblocks. `None`: the request goes on as all do.
pub(super) fn alloc<C: Cpus>(
    compactor: &Compactor<'_>,
    request: &PendingRequest<'_, '_, C>,
) -> Option<Pfn> {
    let is_small = matches!(request.want(), Want::Block(order) if order < Order::PAGEBLOCK);
    if !request.may_compact() || request.mobility() == Mobility::Movable || !is_small {
        return None;
    }
    let confining = compactor.confining()?;
    request.attempt_unmixed().or_else(|| {
        let (mover, _turn) = compactor.begin()?;
        let found = make_room(mover, confining, request);
        confining.note(found.is_some());
        found
    })
}

/// Allocates for the request once pageblocks of one of its zones are thinned.
#[cold]
fn make_room<C: Cpus>(
    mover: &dyn Mover,
    confining: &ConfineState,
    request: &PendingRequest<'_, '_, C>,
) -> Option<Pfn> {
    request.zones().find_map(|zone| make_room_in(zone, mover, confining, request))
}

fn make_room_in<C: Cpus>(
    zone: ZoneAccess<'_, '_, C>,
    mover: &dyn Mover,
    confining: &ConfineState,
    request: &PendingRequest<'_, '_, C>,
) -> Option<Pfn> {
    let Want::Block(order) = request.want() else { return None };
    if !zone.has_own_store() {
        return None;
    }
    let rules = Compaction::all().looks_max(u64::from(MIXED_MAX + SPARSE_MAX));
    let mut evacuation = Evacuator::new(zone, mover, rules);
    let (mut found, mut passed) = (None, Key::NONE);
    for look in 0..MIXED_MAX + SPARSE_MAX {
        let kind = if look < MIXED_MAX { PageblockKind::Mixed } else { PageblockKind::Sparse };
        let Some(pageblock) = next(zone, confining, kind, &mut passed) else { continue };
        if !evacuation.may_look() {
            break;
        }
        if let Some(left) = evacuation.thin(pageblock, request.mobility(), order) {
            zone.lead_to(pageblock, request.mobility());
            found = request.attempt_unmixed();
            let is_here = found.is_some_and(|found| PageblockIndex::of(found) == pageblock);
            if is_here && left != SourceRest::Nothing {
                // For a later request that would mix a pageblock.
                zone.note_guests(pageblock);
            }
        }
        if found.is_some() || evacuation.refusal.is_some() {
            break;
        }
    }
    evacuation.done.end = match found {
        Some(_) => CompactEnd::Reached,
        None => evacuation.refusal.unwrap_or(CompactEnd::NothingLeft),
    };
    zone.count_compaction(&evacuation.done.counts());
    found
}

/// The next pageblock to thin, from where the last look was. A sparse one has a higher key than the
/// one that the request has passed, if it has.
fn next<C: Cpus>(
    zone: ZoneAccess<'_, '_, C>,
    confining: &ConfineState,
    kind: PageblockKind,
    passed: &mut Key,
) -> Option<PageblockIndex> {
    let from = confining.from(kind);
    let (pageblock, go_on_at) = match kind {
        PageblockKind::Mixed => {
            let found = survey::next_mixed(zone, from)?;
            (Some(found), found.0 + 1)
        }
        PageblockKind::Sparse => {
            let (found, behind) = survey::next_sparse(zone, from, RANKED, *passed);
            *passed = found.unwrap_or(*passed);
            (found.map(|key| PageblockIndex(key.first)), behind)
        }
    };
    confining.go_on_at(kind, go_on_at);
    pageblock
}
