//! One CPU's caches of one zone, at work: what refill, spill, drain and the policies have in hand.

use super::cached::Pcp;
use super::caches::Caches;
use super::front::{Front, Step};
use crate::cpus::{Cpus, Environment, Event, Transfer};
use crate::frame::{Class, CpuId, Mobility, Order, Pfn, ZoneId};
use crate::front::word::Word;
use crate::front::{BlockArray, Here, MagazineIndex};
use crate::store::{SearchManner, SearchRequest, Store};
use crate::sync::count;
use crate::sync::prim::Ordering;
use crate::zone::{Reserve, Zone};

/// The caches of one CPU in one zone, at work. A few references: made for each slow path.
pub struct CpuZone<'a, 'm, C> {
    pub caches: &'a Caches<'m, C>,
    pub cpu: CpuId,
    pub zone_id: ZoneId,
    pub pcp: &'a Pcp,
    pub zone: &'m Zone,
}

impl<'a, 'm, C> CpuZone<'a, 'm, C> {
    /// A front of tasks on this CPU.
    pub fn task_front(&self, class: Class, mobility: Mobility) -> Front {
        self.front(Here::task(self.cpu), class, mobility)
    }

    /// The front that blocks are popped from here.
    pub fn front(&self, here: Here, class: Class, mobility: Mobility) -> Front {
        Front { here, zone: self.zone_id, class, mobility, evacuates: false }
    }

    pub fn blocks(&self) -> &'a BlockArray {
        self.caches.pcps.blocks()
    }

    pub fn store(&self) -> &'a Store<'m> {
        &self.caches.store
    }
}

impl<C: Cpus> CpuZone<'_, '_, C> {
    /// Records `pages` more (or fewer) free pages of the zone.
    #[inline]
    pub fn add_free(&self, pages: i64) {
        let group = || self.caches.pcps.group_delta(self.cpu, self.zone_id);
        self.pcp.add_free(self.zone, pages, self.caches.caller(), group);
    }

    /// The front word, if the gate is open.
    #[inline]
    pub fn read_front(&self, front: &Front) -> Option<Word> {
        self.caches.read_front(front)
    }

    /// Hands over where the gate is closed, if a drain asks for it; the caller then goes on.
    pub fn at_closed_gate(&self, front: Front) -> Step {
        if self.caches.hand_over(front.here) { Step::Again } else { Step::Store }
    }

    /// Installs `new` in place of `old`, keeping the count of operations.
    pub fn replace(&self, front: &Front, old: Word, new: Word) -> bool {
        let new = new.with_operations(old.operations());
        let done =
            self.caches.cpus.compare_store(self.blocks(), front.here, front.offset(), old.0, new.0);
        if !done {
            count(&self.pcp.counters.lost_races, 1);
        }
        done
    }

    /// Installs `new` in place of `old`, with the same magazines, and counts it.
    #[inline]
    pub fn exchange(&self, front: &Front, old: Word, new: Word) -> bool {
        let (cpus, offset) = (&self.caches.cpus, front.offset());
        let done = cpus.compare_store(self.blocks(), front.here, offset, old.0, new.0);
        if done {
            self.pcp.count_exchange(old, new);
        }
        done
    }

    /// Writes frames to the slots of a magazine that the caller owns.
    pub fn fill(&self, magazine: MagazineIndex, frames: &[Pfn]) {
        let slots = &self.blocks().magazine(magazine).slots;
        for (slot, &frame) in slots.iter().zip(frames) {
            // Relaxed: published by whatever hands the magazine on.
            slot.store(frame.get(), Ordering::Relaxed);
        }
    }

    /// Tells tracers that `blocks` blocks moved between this CPU and the store.
    #[inline]
    pub fn tell(&self, event: fn(Transfer) -> Event, class: Class, blocks: u32) {
        let transfer = Transfer { cpu: self.cpu, zone: self.zone_id, order: class.order(), blocks };
        self.caches.cpus.environment().event(event(transfer));
    }

    /// A search of the store from where this CPU last found such blocks.
    pub fn wanted(
        &self,
        order: Order,
        mobility: Mobility,
        manner: SearchManner,
    ) -> SearchRequest<'_> {
        self.pcp.wanted(self.zone_id, self.zone.span(), order, mobility, manner)
    }

    /// Whether the zone may give `pages` without going below what `reserve` protects.
    pub fn may_give(&self, pages: u64, reserve: Reserve) -> bool {
        self.caches.may_give(self.zone_id, pages, reserve)
    }
}

impl<'m, C: Cpus> Caches<'m, C> {
    /// The caches of a CPU in a zone.
    ///
    /// # Panics
    /// When there is no such CPU or zone.
    pub fn share(&self, cpu: CpuId, zone: ZoneId) -> CpuZone<'_, 'm, C> {
        let pcp = self.pcps.pcp(cpu, zone);
        CpuZone { caches: self, cpu, zone_id: zone, pcp, zone: self.zones.get(zone) }
    }
}
