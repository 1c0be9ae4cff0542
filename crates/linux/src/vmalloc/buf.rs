//! Buffers that free themselves.

use std::borrow::{Borrow, BorrowMut};
use std::fmt;
use std::io::{self, Write};
use std::mem::{ManuallyDrop, replace, take};
use std::ops::{Deref, DerefMut};
use std::panic::{Location, RefUnwindSafe, UnwindSafe};
use std::ptr::{self, NonNull};
use std::slice;

use pagedepot_vmap::{Options, VfreeError, VmapError};

use super::space::Vmalloc;

impl Vmalloc {
    /// Allocates `bytes` bytes, rounded up to whole pages, at consecutive addresses, with an
    /// unmapped guard page behind. They are zeroes unless the builder said otherwise. 0 bytes give
    /// an [empty](Self::empty) buffer.
    ///
    /// The buffer owns a handle, which costs an atomic operation when the buffer is made and one
    /// when it is dropped. Threads that allocate and free without pause contend for that count;
    /// [`vmalloc`](Self::vmalloc) and [`vfree`](Self::vfree) avoid it.
    ///
    /// # Errors
    /// [`VmapError`]; its `Display` says what to do.
    #[inline]
    #[track_caller]
    pub fn buf(&self, bytes: usize) -> Result<VmallocBuf, VmapError> {
        self.buf_with(bytes, Options::DEFAULT)
    }

    /// Makes a buffer like [`buf`](Self::buf), with options. The protection is always read-write.
    ///
    /// # Errors
    /// Fails like [`buf`](Self::buf).
    #[inline]
    #[track_caller]
    pub fn buf_with(&self, bytes: usize, options: Options) -> Result<VmallocBuf, VmapError> {
        if bytes == 0 {
            return Ok(self.empty());
        }
        let (start, pages) = self.memory_for(bytes, options)?;
        // SAFETY: just allocated, read-write, and this call alone knows the address.
        Ok(unsafe { VmallocBuf::from_raw(self.clone(), start, pages) })
    }

    /// Reserves `bytes` bytes of addresses, rounded up to whole pages, for a buffer that has no
    /// bytes yet. It [grows](VmallocBuf::grow) in place as far as the addresses reach, and takes
    /// memory for what it has grown to, and a page from the beginning. Beyond them it grows as
    /// other buffers do. A GiB of addresses costs a MiB of metadata.
    ///
    /// ```
    /// use pagedepot_linux::{Depot, MemoryKind, Vmalloc};
    ///
    /// let depot = Depot::builder(64 << 20).memory(MemoryKind::Memfd).build()?;
    /// let space = Vmalloc::builder(&depot).bytes(2 << 30).build()?;
    /// let mut log = space.reserve(1 << 30)?;
    /// let start = log.addr();
    /// for mebibytes in 1..=16 {
    ///     log.grow(mebibytes << 20)?;
    /// }
    /// assert_eq!((log.addr(), log.len(), log.capacity()), (start, 16 << 20, 1 << 30));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Fails like [`buf`](Self::buf). 0 bytes, and more than the space has, are
    /// [`VmapError::BadSize`].
    #[track_caller]
    pub fn reserve(&self, bytes: usize) -> Result<VmallocBuf, VmapError> {
        self.reserve_with(bytes, Options::DEFAULT)
    }

