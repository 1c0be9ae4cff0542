//! Mapping a depot's frames into a reserved range of addresses.
//!
//! One mapping without access reserves the range (`reserved.rs`). A run of frames is a piece of the
//! memory file. One `MAP_FIXED` call maps it over the reservation. Pages that the file has are
//! populated; those in holes of the file come at the first access. Unmapping maps the reservation
//! over a span again. The kernel then joins it with its neighbours, and frees the page tables that
//! lie inside it: one for every aligned 2 MiB where pages have 4 KiB. So addresses leave the range
//! only when such a call fails, and lost addresses are never used again.
//!
//! The call returns when no CPU of the process reaches the old pages any more: the kernel
//! interrupts those CPUs that might. Therefore the core merges spans, and unmaps many areas at
//! once.

use std::ops::Range;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use pagedepot::{FrameRange, PageSize, Pfn};
use pagedepot_vmap::{FlushSpans, MapError, Mapper, Protection, Span, VirtAddr, WrittenParts};
use rustix::fs::{SeekFrom, seek};
use rustix::io::{Errno, pread};
use rustix::mm::ProtFlags;

use super::budget::{self, Budget, MAPPINGS_MIN};
use super::error::{VmallocBuildError, no_memory};
use super::pieces::Pieces;
use super::reserved::Reservation;
use super::spaces::Spaces;
use crate::depot::handle::Depot;
use crate::memory::region::table_bytes;
use crate::system::bits::Bits;

/// Runs of fewer frames are touched: to find their holes costs more.
const ASKED_MIN: u32 = 64;

/// A reserved range of addresses, and the frames of a [`Depot`] mapped into it.
///
/// A [`Vmalloc`](super::Vmalloc) contains one. Use it alone under a [`Vmap`](pagedepot_vmap::Vmap)
/// or an address-space design of your own.
pub struct LinuxMapper {
    depot: Depot,
    reserved: Reservation,
    pieces: Pieces,
    /// Tables through which something was mapped since the table was last unmapped as a whole.
    populated: Bits,
    budget: Arc<Budget>,
    /// Whether all pages are present when they are mapped.
    populates: bool,
    /// Additional mappings that the kernel needs around lost pages.
    lost_mappings: AtomicU32,
    is_released: AtomicBool,
}

impl LinuxMapper {
    /// Reserves `bytes` of addresses, rounded up to whole page tables, for frames of `depot`. The
    /// depot's memory must be a memory file. For `mappings_max` see
    /// [`VmallocBuilder`](super::VmallocBuilder::mappings_max).
    ///
    /// # Errors
    /// [`VmallocBuildError`].
    pub fn new(
        depot: &Depot,
        bytes: usize,
        mappings_max: Option<u32>,
    ) -> Result<Self, VmallocBuildError> {
        let page_size = depot.page_size();
        let file = depot.shared().memory().file().filter(|_| !depot.shared().memory().is_hugetlb());
        let file = file.ok_or(VmallocBuildError::NoFile)?;
        // Rounded to these, so that a purge leaves none in use.
        let table_bytes = table_bytes();
        let rounded = bytes.checked_next_multiple_of(table_bytes);
        let pages = rounded.and_then(|bytes| u32::try_from(bytes >> page_size.shift()).ok());
        let (Some(bytes), Some(pages)) = (rounded.filter(|&bytes| bytes > 0), pages) else {
            return Err(VmallocBuildError::BadSize { bytes, page_size });
        };
        let failed = |errno| match errno {
            Errno::NOMEM | Errno::AGAIN => no_memory(bytes)(errno),
            errno => VmallocBuildError::File { errno },
        };
        let budget = match mappings_max {
            Some(max) if max < MAPPINGS_MIN => {
                return Err(VmallocBuildError::TooFewMappings { max });
            }
            Some(max) => Budget::part(max - budget::RESERVE_MIN),
            None => Budget::of_process(),
        };
        let pieces = Pieces::new(pages as usize).map_err(failed)?;
        let populated = Bits::new(bytes / table_bytes).map_err(failed)?;
        let reserved = Reservation::new(bytes, table_bytes, page_size, file).map_err(failed)?;
        let (depot, lost_mappings, is_released) =
            (depot.clone(), AtomicU32::new(0), AtomicBool::new(false));
        // Counts the reservation itself, whatever the limit.
        budget.give(-1);
        Ok(LinuxMapper {
            depot,
            reserved,
            pieces,
            populated,
            budget,
            populates: false,
            lost_mappings,
            is_released,
        })
    }

    /// Makes every page present when it is mapped: see
    /// [`VmallocBuilder::populate`](super::VmallocBuilder::populate).
    #[must_use]
    pub fn populate(mut self, yes: bool) -> Self {
        self.populates = yes;
        self
    }

    /// The depot whose frames it maps.
    pub fn depot(&self) -> &Depot {
        &self.depot
    }

    /// Mappings in use by this range, and by others that share its limit.
    pub fn mappings(&self) -> u32 {
        self.budget.used()
    }

