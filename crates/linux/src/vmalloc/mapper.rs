//! Mapping a depot's frames into a reserved range of addresses.
//!
//! The range is reserved by one mapping without access (`reserved.rs`). A run of frames is a piece
//! of the memory file, mapped over it by one `MAP_FIXED` call that also populates it. Unmapping
//! maps the reservation over a span again: the kernel joins it with its neighbours, and gives the
//! page tables back of every aligned 2 MiB that lies inside. So addresses fall out of the range
//! only where such a call fails, and what is lost then is never touched again.
//!
//! The call returns when no CPU of the process reaches the old pages any more: the kernel
//! interrupts those that might. That is why the core merges spans, and calls when much is due.

use std::ops::Range;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use pagedepot::{FrameRange, PageSize, Pfn};
use pagedepot_vmap::{FlushSpans, MapError, Mapper, Protection, Span, VirtAddr};
use rustix::io::{Errno, pread};
use rustix::mm::ProtFlags;

use super::budget::{self, Budget, MAPPINGS_MIN};
use super::error::VmallocBuildError;
use super::pieces::{Bits, Pieces};
use super::reserved::Reserved;
use crate::depot::Depot;

/// A reserved range of addresses, and the frames of a [`Depot`] mapped into it.
///
/// [`Vmalloc`](super::Vmalloc) is made of one; use it alone under a [`Vmap`](pagedepot_vmap::Vmap)
/// or address-space design of your own.
pub struct LinuxMapper {
    depot: Depot,
    reserved: Reserved,
    pieces: Pieces,
    /// Tables through which something was mapped since they were last unmapped whole.
    populated: Bits,
    budget: Arc<Budget>,
    /// Mappings more that the kernel needs around lost pages.
    lost_mappings: AtomicU32,
    is_released: AtomicBool,
}

impl LinuxMapper {
    /// Reserves `bytes` of addresses, rounded up to whole page tables, for frames of `depot`,
    /// which must be a memory file. `mappings_max`: see
    /// [`mappings_max`](super::VmallocBuilder::mappings_max).
    ///
    /// # Errors
    /// [`VmallocBuildError`].
    pub fn new(
        depot: &Depot,
        bytes: usize,
        mappings_max: Option<u32>,
    ) -> Result<Self, VmallocBuildError> {
        let page_size = depot.page_size();
        let file = depot.shared().memory().fd().filter(|_| !depot.shared().memory().is_hugetlb());
        let file = file.ok_or(VmallocBuildError::NoFile)?;
        let table_bytes = (Self::TABLE_PAGES as usize) << page_size.shift();
        let rounded = bytes.checked_next_multiple_of(table_bytes);
        let pages = rounded.and_then(|bytes| u32::try_from(bytes >> page_size.shift()).ok());
        let (Some(bytes), Some(pages)) = (rounded.filter(|&bytes| bytes > 0), pages) else {
            return Err(VmallocBuildError::BadSize { bytes, page_size });
        };
        let failed = |errno| VmallocBuildError::Memory { bytes, errno };
        let budget = match mappings_max {
            Some(max) if max < MAPPINGS_MIN => {
                return Err(VmallocBuildError::TooFewMappings { max });
            }
            Some(max) => Budget::part(max - budget::RESERVE_MIN),
            None => Budget::of_process(),
        };
        let pieces = Pieces::new(pages as usize).map_err(failed)?;
        let populated = Bits::new(bytes / table_bytes).map_err(failed)?;
        let reserved = Reserved::new(bytes, table_bytes, page_size, file).map_err(failed)?;
        let (depot, lost_mappings, is_released) =
            (depot.clone(), AtomicU32::new(0), AtomicBool::new(false));
        // The reservation itself, whatever the limit.
        budget.give(-1);
        Ok(LinuxMapper { depot, reserved, pieces, populated, budget, lost_mappings, is_released })
    }

