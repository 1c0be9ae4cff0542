//! The lists of a pcp that splits larger blocks and merges buddies: one per order up to a
//! pageblock, and mobility. The caller holds the pcp's lock.

use pagedepot::{Mobility, Order, Pfn, ZoneId};

use pagedepot_designs::census::{Fault, agree};
use pagedepot_designs::frames::{Frames, List, Slot};
use pagedepot_designs::prim::PlainU32;
use pagedepot_designs::taking::CensusWalk;
use pagedepot_designs::zones::Zones;

const ORDERS: usize = Order::PAGEBLOCK.index() + 1;
const LISTS: usize = ORDERS * Mobility::COUNT;

/// Lists by order, up to a pageblock, and mobility.
pub(super) struct SplitLists {
    pages: PlainU32,
    lists: [List; LISTS],
}

/// The number of the list of these blocks.
fn number(order: Order, mobility: Mobility) -> u32 {
    (order.index() * Mobility::COUNT + mobility.index()) as u32
}

fn order_of(number: u32) -> Order {
    Order::new(number / Mobility::COUNT as u32).unwrap_or(Order::PAGEBLOCK)
}

impl SplitLists {
    pub fn new() -> Self {
        SplitLists { pages: PlainU32::new(0), lists: std::array::from_fn(|_| List::new()) }
    }

    /// Pages in all lists.
    #[inline]
    pub fn pages(&self) -> u32 {
        self.pages.get()
    }

    /// Pages in all lists at some moment; any thread may look.
    pub fn look_pages(&self) -> u32 {
        self.pages.look()
    }

    #[inline]
    fn list(&self, number: u32) -> &List {
        &self.lists[number as usize]
    }

    /// Puts a block at the hot end of its list. `merges`: its pageblock belongs to the CPU of these
    /// lists.
    #[inline]
    pub fn push_hot(
        &self,
        frames: &Frames,
        slot: Slot,
        (order, mobility): (Order, Mobility),
        merges: bool,
    ) {
        let number = number(order, mobility);
        self.list(number).push_front(frames, slot);
        if merges {
            frames.set_merging(slot, Some(number));
        }
        self.pages.add(order.frames());
    }

    /// Pushes a block like [`push_hot`](Self::push_hot), at the cold end.
    pub fn push_cold(
        &self,
        frames: &Frames,
        slot: Slot,
        (order, mobility): (Order, Mobility),
        merges: bool,
    ) {
        let number = number(order, mobility);
        self.list(number).push_back(frames, slot);
        if merges {
            frames.set_merging(slot, Some(number));
        }
        self.pages.add(order.frames());
    }

    /// Takes the hottest block of the smallest order that is large enough, and splits it: its upper
    /// halves stay.
    #[inline]
    pub fn take(&self, frames: &Frames, order: Order, mobility: Mobility) -> Option<Slot> {
        let slot = self.list(number(order, mobility)).pop_front(frames);
        let slot = slot.or_else(|| self.split(frames, order, mobility))?;
        if frames.merging(slot).is_some() {
            frames.set_merging(slot, None);
        }
        self.pages.sub(order.frames());
        Some(slot)
    }

    fn split(&self, frames: &Frames, order: Order, mobility: Mobility) -> Option<Slot> {
        let larger = (order.get() + 1..ORDERS as u32).filter_map(Order::new);
        let (slot, from) = larger.into_iter().find_map(|size| {
            Some((self.list(number(size, mobility)).pop_front(frames)?, size.get()))
        })?;
        let merges = frames.merging(slot).is_some();
        for size in (order.get()..from).rev().filter_map(Order::new) {
            let upper = frames.slot(frames.pfn(slot).add(size.frames()));
            let number = number(size, mobility);
            self.list(number).push_front(frames, upper);
            if merges {
                frames.set_merging(upper, Some(number));
            }
        }
        Some(slot)
    }

    /// Takes the coldest block of the largest order that there is.
    pub fn pop_largest(&self, frames: &Frames) -> Option<(Slot, Order)> {
        let (slot, number) = (0..LISTS as u32)
            .rev()
            .find_map(|number| Some((self.list(number).pop_back(frames)?, number)))?;
        let order = order_of(number);
        if frames.merging(slot).is_some() {
            frames.set_merging(slot, None);
        }
        self.pages.sub(order.frames());
        Some((slot, order))
    }

    /// Merges buddies that may merge, from the smallest order up to blocks of order `top`.
    pub fn merge(&self, frames: &Frames, top: Order) {
        for number in 0..number(top, Mobility::ALL[0]) {
            self.merge_list(frames, number);
        }
    }

