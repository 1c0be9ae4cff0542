//! Mapping a depot's frames into a reserved range of addresses.
//!
//! The range is reserved by one mapping without access. A run of frames is a piece of the memory
//! file, mapped over it by one `MAP_FIXED` call that also populates it. Unmapping maps the
//! reservation over a span again: the kernel joins it with its neighbours, and gives the page
//! tables back of every aligned 2 MiB that lies inside. So addresses never fall out of the range.
//!
//! The call returns when no CPU of the process reaches the old pages any more: the kernel
//! interrupts those that might. That is why the core merges spans, and calls when much is due.

use std::ffi::c_void;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pagedepot::vmap::{FlushSpans, MapError, Mapper, Protection, Span, VirtAddr};
use pagedepot::{FrameRange, PageSize, Pfn};
use rustix::io::{Errno, pread};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use super::budget::{self, Budget};
use super::error::VmallocBuildError;
use super::pieces::{Bits, Pieces};
use crate::depot::Depot;
use crate::memory::Mapping;

/// A reserved range of addresses, and the frames of a [`Depot`] mapped into it.
///
/// [`Vmalloc`](super::Vmalloc) is made of one; use it alone under a [`Vmap`](pagedepot::vmap::Vmap)
/// or address-space design of your own.
pub struct LinuxMapper {
    depot: Arc<Depot>,
    start: NonNull<u8>,
    pages: u32,
    pieces: Pieces,
    /// Tables through which something was mapped since they were last unmapped whole.
    populated: Bits,
    budget: Arc<Budget>,
    is_released: AtomicBool,
}

// SAFETY: the pointer is a number here, the range's start; what happens in the range is ruled by
// the contract of `Mapper`.
unsafe impl Send for LinuxMapper {}
// SAFETY: as above.
unsafe impl Sync for LinuxMapper {}

impl LinuxMapper {
    /// Reserves `bytes` of addresses, rounded up to whole page tables, for frames of `depot`,
    /// which must be a memory file. `mappings_max`: see
    /// [`mappings_max`](super::VmallocBuilder::mappings_max).
    ///
    /// # Errors
    /// [`VmallocBuildError`].
    pub fn new(
        depot: &Arc<Depot>,
        bytes: usize,
        mappings_max: Option<u32>,
    ) -> Result<Self, VmallocBuildError> {
        let page_size = depot.page_size();
        if depot.memory().fd().is_none() || depot.memory().is_hugetlb() {
            return Err(VmallocBuildError::NoFile);
        }
        let table_bytes = (Self::TABLE_PAGES as usize) << page_size.shift();
        let rounded = bytes.checked_next_multiple_of(table_bytes);
        let pages = rounded.and_then(|bytes| u32::try_from(bytes >> page_size.shift()).ok());
        let (Some(bytes), Some(pages)) = (rounded.filter(|&bytes| bytes > 0), pages) else {
            return Err(VmallocBuildError::BadSize { bytes, page_size });
        };
        let failed = |errno| VmallocBuildError::Memory { bytes, errno };
        let budget = match mappings_max {
            Some(max) if max < MAPPINGS_MIN => return Err(VmallocBuildError::TooFewMappings { max }),
            Some(max) => Budget::part(max - budget::RESERVE_MIN),
            None => Budget::of_process(),
        };
        let pieces = Pieces::new(pages as usize).map_err(failed)?;
        let populated = Bits::new(bytes / table_bytes).map_err(failed)?;
        let start = Mapping::reserve_aligned(0, bytes, table_bytes).map_err(failed)?.1.into_start();
        start.as_ptr().expose_provenance();
        let (depot, is_released) = (depot.clone(), AtomicBool::new(false));
        // The reservation itself, whatever the limit.
        budget.give(-1);
        Ok(LinuxMapper { depot, start, pages, pieces, populated, budget, is_released })
    }

    /// The depot whose frames it maps.
    pub fn depot(&self) -> &Arc<Depot> {
        &self.depot
    }

    /// Mappings that the kernel needs for this range, and for others that share the limit.
    pub fn mappings(&self) -> u32 {
        self.budget.used()
    }

    /// How many there may be.
    pub fn mappings_max(&self) -> u32 {
        self.budget.max()
    }

