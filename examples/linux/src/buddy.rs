//! The store: the buddy lists of a `struct zone`, under its lock.

use core::ffi::c_void;
use core::mem::MaybeUninit;

use pagedepot::{Backing, Doubled, Mobility, Order, Pfn, ZoneId};

use crate::calls::{self, Block};

/// Blocks that move at once, at most: what `Backing` promises.
const BLOCKS_MAX: usize = 64;

/// A `struct zone`.
pub struct Buddy(pub *mut c_void);

// SAFETY: what it points to is only handed to C functions that take the zone's lock or load.
unsafe impl Sync for Buddy {}

// SAFETY: `depot_c_take` hands out what `__rmqueue` removed from the lists of this zone under its
// lock: naturally aligned blocks of frames that are nobody else's until `__free_one_page` has them
// again, under the same lock, which also gives visibility. It writes as many entries as it returns.
unsafe impl Backing for Buddy {
    fn take(
        &self,
        _: ZoneId,
        order: Order,
        mobility: Mobility,
        out: &mut [(Pfn, Mobility)],
    ) -> usize {
        let mut blocks = [const { MaybeUninit::<Block>::uninit() }; BLOCKS_MAX];
        let wanted = out.len().min(BLOCKS_MAX) as u32;
        let first = blocks.as_mut_ptr().cast();
        // SAFETY: there is room for as many; the zone lives as long as the kernel.
        let got =
            unsafe { calls::depot_c_take(self.0, order.get(), mobility as u32, first, wanted) };
        // SAFETY: it has written as many as it returns, which are at most those wanted.
        let taken = unsafe { core::slice::from_raw_parts(first, got.min(wanted) as usize) };
        // Linux hands ascending runs to ascending requests; magazines are emptied from the top.
        for (place, block) in out.iter_mut().zip(taken.iter().rev()) {
            let serves = Mobility::from_index(block.mobility.into()).unwrap_or(mobility);
            *place = (Pfn::new(block.pfn), serves);
        }
        taken.len()
    }

    fn put(&self, _: ZoneId, blocks: &[(Pfn, Order)]) -> Doubled {
        let mut list = [const { MaybeUninit::uninit() }; BLOCKS_MAX];
        for (place, (pfn, order)) in list.iter_mut().zip(blocks) {
            place.write(Block { pfn: pfn.get(), order: order.get() as u16, mobility: 0 });
        }
        let count = blocks.len().min(BLOCKS_MAX) as u32;
        let mut first = 0;
        // SAFETY: as many are written; `Backing` says that there are no more than there is room for.
        let frames = unsafe { calls::depot_c_put(self.0, list.as_ptr().cast(), count, &mut first) };
        Doubled { first: (frames > 0).then_some(Pfn::new(first)), frames }
    }

    fn free_pages(&self, _: ZoneId) -> u64 {
        // SAFETY: a load.
        unsafe { calls::depot_c_free_pages(self.0) }
    }

    fn is_free(&self, pfn: Pfn) -> bool {
        // SAFETY: loads of `struct page`s of this zone.
        unsafe { calls::depot_c_is_free(pfn.get()) }
    }
}