    /// Makes a buffer like [`reserve`](Self::reserve), with options for the addresses.
    ///
    /// # Errors
    /// Fails like [`reserve`](Self::reserve).
    #[track_caller]
    pub fn reserve_with(&self, bytes: usize, options: Options) -> Result<VmallocBuf, VmapError> {
        let options = options.protection(Default::default());
        let start = self.vmalloc_reserved(0, self.pages_for(bytes)?, options)?;
        // SAFETY: just allocated, read-write, and this call alone knows the address.
        Ok(unsafe { VmallocBuf::from_raw(self.clone(), start, 0) })
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

/// Bytes at consecutive addresses, freed on drop, by any thread.
///
/// The buffer owns a handle to its address space, so it can be stored, sent and returned.
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
pub struct VmallocBuf {
    space: Vmalloc,
    /// Dangling for a buffer of no addresses.
    start: NonNull<u8>,
    /// A multiple of the page size.
    bytes: usize,
}

// SAFETY: the buffer owns its bytes, as a boxed slice does, and threads may share the address
// space.
unsafe impl Send for VmallocBuf {}
// SAFETY: as above. A shared reference only reads the bytes.
unsafe impl Sync for VmallocBuf {}
// A panic leaves bytes half-written at worst, as in a `Vec`.
impl UnwindSafe for VmallocBuf {}
impl RefUnwindSafe for VmallocBuf {}

impl VmallocBuf {
    /// Makes a buffer of memory that the caller holds by its address.
    ///
    /// # Safety
    /// [`Vmalloc::vmalloc`] or [`Vmalloc::vmalloc_reserved`] of this space returned `start` for
    /// `pages` pages, read-write. The caller gives them up and does not use them otherwise.
    #[inline]
    pub unsafe fn from_raw(space: Vmalloc, start: NonNull<u8>, pages: u32) -> Self {
        let bytes = (pages as usize) << space.page_shift();
        VmallocBuf { space, start, bytes }
    }

    /// Makes a buffer of no bytes.
    pub fn empty(space: Vmalloc) -> Self {
        VmallocBuf { space, start: NonNull::dangling(), bytes: 0 }
    }

    /// Returns the start and the number of pages, and does not free them. The caller frees them by
    /// [`Vmalloc::vfree`], makes a buffer of them again, or leaves them to the address space, which
    /// frees everything when its last handle is dropped. `None`: the buffer has no addresses.
    #[must_use = "memory that is not freed stays allocated"]
    pub fn into_raw(self) -> Option<(NonNull<u8>, u32)> {
        let this = ManuallyDrop::new(self);
        let raw = this.has_addresses().then(|| (this.start, this.pages()));
        // SAFETY: read once, from a value that is never dropped.
        drop(unsafe { ptr::read(&this.space) });
        raw
    }

    /// The address space that the buffer belongs to.
    pub fn space(&self) -> &Vmalloc {
        &self.space
    }

    /// The address of the first byte.
    pub fn addr(&self) -> usize {
        self.start.as_ptr().addr()
    }

    /// Number of bytes to which the buffer grows in place for certain: its length, or the addresses
    /// that it has [reserved](Vmalloc::reserve).
    pub fn capacity(&self) -> usize {
        let area = self.space().find(self.start.as_ptr()).filter(|_| self.has_addresses());
        area.filter(|area| area.is_reserved).map_or(self.bytes, |area| {
            ((area.span.pages - area.guard_pages) as usize) << self.space().page_shift()
        })
    }

    fn has_addresses(&self) -> bool {
        self.start != NonNull::dangling()
    }

    /// Number of pages.
    #[inline]
    pub fn pages(&self) -> u32 {
        (self.bytes >> self.space().page_shift()) as u32
    }

    /// Grows the buffer to `bytes` bytes, rounded up to whole pages. A larger buffer stays as it
    /// is. Contents are kept. The buffer may move, without a copy. New bytes are as
    /// [`Vmalloc::buf`]'s.
    ///
    /// # Errors
    /// [`VmapError`]; then the buffer has not changed.
    #[track_caller]
    pub fn grow(&mut self, bytes: usize) -> Result<(), VmapError> {
        self.grow_with(bytes, Options::DEFAULT)
    }

    /// Grows the buffer like [`grow`](Self::grow), with options for the new pages. The buffer keeps
    /// its guard.
    ///
    /// # Errors
    /// Fails like [`grow`](Self::grow).
    #[track_caller]
    pub fn grow_with(&mut self, bytes: usize, options: Options) -> Result<(), VmapError> {
        if bytes > self.len() { self.resize_with(bytes, options) } else { Ok(()) }
    }

    /// Changes the size to `bytes` bytes, rounded up to whole pages. Pages that are no longer
    /// needed are unmapped at once. Exception: with `bytes` 0 all pages stay mapped for the next
    /// request of their size. A [reserved](Vmalloc::reserve) buffer keeps its addresses, and with
    /// `bytes` 0 a page of its memory.
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
    /// Fails like [`grow`](Self::grow).
    #[track_caller]
    pub fn resize(&mut self, bytes: usize) -> Result<(), VmapError> {
        self.resize_with(bytes, Options::DEFAULT)
    }

    /// Resizes the buffer like [`resize`](Self::resize), with options for the new pages: a signal
    /// handler resizes with [`Options::no_wait`], which fails where the call would wait. The
    /// protection is always read-write.
    ///
    /// # Errors
    /// Fails like [`grow`](Self::grow).
    ///
    /// # Panics
    /// When a callback of the program panics that the call needs, such as
    /// [`on_pressure`](crate::Depot::on_pressure)'s. Then the buffer is empty, and its memory stays
    /// allocated until the address space is dropped.
    #[track_caller]
    pub fn resize_with(&mut self, bytes: usize, options: Options) -> Result<(), VmapError> {
        let pages = self.space().pages_for(bytes)?;
        if pages == 0 {
            return self.clear(options);
        }
        if self.has_addresses() {
            return self.realloc(pages, options);
        }
        self.start = self.space().vmalloc(pages, options.protection(Default::default()))?;
        self.bytes = (pages as usize) << self.space().page_shift();
        Ok(())
    }

    /// Resizes memory that the buffer has. Meanwhile the buffer has none: a waker or another
    /// callback may panic when the memory has moved or shrunk, and its new address goes with it.
    #[track_caller]
    fn realloc(&mut self, pages: u32, options: Options) -> Result<(), VmapError> {
        let old = (replace(&mut self.start, NonNull::dangling()), take(&mut self.bytes));
        // SAFETY: this value alone uses the memory, and continues with the new address.
        let resized = unsafe { self.space().vrealloc(old.0, pages, options) };
        let new = resized.map(|start| (start, (pages as usize) << self.space().page_shift()));
        (self.start, self.bytes) = new.unwrap_or(old);
        new.map(drop)
    }

    /// Frees the pages, but for one where the addresses are reserved.
    fn clear(&mut self, options: Options) -> Result<(), VmapError> {
        let is_reserved = self
            .space()
            .find(self.start.as_ptr())
            .is_some_and(|area| area.is_reserved && area.span.start.get() == self.addr());
        if !is_reserved {
            self.free();
        } else if self.bytes > 0 {
            self.realloc(1, options)?;
            // What it grows to is new memory.
            self.fill(0);
            self.bytes = 0;
        }
        Ok(())
    }

    /// Returns a writer that begins at byte `at`. A write past the buffer's end grows the buffer to
    /// twice its size, or by half of what is free if that is less. A write that ends within
    /// the buffer's [capacity](Self::capacity) does not move it.
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
    #[track_caller]
    pub fn writer(&mut self, at: usize) -> VmallocWriter<'_> {
        VmallocWriter { buf: self, position: at, line: Location::caller() }
    }

    /// The bytes as values of type `T`, as many as fit.
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

    /// Returns the buffer's values like [`values`](Self::values), writable.
    ///
    /// # Panics
    /// Panics like [`values`](Self::values).
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
        self.bytes = 0;
        let start = replace(&mut self.start, NonNull::dangling());
        if start != NonNull::dangling() {
            // SAFETY: this value alone used the memory, and uses it no more.
            if let Err(error) = unsafe { self.space().vfree(start) } {
                not_freed(error);
            }
        }
    }
}