    /// Whether something is mapped at an address, by this mapper's own books.
    pub fn is_mapped(&self, at: VirtAddr) -> bool {
        let page = at.get().wrapping_sub(self.start.as_ptr().addr()) >> self.page_size().shift();
        page < self.pages as usize && self.pieces.is_mapped(page)
    }

    /// Bytes of page tables for [`TABLE_PAGES`](Mapper::TABLE_PAGES) pages. The kernel's tables map
    /// 512 of the system's pages each; with a larger base page size it takes several.
    pub fn table_bytes(&self) -> u64 {
        self.page_size().bytes() as u64
    }

    /// Gives the whole range back, so that nothing is mapped any more. Afterwards there is nothing
    /// to unmap.
    ///
    /// # Safety
    /// Nobody uses the range any more, or asks this mapper to map.
    pub(super) unsafe fn release(&self) {
        // SAFETY: our reservation, which nobody uses.
        let result = unsafe { munmap(self.start.as_ptr().cast(), self.bytes()) };
        if result.is_ok() {
            let pages = self.pages as usize;
            self.budget.give(self.pieces.unmap(0..pages) + 1);
            self.is_released.store(true, Ordering::Relaxed);
        }
    }

    fn is_released(&self) -> bool {
        // Relaxed: set by the range's last user.
        self.is_released.load(Ordering::Relaxed)
    }

    fn bytes(&self) -> usize {
        (self.pages as usize) << self.page_size().shift()
    }

    /// The pages of a span, counted from the range's start.
    fn run(&self, span: Span) -> Range<usize> {
        let first = (span.start.get() - self.start.as_ptr().addr()) >> self.page_size().shift();
        first..first + span.pages as usize
    }

    /// Where frames lie in the depot's memory file, and how many bytes, if the depot has them.
    fn in_file(&self, frames: FrameRange) -> Result<(usize, usize), MapError> {
        let offset = self.depot.offset(frames.start);
        let bytes = (frames.frames as usize) << self.page_size().shift();
        let end = offset.checked_add(bytes);
        end.filter(|&end| end <= self.depot.bytes()).ok_or(MapError::Refused(Errno::INVAL.raw_os_error()))?;
        Ok((offset, bytes))
    }

    fn pointer(&self, at: VirtAddr) -> *mut c_void {
        let offset = at.get() - self.start.as_ptr().addr();
        assert!(offset < self.bytes());
        // SAFETY: inside the reservation.
        unsafe { self.start.as_ptr().add(offset).cast() }
    }

    /// Maps the reservation over a span.
    unsafe fn cover(&self, span: Span) -> Result<(), Errno> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        let bytes = span.bytes(self.page_size());
        // SAFETY: the span is ours, and nobody uses what is mapped there: the caller says so.
        unsafe { mmap_anonymous(self.pointer(span.start), bytes, ProtFlags::empty(), flags) }.map(|_| ())
    }

    /// Where a call failed the kernel may have taken the reservation away before (it does so in
    /// versions before 6.12): puts it back, if nobody else is there by now.
    fn restore(&self, span: Span) {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
        let bytes = span.bytes(self.page_size());
        let start = self.pointer(span.start);
        // SAFETY: replaces nothing.
        let mapped = unsafe { mmap_anonymous(start, bytes, ProtFlags::empty(), flags) };
        // Before Linux 4.17 the address is a wish.
        if let Ok(elsewhere) = mapped.as_ref().copied()
            && elsewhere != start
        {
            // SAFETY: just mapped, and nobody uses it.
            let _ = unsafe { munmap(elsewhere, bytes) };
        }
    }

    /// Forgets what was mapped in a span.
    fn note_unmapped(&self, run: Range<usize>) {
        let tables = Self::TABLE_PAGES as usize;
        let whole = run.start.div_ceil(tables)..run.end / tables;
        if !whole.is_empty() {
            self.populated.clear(whole);
        }
        self.budget.give(self.pieces.unmap(run));
    }
}

/// The reservation, a piece, its end, and the reserve.
pub(super) const MAPPINGS_MIN: u32 = 3 + budget::RESERVE_MIN;

fn why(errno: Errno) -> MapError {
    match errno {
        Errno::NOMEM => budget::why_no_memory(),
        other => MapError::Refused(other.raw_os_error()),
    }
}

