//! Ranges of pages that trims leave alone: see [`Pins`](crate::moving::pins::Pins). One of them is
//! all memory, as io_uring's fixed buffers.
//!
//! The kernel takes at most 1 GiB per fixed buffer, so a depot is registered in pieces of 1 GiB.
//! The first page of a depot is aligned to the size of the depot, to 1 GiB at most: a block lies in
//! one piece, whatever its order.

use std::fmt;
use std::ops::Range;

use pagedepot::Pfn;

use crate::depot::handle::Depot;
use crate::moving::pins::PinError;

/// Pages whose memory no trim takes until this value is dropped. Made by [`Depot::pin_range`]. It
/// also is a handle to the depot. Do not drop it in a signal handler: above a trim, or a pin, of
/// its own thread the pages stay pinned.
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

/// The most bytes of a fixed buffer (`io_buffer_validate` in the kernel's `io_uring/rsrc.c`).
const PIECE_BYTES: usize = 1 << 30;

/// A depot's memory in pieces, for `IORING_REGISTER_BUFFERS`, and the promise that no trim takes a
/// page of it. Made by [`Depot::registered_iovecs`]. It is a handle to the depot, too.
///
/// Keep it until the buffers are unregistered, or the ring has gone.
#[must_use = "dropping it lets trims take memory that is registered"]
pub struct RegisteredIovecs {
    pinned: PinnedRange,
    base: usize,
    bytes: usize,
    page_shift: u32,
}

impl RegisteredIovecs {
    /// The pieces, in order: each has 1 GiB, the last one what is left. The index of a piece is
    /// the index of its fixed buffer (`buf_index` of a request).
    pub fn iovecs(&self) -> Vec<libc::iovec> {
        let piece = |start: usize| libc::iovec {
            iov_base: std::ptr::with_exposed_provenance_mut(self.base + start),
            iov_len: (self.bytes - start).min(PIECE_BYTES),
        };
        (0..self.bytes).step_by(PIECE_BYTES).map(piece).collect()
    }

    /// Number of pieces.
    pub fn pieces(&self) -> usize {
        self.bytes.div_ceil(PIECE_BYTES)
    }

    /// The index of a page's piece. `None`: the page was not there when the pieces were made.
    ///
    /// A block lies in one piece. [`Pages`](crate::Pages) may cross the end of one:
    /// [`piece_of_bytes`](Self::piece_of_bytes) tells.
    pub fn piece_of(&self, page: Pfn) -> Option<u16> {
        let start = page.index() << self.page_shift;
        (start < self.bytes).then_some((start / PIECE_BYTES) as u16)
    }

    /// The index of the piece that these bytes lie in. `None`: they are no bytes, do not lie in the
    /// depot, or in two pieces. A request for bytes in two pieces is made twice, one for each.
    pub fn piece_of_bytes(&self, bytes: &[u8]) -> Option<u16> {
        let start = bytes.as_ptr().addr().checked_sub(self.base)?;
        let last = start + bytes.len().checked_sub(1)?;
        let is_in_one = last < self.bytes && start / PIECE_BYTES == last / PIECE_BYTES;
        is_in_one.then_some((start / PIECE_BYTES) as u16)
    }

    /// The pages that trims leave alone because of this value.
    pub fn pinned(&self) -> &PinnedRange {
        &self.pinned
    }
}

impl fmt::Debug for RegisteredIovecs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RegisteredIovecs({} pieces, {:?})", self.pieces(), self.pinned)
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
    /// [`PinError::BadRange`], [`PinError::TooMany`], [`PinError::Forked`],
    /// [`PinError::Reentrant`].
    pub fn pin_range(&self, start: Pfn, count: u32) -> Result<PinnedRange, PinError> {
        let pages = self.checked_range(start, count)?;
        self.shared().pins().lock()?.add(pages)?;
        Ok(PinnedRange { depot: self.clone(), start, count })
    }

    /// Removes one pin from each of these pages, which [`PinnedRange::keep`] left pinned. The range
    /// need not be one that was pinned as a whole.
    ///
    /// # Errors
    /// [`PinError::NotPinned`] when one of them is not pinned, [`PinError::BadRange`],
    /// [`PinError::Forked`], [`PinError::Reentrant`].
    pub fn unpin_range(&self, start: Pfn, count: u32) -> Result<(), PinError> {
        let pages = self.checked_range(start, count)?;
        self.shared().pins().lock()?.remove(pages)
    }

    /// All of the depot's memory as fixed buffers of io_uring, in pieces of 1 GiB at most. Until
    /// the returned value is dropped no [`trim`](Self::trim) takes memory: the ring keeps the pages
    /// that it found, and would go on using them. [`TrimResult::pinned_pages`] counts the pages
    /// that trims leave alone.
    ///
    /// With fixed buffers the kernel need not look up and pin pages for each request. It makes all
    /// memory present when it is registered, and counts it against `RLIMIT_MEMLOCK` (`ulimit -l`),
    /// unless the program has `CAP_IPC_LOCK`. Memory that is [added](Self::grow) later is not in
    /// the pieces.
    ///
    /// ```
    /// use pagedepot_linux::{Depot, Order};
    ///
    /// let depot = Depot::new(64 << 20)?;
    /// let registered = depot.registered_iovecs()?;
    /// // SAFETY (of the caller's `register_buffers`): the pieces stay mapped while `registered` is
    /// // kept, and only bytes of pages that the program holds are read and written through them.
    /// assert_eq!(registered.iovecs().len(), 1);
    /// let page = depot.page(Order::BASE)?;
    /// let buf_index = registered.piece_of(page.pfn());
    /// assert_eq!(buf_index, Some(0)); // beside the page's address and length in each request
    /// assert_eq!(depot.trim()?.bytes, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    /// `lab/uring/examples/fixed_buffers.rs` reads a file by such requests.
    ///
    /// # Errors
    /// [`PinError::TooMany`], [`PinError::Forked`], [`PinError::Reentrant`].
    ///
    /// [`TrimResult::pinned_pages`]: crate::reclaim::TrimResult::pinned_pages
    pub fn registered_iovecs(&self) -> Result<RegisteredIovecs, PinError> {
        let (bytes, page_shift) = (self.bytes(), self.page_size().shift());
        // A depot may have 2^32 pages, and a range one less.
        let pages = u32::try_from(bytes >> page_shift)
            .map_err(|_| PinError::BadRange { start: Pfn::new(0), count: u32::MAX })?;
        let pinned = self.pin_range(Pfn::new(0), pages)?;
        let base = self.raw().base().as_ptr().expose_provenance();
        Ok(RegisteredIovecs { pinned, base, bytes, page_shift })
    }

    /// Pages that [`pin_range`](Self::pin_range) and [`registered_iovecs`](Self::registered_iovecs)
    /// keep from trims now, held or free.
    ///
    /// # Errors
    /// [`PinError::Forked`], [`PinError::Reentrant`].
    pub fn pinned_pages(&self) -> Result<u64, PinError> {
        Ok(self.shared().pins().lock()?.pages())
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
