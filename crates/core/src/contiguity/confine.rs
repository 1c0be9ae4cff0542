//! Movable blocks give way to a request that is not movable, before it mixes a pageblock.
//!
//! An unmovable block in a pageblock of movable ones keeps that from ever being whole again. When
//! neither a whole pageblock nor room in an akin one is left, a request with
//! [`Flags::compact`](crate::Flags::compact) so has movable blocks moved away by the registered
//! mover. It *thins* a pageblock: what can be moved leaves it, what cannot stays. From then on it
//! serves the request's mobility, with room for hundreds of requests. The kernel has these ideas
//! apart: compaction makes whole pageblocks, and `steal_suitable_fallback` (`mm/page_alloc.c`)
//! retags those of which half is free or akin.
//!
//! # Order
//! First what is mixed already: pageblocks that are not movable, but serve movable blocks that came
//! when all else was taken, and movable ones that the request would have to share otherwise. Then
//! the sparsest of the next few movable ones.
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
//! ([`SearchManner::UNMIXED`](crate::store::SearchManner)), which become thinned ones only for
//! requests that fill these.

use super::compaction::{CompactEnd, Compaction};
use super::compactor::{Compactor, ConfineState, PageblockKind};
use super::evacuate::Evacuator;
use super::mover::Mover;
use crate::alloc::flags::Flags;
use crate::alloc::hooks::Hooks;
use crate::alloc::walk::Walk;
use crate::cpus::Cpus;
use crate::frame::pageblock::PageblockIndex;
use crate::frame::{Mobility, Order, Pfn, ZoneId};
use crate::store::{SearchManner, SearchRequest};
use crate::sync::prim::Ordering;
use crate::zone::Reserve;

/// Mixed pageblocks that a request thins at most.
const MIXED_MAX: u32 = if cfg!(loom) { 1 } else { 4 };
/// Most sparse pageblocks that a request looks at.
const SPARSE_MAX: u32 = if cfg!(loom) { 1 } else { 4 };
/// Partly used pageblocks of which it takes the sparsest.
const RANKED: usize = if cfg!(loom) { 2 } else { 64 };

/// A block from a pageblock that is akin to a request which may move others, and would mix
/// pageblocks. `None`: the request goes on as all do.
pub(super) fn alloc<C: Cpus>(
    compactor: &Compactor<'_>,
    hooks: &Hooks<'_, '_, C>,
    order: Order,
    flags: Flags,
) -> Option<Pfn> {
    if !flags.may_compact() || flags.mobility() == Mobility::Movable || order >= Order::PAGEBLOCK {
        return None;
    }
    let confining = compactor.confining()?;
    let request = UnmixedRequest { hooks, order, flags: flags.unmixed() };
    request.attempt().or_else(|| {
        let (mover, _turn) = compactor.begin()?;
        let found = request.make_room(mover, confining);
        confining.note(found.is_some());
        found
    })
}

/// A request that mixes no pageblock.
struct UnmixedRequest<'r, 'a, 'm, C> {
    hooks: &'r Hooks<'a, 'm, C>,
    order: Order,
    flags: Flags,
}

impl<'a, 'm, C: Cpus> UnmixedRequest<'_, 'a, 'm, C> {
    fn walk(&self) -> Walk<'a, 'm, C> {
        Walk { caches: self.hooks.caches }
    }

    fn attempt(&self) -> Option<Pfn> {
        self.walk().alloc(self.order, self.flags, Reserve::AboveLow)
    }

    /// Allocates for the request once pageblocks of one of its zones are thinned.
    #[cold]
    fn make_room(&self, mover: &dyn Mover, confining: &ConfineState) -> Option<Pfn> {
        let caches = self.hooks.caches;
        let (walk, node) = (self.walk(), caches.node_of(caches.here()));
        walk.zones_for(node, self.flags).find_map(|zone| {
            let pages = self.order.frames().into();
            let may_give = caches.may_give(zone, pages, Reserve::AboveLow);
            may_give.then(|| self.make_room_in(zone, mover, confining)).flatten()
        })
    }

    fn make_room_in(
        &self,
        zone: ZoneId,
        mover: &dyn Mover,
        confining: &ConfineState,
    ) -> Option<Pfn> {
        let rules = Compaction::all().looks_max(u64::from(MIXED_MAX + SPARSE_MAX));
        let bitmap = self.hooks.caches.store.bitmap()?;
        let mut evacuation = Evacuator::new(self.hooks, bitmap, zone, mover, rules);
        let mut found = None;
        for look in 0..MIXED_MAX + SPARSE_MAX {
            let kind = if look < MIXED_MAX { PageblockKind::Mixed } else { PageblockKind::Sparse };
            let Some(pageblock) = next(&evacuation, confining, kind) else { continue };
            if !evacuation.may_look() {
                break;
            }
            if evacuation.thin(pageblock, self.flags.mobility()) {
                self.lead_to(zone, pageblock);
                found = self.attempt();
            }
            if found.is_some() || evacuation.refusal.is_some() {
                break;
            }
        }
        evacuation.done.end = match found {
            Some(_) => CompactEnd::Reached,
            None => evacuation.refusal.unwrap_or(CompactEnd::NothingLeft),
        };
        let state = self.hooks.caches.zones.get(zone);
        state.compactions.count(&evacuation.done.counts());
        found
    }

    /// Searches of this CPU begin at a pageblock.
    fn lead_to(&self, zone: ZoneId, pageblock: PageblockIndex) {
        let caches = self.hooks.caches;
        let lead = |wanted: &SearchRequest<'_>| {
            wanted.hint.store(pageblock.0, Ordering::Relaxed);
        };
        caches.direct(caches.here(), zone).search(
            Order::BASE,
            self.flags.mobility(),
            SearchManner::UNMIXED,
            lead,
        );
    }
}

/// The next pageblock to thin, from where the last look was.
fn next<C: Cpus>(
    evacuation: &Evacuator<'_, '_, C>,
    confining: &ConfineState,
    kind: PageblockKind,
) -> Option<PageblockIndex> {
    let (bitmap, span, from) = (evacuation.bitmap, evacuation.span(), confining.from(kind));
    let (pageblock, go_on_at) = match kind {
        PageblockKind::Mixed => bitmap.next_mixed(span, from).map(|found| (found, found.0 + 1))?,
        PageblockKind::Sparse => bitmap.next_sparse((evacuation.zone, span), from, RANKED)?,
    };
    confining.go_on_at(kind, go_on_at);
    Some(pageblock)
}