    /// Merges the blocks of one list with their buddies, on whichever list of that order these are.
    fn merge_list(&self, frames: &Frames, number: u32) {
        let (list, order) = (self.list(number), order_of(number));
        let kept = List::new();
        while let Some(slot) = list.pop_front(frames) {
            let Some((buddy, its)) = merging_buddy(frames, slot, number) else {
                kept.push_back(frames, slot);
                continue;
            };
            // It cannot be among the kept ones: there it would have been merged with this block.
            self.list(its).remove(frames, buddy);
            frames.set_merging(slot, None);
            frames.set_merging(buddy, None);
            let lower = if frames.pfn(slot).get() & order.frames() == 0 { slot } else { buddy };
            let larger = number + Mobility::COUNT as u32;
            self.list(larger).push_back(frames, lower);
            frames.set_merging(lower, Some(larger));
        }
        list.splice_front(frames, &kept);
    }

    /// Passes all blocks to a census. Those that may merge are marked as such, and `is_own` holds
    /// for them. Returns how many they are.
    pub fn check(
        &self,
        zone: ZoneId,
        is_own: impl Fn(Pfn) -> bool,
        taking: &mut CensusWalk<'_>,
    ) -> Result<u64, Fault> {
        let (mut pages, mut marked) = (0, 0);
        let frames = taking.zones().frames();
        let max = taking.zones().zone(zone).managed_pages as usize + 1;
        for number in 0..LISTS as u32 {
            let order = order_of(number);
            for slot in self.list(number).iter(frames, max) {
                let (pfn, mark) = (frames.pfn(slot), frames.merging(slot));
                if mark.is_some_and(|mark| mark != number || !is_own(pfn)) {
                    return Err(Fault::Misplaced { pfn });
                }
                taking.cached_block(zone, pfn, order)?;
                pages += u64::from(order.frames());
                marked += u64::from(mark.is_some());
            }
        }
        agree("pages of a pcp", u64::from(self.look_pages()), pages)?;
        Ok(marked)
    }
}

/// The buddy of a block that may merge, if it is on a list and may merge too, and its list.
fn merging_buddy(frames: &Frames, slot: Slot, number: u32) -> Option<(Slot, u32)> {
    frames.merging(slot)?;
    let order = order_of(number);
    let buddy = frames.at(frames.pfn(slot).get() ^ order.frames())?;
    let its = frames.merging(buddy)?;
    (order_of(its) == order).then_some((buddy, its))
}

/// Checks that no frame has a merge mark but the `marked` ones that lists have.
pub(super) fn check_marks(zones: &Zones, marked: u64) -> Result<(), Fault> {
    let frames = zones.frames();
    let ranges = zones.ids().flat_map(|id| &zones.zone(id).ranges);
    let pfns = ranges.flat_map(|range| range.start.get()..range.end() as u32);
    let found = pfns.filter(|&pfn| frames.at(pfn).is_some_and(|at| frames.merging(at).is_some()));
    agree("blocks that may merge", marked, found.count() as u64)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn order(n: u32) -> Order {
        Order::new(n).unwrap()
    }

    const MOVABLE: Mobility = Mobility::Movable;

    fn frames() -> Frames {
        Frames::new(0, 1024).unwrap()
    }

    #[test]
    fn a_pageblock_is_split_once_and_merged_again() {
        let (frames, lists) = (frames(), SplitLists::new());
        let block = frames.slot(Pfn::new(512));
        lists.push_cold(&frames, block, (Order::PAGEBLOCK, MOVABLE), true);
        let taken: Vec<_> =
            (0..512).map(|_| lists.take(&frames, Order::BASE, MOVABLE).unwrap()).collect();
        assert!(taken.iter().enumerate().all(|(at, &slot)| frames.pfn(slot).index() == 512 + at));
        assert!(lists.take(&frames, Order::BASE, MOVABLE).is_none());
        // Freed in another order, one of them as another mobility.
        for (at, &slot) in taken.iter().enumerate().map(|(at, _)| (at, &taken[at * 37 % 512])) {
            let mobility = if at == 100 { Mobility::Unmovable } else { MOVABLE };
            lists.push_hot(&frames, slot, (Order::BASE, mobility), true);
        }
        lists.merge(&frames, Order::PAGEBLOCK);
        assert_eq!(lists.pages(), 512);
        let (slot, size) = lists.pop_largest(&frames).unwrap();
        assert_eq!((frames.pfn(slot).get(), size), (512, Order::PAGEBLOCK));
        assert!(lists.pop_largest(&frames).is_none());
        assert!((0..1024).all(|at| frames.merging(frames.slot(Pfn::new(at))).is_none()));
    }

    #[test]
    fn blocks_of_others_never_merge() {
        let (frames, lists) = (frames(), SplitLists::new());
        for at in 0..8 {
            let slot = frames.slot(Pfn::new(at));
            // Frames 4 to 7 lie in a block that the CPU owns; of those, 6 is still held.
            if at != 6 {
                lists.push_hot(&frames, slot, (Order::BASE, MOVABLE), at >= 4);
            }
        }
        lists.merge(&frames, order(2));
        let found: Vec<_> = std::iter::from_fn(|| lists.pop_largest(&frames))
            .map(|(slot, size)| (frames.pfn(slot).get(), size.get()))
            .collect();
        assert_eq!(found[0], (4, 1));
        assert_eq!(found.len(), 6);
        assert!(found[1..].iter().all(|&(_, size)| size == 0));
    }
}
