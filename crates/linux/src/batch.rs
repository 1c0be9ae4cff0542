//! Many pages in one call.

use std::fmt;
use std::vec;

use pagedepot::{AllocError, Flags, Order, Pfn};

use crate::depot::Depot;
use crate::page::Page;

/// Blocks that the allocator moves at a time.
const CHUNK: usize = 64;

impl Depot {
    /// Allocates up to `count` blocks of 2^order pages in one call. That costs less than `count`
    /// calls: blocks that the CPU does not cache come from the store 64 at a time.
    ///
    /// There may be fewer blocks than `count`, but at least one; see
    /// [`len`](ExactSizeIterator::len). Blocks that are left in the batch when it is dropped are
    /// freed in one call.
    ///
    /// ```
    /// use pagedepot_linux::{Depot, Order, Page};
    ///
    /// let depot = Depot::new(16 << 20)?;
    /// let ring: Vec<Page> = depot.alloc_pages(Order::BASE, 64)?.collect();
    /// assert_eq!(ring.len(), 64);
    /// depot.free_pages(ring);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`page`](Self::page), when there is not even one; [`AllocError::BadSize`] for none.
    #[cfg_attr(feature = "allocinfo", track_caller)]
    pub fn alloc_pages(&self, order: Order, count: usize) -> Result<PageBatch, AllocError> {
        self.alloc_pages_with(order, count, Flags::default())
    }

    /// As [`alloc_pages`](Self::alloc_pages), with flags.
    ///
    /// # Errors
    /// As [`alloc_pages`](Self::alloc_pages).
    #[cfg_attr(feature = "allocinfo", track_caller)]
    pub fn alloc_pages_with(
        &self,
        order: Order,
        count: usize,
        flags: Flags,
    ) -> Result<PageBatch, AllocError> {
        PageBatch::alloc(self, order, count, flags)
    }

    /// As [`alloc_pages`](Self::alloc_pages), behind what `pages` has: a vector that is used again
    /// needs no memory from the heap. Returns how many there were.
    ///
    /// ```
    /// use pagedepot_linux::{Depot, Order};
    ///
    /// let depot = Depot::new(16 << 20)?;
    /// let mut received = Vec::with_capacity(64);
    /// for _ in 0..100 {
    ///     depot.alloc_pages_into(Order::BASE, 64, &mut received)?;
    ///     depot.free_pages(received.drain(..));
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`alloc_pages`](Self::alloc_pages).
    #[cfg_attr(feature = "allocinfo", track_caller)]
    pub fn alloc_pages_into(
        &self,
        order: Order,
        count: usize,
        pages: &mut Vec<Page>,
    ) -> Result<usize, AllocError> {
        alloc_into(self, order, count, pages)
    }

    /// Frees pages of any orders. Those that the CPU does not cache go to the store in batches of
    /// 64, of which neighbours in ascending order cost least. Pages of other depots go back to
    /// those, one by one.
    pub fn free_pages(&self, pages: impl IntoIterator<Item = Page>) {
        free(self, pages);
    }
}

/// Blocks that [`Depot::alloc_pages`] allocated. Those not taken are freed together when it is
/// dropped.
pub struct PageBatch {
    /// Boxed by the vector; a handle, so that what is left can be freed in one call.
    depot: Depot,
    blocks: vec::IntoIter<Pfn>,
    order: Order,
}

impl PageBatch {
    #[cfg_attr(feature = "allocinfo", track_caller)]
    fn alloc(depot: &Depot, order: Order, count: usize, flags: Flags) -> Result<Self, AllocError> {
        if count == 0 {
            return Err(AllocError::BadSize);
        }
        let mut held = Held { depot, blocks: Vec::new(), order };
        let blocks = &mut held.blocks;
        // More than there are pages cannot be had.
        let most = count.min(depot.bytes() >> depot.page_size().shift());
        blocks.reserve_exact(most);
        take(depot, (order, flags), most, |new| blocks.extend_from_slice(new))?;
        let blocks = std::mem::take(&mut held.blocks);
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

/// Blocks that are freed if the call that allocates more of them panics: it may call callbacks.
struct Held<'d> {
    depot: &'d Depot,
    blocks: Vec<Pfn>,
    order: Order,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if !self.blocks.is_empty() {
            // SAFETY: just allocated, and known to nobody else. What is refused was counted.
            let _ = unsafe { self.depot.raw().free_many(self.order, &self.blocks) };
        }
    }
}

/// See [`Depot::alloc_pages_into`].
#[cfg_attr(feature = "allocinfo", track_caller)]
fn alloc_into(
    depot: &Depot,
    order: Order,
    count: usize,
    pages: &mut Vec<Page>,
) -> Result<usize, AllocError> {
    if count == 0 {
        return Err(AllocError::BadSize);
    }
    // Before anything is allocated: it may fail. More than there are pages cannot be had.
    let most = count.min(depot.bytes() >> depot.page_size().shift());
    pages.reserve(most);
    let before = pages.len();
    take(depot, (order, Flags::default()), most, |new| {
        // SAFETY: just allocated, and no other value holds them.
        pages.extend(new.iter().map(|&pfn| unsafe { Page::from_raw(depot, pfn, order) }));
    })?;
    Ok(pages.len() - before)
}

/// Allocates up to `count` blocks, which go to `put` as they come. At least one, or an error.
///
/// What the CPU caches costs as much as for single requests, without what surrounds those: a slow
/// request refills the front for those after it. Where it does not, the store gives 64 at a time.
#[inline]
#[cfg_attr(feature = "allocinfo", track_caller)]
fn take(
    depot: &Depot,
    (order, flags): (Order, Flags),
    count: usize,
    mut put: impl FnMut(&[Pfn]),
) -> Result<(), AllocError> {
    let raw = depot.raw();
    let (mut total, mut refills) = (0, true);
    while total < count {
        let before = total;
        while total < count
            && let Some(pfn) = raw.alloc_from_front(order, flags)
        {
            put(&[pfn]);
            total += 1;
        }
        if total == count {
            break;
        }
        refills |= total > before;
        let result = if refills || count - total < CHUNK {
            refills = false;
            raw.alloc(order, flags).map(|pfn| {
                put(&[pfn]);
                1
            })
        } else {
            let mut chunk = [Pfn::new(0); CHUNK];
            raw.alloc_many(order, flags, &mut chunk).inspect(|&more| put(&chunk[..more]))
        };
        match result {
            Ok(more) => total += more,
            Err(_) if total > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// See [`Depot::free_pages`].
fn free(depot: &Depot, pages: impl IntoIterator<Item = Page>) {
    let mut chunk = Chunk { depot, blocks: [(Pfn::new(0), Order::BASE); CHUNK], length: 0 };
    // Whether the front had room for the last one.
    let mut has_room = true;
    for page in pages {
        if !page.is_of(depot) {
            drop(page);
            continue;
        }
        let Some(block) = page.free_to_front() else {
            has_room = true;
            continue;
        };
        // Alone, below `high`, it makes room for those after it.
        chunk.push(block);
        if has_room {
            has_room = false;
            chunk.free();
        }
    }
}

/// Blocks to free, which it frees also when the iterator that brings them panics.
struct Chunk<'d> {
    depot: &'d Depot,
    blocks: [(Pfn, Order); CHUNK],
    length: usize,
}

impl Chunk<'_> {
    fn push(&mut self, block: (Pfn, Order)) {
        self.blocks[self.length] = block;
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
