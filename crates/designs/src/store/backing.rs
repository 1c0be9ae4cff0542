//! A store of this crate as the backing of an allocator of pagedepot.

use pagedepot::cpus::Here;
use pagedepot::{Backing, BackingRequest, Block, CpuId, DoubleFree, Pfn, ZoneId};

use super::Store;
use crate::census::Fault;
use crate::lock::LockWaits;

/// A [`Store`] as a [`Backing`]. `Allocator::over` puts pagedepot's fronts and shelves over it,
/// where the threads' designs have their lists. It serves blocks only, no ranges.
pub struct AsBacking<S>(S);

impl<S: Store> AsBacking<S> {
    /// Puts `store` under an allocator.
    ///
    /// # Safety
    /// Each block that the store hands out lies in the zone asked for, and is handed out once until
    /// it is given back. Only its holder gives it back: where the store is shared (an `Arc`), no
    /// other user of it gives back blocks that this value took. An allocator that has no linear
    /// map, and whose callers use no memory of its frames, needs no such promise.
    pub const unsafe fn new(store: S) -> Self {
        AsBacking(store)
    }

    /// The store.
    pub fn store(&self) -> &S {
        &self.0
    }
}

/// The store under an allocator, without its type.
pub trait Underlying: Backing {
    /// Checks the store's own metadata.
    fn check(&self) -> Result<(), Fault>;

    fn lock_waits(&self) -> LockWaits;
}

/// A backing is not told the caller's CPU, so all its calls come from this one.
const ANYWHERE: Here = Here::task(CpuId::new(0));

// SAFETY: range, exclusivity and visibility are the promise of `new`; `take` writes an entry for
// each block that the store hands to it, which is at most one per entry.
unsafe impl<S: Store> Backing for AsBacking<S> {
    fn take(&self, request: BackingRequest, out: &mut [Block]) -> usize {
        let BackingRequest { zone, order, mobility, .. } = request;
        let blocks = out.len() as u32;
        let mut places = out.iter_mut();
        let zones = self.0.zones();
        let taken = self.0.take(ANYWHERE, zone, order, mobility, blocks, |pfn| {
            let its = zones.lookup(pfn).map_or(mobility, |(_, its)| its);
            if let Some(place) = places.next() {
                *place = Block::new(pfn, order, its);
            }
            true
        });
        taken as usize
    }

    fn put(&self, zone: ZoneId, blocks: &[Block]) -> DoubleFree {
        self.0.give(ANYWHERE, zone, blocks.iter().map(|block| (block.pfn(), block.order())));
        // The store panics on a block that is free already, as far as it can detect one.
        DoubleFree::NONE
    }

    fn free_pages(&self, zone: ZoneId) -> u64 {
        self.0.free_pages(zone)
    }

    fn is_free(&self, pfn: Pfn) -> bool {
        self.0.is_free(pfn)
    }

    fn count_free(&self, zone: ZoneId) -> u64 {
        let mut pages = 0;
        let counted = self.0.check(&mut |its, _, order| {
            pages += if its == zone { u64::from(order.frames()) } else { 0 };
            Ok(())
        });
        // The metadata is wrong, so no count is right.
        counted.map_or(u64::MAX, |_| pages)
    }
}

impl<S: Store> Underlying for AsBacking<S> {
    fn check(&self) -> Result<(), Fault> {
        self.0.check(&mut |_, _, _| Ok(())).map(drop)
    }

    fn lock_waits(&self) -> LockWaits {
        self.0.lock_waits()
    }
}