impl Drop for VmallocBuf {
    #[inline]
    fn drop(&mut self) {
        self.free();
    }
}

/// Checks the error of a free: in a forked child nothing is freed, because the memory is the
/// parent's.
#[cold]
#[inline(never)]
fn not_freed(error: VfreeError) {
    assert!(
        error == VfreeError::Forked || std::thread::panicking(),
        "a buffer was not what it was made from: {error}"
    );
}

impl Deref for VmallocBuf {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: this value alone holds the bytes, which are mapped and initialised.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }
}

impl DerefMut for VmallocBuf {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

impl AsRef<[u8]> for VmallocBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for VmallocBuf {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl Borrow<[u8]> for VmallocBuf {
    fn borrow(&self) -> &[u8] {
        self
    }
}

impl BorrowMut<[u8]> for VmallocBuf {
    fn borrow_mut(&mut self) -> &mut [u8] {
        self
    }
}

// As for slices of bytes, because `Borrow` requires equal results.
impl PartialEq for VmallocBuf {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for VmallocBuf {}

impl PartialOrd for VmallocBuf {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for VmallocBuf {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (**self).cmp(&**other)
    }
}

impl std::hash::Hash for VmallocBuf {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl fmt::Debug for VmallocBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VmallocBuf({:p}, {} pages)", self.start, self.pages())
    }
}

/// Writes into a buffer, which grows as needed. Made by [`VmallocBuf::writer`].
#[derive(Debug)]
pub struct VmallocWriter<'b> {
    buf: &'b mut VmallocBuf,
    position: usize,
    /// Line that made the writer: libraries call it to write.
    line: &'static Location<'static>,
}

impl VmallocWriter<'_> {
    /// The byte of the buffer at which the next write begins.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Grows the buffer for a write that ends at `end`, and for further ones if there is room: by
    /// half of what the depot has left at most. An attempt at more than it has would take all of
    /// it, from other callers, too, only to give it back, with each write.
    fn grow(&mut self, end: usize) -> Result<(), VmapError> {
        let (capacity, options) = (self.buf.capacity(), Options::DEFAULT.caller(self.line));
        // A larger one would leave the addresses that the buffer has reserved.
        let most = if end <= capacity { capacity } else { usize::MAX };
        let free = self.free_bytes().saturating_sub(end - self.buf.len());
        let wanted = end.max(most.min(2 * self.buf.len()).min(end.saturating_add(free / 2)));
        match self.buf.grow_with(wanted, options) {
            Err(_) if wanted > end => self.buf.grow_with(end, options),
            grown => grown,
        }
    }

    /// Bytes of the depot's pages that are free above the `min` watermarks.
    fn free_bytes(&self) -> usize {
        let depot = self.buf.space.depot();
        let zones = depot.shortage();
        let pages: u64 =
            zones.zones().map(|zone| zone.free_pages.saturating_sub(zone.min_pages)).sum();
        (pages as usize) << depot.page_size().shift()
    }
}

impl Write for VmallocWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let end = self.position.checked_add(bytes.len()).ok_or(VmapError::BadSize)?;
        if end > self.buf.len() {
            self.grow(end)?;
        }
        self.buf[self.position..end].copy_from_slice(bytes);
        self.position = end;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
