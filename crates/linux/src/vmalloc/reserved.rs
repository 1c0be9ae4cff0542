//! The reserved range of addresses: mapping into it, covering it again, and pages that are lost.
//!
//! The reservation is a mapping without access of an empty file of its own. Each page of the range
//! maps its own offset, so the kernel joins neighbours. In `/proc/self/maps` the file distinguishes
//! the reservation from everything else that a program may map, such as other reservations without
//! access.
//!
//! # Lost pages
//! Kernels before 6.12 may unmap what was there and then fail to map. Meanwhile another thread of
//! the program may map something into the hole. After a call that failed:
//! 1. `MAP_FIXED_NOREPLACE` puts the reservation where nothing is mapped. Newer kernels leave the
//!    old mapping in place, and so do older ones if they fail early; then there is no hole.
//! 2. `/proc/self/maps` shows what is mapped. A page belongs to this range if it maps the
//!    reservation's file or the depot's (the latter only where the metadata says that something is
//!    mapped). All other pages are *lost*, and so is a hole that cannot be filled.
//!
//! A lost page is never touched again: `MAP_FIXED` and `munmap` name only the runs of pages between
//! lost ones.
//!
//! # Locked memory
//! In a process that locks all that it maps (`mlockall` with `MCL_FUTURE`) the kernel counts a new
//! mapping against `RLIMIT_MEMLOCK`, though this one has no memory. So the reservation is unlocked
//! as soon as it is mapped, and mapped part by part where the whole exceeds the limit. Without that
//! the limit would hold for the addresses, and the kernel would not join neighbours of which one is
//! locked.
//!
//! # Argument
//! By the contract of `Mapper`, the pages that a call names belong to its caller alone. So one
//! owner after the other sets and reads the marks of a page, and the metadata of the layer above
//! passes the page on between them.

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use std::arch::asm;
use std::ffi::c_void;
use std::iter;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use pagedepot::PageSize;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munlock, munmap};

use crate::system::bits::Bits;
use crate::system::mapping::Mapping;
use crate::system::maps::{self, FileId, MappingInfo};

/// Bytes of a file that the kernel maps at a page fault that reads (`fault_around_bytes`).
const AROUND: usize = 64 << 10;
/// Bytes that the smallest page table maps.
const TABLE: usize = 2 << 20;

/// The reserved addresses, and which of them are lost.
pub(super) struct Reservation {
    start: NonNull<u8>,
    pages: usize,
    page_size: PageSize,
    file: OwnedFd,
    file_id: FileId,
    /// Identifies the file whose pieces are mapped.
    frames_id: FileId,
    lost: Bits,
    lost_pages: AtomicU32,
    /// Whether new mappings are locked. Relaxed: a mapping that is unlocked in vain is as it was.
    locks: AtomicBool,
}

// SAFETY: the pointer stands for the address of the range's start. The contract of `Mapper` governs
// all accesses to the range.
unsafe impl Send for Reservation {}
// SAFETY: as above.
unsafe impl Sync for Reservation {}

impl Reservation {
    /// Reserves `bytes` bytes of addresses, whole pages, aligned, for pieces of the file `frames`.
    pub fn new(
        bytes: usize,
        align: usize,
        page_size: PageSize,
        frames: BorrowedFd<'_>,
    ) -> Result<Self, Errno> {
        let file = memfd_create("vmalloc-range", MemfdFlags::CLOEXEC)?;
        let (file_id, frames_id) = (FileId::of(&file)?, FileId::of(frames)?);
        let pages = bytes >> page_size.shift();
        let lost = Bits::new(pages)?;
        // From here on an error leaves the addresses reserved: there may be a hole in them.
        let start = Mapping::reserve_aligned(0, bytes, align)?.1.into_start();
        start.as_ptr().expose_provenance();
        let (lost_pages, locks) = (AtomicU32::new(0), AtomicBool::new(false));
        let reserved = Reservation {
            start,
            pages,
            page_size,
            file,
            file_id,
            frames_id,
            lost,
            lost_pages,
            locks,
        };
        // SAFETY: addresses just reserved. The first page says whether mappings are locked.
        unsafe {
            reserved.put(0..1, MapFlags::FIXED)?;
            if reserved.is_locked(0) {
                reserved.locks.store(true, Ordering::Relaxed);
            }
            reserved.put_over(0..pages)?;
        }
        Ok(reserved)
    }

    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub fn pages(&self) -> usize {
        self.pages
    }