    /// The most mappings there may be.
    pub fn mappings_max(&self) -> u32 {
        self.budget.max()
    }

    /// Whether a page is mapped at an address, by this mapper's own metadata.
    pub fn is_mapped(&self, at: VirtAddr) -> bool {
        let page = at.get().wrapping_sub(self.start()) >> self.page_size().shift();
        page < self.reserved.pages() && self.pieces.is_mapped(page)
    }

    /// Bytes of a page table, which is one of the system's pages.
    pub fn table_bytes(&self) -> u64 {
        rustix::param::page_size() as u64
    }

    /// Unmaps the whole range. After that, nothing is mapped and nothing is left to unmap.
    ///
    /// # Safety
    /// No thread uses the range any more, and none asks this mapper to map.
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

    /// The address of the first byte.
    fn start(&self) -> usize {
        self.reserved.start().as_ptr().addr()
    }

    /// The pages of a span, counted from the range's start.
    fn run(&self, span: Span) -> Range<usize> {
        let first = (span.start.get() - self.start()) >> self.page_size().shift();
        first..first + span.pages as usize
    }

    /// Offset and length of frames in the depot's memory file, in bytes, if the depot has these
    /// frames.
    fn in_memory(&self, frames: FrameRange) -> Result<(usize, usize), MapError> {
        let offset = self.depot.raw().offset(frames.start);
        let bytes = (frames.frames as usize) << self.page_size().shift();
        let end = offset.checked_add(bytes);
        end.filter(|&end| end <= self.depot.bytes())
            .ok_or(MapError::Refused(Errno::INVAL.raw_os_error()))?;
        Ok((offset, bytes))
    }

    /// Writes `byte` to pages of the depot, wherever they are mapped.
    ///
    /// # Safety
    /// They are mapped writable, and the caller's alone.
    unsafe fn write(&self, start: *mut u8, bytes: usize, byte: u8) {
        let mark = self.depot.shared().movables().fork_mark();
        mark.by_page(bytes, self.page_size(), |part| {
            // SAFETY: a part of these pages.
            unsafe { start.add(part.start).write_bytes(byte, part.len()) };
        });
    }

    /// Offset in the file of an offset in the depot's memory.
    fn in_file(&self, offset: usize) -> u64 {
        self.depot.shared().memory().in_file(&(offset..offset))
    }

    /// A call that named these pages has failed: finds out what it left there.
    fn restore(&self, run: Range<usize>) {
        self.reserved.restore(
            run,
            |page| self.pieces.is_mapped(page),
            |lost| {
                self.budget.give(self.pieces.unmap(lost));
                // What another thread mapped there, and the reservation behind it.
                self.lost_mappings.fetch_add(2, Ordering::Relaxed);
                self.budget.give(-2);
            },
        );
    }

    /// Whether lost pages may still reach frames, because the kernel's mappings could not be read.
    fn is_in_doubt(&self, mut run: Range<usize>) -> bool {
        while let Some(lost) = self.reserved.lost_in(run.clone()) {
            if lost.clone().any(|page| self.pieces.is_mapped(page)) {
                return true;
            }
            run.start = lost.end;
        }
        false
    }

    /// Populates what the file has of frames that were just mapped: pages in its holes come at the
    /// first access, as with `mmap`.
    fn populate_present(&self, run: Range<usize>, frames: FrameRange) {
        for part in WrittenParts::new(self, frames) {
            let start = run.start + (part.start.get() - frames.start.get()) as usize;
            // SAFETY: part of what was just mapped.
            unsafe { self.reserved.populate(start..start + part.frames as usize) };
        }
    }

    /// Removes a span from the metadata.
    fn note_unmapped(&self, run: Range<usize>) {
        let tables = self.table_pages() as usize;
        let whole = run.start.div_ceil(tables)..run.end / tables;
        if !whole.is_empty() {
            self.populated.clear(whole);
        }
        self.budget.give(self.pieces.unmap(run));
    }
}

/// Pages of this size that a page table of the kernel maps.
pub(super) fn table_pages(page_size: PageSize) -> u32 {
    (table_bytes() >> page_size.shift()) as u32
}

