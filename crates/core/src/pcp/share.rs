//! One CPU's caches of one zone, at work: what refill, spill, drain and the policies have in hand.

use super::cached::Pcp;
use super::caches::Caches;
use super::front::Front;
use crate::cpus::Cpus;
use crate::frame::{Class, CpuId, Mobility, ZoneId};
use crate::front::{BlockArray, Here};
use crate::store::Store;
use crate::zone::{Reserve, Zone};

/// See the module. A few references: made for each slow path.
pub struct Share<'a, 'm, C> {
    pub caches: Caches<'a, 'm, C>,
    pub cpu: CpuId,
    pub zone_id: ZoneId,
    pub pcp: &'a Pcp,
    pub zone: &'m Zone,
}

impl<'a, 'm, C> Share<'a, 'm, C> {
    /// A front of tasks on this CPU.
    pub fn task_front(&self, class: Class, mobility: Mobility) -> Front {
        Front { here: Here::task(self.cpu), zone: self.zone_id, class, mobility }
    }

    pub fn blocks(&self) -> &'a BlockArray {
        self.caches.pcps.blocks()
    }

    pub fn store(&self) -> &'a Store<'m> {
        self.caches.store
    }
}

impl<C: Cpus> Share<'_, '_, C> {
    /// Whether the zone may give `pages` without going below what `reserve` protects.
    pub fn may_give(&self, pages: u64, reserve: Reserve) -> bool {
        self.caches.may_give(self.zone_id, pages, reserve)
    }
}