    fn bytes(&self, pages: usize) -> usize {
        pages << self.page_size.shift()
    }

    fn pointer(&self, page: usize) -> *mut c_void {
        assert!(page < self.pages);
        // SAFETY: inside the reservation.
        unsafe { self.start.as_ptr().add(self.bytes(page)).cast() }
    }

    /// Maps a piece of the file of frames, from byte `offset` on, and populates it if asked to.
    ///
    /// # Safety
    /// The pages belong to the caller, none of them is lost, and no thread uses what is mapped
    /// there.
    pub unsafe fn map(
        &self,
        run: Range<usize>,
        access: ProtFlags,
        (frames, offset): (BorrowedFd<'_>, u64),
        populates: bool,
    ) -> Result<(), Errno> {
        let mut flags = MapFlags::SHARED | MapFlags::FIXED;
        flags.set(MapFlags::POPULATE, populates);
        // SAFETY: the caller's promise.
        unsafe { self.map_at(run, access, flags, frames, offset) }.map(|_| ())
    }

    /// Populates a part of what the caller has mapped. An error, as from Linux before 5.14, leaves
    /// pages to come at the first access.
    ///
    /// For reading, as `MAP_POPULATE` does in shared mappings: the entries that a read makes there
    /// are writable, and made 16 at a time. `MADV_POPULATE_WRITE` takes three times as long.
    ///
    /// # Safety
    /// The pages belong to the caller, who has mapped them.
    pub unsafe fn populate(&self, run: Range<usize>) {
        let (start, bytes) = (self.pointer(run.start), self.bytes(run.len()));
        // SAFETY: the advice changes no byte.
        let _ = unsafe { madvise(start, bytes, Advice::LinuxPopulateRead) };
    }

    /// Makes pages of a short run present that the caller has mapped: reads a byte of each window
    /// of [`AROUND`] bytes, in which the kernel then maps all that the file has. Pages in holes of
    /// the file come at the first access, and so do others if the system's windows are smaller.
    ///
    /// Since Linux 6.4 such a fault locks this mapping alone. `MAP_POPULATE` takes the lock of all
    /// mappings a second time.
    ///
    /// # Safety
    /// The pages belong to the caller, who has mapped them for reading.
    pub unsafe fn touch(&self, run: Range<usize>) {
        let start = self.pointer(run.start);
        let (first, end) = (start.addr(), start.addr() + self.bytes(run.len()));
        // The first window begins with the mapping, others at a multiple of their size. None
        // extends beyond a page table.
        let (mut at, mut behind) = (first, first + AROUND);
        while at < end {
            // SAFETY: inside the run.
            if !unsafe { read_byte(start.cast::<u8>().add(at - first)) } {
                // SAFETY: the caller's promise.
                return unsafe { self.populate(run) };
            }
            at = behind.min((at / TABLE + 1) * TABLE);
            behind = (at / AROUND + 1) * AROUND;
        }
    }

    /// Maps the reservation over a run, except over lost pages.
    ///
    /// # Safety
    /// The pages belong to the caller, and no thread uses what is mapped there.
    pub unsafe fn cover(&self, run: Range<usize>) -> Result<(), Errno> {
        self.kept(run).try_for_each(|part| {
            // SAFETY: the caller's promise; nothing of it is lost.
            unsafe { self.put_over(part) }
        })
    }

    /// Unmaps the whole range, except lost pages.
    ///
    /// # Safety
    /// No thread uses the range any more.
    pub unsafe fn give_back(&self) -> Result<(), Errno> {
        self.kept(0..self.pages).try_for_each(|part| {
            // SAFETY: our own pages, none of them lost, and no thread uses them.
            unsafe { munmap(self.pointer(part.start), self.bytes(part.len())) }
        })
    }

    /// Finds out what a failed call left of `run`. `is_mapped` says whether a piece was mapped at a
    /// page before the call. `on_loss` is called for every run that another thread has mapped.
    pub fn restore(
        &self,
        run: Range<usize>,
        is_mapped: impl Fn(usize) -> bool,
        mut on_loss: impl FnMut(Range<usize>),
    ) {
        if self.put_back(run.clone()) {
            return;
        }
        // All pages before this one are settled.
        let mut at = run.start;
        let all_read = maps::for_each_mapping(|mapped| {
            let there = self.pages_of(&mapped);
            let there = there.start.clamp(at, run.end)..there.end.clamp(at, run.end);
            if there.is_empty() {
                return;
            }
            if !self.put_back(at..there.start) {
                self.lose(at..there.start, &mut on_loss);
            }
            for (others, part) in
                runs_of(there.clone(), |page| !self.is_ours(&mapped, is_mapped(page)))
            {
                if others {
                    self.lose(part, &mut on_loss);
                }
            }
            at = there.end;
        });
        // Without `/proc` nothing is known about what is left, not even whether pieces are still
        // mapped.
        if all_read.is_none() {
            self.lose(at..run.end, |_| ());
        } else if !self.put_back(at..run.end) {
            self.lose(at..run.end, on_loss);
        }
    }

    /// Maps the reservation where nothing is mapped. Returns whether it is mapped there now.
    fn put_back(&self, run: Range<usize>) -> bool {
        if run.is_empty() {
            return true;
        }
        // SAFETY: replaces nothing.
        let Ok(there) = (unsafe { self.put(run.clone(), MapFlags::FIXED_NOREPLACE) }) else {
            return false;
        };
        // Before Linux 4.17 the address is only a hint.
        let is_there = there == self.pointer(run.start);
        if !is_there {
            // SAFETY: just mapped, and not used yet.
            let _ = unsafe { munmap(there, self.bytes(run.len())) };
        }
        is_there
    }

    fn lose(&self, run: Range<usize>, mut on_loss: impl FnMut(Range<usize>)) {
        let lost = self.lost.set(run.clone());
        // Relaxed: the pages belong to the caller, who passes them on. The sum is an estimate for
        // others.
        self.lost_pages.fetch_add(lost, Ordering::Relaxed);
        if !run.is_empty() {
            on_loss(run);
        }
    }

    /// Whether the mapping at a page belongs to this range.
    fn is_ours(&self, mapped: &MappingInfo, is_mapped: bool) -> bool {
        let distance = mapped.range.start.checked_sub(self.start.as_ptr().addr());
        let is_reservation =
            mapped.file == self.file_id && distance == Some(mapped.offset as usize);
        is_reservation || is_mapped && mapped.is_shared && mapped.file == self.frames_id
    }

    /// The pages of the range that a mapping covers, in part or whole.
    fn pages_of(&self, mapped: &MappingInfo) -> Range<usize> {
        let distance = |addr: usize| addr.saturating_sub(self.start.as_ptr().addr());
        let page_bytes = self.page_size.bytes();
        let (start, end) = (distance(mapped.range.start), distance(mapped.range.end));
        (start / page_bytes).min(self.pages)..end.div_ceil(page_bytes).min(self.pages)
    }

    pub fn lost_pages(&self) -> u32 {
        // Relaxed: see `lose`.
        self.lost_pages.load(Ordering::Relaxed)
    }

    /// The first run of lost pages within `run`.
    pub fn lost_in(&self, run: Range<usize>) -> Option<Range<usize>> {
        if self.lost_pages() == 0 {
            return None;
        }
        runs_of(run, |page| self.lost.get(page)).find_map(|(is_lost, part)| is_lost.then_some(part))
    }

    /// The runs of `run` that are not lost.
    fn kept(&self, run: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let none_lost = self.lost_pages() == 0;
        let whole = (none_lost && !run.is_empty()).then(|| run.clone());
        let rest = if none_lost { 0..0 } else { run };
        let parts = runs_of(rest, |page| self.lost.get(page));
        whole.into_iter().chain(parts.filter_map(|(is_lost, part)| (!is_lost).then_some(part)))
    }

    /// Maps the reservation over a run, part by part where the whole exceeds what may be locked.
    ///
    /// # Safety
    /// The pages belong to the caller, and no thread uses what is mapped there.
    unsafe fn put_over(&self, run: Range<usize>) -> Result<(), Errno> {
        let (mut at, mut part) = (run.start, run.len());
        while at < run.end {
            part = part.min(run.end - at);
            // SAFETY: the caller's promise.
            match unsafe { self.put(at..at + part, MapFlags::FIXED) } {
                Ok(_) => at += part,
                Err(Errno::AGAIN) if part > 1 => {
                    self.locks.store(true, Ordering::Relaxed);
                    part = part.div_ceil(2);
                }
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Maps the reservation, not locked.
    ///
    /// # Safety
    /// Requires what `map_at` requires.
    unsafe fn put(&self, run: Range<usize>, fixed: MapFlags) -> Result<*mut c_void, Errno> {
        let (offset, bytes) = (self.bytes(run.start), self.bytes(run.len()));
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | fixed;
        let (access, file) = (ProtFlags::empty(), self.file.as_fd());
        // SAFETY: the caller's promise.
        let there = unsafe { self.map_at(run, access, flags, file, offset as u64) }?;
        if self.locks.load(Ordering::Relaxed) {
            // SAFETY: no contents change. A system that refuses counts the run as locked.
            let _ = unsafe { munlock(there, bytes) };
        }
        Ok(there)
    }

    /// Whether the kernel holds the mapping at a page to be locked.
    fn is_locked(&self, page: usize) -> bool {
        let (start, bytes) = (self.pointer(page), self.bytes(1));
        // SAFETY: no contents change: the mapping is private, and no page of it can be touched.
        let answer = unsafe { madvise(start, bytes, Advice::LinuxDontNeed) };
        // The one reason by which an aligned page of a plain mapping is refused (`mm/madvise.c`,
        // `can_madv_lru_vma`).
        answer == Err(Errno::INVAL)
    }

    /// The only call that maps something into the range.
    ///
    /// # Safety
    /// If the flags replace what is mapped there, that belongs to the caller.
    unsafe fn map_at(
        &self,
        run: Range<usize>,
        access: ProtFlags,
        flags: MapFlags,
        file: BorrowedFd<'_>,
        offset: u64,
    ) -> Result<*mut c_void, Errno> {
        let (start, bytes) = (self.pointer(run.start), self.bytes(run.len()));
        #[cfg(test)]
        super::reserved_tests::before_mapping(start, bytes, flags)?;
        // SAFETY: the caller's promise.
        unsafe { mmap(start, bytes, access, flags, file, offset) }
    }
}

/// Reads a byte that other threads may write at the same time, by an instruction that the compiler
/// knows nothing of: any load that it knows would be a data race. `false`: not on this processor.
///
/// # Safety
/// The byte is mapped for reading.
unsafe fn read_byte(at: *const u8) -> bool {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller's promise; the byte is discarded.
    unsafe {
        asm!("test byte ptr [{}], 1", in(reg) at, options(nostack, readonly));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        asm!("ldrb wzr, [{}]", in(reg) at, options(nostack, readonly, preserves_flags));
    }
    let _ = at;
    cfg!(any(target_arch = "x86_64", target_arch = "aarch64"))
}

/// Splits `run` where `test` changes. Yields the parts in order, each with the result of `test`.
fn runs_of(
    run: Range<usize>,
    test: impl Fn(usize) -> bool,
) -> impl Iterator<Item = (bool, Range<usize>)> {
    let mut at = run.start;
    iter::from_fn(move || {
        let start = at;
        let value = (start < run.end).then(|| test(start))?;
        at = (start..run.end).find(|&page| test(page) != value).unwrap_or(run.end);
        Some((value, start..at))
    })
}