fn access(protection: Protection) -> ProtFlags {
    let mut access = ProtFlags::READ;
    access.set(ProtFlags::WRITE, protection.may_write());
    access.set(ProtFlags::EXEC, protection.may_execute());
    access
}

// SAFETY: the range is a reservation of this value's own, which nobody else maps into; a piece
// reaches the file's pages at the offsets of its frames; `unmap` returns after the kernel has
// flushed every CPU's TLB.
unsafe impl Mapper for LinuxMapper {
    fn span(&self) -> Span {
        Span::new(VirtAddr::new(self.start.as_ptr().addr()), self.pages)
    }

    fn page_size(&self) -> PageSize {
        self.depot.page_size()
    }

    unsafe fn map(&self, at: VirtAddr, frames: FrameRange, how: Protection) -> Result<(), MapError> {
        let span = Span::new(at, frames.frames);
        let (offset, bytes) = self.in_file(frames)?;
        let file = self.depot.memory().fd().ok_or(MapError::Refused(Errno::BADF.raw_os_error()))?;
        self.budget.take(2)?;
        let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::POPULATE;
        // SAFETY: the pages are the caller's alone and not mapped, and lie in the reservation.
        let mapped = unsafe { mmap(self.pointer(at), bytes, access(how), flags, file, offset as u64) };
        if let Err(errno) = mapped {
            self.budget.give(2);
            self.restore(span);
            return Err(why(errno));
        }
        let run = self.run(span);
        let tables = Self::TABLE_PAGES as usize;
        self.populated.set(run.start / tables..run.end.div_ceil(tables));
        self.budget.give(2 - i64::from(self.pieces.map(run)));
        Ok(())
    }

    unsafe fn unmap(&self, span: Span) -> Result<(), MapError> {
        if self.is_released() {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        if let Err(errno) = unsafe { self.cover(span) } {
            self.restore(span);
            return Err(why(errno));
        }
        self.note_unmapped(self.run(span));
        Ok(())
    }

    /// Nothing to do: the kernel flushes before `unmap` returns.
    fn flush(&self, _spans: FlushSpans<'_>) {}

    /// Tables that were unmapped whole are gone already; the rest is covered whole now.
    unsafe fn release_tables(&self, span: Span) {
        let (run, tables) = (self.run(span), Self::TABLE_PAGES as usize);
        let left = self.populated.clear(run.start / tables..run.end / tables);
        if left > 0 && !self.is_released() {
            // SAFETY: the caller's promise. Failing leaves empty tables.
            let _ = unsafe { self.cover(span) };
        }
    }

    #[inline]
    unsafe fn fill(&self, span: Span, byte: u8) {
        let start = ptr::with_exposed_provenance_mut::<u8>(span.start.get());
        // SAFETY: mapped writable, and the caller's alone.
        unsafe { start.write_bytes(byte, span.bytes(self.page_size())) };
    }

    /// Through the depot's own mapping of its memory, which is always writable.
    unsafe fn fill_frames(&self, frames: FrameRange, byte: u8) -> Result<(), MapError> {
        let (offset, bytes) = self.in_file(frames)?;
        // SAFETY: inside the depot's memory, and the frames are the caller's alone.
        unsafe { self.depot.base().as_ptr().add(offset).write_bytes(byte, bytes) };
        Ok(())
    }

    /// The kernel copies, from the file. The frame's holder may write to it meanwhile by plain
    /// stores, and a load of this program's beside those would be a data race, a volatile or atomic
    /// one too.
    fn read(&self, frame: Pfn, offset: usize, buf: &mut [u8]) -> bool {
        let page = self.page_size().bytes();
        let is_inside = offset <= page && buf.len() <= page - offset;
        let (Ok((at, _)), Some(file), true) =
            (self.in_file(FrameRange::new(frame, 1)), self.depot.memory().fd(), is_inside)
        else {
            return false;
        };
        let mut done = 0;
        while done < buf.len() {
            match pread(file, &mut buf[done..], (at + offset + done) as u64) {
                Ok(0) => return false,
                Ok(bytes) => done += bytes,
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
        true
    }

    fn prefers_long_runs(&self) -> bool {
        self.budget.is_tight()
    }
}

impl Drop for LinuxMapper {
    fn drop(&mut self) {
        if !self.is_released() {
            // SAFETY: whoever used the range borrowed this value.
            unsafe { self.release() };
        }
    }
}
