//! The classic store: free lists per order and mobility behind the zone lock (Knowlton, CACM
//! 1965; Linux, `mm/page_alloc.c`).
//!
//! A block of 2^n frames has one *buddy*, the block its address differs from in bit n. A free block
//! whose buddy is free too is merged with it; a request splits the smallest block that is large
//! enough. Lists run through the side array, so no path needs a heap.
//!
//! # Mobility
//! A pageblock ([`Order::PAGEBLOCK`]) has a mobility, and its free blocks are on the lists of that
//! mobility. A request that finds its own lists empty does what mainline's does:
//! * *Claiming*, from the largest blocks down: it takes over the whole pageblock if enough of it is
//!   free.
//! * *Stealing*, from the smallest up: it takes one block and leaves the pageblock as it is.

pub mod held;
#[cfg(all(test, not(loom)))]
mod tests;

use pagedepot::cpus::Here;
use pagedepot::{Mobility, Order, Pfn, ZoneId};

use super::Store;
use crate::census::{Fault, agree};
use crate::frames::{List, Slot};
use crate::lock::{LockWaits, SpinLock};
use crate::prim::{Padded, PlainU32, PlainU64};
use crate::report::Volume;
use crate::setup::{Setup, SetupError};
use crate::zones::Zones;

/// The mobilities that a request of each mobility falls back to (`fallbacks` in `mm/page_alloc.c`).
const FALLBACKS: [[Mobility; 2]; Mobility::COUNT] = {
    use Mobility::*;
    [[Reclaimable, Movable], [Reclaimable, Unmovable], [Unmovable, Movable]]
};

/// A buddy store over all zones.
pub struct Buddy {
    zones: Zones,
    areas: Box<[Padded<Area>]>,
}

/// A zone's free blocks.
struct Area {
    lock: SpinLock,
    free_pages: PlainU64,
    orders: [OrderLists; Order::COUNT],
}

struct OrderLists {
    lists: [List; Mobility::COUNT],
    blocks: PlainU32,
}

/// The progress of a request's search. It is kept over a batch: what the search did not find is
/// still not there, because the lock has not been dropped.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Search {
    Own,
    Claim,
    Steal,
}

impl Area {
    fn new() -> Self {
        let lists =
            || OrderLists { lists: std::array::from_fn(|_| List::new()), blocks: PlainU32::new(0) };
        Area {
            lock: SpinLock::new(),
            free_pages: PlainU64::new(0),
            orders: std::array::from_fn(|_| lists()),
        }
    }

    fn list(&self, order: Order, mobility: Mobility) -> &List {
        &self.orders[order.index()].lists[mobility.index()]
    }
}

fn orders_from(order: Order) -> impl DoubleEndedIterator<Item = Order> {
    (order.get()..=Order::MAX.get()).filter_map(Order::new)
}

fn smaller(order: Order) -> Order {
    Order::new(order.get().saturating_sub(1)).unwrap_or(Order::BASE)
}

impl Buddy {
    /// A store of all frames of a setup.
    ///
    /// # Errors
    /// What is wrong with the setup.
    pub fn new(setup: &Setup) -> Result<Self, SetupError> {
        let zones = Zones::new(setup)?;
        let areas = zones.ids().map(|_| Padded(Area::new())).collect();
        let buddy = Buddy { zones, areas };
        for id in buddy.zones.ids() {
            for range in &buddy.zones.zone(id).ranges {
                buddy.open(id, u64::from(range.start.get()), range.end());
            }
        }
        Ok(buddy)
    }

    /// Puts a range onto the lists in the largest blocks that fit, ascending.
    fn open(&self, zone: ZoneId, mut at: u64, end: u64) {
        let area = self.area(zone);
        while at < end {
            let fits = |order: &Order| {
                Pfn::new(at as u32).is_aligned(*order) && at + u64::from(order.frames()) <= end
            };
            let Some(order) = orders_from(Order::BASE).rev().find(fits) else { return };
            let slot = self.zones.frames().slot(Pfn::new(at as u32));
            self.insert(area, slot, order, Mobility::Movable, true);
            area.free_pages.add(u64::from(order.frames()));
            at += u64::from(order.frames());
        }
    }

