//! Buffers that free themselves.

use std::fmt;
use std::mem::forget;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;

use pagedepot_vmap::{Options, VfreeError, VmapError};

use super::space::Vmalloc;

/// Memory at consecutive addresses, as bytes. Freed when dropped.
///
/// ```
/// use std::sync::Arc;
/// use pagedepot_linux::{Depot, MemoryKind, Vmalloc};
///
/// let depot = Arc::new(Depot::builder(64 << 20).memory(MemoryKind::Memfd).build()?);
/// let space = Vmalloc::new(&depot)?;
/// let mut column = space.buf(100_000)?;
/// assert_eq!(column.len(), 25 * 4096);
/// column[99_999] = 7;
/// column.grow(10 << 20)?; // pages are mapped elsewhere if need be, never copied
/// assert_eq!((column[99_999], column[(10 << 20) - 1]), (7, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct VmallocBuf<'v> {
    space: &'v Vmalloc,
    start: NonNull<u8>,
    pages: u32,
}

// SAFETY: it owns its bytes, as a boxed slice does, and the address space is shared by threads.
unsafe impl Send for VmallocBuf<'_> {}
// SAFETY: as above.
unsafe impl Sync for VmallocBuf<'_> {}

impl<'v> VmallocBuf<'v> {
    /// Takes charge of memory.
    ///
    /// # Safety
    /// It is `pages` pages that [`Vmalloc::vmalloc`] returned, read-write, and nobody else uses or
    /// frees it.
    #[inline]
    pub const unsafe fn from_raw(space: &'v Vmalloc, start: NonNull<u8>, pages: u32) -> Self {
        VmallocBuf { space, start, pages }
    }

    /// Gives the memory out of charge: freed by [`Vmalloc::vfree`], or a new buffer, or together
    /// with the address space. Returns its start and its pages.
    #[must_use = "memory that nobody frees stays allocated"]
    pub fn into_raw(self) -> (NonNull<u8>, u32) {
        let raw = (self.start, self.pages);
        forget(self);
        raw
    }

    /// Its address.
    pub fn addr(&self) -> usize {
        self.start.as_ptr().addr()
    }

    /// How many pages.
    pub fn pages(&self) -> u32 {
        self.pages
    }

    /// Makes it `bytes` bytes large, rounded up to whole pages, if it is smaller. Contents are
    /// kept; it may move, without a copy. What is new is as [`Vmalloc::buf`]'s.
    ///
    /// # Errors
    /// [`VmapError`]; it is as it was then.
    #[track_caller]
    pub fn grow(&mut self, bytes: usize) -> Result<(), VmapError> {
        if bytes > self.len() { self.resize(bytes) } else { Ok(()) }
    }

    /// Makes it `bytes` bytes large, rounded up to whole pages; 0 is no size. What is no longer
    /// needed is unmapped at once.
    ///
    /// # Errors
    /// As [`grow`](Self::grow).
    #[track_caller]
    pub fn resize(&mut self, bytes: usize) -> Result<(), VmapError> {
        let pages = self.space.pages_for(bytes)?;
        // SAFETY: nobody else uses it, and the new address is all that is kept.
        self.start = unsafe { self.space.vrealloc(self.start, pages, Options::DEFAULT) }?;
        self.pages = pages;
        Ok(())
    }
}

impl Drop for VmallocBuf<'_> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: this value alone uses the memory, and goes away.
        match unsafe { self.space.vfree(self.start) } {
            Ok(()) => {}
            Err(error) => not_freed(error),
        }
    }
}

/// In a forked child nothing is freed, which is as it should be: the memory is the parent's.
#[cold]
#[inline(never)]
fn not_freed(error: VfreeError) {
    assert!(
        error == VfreeError::Forked || std::thread::panicking(),
        "a buffer was not what it was made from: {error}"
    );
}

impl Deref for VmallocBuf<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        let bytes = (self.pages as usize) << self.space.depot().page_size().shift();
        // SAFETY: this value alone holds these bytes, which are mapped and initialised.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), bytes) }
    }
}

impl DerefMut for VmallocBuf<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        let bytes = (self.pages as usize) << self.space.depot().page_size().shift();
        // SAFETY: as above.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), bytes) }
    }
}

impl AsRef<[u8]> for VmallocBuf<'_> {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for VmallocBuf<'_> {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl fmt::Debug for VmallocBuf<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VmallocBuf({:p}, {} pages)", self.start, self.pages)
    }
}
