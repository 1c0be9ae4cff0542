//! Buffers that free themselves.

use std::borrow::{Borrow, BorrowMut};
use std::fmt;
use std::io::{self, Write};
use std::mem::{ManuallyDrop, take};
use std::ops::{Deref, DerefMut};
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::ptr::{self, NonNull};
use std::slice;

use pagedepot_vmap::{Options, VfreeError, VmapError};

use super::space::Vmalloc;

impl Vmalloc {
    /// Allocates `bytes` bytes, rounded up to whole pages, at consecutive addresses, with an
    /// unmapped guard page behind. They are zeroes unless the builder said otherwise. 0 bytes give
    /// an [empty](Self::empty) buffer.
    ///
    /// The buffer owns a handle, which costs an atomic operation when it is made and one when it is
    /// dropped. Threads that allocate and free without pause share that count;
    /// [`buf_ref`](Self::buf_ref) does without it.
    ///
    /// # Errors
    /// [`VmapError`]; its `Display` says what to do.
    #[inline]
    #[track_caller]
    pub fn buf(&self, bytes: usize) -> Result<VmallocBuf, VmapError> {
        self.buf_with(bytes, Options::DEFAULT)
    }

    /// As [`buf`](Self::buf), with options. The protection is always read-write.
    ///
    /// # Errors
    /// As [`buf`](Self::buf).
    #[inline]
    #[track_caller]
    pub fn buf_with(&self, bytes: usize, options: Options) -> Result<VmallocBuf, VmapError> {
        if bytes == 0 {
            return Ok(self.empty());
        }
        let (start, pages) = self.memory_for(bytes, options)?;
        // SAFETY: just allocated, read-write, and no other value holds it.
        Ok(unsafe { VmallocBuf::from_raw(self.clone(), start, pages) })
    }

    /// As [`buf_with`](Self::buf_with), a buffer that borrows this handle instead of owning one.
    ///
    /// ```
    /// use pagedepot_linux::vmalloc::{Options, Vmalloc};
    /// use pagedepot_linux::{Depot, MemoryKind};
    ///
    /// let depot = Depot::builder(16 << 20).memory(MemoryKind::Memfd).build()?;
    /// let space = Vmalloc::new(&depot)?;
    /// assert_eq!(space.buf_ref(100_000, Options::DEFAULT)?.len(), 25 * 4096);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`buf`](Self::buf).
    #[inline]
    #[track_caller]
    pub fn buf_ref(&self, bytes: usize, options: Options) -> Result<VmallocBuf<&Self>, VmapError> {
        if bytes == 0 {
            return Ok(VmallocBuf::empty(self));
        }
        let (start, pages) = self.memory_for(bytes, options)?;
        // SAFETY: as above.
        Ok(unsafe { VmallocBuf::from_raw(self, start, pages) })
    }

    /// A buffer of no bytes, which can [grow](VmallocBuf::grow). It costs no addresses.
    pub fn empty(&self) -> VmallocBuf {
        VmallocBuf::empty(self.clone())
    }

    #[inline]
    #[track_caller]
    fn memory_for(&self, bytes: usize, options: Options) -> Result<(NonNull<u8>, u32), VmapError> {
        let pages = self.pages_for(bytes)?;
        let start = self.vmalloc(pages, options.protection(Default::default()))?;
        Ok((start, pages))
    }
}

/// Memory at consecutive addresses, as bytes. Freed when dropped, on any thread.
///
/// It owns a handle to its address space, and so can be stored, sent and returned. `S` is `Vmalloc`
/// then, or `&Vmalloc` in a buffer that only borrows the space ([`Vmalloc::buf_ref`]).
///
/// ```
/// use pagedepot_linux::{Depot, MemoryKind, Vmalloc, VmallocBuf};
///
/// struct Column {
///     bytes: VmallocBuf,
/// }
/// let depot = Depot::builder(64 << 20).memory(MemoryKind::Memfd).build()?;
/// let mut column = Column { bytes: Vmalloc::new(&depot)?.buf(100_000)? };
/// assert_eq!(column.bytes.len(), 25 * 4096);
/// column.bytes[99_999] = 7;
/// column.bytes.grow(10 << 20)?; // pages are mapped elsewhere if need be, never copied
/// assert_eq!((column.bytes[99_999], column.bytes[(10 << 20) - 1]), (7, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct VmallocBuf<S: Borrow<Vmalloc> = Vmalloc> {
    space: S,
    /// Dangling for a buffer of no bytes.
    start: NonNull<u8>,
    /// Whole pages.
    bytes: usize,
}