    fn area(&self, zone: ZoneId) -> &Area {
        &self.areas[zone.index()]
    }

    fn insert(&self, area: &Area, slot: Slot, order: Order, mobility: Mobility, to_tail: bool) {
        let frames = self.zones.frames();
        frames.set_head(slot, Some(order));
        let list = area.list(order, mobility);
        if to_tail {
            list.push_back(frames, slot)
        } else {
            list.push_front(frames, slot)
        }
        area.orders[order.index()].blocks.add(1);
    }

    fn remove(&self, area: &Area, slot: Slot, order: Order, mobility: Mobility) {
        let frames = self.zones.frames();
        area.list(order, mobility).remove(frames, slot);
        frames.set_head(slot, None);
        area.orders[order.index()].blocks.sub(1);
    }

    /// Frees one block, merging upwards. Returns the order of the free block that it became part
    /// of.
    fn put(&self, zone: ZoneId, area: &Area, pfn: Pfn, order: Order) -> Order {
        let frames = self.zones.frames();
        let (_, mobility) = self.zones.place(pfn, order);
        assert!(
            frames.head(frames.slot(pfn)).is_none(),
            "{pfn} is free already: it was freed twice"
        );
        area.free_pages.add(u64::from(order.frames()));
        let (mut at, mut size) = (pfn, order);
        while let Some(larger) = Order::new(size.get() + 1) {
            let Some((buddy, slot)) = self.free_buddy(zone, at, size) else { break };
            let (_, its) = self.zones.place(buddy, size);
            self.remove(area, slot, size, its);
            if its != mobility {
                // Only whole pageblocks can differ. Their parts must find the right list later.
                self.zones.set_mobility(buddy, zone, mobility);
            }
            (at, size) = (at.min(buddy), larger);
        }
        let to_tail = self.is_merge_likely(zone, at, size);
        self.insert(area, frames.slot(at), size, mobility, to_tail);
        size
    }

    /// The buddy of a block, if it is free as a whole and of the same zone.
    fn free_buddy(&self, zone: ZoneId, pfn: Pfn, order: Order) -> Option<(Pfn, Slot)> {
        let buddy = Pfn::new(pfn.get() ^ order.frames());
        let slot = self.zones.frames().at(buddy.get())?;
        let free = self.zones.frames().head(slot) == Some(order)
            && (order < Order::PAGEBLOCK
                || self.zones.lookup(buddy).is_some_and(|(its, _)| its == zone));
        free.then_some((buddy, slot))
    }

    /// Whether the next larger block lacks only this one's buddy. Then this block goes to the tail
    /// of its list, so that larger blocks can form.
    fn is_merge_likely(&self, zone: ZoneId, pfn: Pfn, order: Order) -> bool {
        let Some(larger) = Order::new(order.get() + 1) else { return false };
        let parent = Pfn::new(pfn.get() & !order.frames());
        larger < Order::MAX && self.free_buddy(zone, parent, larger).is_some()
    }

    /// Takes the smallest block of a mobility that is large enough, and splits it.
    fn take_smallest(&self, area: &Area, order: Order, mobility: Mobility) -> Option<Slot> {
        let size = orders_from(order).find(|&size| !area.list(size, mobility).is_empty())?;
        let slot = area.list(size, mobility).first()?;
        self.remove(area, slot, size, mobility);
        self.split(area, slot, size, order, mobility);
        Some(slot)
    }

    /// Returns the upper halves of a block until it has the order asked for.
    fn split(&self, area: &Area, slot: Slot, from: Order, to: Order, mobility: Mobility) {
        let frames = self.zones.frames();
        let mut size = from;
        while size > to {
            size = smaller(size);
            let upper = frames.slot(frames.pfn(slot).add(size.frames()));
            self.insert(area, upper, size, mobility, false);
        }
    }

