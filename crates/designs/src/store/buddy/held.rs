//! The zone lock, held over several steps: for a design that takes and gives blocks of several
//! sizes by one visit and keeps state of its own under that lock.

use std::sync::Arc;

use pagedepot::{Mobility, Order, Pfn, ZoneId};

use super::{Area, Buddy, Search, orders_from};
use crate::lock::SpinGuard;
use crate::store::Store;

/// A store that is a [`Buddy`], or shares one.
pub trait BuddyStore: Store {
    /// The buddy store.
    fn buddy(&self) -> &Buddy;
}

impl BuddyStore for Buddy {
    fn buddy(&self) -> &Buddy {
        self
    }
}

impl BuddyStore for Arc<Buddy> {
    fn buddy(&self) -> &Buddy {
        self
    }
}

/// The lock of a zone, and what may be done under it.
pub struct BuddyGuard<'b> {
    buddy: &'b Buddy,
    /// The zone.
    pub zone: ZoneId,
    area: &'b Area,
    _lock: SpinGuard<'b>,
}

impl Buddy {
    /// Takes the lock of a zone.
    pub fn hold(&self, zone: ZoneId) -> BuddyGuard<'_> {
        let area = self.area(zone);
        BuddyGuard { buddy: self, zone, area, _lock: area.lock.lock() }
    }
}

impl BuddyGuard<'_> {
    /// Takes a block of this mobility's lists, or claims one of another mobility together with its
    /// pageblock. Steals none.
    pub fn take_or_claim(&self, order: Order, mobility: Mobility) -> Option<Pfn> {
        let own = self.buddy.take_smallest(self.area, order, mobility);
        let slot = own.or_else(|| self.buddy.claim(self.zone, order, mobility))?;
        Some(self.taken(slot, order))
    }

    /// Takes a block of order `most` of this mobility's lists, or the largest that is smaller, but
    /// none below `least`.
    pub fn take_chunk(
        &self,
        least: Order,
        most: Order,
        mobility: Mobility,
    ) -> Option<(Pfn, Order)> {
        let mut sizes = orders_from(least).rev().filter(|&size| size <= most);
        let (slot, size) = sizes
            .find_map(|size| Some((self.buddy.take_smallest(self.area, size, mobility)?, size)))?;
        Some((self.taken(slot, size), size))
    }

    /// Takes up to `blocks` blocks as any request does: from its own lists, by claiming, by
    /// stealing.
    pub fn take(
        &self,
        order: Order,
        mobility: Mobility,
        blocks: u32,
        mut sink: impl FnMut(Pfn),
    ) -> u32 {
        let mut search = Search::Own;
        for taken in 0..blocks {
            let Some(slot) = self.buddy.take_one(self.zone, order, mobility, &mut search) else {
                return taken;
            };
            sink(self.taken(slot, order));
        }
        blocks
    }

    /// Takes all free blocks inside an aligned run of frames of one pageblock, none of which is in
    /// a larger free block.
    pub fn take_inside(&self, start: Pfn, size: Order, mut sink: impl FnMut(Pfn, Order)) {
        let (buddy, Some((_, mobility))) = (self.buddy, self.buddy.zones.lookup(start)) else {
            return;
        };
        // Removing a block changes no other block's head.
        for (slot, order) in buddy.blocks_inside(start, size) {
            buddy.remove(self.area, slot, order, mobility);
            sink(self.taken(slot, order), order);
        }
    }

    fn taken(&self, slot: crate::frames::Slot, order: Order) -> Pfn {
        self.area.free_pages.sub(u64::from(order.frames()));
        self.buddy.zones.frames().pfn(slot)
    }

    /// Frees a block. Returns the order of the free block that it became part of.
    ///
    /// # Panics
    /// When the block is free already.
    pub fn give(&self, pfn: Pfn, order: Order) -> Order {
        self.buddy.put(self.zone, self.area, pfn, order)
    }

    /// Whether the frame is in a free block of at least this order.
    pub fn is_in_free_block(&self, pfn: Pfn, least: Order) -> bool {
        self.buddy.is_in_free_block(pfn, least)
    }
}
