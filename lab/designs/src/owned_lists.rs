//! Operations on lists that their CPU's owner has for itself: what `local` and `rcu` share.
//!
//! The designs differ in how an owner enters, and in which lists it then uses.

use pagedepot::cpus::Here;
use pagedepot::{Mobility, Order, Pfn, ZoneId};

use pagedepot_designs::counters::Counters;
use pagedepot_designs::pcp::policy::Policy;
use pagedepot_designs::pcp::{ListIndex, Pcp, PcpContext};
use pagedepot_designs::prim::count;
use pagedepot_designs::store::Store;
use pagedepot_designs::walk::{self, Grid, Layer, ZoneRequest};

/// The cell of a zone that a CPU caches.
pub(crate) trait ListCell {
    /// The lists that the owner uses. The caller has entered, or keeps the owner out.
    fn pcp(&self) -> Pcp<'_>;

    /// Counters of the CPU in the zone.
    fn counters(&self) -> &Counters;
}

/// A design whose operations have the lists of their CPU for themselves.
pub(crate) trait OwnedLists: Layer {
    type Cell: ListCell;
    /// An operation under way. Dropping it ends the operation.
    type Operation<'d>
    where
        Self: 'd;

    fn policy(&self) -> &Policy;

    fn cells(&self) -> &Grid<Self::Cell>;

    /// Begins an operation. `None`: the caller must go past the caches.
    fn enter(&self, here: Here) -> Option<Self::Operation<'_>>;

    #[inline]
    fn at<'d>(
        &'d self,
        here: Here,
        zone: ZoneId,
        cell: &'d Self::Cell,
    ) -> PcpContext<'d, Self::Store> {
        PcpContext {
            store: self.store(),
            policy: self.policy(),
            counters: cell.counters(),
            here,
            zone,
        }
    }

    /// The list of such blocks, and the cell that has it, if the CPU caches them.
    #[inline]
    fn place(
        &self,
        here: Here,
        zone: ZoneId,
        order: Order,
        mobility: Mobility,
    ) -> Option<(ListIndex, &Self::Cell)> {
        ListIndex::of(order, mobility).zip(self.cells().get(here.cpu, zone))
    }
}

/// Implements [`Layer::take_from`].
#[inline]
pub(crate) fn take_from<L: OwnedLists>(layer: &L, here: Here, request: ZoneRequest) -> Option<Pfn> {
    let ZoneRequest { zone, order, mobility, mark } = request;
    if let Some((index, cell)) = layer.place(here, zone, order, mobility) {
        match layer.enter(here) {
            Some(_operation) => {
                let at = layer.at(here, zone, cell);
                let found = cell.pcp().take(&at, order, mobility, index, mark);
                if found.is_some() {
                    return found;
                }
            }
            None => count(&cell.counters().lock_misses, 1),
        }
    }
    walk::take_direct(layer, here, request)
}

/// Implements [`PageCache::free`](pagedepot_designs::PageCache::free).
#[inline]
pub(crate) fn free<L: OwnedLists>(layer: &L, here: Here, pfn: Pfn, order: Order) {
    let (zone, mobility) = layer.store().zones().place(pfn, order);
    if let Some((index, cell)) = layer.place(here, zone, order, mobility) {
        if let Some(_operation) = layer.enter(here) {
            let (at, pcp) = (layer.at(here, zone, cell), cell.pcp());
            let excess = pcp.put(&at, pfn, order, index);
            if excess > 0 {
                pcp.spill(&at, excess, index);
            }
            return;
        }
        count(&cell.counters().lock_misses, 1);
    }
    walk::give_direct(layer, here, zone, pfn, order);
}

/// Frees all blocks in one operation; see
/// [`PageCache::free_many`](pagedepot_designs::PageCache::free_many).
pub(crate) fn free_many<L: OwnedLists>(layer: &L, here: Here, blocks: &[(Pfn, Order)]) {
    let operation = layer.enter(here);
    for &(pfn, order) in blocks {
        let (zone, mobility) = layer.store().zones().place(pfn, order);
        match (&operation, layer.place(here, zone, order, mobility)) {
            (Some(_), Some((index, cell))) => {
                let (at, pcp) = (layer.at(here, zone, cell), cell.pcp());
                let excess = pcp.put(&at, pfn, order, index);
                pcp.spill(&at, excess, index);
            }
            _ => walk::give_direct(layer, here, zone, pfn, order),
        }
    }
}

/// Implements [`PageCache::tick`](pagedepot_designs::PageCache::tick).
pub(crate) fn tick<L: OwnedLists>(layer: &L, here: Here) {
    let Some(_operation) = layer.enter(here) else { return };
    for (zone, cell) in layer.cells().of_cpu(here.cpu) {
        let (at, pcp) = (layer.at(here, zone, cell), cell.pcp());
        let excess = pcp.tick(&at);
        pcp.spill(&at, excess, ListIndex::FIRST);
    }
}