// SAFETY: it owns its bytes, as a boxed slice does, and threads share the address space.
unsafe impl<S: Borrow<Vmalloc> + Send> Send for VmallocBuf<S> {}
// SAFETY: as above; by shared reference its bytes are only read.
unsafe impl<S: Borrow<Vmalloc> + Sync> Sync for VmallocBuf<S> {}
// A panic leaves bytes half-written at worst, as in a vector.
impl<S: Borrow<Vmalloc>> UnwindSafe for VmallocBuf<S> {}
impl<S: Borrow<Vmalloc>> RefUnwindSafe for VmallocBuf<S> {}

impl<S: Borrow<Vmalloc>> VmallocBuf<S> {
    /// A buffer of memory that the caller holds by its address.
    ///
    /// # Safety
    /// It is `pages` pages that [`Vmalloc::vmalloc`] returned, read-write; the caller gives them
    /// up, and they are not used otherwise.
    #[inline]
    pub unsafe fn from_raw(space: S, start: NonNull<u8>, pages: u32) -> Self {
        let bytes = (pages as usize) << space.borrow().page_shift();
        VmallocBuf { space, start, bytes }
    }

    /// A buffer of no bytes.
    pub fn empty(space: S) -> Self {
        VmallocBuf { space, start: NonNull::dangling(), bytes: 0 }
    }

    /// Start and number of pages, without freeing them: the caller frees them by
    /// [`Vmalloc::vfree`], or makes a buffer of them again, or leaves them to the address space,
    /// which frees all when its last handle is dropped. `None` for no bytes.
    #[must_use = "memory that is not freed stays allocated"]
    pub fn into_raw(self) -> Option<(NonNull<u8>, u32)> {
        let this = ManuallyDrop::new(self);
        let raw = (this.bytes > 0).then(|| (this.start, this.pages()));
        // SAFETY: read once, of a value that is not dropped.
        drop(unsafe { ptr::read(&this.space) });
        raw
    }

    /// The address space that it is in.
    pub fn space(&self) -> &Vmalloc {
        self.space.borrow()
    }

    /// Its address.
    pub fn addr(&self) -> usize {
        self.start.as_ptr().addr()
    }

    /// How many pages.
    #[inline]
    pub fn pages(&self) -> u32 {
        (self.bytes >> self.space().page_shift()) as u32
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

    /// Makes it `bytes` bytes large, rounded up to whole pages. What is no longer needed is
    /// unmapped at once, except that all of it stays warm for the next request when `bytes` is 0.
    ///
    /// ```
    /// use pagedepot_linux::{Depot, MemoryKind, Vmalloc};
    ///
    /// let depot = Depot::builder(16 << 20).memory(MemoryKind::Memfd).build()?;
    /// let mut buf = Vmalloc::new(&depot)?.empty();
    /// assert!(buf.is_empty());
    /// buf.resize(1)?;
    /// assert_eq!(buf.len(), 4096);
    /// buf.resize(0)?;
    /// assert!(buf.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`grow`](Self::grow).
    #[track_caller]
    pub fn resize(&mut self, bytes: usize) -> Result<(), VmapError> {
        let pages = self.space().pages_for(bytes)?;
        if pages == 0 {
            self.free();
            return Ok(());
        }
        self.start = if self.bytes == 0 {
            self.space().vmalloc(pages, Options::DEFAULT)?
        } else {
            // SAFETY: this value alone uses it, and keeps the new address only.
            unsafe { self.space().vrealloc(self.start, pages, Options::DEFAULT) }?
        };
        self.bytes = (pages as usize) << self.space().page_shift();
        Ok(())
    }

    /// A writer that begins at byte `at`. It grows the buffer when a write goes past its end, at
    /// least to twice its size.
    ///
    /// ```
    /// use std::io::Write;
    /// use pagedepot_linux::{Depot, MemoryKind, Vmalloc};
    ///
    /// let depot = Depot::builder(16 << 20).memory(MemoryKind::Memfd).build()?;
    /// let mut log = Vmalloc::new(&depot)?.empty();
    /// let mut writer = log.writer(0);
    /// for line in 0..1000 {
    ///     writeln!(writer, "line {line}")?;
    /// }
    /// let written = writer.position();
    /// assert!(log[..written].ends_with(b"line 999\n"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn writer(&mut self, at: usize) -> VmallocWriter<'_, S> {
        VmallocWriter { buf: self, position: at }
    }

