//! Many pages in one call.

use std::fmt;
use std::vec;

use pagedepot::{AllocError, Flags, Order, Pfn};

use crate::depot::Depot;
use crate::page::Page;

/// Blocks that the allocator moves at a time.
const CHUNK: usize = 64;

/// Blocks that [`Depot::alloc_pages`] allocated. Those not taken are freed together when it is
/// dropped.
pub struct PageBatch {
    /// Boxed by the vector; a handle, so that what is left can be freed in one call.
    depot: Depot,
    blocks: vec::IntoIter<Pfn>,
    order: Order,
}

impl PageBatch {
    pub(crate) fn alloc(
        depot: &Depot,
        order: Order,
        count: usize,
        flags: Flags,
    ) -> Result<Self, AllocError> {
        if count == 0 {
            return Err(AllocError::BadSize);
        }
        let mut blocks = Vec::new();
        // More than there are pages cannot be had.
        let most = depot.bytes() >> depot.page_size().shift();
        blocks.resize(count.min(most), Pfn::new(0));
        let got = depot.raw().alloc_many(order, flags, &mut blocks)?;
        blocks.truncate(got);
        Ok(PageBatch { depot: depot.clone(), blocks: blocks.into_iter(), order })
    }

    /// Each block has 2^order pages of the base size.
    pub fn order(&self) -> Order {
        self.order
    }
}

impl Iterator for PageBatch {
    type Item = Page;

    #[inline]
    fn next(&mut self) -> Option<Page> {
        let pfn = self.blocks.next()?;
        // SAFETY: the batch holds it, and has just given it up.
        Some(unsafe { Page::from_raw(&self.depot, pfn, self.order) })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.blocks.size_hint()
    }
}

impl ExactSizeIterator for PageBatch {}

impl Drop for PageBatch {
    fn drop(&mut self) {
        // SAFETY: the batch holds what it still lists. In a forked child nothing is freed.
        let freed = unsafe { self.depot.raw().free_many(self.order, self.blocks.as_slice()) };
        debug_assert!(freed.is_ok() || self.depot.shared().check_parent().is_err(), "{freed:?}");
    }
}

impl fmt::Debug for PageBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PageBatch({} of {:?})", self.blocks.len(), self.order)
    }
}

/// See [`Depot::alloc_pages_into`].
pub(crate) fn alloc_into(
    depot: &Depot,
    order: Order,
    count: usize,
    pages: &mut Vec<Page>,
) -> Result<usize, AllocError> {
    if count == 0 {
        return Err(AllocError::BadSize);
    }
    let mut total = 0;
    while total < count {
        let mut chunk = [Pfn::new(0); CHUNK];
        let wanted = (count - total).min(CHUNK);
        // Before anything is allocated: it may fail.
        pages.reserve(wanted);
        let got = match depot.raw().alloc_many(order, Flags::default(), &mut chunk[..wanted]) {
            Ok(got) => got,
            Err(_) if total > 0 => break,
            Err(error) => return Err(error),
        };
        // SAFETY: just allocated, and no other value holds them.
        let new = chunk[..got].iter().map(|&pfn| unsafe { Page::from_raw(depot, pfn, order) });
        pages.extend(new);
        total += got;
        if got < wanted {
            break;
        }
    }
    Ok(total)
}

/// See [`Depot::free_pages`].
pub(crate) fn free(depot: &Depot, pages: impl IntoIterator<Item = Page>) {
    let mut chunk = Chunk { depot, blocks: [(Pfn::new(0), Order::BASE); CHUNK], length: 0 };
    for page in pages {
        if page.is_of(depot) {
            chunk.push(page);
        }
        // Else it is dropped here, into its own depot.
    }
}

/// Blocks to free, which it frees also when the iterator that brings them panics.
struct Chunk<'d> {
    depot: &'d Depot,
    blocks: [(Pfn, Order); CHUNK],
    length: usize,
}

impl Chunk<'_> {
    fn push(&mut self, page: Page) {
        self.blocks[self.length] = page.into_raw();
        self.length += 1;
        if self.length == CHUNK {
            self.free();
        }
    }

    fn free(&mut self) {
        let blocks = &self.blocks[..std::mem::take(&mut self.length)];
        // SAFETY: each was taken from a page of this depot. In a forked child nothing is freed.
        let freed = unsafe { self.depot.raw().free_mixed(blocks) };
        debug_assert!(freed.is_ok() || self.depot.shared().check_parent().is_err(), "{freed:?}");
    }
}

impl Drop for Chunk<'_> {
    fn drop(&mut self) {
        self.free();
    }
}