/// Mappings that runs may take: one each, and that behind the last one. [`LinuxMapper::map`] takes
/// two for each of several, before it knows that one continues another.
fn mappings_of(runs: u32) -> u32 {
    runs.saturating_add(1 + u32::from(runs > 1))
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

// SAFETY: the range is this value's own reservation. Other code maps nothing into it, except over
// lost pages. A piece reaches the file's pages at the offsets of its frames. `unmap` returns after
// the kernel has flushed every CPU's TLB.
unsafe impl Mapper for LinuxMapper {
    fn span(&self) -> Span {
        Span::new(VirtAddr::new(self.start()), self.reserved.pages() as u32)
    }

    fn page_size(&self) -> PageSize {
        self.depot.page_size()
    }

    fn table_pages(&self) -> u32 {
        table_pages(self.page_size())
    }

    unsafe fn map(
        &self,
        at: VirtAddr,
        frames: FrameRange,
        how: Protection,
    ) -> Result<(), MapError> {
        let run = self.run(Span::new(at, frames.frames));
        let (offset, _) = self.in_memory(frames)?;
        let file = self
            .depot
            .shared()
            .memory()
            .file()
            .ok_or(MapError::Refused(Errno::BADF.raw_os_error()))?;
        if self.reserved.lost_in(run.clone()).is_some() {
            return Err(MapError::Lost);
        }
        self.budget.take(2)?;
        let source = (file, self.in_file(offset));
        // SAFETY: the pages belong to the caller alone, and are neither mapped nor lost.
        let mapped = unsafe { self.reserved.map(run.clone(), access(how), source, self.populates) };
        if let Err(errno) = mapped {
            self.budget.give(2);
            self.restore(run);
            return Err(why(errno));
        }
        let tables = self.table_pages() as usize;
        self.populated.set(run.start / tables..run.end.div_ceil(tables));
        self.budget.give(2 - i64::from(self.pieces.map(run.clone())));
        if frames.frames >= ASKED_MIN && !self.populates {
            self.populate_present(run, frames);
        } else if !self.populates {
            // SAFETY: just mapped, and every protection allows reading.
            unsafe { self.reserved.touch(run) };
        }
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

    /// Nothing to do: the kernel flushes TLBs before `unmap` returns.
    fn flush(&self, _spans: FlushSpans<'_>) {}

    /// The kernel has freed tables that were unmapped as a whole. This covers the rest as a whole.
    unsafe fn release_tables(&self, span: Span) {
        let (run, tables) = (self.run(span), self.table_pages() as usize);
        let left = self.populated.clear(run.start / tables..run.end / tables);
        if left > 0 && !self.is_released() {
            // SAFETY: the caller's promise.
            if unsafe { self.reserved.cover(run.clone()) }.is_err() {
                // The tables stay, and are empty.
                self.restore(run);
            }
        }
    }

    #[inline]
    unsafe fn fill(&self, span: Span, byte: u8) {
        let start = ptr::with_exposed_provenance_mut::<u8>(span.start.get());
        // SAFETY: mapped writable, and the caller's alone.
        unsafe { self.write(start, span.bytes(self.page_size()), byte) };
    }

    /// Writes through the depot's own mapping of its memory, which is always writable.
    unsafe fn fill_frames(&self, frames: FrameRange, byte: u8) -> Result<(), MapError> {
        let (offset, bytes) = self.in_memory(frames)?;
        // SAFETY: inside the depot's memory, and the frames are the caller's alone.
        unsafe { self.write(self.depot.raw().base().as_ptr().add(offset), bytes, byte) };
        Ok(())
    }

    /// A hole of the memory file reads as zeroes. The kernel has made no page there yet, or a trim
    /// has given it back.
    fn known_zero(&self, frames: FrameRange) -> u32 {
        let (Ok((offset, bytes)), Some(file)) =
            (self.in_memory(frames), self.depot.shared().memory().file())
        else {
            return 0;
        };
        let start = self.in_file(offset);
        let hole = match seek(file, SeekFrom::Data(start)) {
            Ok(data) => data.saturating_sub(start),
            // There is no data behind the offset.
            Err(Errno::NXIO) => bytes as u64,
            Err(_) => 0,
        };
        (hole.min(bytes as u64) >> self.page_size().shift()) as u32
    }

    /// The kernel copies the bytes from the file. The frame's holder may write them at the same
    /// time by plain stores. A load by this program beside those stores would be a data race, even
    /// a volatile or atomic one.
    fn read(&self, frame: Pfn, offset: usize, buf: &mut [u8]) -> bool {
        let page = self.page_size().bytes();
        let is_inside = offset <= page && buf.len() <= page - offset;
        let (Ok((at, _)), Some(file), true) = (
            self.in_memory(FrameRange::new(frame, 1)),
            self.depot.shared().memory().file(),
            is_inside,
        ) else {
            return false;
        };
        let mut done = 0;
        while done < buf.len() {
            match pread(file, &mut buf[done..], self.in_file(at + offset + done)) {
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

    fn check_runs(&self, runs: u32) -> Result<(), MapError> {
        let lacked = self.budget.lack(mappings_of(runs));
        lacked.map_or(Ok(()), |limit| match runs {
            // In one piece: it is not the frames.
            0 | 1 => Err(MapError::TooManyMappings { limit }),
            _ => Err(MapError::TooScattered { needed: runs }),
        })
    }

    fn prefers_long_runs(&self) -> bool {
        self.budget.is_tight()
    }

    /// Has the other address spaces of this process unmap what they keep mapped.
    fn shrink_others(&self, error: MapError) -> bool {
        let runs = if let MapError::TooScattered { needed } = error { needed } else { 1 };
        self.budget.may_others_have(mappings_of(runs))
            && Spaces::of_process().purge_others(self.start())
    }
}

impl Drop for LinuxMapper {
    fn drop(&mut self) {
        if !self.is_released() {
            // SAFETY: every user of the range borrowed this value, which is being dropped.
            unsafe { self.release() };
        }
    }
}
