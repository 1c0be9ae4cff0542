//! Blocks that workers leave behind, until a request runs short.

use std::sync::{Mutex, RwLock};

use pagedepot::cpus::Cpus;
use pagedepot::{Allocator, Order, Pfn, Pressure, Reclaim};

use crate::common::meetings::Set;
use crate::feature::{Deed, Feature};
use crate::world::{Stretch, World, lock};

/// Frees a block; a trait, so that callbacks need not know the CPUs.
pub trait Frees: Sync {
    fn free_block(&self, pfn: Pfn, order: Order);
}

impl<C: Cpus> Frees for Allocator<'_, C> {
    fn free_block(&self, pfn: Pfn, order: Order) {
        self.free(pfn, order).unwrap();
    }
}

pub struct Pool<'w> {
    world: &'w World<'w>,
    blocks: Mutex<Vec<Stretch>>,
    depot: RwLock<Option<&'static dyn Frees>>,
}

impl<'w> Pool<'w> {
    pub fn new(world: &'w World<'w>) -> Self {
        Pool { world, blocks: Mutex::new(Vec::new()), depot: RwLock::new(None) }
    }

    /// Runs `round` with a depot to which the callback frees.
    pub fn while_over(&self, depot: &dyn Frees, round: impl FnOnce()) {
        // SAFETY: the reference is gone when this returns; a panic ends the test.
        let depot = unsafe { std::mem::transmute::<&dyn Frees, &'static dyn Frees>(depot) };
        *self.depot.write().unwrap() = Some(depot);
        round();
        *self.depot.write().unwrap() = None;
    }

    pub fn leave(&self, block: Stretch) {
        lock(&self.blocks).push(block);
    }

    /// Takes a block back.
    pub fn take(&self) -> Option<Stretch> {
        lock(&self.blocks).pop()
    }

    pub fn pages(&self) -> u64 {
        lock(&self.blocks).iter().map(|block| u64::from(block.frames)).sum()
    }
}

impl Reclaim for Pool<'_> {
    fn reclaim(&self, pressure: Pressure) -> u64 {
        let attempt = self.world.meetings.attempt();
        let Ok(depot) = self.depot.try_read() else { return 0 };
        let Some(depot) = *depot else { return 0 };
        let mut freed = 0;
        while freed < pressure.wanted_pages {
            // A worker may hold the lock.
            let Ok(mut blocks) = self.blocks.try_lock() else { break };
            let Some(block) = blocks.pop() else { break };
            drop(blocks);
            let _now = attempt.succeed(Feature::Reclaim);
            self.world.note(Deed::Reclaimed);
            std::thread::yield_now();
            self.world.meetings.meet(Set::from(Feature::Reclaim), block.via);
            self.world.give_back(&block);
            depot.free_block(block.start, block.order.unwrap());
            self.world.usage.use_pages(-i64::from(block.frames));
            freed += u64::from(block.frames);
        }
        freed
    }
}
