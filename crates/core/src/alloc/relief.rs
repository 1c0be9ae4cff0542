//! The seam between requests and what makes room for them by moving blocks of other callers.
//!
//! A request knows neither movers nor compaction. It asks the registered relief at two moments: on
//! its slow path, before it would take a block from a pageblock of another mobility, and before it
//! fails. `pagedepot_contiguity::Compactor` is one.

use super::flags::Flags;
use super::hooks::Hooks;
use super::walk::{Request, Want};
use crate::cpus::Cpus;
use crate::frame::{Mobility, Pfn, ZoneId};
use crate::sync::late_init::LateInit;
use crate::zone::Reserve;

/// Makes room for requests. `None` from either call: the request goes on as without a relief.
///
/// Both are called on the thread of the request, above the locks that its caller holds, and may
/// allocate: they must end when a request of their own comes back to them.
pub trait Relief<C>: Sync {
    /// Finds a block for a request above the `low` watermark without mixing mobilities in a
    /// pageblock. Called for every request that its front does not serve, so the answer to a
    /// request that does not want relief costs a few instructions.
    fn before_mixing(&self, request: &PendingRequest<'_, '_, C>) -> Option<Pfn>;

    /// Finds the frames for a request for which the last resort has found none.
    fn before_failing(&self, request: &PendingRequest<'_, '_, C>) -> Option<Pfn>;
}

/// A request that asks for relief.
pub struct PendingRequest<'a, 'm, C> {
    pub(crate) hooks: Hooks<'a, 'm, C>,
    want: Want,
    flags: Flags,
    reserve: Reserve,
}

impl<'a, 'm, C: Cpus> PendingRequest<'a, 'm, C> {
    /// A request that would mix a pageblock next.
    pub(super) fn above_low(hooks: Hooks<'a, 'm, C>, want: Want, flags: Flags) -> Self {
        PendingRequest { hooks, want, flags, reserve: Reserve::AboveLow }
    }

    /// A request that would fail next.
    pub(super) fn at_last(hooks: Hooks<'a, 'm, C>, request: Request) -> Self {
        let reserve = request.reserve();
        PendingRequest { hooks, want: request.want, flags: request.flags, reserve }
    }

    /// The frames that satisfy the request.
    pub fn want(&self) -> Want {
        self.want
    }

    /// Number of pages that the request is for.
    pub fn pages(&self) -> u64 {
        self.want.pages()
    }

    /// The mobility of the request.
    pub fn mobility(&self) -> Mobility {
        self.flags.mobility()
    }

    /// Whether held blocks may be moved for the request: it says [`Flags::compact`], and may
    /// reclaim.
    pub fn may_compact(&self) -> bool {
        self.flags.may_compact()
    }

    /// The zones that may serve the request, the best first.
    pub(crate) fn zone_ids(&self) -> impl Iterator<Item = ZoneId> {
        let caches = self.hooks.caches;
        let node = caches.node_of(caches.here());
        let (pages, reserve) = (self.pages(), self.reserve);
        let request = Request { want: self.want, flags: self.flags, node };
        caches.zones.from(node).filter(move |&zone| {
            caches.is_for(zone, request) && caches.may_give(zone, pages, reserve)
        })
    }

    /// Tries once more to serve a request for a block, and mixes no pageblock.
    pub fn attempt_unmixed(&self) -> Option<Pfn> {
        match self.want {
            Want::Block(order) => {
                self.hooks.caches.walk_for_block(order, self.flags.unmixed(), self.reserve)
            }
            _ => None,
        }
    }
}

/// The relief of an allocator, once one is registered; it stays for the allocator's life.
pub(crate) struct ReliefSlot<'m, C>(LateInit<&'m dyn Relief<C>>);

impl<'m, C> ReliefSlot<'m, C> {
    pub fn new() -> Self {
        ReliefSlot(LateInit::new())
    }

    /// `false`: there is one already.
    pub fn register(&self, relief: &'m dyn Relief<C>) -> bool {
        let registered = self.0.init(|| Ok::<_, ()>(relief));
        registered.is_ok()
    }

    pub fn get(&self) -> Option<&'m dyn Relief<C>> {
        self.0.get().copied()
    }
}
