//! Lazy lists: freed areas that a purge has to unmap before they are used again.

use crate::metadata::area::{AreaIndex, Areas};
use pagedepot::sync::prim::{AtomicU32, AtomicU64, Ordering};

/// Areas that wait for a purge.
///
/// Any thread adds one, and a purge takes all. No thread takes a single one, so a head that has an
/// old value again still links to the areas that are in the list: no tag is needed.
pub struct LazyList {
    head: AtomicU32,
    /// Pages of the areas in the list.
    pages: AtomicU64,
}

impl LazyList {
    pub fn new() -> Self {
        LazyList { head: AtomicU32::new(0), pages: AtomicU64::new(0) }
    }

    /// Pages in the list.
    pub fn pages(&self) -> u64 {
        // See `subtract_pages`.
        (self.pages.load(Ordering::Relaxed) as i64).max(0) as u64
    }

    /// The first area. For a walk while no other thread uses the list.
    pub fn peek(&self) -> Option<AreaIndex> {
        AreaIndex::new(self.head.load(Ordering::Acquire))
    }

    /// Adds an area that the caller owns; returns the pages in the list.
    pub fn push(&self, areas: Areas<'_>, area: AreaIndex, pages: u32) -> u64 {
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            areas[area].set_next(AreaIndex::new(head));
            // Release: pairs with the Acquire of `take_all`.
            match self.head.compare_exchange_weak(
                head,
                area.get(),
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => break,
                Err(now) => head = now,
            }
        }
        // Relaxed: compared with a threshold only.
        self.pages.fetch_add(u64::from(pages), Ordering::Relaxed).wrapping_add(u64::from(pages))
    }

    /// Takes all areas, linked. The taker subtracts their pages by
    /// [`subtract_pages`](Self::subtract_pages).
    pub fn take_all(&self) -> Option<AreaIndex> {
        // Acquire: pairs with the Release of every `push` so far, which are one release sequence.
        AreaIndex::new(self.head.swap(0, Ordering::Acquire))
    }

    /// Subtracts pages of areas that were taken.
    pub fn subtract_pages(&self, pages: u64) {
        // Relaxed: as in `push`. The sum is negative for a moment if a taker is quicker than a
        // pusher.
        self.pages.fetch_sub(pages, Ordering::Relaxed);
    }
}
