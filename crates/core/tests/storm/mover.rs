//! Moves the blocks of the slots.

use std::cell::Cell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pagedepot::cpus::Cpus;
use pagedepot::seam::{PendingRequest, Relief};
use pagedepot::{Allocator, Flags, Order, Pfn};
use pagedepot_contiguity::{Compactor, Move, Mover, Occupant};

use crate::common::meetings::Set;
use crate::feature::{Deed, Feature};
use crate::world::{PAGEBLOCK, Stretch, World, lock};

/// The holder of blocks that a mover allocates while it is asked.
const MOVER: u32 = 1002;

/// The mover of all storms: some blocks are pinned, of some it says nothing.
pub struct Slots<'w> {
    world: &'w World<'w>,
    /// The features that it is at work for.
    via: Set,
    asked: AtomicU64,
}

impl<'w> Slots<'w> {
    pub fn new(world: &'w World<'w>, via: impl Into<Set>) -> Self {
        Slots { world, via: via.into(), asked: AtomicU64::new(0) }
    }

    fn is_one_in(&self, n: u64) -> bool {
        self.asked.fetch_add(1, Ordering::Relaxed) % n == n - 1
    }

    fn make(&self, this: &mut Move) {
        let found = self.world.slot_of(this.from());
        let is_held =
            |block: &Stretch| (block.start, block.order) == (this.from(), Some(this.order()));
        match found.filter(|slot| slot.block.as_ref().is_some_and(is_held)) {
            None => this.gone(),
            Some(slot) if slot.pins > 0 => this.pinned(),
            Some(_) if self.is_one_in(40) => {}
            Some(mut slot) => {
                let via = slot.block.unwrap().via;
                self.world.meetings.meet(self.via, via);
                self.world.relocate(&mut slot, this.to(), self.via);
                MOVED_FROM.set(Some(this.from()));
                if self.via == Feature::Mover.into() {
                    self.world.note(Deed::MovedForRequest);
                }
                this.moved();
            }
        }
    }
}

thread_local! {
    /// The last frame that this thread's calls have moved a block away from.
    static MOVED_FROM: Cell<Option<Pfn>> = const { Cell::new(None) };
}

/// A compactor that is watched at work for requests.
pub struct WatchedCompactor<'w, 'm> {
    pub world: &'w World<'w>,
    pub compactor: Compactor<'m>,
}

impl<C: Cpus> Relief<C> for WatchedCompactor<'_, '_> {
    fn before_mixing(&self, request: &PendingRequest<'_, '_, C>) -> Option<Pfn> {
        if !request.may_compact() {
            return self.compactor.before_mixing(request);
        }
        MOVED_FROM.set(None);
        let attempt = self.world.meetings.attempt();
        let found = self.compactor.before_mixing(request)?;
        let pageblock = |pfn: Pfn| pfn.get() / PAGEBLOCK;
        if MOVED_FROM.get().is_some_and(|from| pageblock(from) == pageblock(found)) {
            let frames = request.pages() as u32;
            self.world.note_via(found, frames, Feature::Thinning.into());
            drop(attempt.succeed(Feature::Thinning));
        }
        Some(found)
    }

    fn before_failing(&self, request: &PendingRequest<'_, '_, C>) -> Option<Pfn> {
        let found = self.compactor.before_failing(request);
        found.inspect(|_| self.world.note(Deed::MadeRoom))
    }
}

impl Mover for Slots<'_> {
    fn occupant(&self, frame: Pfn) -> Occupant {
        let Some(slot) = self.world.slot_of(frame) else { return Occupant::Unknown };
        let Some(block) = slot.block.filter(|block| block.contains(frame)) else {
            return Occupant::Unknown;
        };
        if slot.pins > 0 || self.is_one_in(2000) {
            self.world.meetings.meet(self.via.and(Feature::Pins), block.via);
            self.world.note(Deed::AskedOfPinned);
            return Occupant::Pinned;
        }
        Occupant::Movable { first: block.start, order: block.order.unwrap() }
    }

    fn move_blocks(&self, moves: &mut [Move]) {
        let _now = self.world.meetings.begin(self.via.and(Feature::Isolation));
        // Copies take a while, in which others go on.
        std::thread::sleep(Duration::from_micros(50));
        moves.iter_mut().for_each(|this| self.make(this));
    }
}

/// A mover for a caller that may allocate and free meanwhile, and does.
pub struct BusySlots<'w, 'd, 'm, C> {
    pub slots: Slots<'w>,
    pub depot: &'d Allocator<'m, C>,
    pub kept: Mutex<Vec<Stretch>>,
}

impl<C: Cpus> BusySlots<'_, '_, '_, C> {
    fn be_busy(&self) {
        let mut kept = lock(&self.kept);
        match kept.pop() {
            Some(block) => {
                self.slots.world.give_back(&block);
                self.depot.free(block.start, Order::BASE).unwrap();
                self.slots.world.usage.use_pages(-1);
            }
            None => {
                self.slots.world.usage.use_pages(1);
                match self.depot.alloc(Order::BASE, Flags::UNMOVABLE.compact()) {
                    Ok(pfn) => {
                        let via = self.slots.via.and(Feature::Order0);
                        let block = self.slots.world.take(pfn, 1, Some(Order::BASE), MOVER, via);
                        kept.push(block);
                    }
                    Err(_) => self.slots.world.usage.use_pages(-1),
                }
            }
        }
    }

    /// Frees what is kept.
    pub fn end(&self) {
        while !lock(&self.kept).is_empty() {
            self.be_busy();
        }
    }
}

impl<C: Cpus> Mover for BusySlots<'_, '_, '_, C> {
    fn occupant(&self, frame: Pfn) -> Occupant {
        if self.slots.is_one_in(300) {
            self.be_busy();
        }
        self.slots.occupant(frame)
    }

    fn move_blocks(&self, moves: &mut [Move]) {
        if self.slots.is_one_in(10) {
            self.be_busy();
        }
        self.slots.move_blocks(moves);
    }
}