    /// The depot whose frames it maps.
    pub fn depot(&self) -> &Depot {
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

    /// Whether something is mapped at an address, by this mapper's own metadata.
    pub fn is_mapped(&self, at: VirtAddr) -> bool {
        let page = at.get().wrapping_sub(self.start()) >> self.page_size().shift();
        page < self.reserved.pages() && self.pieces.is_mapped(page)
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
    /// No thread uses the range any more, or asks this mapper to map.
    pub(super) unsafe fn release(&self) {
        // SAFETY: the caller's promise.
        if unsafe { self.reserved.give_back() }.is_ok() {
            let lost = i64::from(self.lost_mappings.load(Ordering::Relaxed));
            self.budget.give(self.pieces.unmap(0..self.reserved.pages()) + lost + 1);
            self.is_released.store(true, Ordering::Relaxed);
        }
    }

    fn is_released(&self) -> bool {
        // Relaxed: set by the range's last user.
        self.is_released.load(Ordering::Relaxed)
    }

    /// The range's first address.
    fn start(&self) -> usize {
        self.reserved.start().as_ptr().addr()
    }

    /// The pages of a span, counted from the range's start.
    fn run(&self, span: Span) -> Range<usize> {
        let first = (span.start.get() - self.start()) >> self.page_size().shift();
        first..first + span.pages as usize
    }

    /// Where frames lie in the depot's memory file, and how many bytes, if the depot has them.
    fn in_file(&self, frames: FrameRange) -> Result<(usize, usize), MapError> {
        let offset = self.depot.raw().offset(frames.start);
        let bytes = (frames.frames as usize) << self.page_size().shift();
        let end = offset.checked_add(bytes);
        end.filter(|&end| end <= self.depot.bytes())
            .ok_or(MapError::Refused(Errno::INVAL.raw_os_error()))?;
        Ok((offset, bytes))
    }

    /// A call that named these pages has failed: finds out what it left.
    fn restore(&self, run: Range<usize>) {
        self.reserved.restore(
            run,
            |page| self.pieces.is_mapped(page),
            |lost| {
                self.budget.give(self.pieces.unmap(lost));
                // What is there now, and the reservation behind it.
                self.lost_mappings.fetch_add(2, Ordering::Relaxed);
                self.budget.give(-2);
            },
        );
    }

    /// Whether lost pages may still reach frames: nothing could be found out about them.
    fn is_in_doubt(&self, mut run: Range<usize>) -> bool {
        while let Some(lost) = self.reserved.lost_in(run.clone()) {
            if lost.clone().any(|page| self.pieces.is_mapped(page)) {
                return true;
            }
            run.start = lost.end;
        }
        false
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

// SAFETY: the range is a reservation of this value's own, which no other code maps into but where it
// is lost; a piece reaches the file's pages at the offsets of its frames; `unmap` returns after the
// kernel has flushed every CPU's TLB.
unsafe impl Mapper for LinuxMapper {
    fn span(&self) -> Span {
        Span::new(VirtAddr::new(self.start()), self.reserved.pages() as u32)
    }

    fn page_size(&self) -> PageSize {
        self.depot.page_size()
    }

    unsafe fn map(
        &self,
        at: VirtAddr,
        frames: FrameRange,
        how: Protection,
    ) -> Result<(), MapError> {
        let run = self.run(Span::new(at, frames.frames));
        let (offset, _) = self.in_file(frames)?;
        let file = self
            .depot
            .shared()
            .memory()
            .fd()
            .ok_or(MapError::Refused(Errno::BADF.raw_os_error()))?;
        if self.reserved.lost_in(run.clone()).is_some() {
            return Err(MapError::Lost);
        }
        self.budget.take(2)?;
        // SAFETY: the pages are the caller's alone, not mapped and not lost.
        let mapped = unsafe { self.reserved.map(run.clone(), access(how), file, offset as u64) };
        if let Err(errno) = mapped {
            self.budget.give(2);
            self.restore(run);
            return Err(why(errno));
        }
        let tables = Self::TABLE_PAGES as usize;
        self.populated.set(run.start / tables..run.end.div_ceil(tables));
        self.budget.give(2 - i64::from(self.pieces.map(run)));
        Ok(())
    }

    unsafe fn unmap(&self, span: Span) -> Result<(), MapError> {
        if self.is_released() {
            return Ok(());
        }
        let run = self.run(span);
        // SAFETY: the caller's promise.
        if let Err(errno) = unsafe { self.reserved.cover(run.clone()) } {
            self.restore(run);
            return Err(why(errno));
        }
        if self.is_in_doubt(run.clone()) {
            return Err(MapError::Lost);
        }
        self.note_unmapped(run);
        Ok(())
    }

    /// Nothing to do: the kernel flushes before `unmap` returns.
    fn flush(&self, _spans: FlushSpans<'_>) {}

    /// Tables that were unmapped whole are gone already; the rest is covered whole now.
    unsafe fn release_tables(&self, span: Span) {
        let (run, tables) = (self.run(span), Self::TABLE_PAGES as usize);
        let left = self.populated.clear(run.start / tables..run.end / tables);
        if left > 0 && !self.is_released() {
            // SAFETY: the caller's promise.
            if unsafe { self.reserved.cover(run.clone()) }.is_err() {
                // The tables stay, empty.
                self.restore(run);
            }
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
        unsafe { self.depot.raw().base().as_ptr().add(offset).write_bytes(byte, bytes) };
        Ok(())
    }

    /// The kernel copies, from the file. The frame's holder may write to it meanwhile by plain
    /// stores, and a load of this program's beside those would be a data race, a volatile or atomic
    /// one too.
    fn read(&self, frame: Pfn, offset: usize, buf: &mut [u8]) -> bool {
        let page = self.page_size().bytes();
        let is_inside = offset <= page && buf.len() <= page - offset;
        let (Ok((at, _)), Some(file), true) =
            (self.in_file(FrameRange::new(frame, 1)), self.depot.shared().memory().fd(), is_inside)
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

    #[inline]
    fn lost_pages(&self) -> u32 {
        self.reserved.lost_pages()
    }

    fn lost_in(&self, span: Span) -> Option<Span> {
        let lost = self.reserved.lost_in(self.run(span))?;
        let start = VirtAddr::new(self.start() + (lost.start << self.page_size().shift()));
        Some(Span::new(start, lost.len() as u32))
    }

    fn prefers_long_runs(&self) -> bool {
        self.budget.is_tight()
    }
}

impl Drop for LinuxMapper {
    fn drop(&mut self) {
        if !self.is_released() {
            // SAFETY: every user of the range borrowed this value.
            unsafe { self.release() };
        }
    }
}