    /// Its bytes as values of another type, as many as fit.
    ///
    /// # Panics
    /// For a type of no size, or one aligned to more than a page.
    #[cfg(feature = "bytemuck")]
    pub fn values<T: bytemuck::AnyBitPattern>(&self) -> &[T] {
        if self.bytes == 0 {
            return &[];
        }
        bytemuck::cast_slice(&self[..self.bytes / size_of::<T>() * size_of::<T>()])
    }

    /// As [`values`](Self::values), to write.
    ///
    /// # Panics
    /// As [`values`](Self::values).
    #[cfg(feature = "bytemuck")]
    pub fn values_mut<T: bytemuck::Pod>(&mut self) -> &mut [T] {
        if self.bytes == 0 {
            return &mut [];
        }
        let end = self.bytes / size_of::<T>() * size_of::<T>();
        bytemuck::cast_slice_mut(&mut self[..end])
    }

    #[inline]
    fn free(&mut self) {
        if take(&mut self.bytes) > 0 {
            // SAFETY: this value alone uses the memory, and has just forgotten it.
            if let Err(error) = unsafe { self.space().vfree(self.start) } {
                not_freed(error);
            }
        }
    }
}

impl<S: Borrow<Vmalloc>> Drop for VmallocBuf<S> {
    #[inline]
    fn drop(&mut self) {
        self.free();
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

impl<S: Borrow<Vmalloc>> Deref for VmallocBuf<S> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: this value alone holds these bytes, which are mapped and initialised.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }
}

impl<S: Borrow<Vmalloc>> DerefMut for VmallocBuf<S> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

impl<S: Borrow<Vmalloc>> AsRef<[u8]> for VmallocBuf<S> {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl<S: Borrow<Vmalloc>> AsMut<[u8]> for VmallocBuf<S> {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl<S: Borrow<Vmalloc>> Borrow<[u8]> for VmallocBuf<S> {
    fn borrow(&self) -> &[u8] {
        self
    }
}

impl<S: Borrow<Vmalloc>> BorrowMut<[u8]> for VmallocBuf<S> {
    fn borrow_mut(&mut self) -> &mut [u8] {
        self
    }
}

// As the bytes, which `Borrow` demands.
impl<S: Borrow<Vmalloc>> PartialEq for VmallocBuf<S> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<S: Borrow<Vmalloc>> Eq for VmallocBuf<S> {}

impl<S: Borrow<Vmalloc>> PartialOrd for VmallocBuf<S> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<S: Borrow<Vmalloc>> Ord for VmallocBuf<S> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (**self).cmp(&**other)
    }
}

impl<S: Borrow<Vmalloc>> std::hash::Hash for VmallocBuf<S> {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl<S: Borrow<Vmalloc>> fmt::Debug for VmallocBuf<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VmallocBuf({:p}, {} pages)", self.start, self.pages())
    }
}

/// Writes into a buffer that grows. Made by [`VmallocBuf::writer`].
#[derive(Debug)]
pub struct VmallocWriter<'b, S: Borrow<Vmalloc> = Vmalloc> {
    buf: &'b mut VmallocBuf<S>,
    position: usize,
}

impl<S: Borrow<Vmalloc>> VmallocWriter<'_, S> {
    /// Where the next write begins, in bytes from the buffer's start.
    pub fn position(&self) -> usize {
        self.position
    }
}

impl<S: Borrow<Vmalloc>> Write for VmallocWriter<'_, S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let end = self.position.checked_add(bytes.len()).ok_or(VmapError::BadSize)?;
        if end > self.buf.len() {
            self.buf.grow(end.max(2 * self.buf.len()))?;
        }
        self.buf[self.position..end].copy_from_slice(bytes);
        self.position = end;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
