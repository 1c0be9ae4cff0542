//! What a request does when this CPU's front does not serve it.

use super::allocator::Allocator;
use super::error::{AllocError, FreeError};
use super::flags::Flags;
use super::request::{Request, Want};
use crate::cpus::{Cpus, Environment};
use crate::frame::pageblock::Tag;
use crate::frame::{Class, Order, Pfn, ZoneId};
use crate::zone::Reserve;

impl<C: Cpus> Allocator<'_, C> {
    #[cold]
    #[inline(never)]
    pub(super) fn alloc_slow(&self, order: Order, flags: Flags) -> Result<Pfn, AllocError> {
        self.cpus.environment().check_usable()?;
        let found = match self.alloc_within(order, flags, Reserve::AboveLow) {
            Some(pfn) => Ok(pfn),
            None => {
                let node = self.node_here();
                self.alloc_under_pressure(Request { want: Want::Block(order), flags, node })
            }
        };
        let pfn = self.end_call_of(found, order)?;
        self.on_alloc(pfn, order, flags);
        Ok(pfn)
    }

    /// Tries the zones in turn, each down to the watermark that `reserve` names.
    pub(super) fn alloc_within(&self, order: Order, flags: Flags, reserve: Reserve) -> Option<Pfn> {
        let (here, caches) = (self.here(), self.caches());
        let mobility = flags.mobility();
        self.zones_for(self.node_of_caller(here), flags).find_map(|zone| match here {
            Some(here) => caches.share(here.cpu, zone).alloc(here, order, mobility, reserve),
            None => caches.alloc_direct(None, zone, order, mobility, reserve),
        })
    }

    /// One look where this CPU last found blocks, for orders that are not cached; `None`: the slow
    /// path must search.
    #[inline]
    pub(super) fn alloc_at_once(
        &self,
        order: Order,
        flags: Flags,
    ) -> Result<Option<Pfn>, AllocError> {
        self.cpus.environment().check_usable()?;
        let Some(here) = self.here() else { return Ok(None) };
        let zone = self.first_zone(here, flags);
        let zone = zone
            .filter(|&zone| self.caches().may_give(zone, order.frames().into(), Reserve::AboveLow));
        let Some(zone) = zone else { return Ok(None) };
        let direct = self.caches().direct(Some(here), zone);
        let found =
            direct.search(flags.mobility(), |wanted| self.store.take_at_once(wanted, order));
        if found.is_some() {
            direct.count_taken(order);
        }
        Ok(found)
    }

    /// Frees a block to the store, past the caches.
    pub(super) fn free_direct(
        &self,
        pfn: Pfn,
        order: Order,
        zone: ZoneId,
    ) -> Result<(), FreeError> {
        self.cpus.environment().check_usable()?;
        if self.caches().direct(self.here(), zone).put(pfn, order) == 0 {
            return Ok(());
        }
        self.end_call();
        Err(FreeError::NotAllocated)
    }

    #[cold]
    #[inline(never)]
    pub(super) fn free_slow(&self, pfn: Pfn, class: Class, tag: Tag) -> Result<(), FreeError> {
        let freed = self.free_slowly(pfn, class, tag);
        self.end_call();
        freed
    }

    /// As [`free_slow`](Self::free_slow), in the middle of a call.
    pub(super) fn free_slowly(&self, pfn: Pfn, class: Class, tag: Tag) -> Result<(), FreeError> {
        self.cpus.environment().check_usable()?;
        let (here, caches) = (self.here(), self.caches());
        // Frames that a caller is removing go to the store, where that caller takes them.
        if let Some(here) = here.filter(|_| !tag.is_isolated())
            && caches.share(here.cpu, tag.zone()).free(here, pfn, class, tag.mobility())
        {
            return Ok(());
        }
        match caches.direct(here, tag.zone()).put(pfn, class.order()) {
            0 => Ok(()),
            _ => Err(FreeError::NotAllocated),
        }
    }
}