    fn take_one(
        &self,
        zone: ZoneId,
        order: Order,
        mobility: Mobility,
        search: &mut Search,
    ) -> Option<Slot> {
        let area = self.area(zone);
        if *search == Search::Own {
            if let Some(slot) = self.take_smallest(area, order, mobility) {
                return Some(slot);
            }
            *search = Search::Claim;
        }
        if *search == Search::Claim {
            if let Some(slot) = self.claim(zone, order, mobility) {
                // The rest of what the claim brought is on this mobility's own lists.
                *search = Search::Own;
                return Some(slot);
            }
            *search = Search::Steal;
        }
        self.steal(area, order, mobility)
    }

    /// The first other mobility with a free block of just this order.
    fn fallback(area: &Area, order: Order, mobility: Mobility) -> Option<Mobility> {
        if area.orders[order.index()].blocks.get() == 0 {
            return None;
        }
        FALLBACKS[mobility.index()].into_iter().find(|&other| !area.list(order, other).is_empty())
    }

    /// Takes over pageblocks of other mobilities, from the largest free blocks down.
    fn claim(&self, zone: ZoneId, order: Order, mobility: Mobility) -> Option<Slot> {
        let area = self.area(zone);
        for size in orders_from(order).rev() {
            // Movable blocks do not fragment a pageblock for good, so small ones take none over.
            if size.get() < Order::PAGEBLOCK.get() / 2 && mobility == Mobility::Movable {
                return None;
            }
            let Some(other) = Self::fallback(area, size, mobility) else { continue };
            let slot = area.list(size, other).first()?;
            if size >= Order::PAGEBLOCK {
                self.remove(area, slot, size, other);
                self.set_mobility_of_blocks(zone, slot, size, mobility);
                self.split(area, slot, size, order, mobility);
                return Some(slot);
            }
            if self.claim_pageblock(zone, slot, other, mobility) {
                return self.take_smallest(area, order, mobility);
            }
        }
        None
    }

    /// Whether the frame is in a free block of at least this order. Looks, for each order, at the
    /// block that would contain the frame.
    fn is_in_free_block(&self, pfn: Pfn, least: Order) -> bool {
        let frames = self.zones.frames();
        orders_from(least).any(|order| {
            let first = pfn.get() & !(order.frames() - 1);
            frames.at(first).is_some_and(|slot| frames.head(slot) == Some(order))
        })
    }

    /// The free blocks inside an aligned run of frames, of which no free block is larger.
    fn blocks_inside(&self, start: Pfn, size: Order) -> impl Iterator<Item = (Slot, Order)> + '_ {
        let frames = self.zones.frames();
        let mut at = 0;
        std::iter::from_fn(move || {
            while at < size.frames() {
                // The last pageblock of all may have fewer frames.
                let slot = frames.at(start.get() + at)?;
                let head = frames.head(slot);
                at += head.map_or(1, Order::frames);
                if let Some(order) = head {
                    return Some((slot, order));
                }
            }
            None
        })
    }

    fn set_mobility_of_blocks(&self, zone: ZoneId, slot: Slot, size: Order, mobility: Mobility) {
        let first = self.zones.frames().pfn(slot);
        for at in (0..size.frames()).step_by(Order::PAGEBLOCK.frames() as usize) {
            self.zones.set_mobility(first.add(at), zone, mobility);
        }
    }

    /// Moves all free blocks of a pageblock to another mobility's lists if at least half of it is
    /// free. (Mainline also counts allocated pages of a compatible mobility. The mobility of an
    /// allocated page is not known here, so allocated pages count as incompatible.)
    fn claim_pageblock(&self, zone: ZoneId, inside: Slot, from: Mobility, to: Mobility) -> bool {
        let frames = self.zones.frames();
        let first = Pfn::new(frames.pfn(inside).get() & !(Order::PAGEBLOCK.frames() - 1));
        let blocks = || self.blocks_inside(first, Order::PAGEBLOCK);
        let free: u32 = blocks().map(|(_, order)| order.frames()).sum();
        if free < Order::PAGEBLOCK.frames() / 2 {
            return false;
        }
        for (slot, order) in blocks() {
            self.remove(self.area(zone), slot, order, from);
            self.insert(self.area(zone), slot, order, to, false);
        }
        self.zones.set_mobility(first, zone, to);
        true
    }

    /// Takes one block of another mobility, the smallest that is large enough. The rest of it stays
    /// on that mobility's lists.
    fn steal(&self, area: &Area, order: Order, mobility: Mobility) -> Option<Slot> {
        orders_from(order).find_map(|size| {
            let other = Self::fallback(area, size, mobility)?;
            let slot = area.list(size, other).first()?;
            self.remove(area, slot, size, other);
            self.split(area, slot, size, order, other);
            Some(slot)
        })
    }
}

