//! Many pages in one call.

use std::fmt;
use std::vec;

use pagedepot::{AllocError, Flags, Order, Pfn};

use crate::depot::handle::Depot;
use crate::pages::page::Page;

/// Blocks that the allocator moves at a time.
pub(crate) const CHUNK: usize = 64;

impl Depot {
    /// Allocates up to `count` blocks of 2^order pages in one call. That costs less than `count`
    /// calls: what the CPU caches is taken a magazine at a time, by one sequence each.
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
    /// Fails like [`page`](Self::page), when there is not even one; [`AllocError::BadSize`] for a
    /// count of 0.
    #[cfg_attr(feature = "allocinfo", track_caller)]
    pub fn alloc_pages(&self, order: Order, count: usize) -> Result<PageBatch, AllocError> {
        self.alloc_pages_with(order, count, Flags::default())
    }

    /// Allocates pages like [`alloc_pages`](Self::alloc_pages), with flags.
    ///
    /// # Errors
    /// Fails like [`alloc_pages`](Self::alloc_pages).
    #[cfg_attr(feature = "allocinfo", track_caller)]
    pub fn alloc_pages_with(
        &self,
        order: Order,
        count: usize,
        flags: Flags,
    ) -> Result<PageBatch, AllocError> {
        PageBatch::alloc(self, order, count, flags)
    }

    /// Allocates pages like [`alloc_pages`](Self::alloc_pages), and appends them to `pages`: a
    /// vector that is used again needs no memory from the heap. Returns how many there were.
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
    /// Fails like [`alloc_pages`](Self::alloc_pages).
    #[cfg_attr(feature = "allocinfo", track_caller)]
    pub fn alloc_pages_into(
        &self,
        order: Order,
        count: usize,
        pages: &mut Vec<Page>,
    ) -> Result<usize, AllocError> {
        alloc_into(self, order, count, pages)
    }

    /// Frees pages of any orders, 64 at a time: neighbours of one order by one sequence each while
    /// the CPU may cache them. The others go to the store, where those in ascending order cost
    /// least. Pages of other depots go back to those, one by one.
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
        // More than there are pages cannot be had.
        let most = count.min(depot.bytes() >> depot.page_size().shift());
        let mut blocks = vec![Pfn::new(0); most];
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

/// Implements [`Depot::alloc_pages_into`].
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
    let mut chunk = [Pfn::new(0); CHUNK];
    let mut left = most;
    while left > 0 {
        let room = &mut chunk[..left.min(CHUNK)];
        let blocks = match depot.raw().alloc_many(order, Flags::default(), room) {
            Ok(got) => &room[..got],
            Err(_) if left < most => break,
            Err(error) => return Err(error),
        };
        // SAFETY: just allocated, and no other value holds them.
        pages.extend(blocks.iter().map(|&pfn| unsafe { Page::from_raw(depot, pfn, order) }));
        left -= blocks.len();
    }
    Ok(pages.len() - before)
}

/// Implements [`Depot::free_pages`].
fn free(depot: &Depot, pages: impl IntoIterator<Item = Page>) {
    let mut pages = pages.into_iter();
    let mut chunk = Chunk { depot, blocks: [Pfn::new(0); CHUNK], length: 0, order: Order::BASE };
    let mut next = next_of(depot, &mut pages);
    while let Some(first) = next {
        next = chunk.gather(first, &mut pages);
        chunk.free();
    }
}

/// The next page of this depot. Those of others are dropped, out of line: a drop takes the
/// registers of the loop that gathers pages.
#[inline(always)]
fn next_of(depot: &Depot, pages: &mut impl Iterator<Item = Page>) -> Option<Page> {
    #[cold]
    #[inline(never)]
    fn drop_foreign(page: Page) {
        drop(page);
    }
    loop {
        let page = pages.next()?;
        if page.is_of(depot) {
            return Some(page);
        }
        drop_foreign(page);
    }
}

/// Blocks of one order to free, which it frees also when the iterator that brings them panics.
struct Chunk<'d> {
    depot: &'d Depot,
    blocks: [Pfn; CHUNK],
    length: usize,
    order: Order,
}

impl Chunk<'_> {
    /// Gathers pages of one order, beginning with `first`, while there is room. Returns the first
    /// page that it has not gathered.
    #[inline(always)]
    fn gather(&mut self, first: Page, pages: &mut impl Iterator<Item = Page>) -> Option<Page> {
        let order = first.order();
        let mut page = first;
        self.order = order;
        for (place, block) in self.blocks.iter_mut().enumerate() {
            *block = page.into_raw().0;
            self.length = place + 1;
            page = next_of(self.depot, pages)?;
            if page.order() != order {
                break;
            }
        }
        Some(page)
    }

    fn free(&mut self) {
        let blocks = &self.blocks[..std::mem::take(&mut self.length)];
        // SAFETY: each was taken from a page of this depot. In a forked child nothing is freed.
        let freed = unsafe { self.depot.raw().free_many(self.order, blocks) };
        debug_assert!(freed.is_ok() || self.depot.shared().check_parent().is_err(), "{freed:?}");
    }
}

impl Drop for Chunk<'_> {
    fn drop(&mut self) {
        self.free();
    }
}
