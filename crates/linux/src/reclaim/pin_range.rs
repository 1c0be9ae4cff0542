//! Ranges of pages that trims leave alone: see [`Pins`](crate::moving::pins::Pins).

use std::fmt;
use std::ops::Range;

use pagedepot::Pfn;

use crate::depot::handle::Depot;
use crate::moving::pins::PinError;

/// Pages whose memory no trim takes until this value is dropped. Made by [`Depot::pin_range`]. It
/// also is a handle to the depot.
#[must_use = "dropping it unpins the pages"]
pub struct PinnedRange {
    depot: Depot,
    start: Pfn,
    count: u32,
}

impl PinnedRange {
    /// The first page.
    pub fn start(&self) -> Pfn {
        self.start
    }

    /// Number of pages.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Keeps the pages pinned until [`Depot::unpin_range`], or for the depot's life. Returns the
    /// handle that this value held.
    pub fn keep(self) -> Depot {
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: read once, from a value that is never dropped.
        unsafe { std::ptr::read(&this.depot) }
    }
}

impl Drop for PinnedRange {
    fn drop(&mut self) {
        // In a forked child no trim runs, so nothing is left to do. Otherwise the pages are pinned,
        // unless the program unpinned more than it pinned.
        let _ = self.depot.unpin_range(self.start, self.count);
    }
}

impl fmt::Debug for PinnedRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PinnedRange({:?}, {} pages)", self.start, self.count)
    }
}

impl Depot {
    /// Pins pages, allocated or free: [`trim`](Self::trim) does not take their memory until the
    /// returned value is dropped. Ranges may overlap: a page is pinned while any range with it is.
    ///
    /// Pin a range before registering it for longer than its pages are held: with io_uring
    /// (`IORING_REGISTER_BUFFERS`), VFIO or RDMA. Such a registration keeps the pages that it
    /// found. After a trim the depot has other pages there, and the device does not know them. With
    /// transparent huge pages or `hugetlb`, the huge page around a pinned page stays whole.
    ///
    /// Waits until a running trim has returned the chunk that it holds, at most 16 MiB. Must not be
    /// called by signal handlers.
    ///
    /// ```
    /// use pagedepot_linux::{Depot, Flags, MemoryKind};
    ///
    /// let depot = Depot::builder(16 << 20).memory(MemoryKind::Memfd).populate(true).build()?;
    /// let buffers = depot.pages(1000, Flags::default())?;
    /// let pinned = depot.pin_range(buffers.start(), buffers.count())?;
    /// // ... register the buffers ...
    /// drop(buffers); // free, and still registered
    /// assert_eq!(depot.trim()?.bytes, (4096 - 1000) * 4096);
    /// // ... unregister them ...
    /// drop(pinned);
    /// assert!(depot.trim()?.bytes >= 1000 * 4096);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`PinError::BadRange`], [`PinError::TooMany`], [`PinError::Forked`].
    pub fn pin_range(&self, start: Pfn, count: u32) -> Result<PinnedRange, PinError> {
        let pages = self.checked_range(start, count)?;
        self.shared().pins().lock().map_err(|_| PinError::Forked)?.add(pages)?;
        Ok(PinnedRange { depot: self.clone(), start, count })
    }

    /// Removes one pin from each of these pages, which [`PinnedRange::keep`] left pinned. The range
    /// need not be one that was pinned as a whole.
    ///
    /// # Errors
    /// [`PinError::NotPinned`] when one of them is not pinned, [`PinError::BadRange`],
    /// [`PinError::Forked`].
    pub fn unpin_range(&self, start: Pfn, count: u32) -> Result<(), PinError> {
        let pages = self.checked_range(start, count)?;
        self.shared().pins().lock().map_err(|_| PinError::Forked)?.remove(pages)
    }

    fn checked_range(&self, start: Pfn, count: u32) -> Result<Range<u64>, PinError> {
        let end = u64::from(start.get()) + u64::from(count);
        let pages = (self.bytes() >> self.page_size().shift()) as u64;
        if count == 0 || end > pages {
            return Err(PinError::BadRange { start, count });
        }
        Ok(u64::from(start.get())..end)
    }
}
