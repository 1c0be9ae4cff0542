//! The store: the buddy lists of a `struct zone`, under its lock.

use core::ffi::c_void;

use pagedepot::{Backing, BackingRequest, Block, DoubleFree, Pfn, ZoneId};

use crate::calls;

/// A `struct zone`.
pub struct Buddy(pub *mut c_void);

// SAFETY: what it points to is only handed to C functions that take the zone's lock or load.
unsafe impl Sync for Buddy {}

// SAFETY: `depot_c_take` hands out what `__rmqueue` removed from the lists of this zone under its
// lock: naturally aligned blocks of frames that no other code has until `__free_one_page` has them
// again, under the same lock, which also gives visibility. It writes as many entries as it returns.
unsafe impl Backing for Buddy {
    fn take(&self, request: BackingRequest, out: &mut [Block]) -> usize {
        let BackingRequest { order, mobility, bits, .. } = request;
        let (first, wanted) = (out.as_mut_ptr(), out.len() as u32);
        // SAFETY: there is room for as many; the zone lives as long as the kernel.
        let got = unsafe {
            calls::depot_c_take(self.0, order.get(), mobility as u32, bits.into(), first, wanted)
        };
        got as usize
    }

    fn put(&self, _: ZoneId, blocks: &[Block]) -> DoubleFree {
        let mut first = 0;
        let (list, count) = (blocks.as_ptr(), blocks.len() as u32);
        // SAFETY: so many blocks are there to be read.
        let frames = unsafe { calls::depot_c_put(self.0, list, count, &mut first) };
        DoubleFree { first: (frames > 0).then_some(Pfn::new(first)), frames }
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