impl Store for Buddy {
    const NAME: &'static str = "buddy";

    #[inline]
    fn zones(&self) -> &Zones {
        &self.zones
    }

    fn take(
        &self,
        _here: Here,
        zone: ZoneId,
        order: Order,
        mobility: Mobility,
        blocks: u32,
        mut sink: impl FnMut(Pfn) -> bool,
    ) -> u32 {
        let area = self.area(zone);
        let mut search = Search::Own;
        let _held = area.lock.lock();
        for taken in 0..blocks {
            let Some(slot) = self.take_one(zone, order, mobility, &mut search) else {
                return taken;
            };
            area.free_pages.sub(u64::from(order.frames()));
            if !sink(self.zones.frames().pfn(slot)) {
                return taken + 1;
            }
        }
        blocks
    }

    fn give(
        &self,
        _here: Here,
        zone: ZoneId,
        blocks: impl Iterator<Item = (Pfn, Order)>,
    ) -> Volume {
        let area = self.area(zone);
        let mut given = Volume::default();
        let _held = area.lock.lock();
        for (pfn, order) in blocks {
            self.put(zone, area, pfn, order);
            given.add(order);
        }
        given
    }

    #[inline]
    fn free_pages(&self, zone: ZoneId) -> u64 {
        self.area(zone).free_pages.look()
    }

    fn is_free(&self, pfn: Pfn) -> bool {
        self.is_in_free_block(pfn, Order::BASE)
    }

    fn is_contended(&self, zone: ZoneId) -> bool {
        self.area(zone).lock.is_contended()
    }

    fn lock_waits(&self) -> LockWaits {
        let mut sum = LockWaits::default();
        self.areas.iter().for_each(|area| sum += area.lock.waits());
        sum
    }

    fn check(
        &self,
        mark: &mut dyn FnMut(ZoneId, Pfn, Order) -> Result<(), Fault>,
    ) -> Result<u64, Fault> {
        for zone in self.zones.ids() {
            let _held = self.area(zone).lock.lock();
            self.check_zone(zone, mark)?;
        }
        Ok(0)
    }
}

impl Buddy {
    fn check_zone(
        &self,
        zone: ZoneId,
        mark: &mut dyn FnMut(ZoneId, Pfn, Order) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let (area, frames) = (self.area(zone), self.zones.frames());
        let mut pages = 0;
        for order in Order::all() {
            let mut blocks = 0;
            for mobility in Mobility::ALL {
                let max = self.zones.zone(zone).managed_pages as usize + 1;
                for slot in area.list(order, mobility).iter(frames, max) {
                    let pfn = frames.pfn(slot);
                    if frames.head(slot) != Some(order)
                        || self.zones.lookup(pfn) != Some((zone, mobility))
                    {
                        return Err(Fault::Misplaced { pfn });
                    }
                    if order < Order::MAX && self.free_buddy(zone, pfn, order).is_some() {
                        return Err(Fault::Unmerged { pfn });
                    }
                    mark(zone, pfn, order)?;
                    blocks += 1;
                }
            }
            agree(
                "free blocks of an order",
                u64::from(area.orders[order.index()].blocks.get()),
                blocks,
            )?;
            pages += blocks * u64::from(order.frames());
        }
        agree("free pages of the store", area.free_pages.get(), pages)
    }
}
