//! The reserved range of addresses: what is put there, what is put back, and what is lost of it.
//!
//! The reservation is a mapping without access of an empty file of its own, every page at its own
//! offset. The kernel joins such neighbours, and `/proc/self/maps` tells the reservation from all
//! else that a program may map, other reservations without access among them.
//!
//! # Lost pages
//! Kernels before 6.12 may fail to map over something after they have taken it away. Other threads
//! of the program map meanwhile, and the hole is as good a place as any. After a call that failed:
//! 1. The reservation is put where nothing is, by `MAP_FIXED_NOREPLACE`. Newer kernels leave things
//!    as they were, and older ones too if they fail early; then there is something everywhere.
//! 2. Then the kernel is asked what there is. A page is this range's if the reservation's file or
//!    the depot's is there (the latter only where the metadata says that something is mapped). All
//!    else is *lost*, and so is a hole that cannot be filled.
//!
//! A lost page is never touched again: `MAP_FIXED` and `munmap` name runs of pages between those.
//!
//! # Argument
//! While a call is made the pages it names are its caller's alone, by the contract of `Mapper`; so
//! the marks of a page are set, and then read, by one owner after the other, who hand it on through
//! the metadata above.

use std::ffi::c_void;
use std::iter;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use pagedepot::PageSize;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::pieces::Bits;
use crate::maps::{self, FileId, Mapped};
use crate::memory::Mapping;

/// Addresses, and what of them is lost.
pub(super) struct Reserved {
    start: NonNull<u8>,
    pages: usize,
    page_size: PageSize,
    file: OwnedFd,
    file_id: FileId,
    /// Of the file whose pieces are mapped.
    frames_id: FileId,
    lost: Bits,
    lost_pages: AtomicU32,
}

// SAFETY: the pointer is a number here, the range's start; what happens in the range is ruled by
// the contract of `Mapper`.
unsafe impl Send for Reserved {}
// SAFETY: as above.
unsafe impl Sync for Reserved {}

impl Reserved {
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
        // From here on the addresses are not given back if something fails: there may be a hole.
        let start = Mapping::reserve_aligned(0, bytes, align)?.1.into_start();
        start.as_ptr().expose_provenance();
        let lost_pages = AtomicU32::new(0);
        let reserved =
            Reserved { start, pages, page_size, file, file_id, frames_id, lost, lost_pages };
        // SAFETY: addresses just reserved.
        unsafe { reserved.put(0..pages, MapFlags::FIXED) }?;
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

    /// Maps a piece of the file of frames, from `offset` bytes on, and populates it.
    ///
    /// # Safety
    /// The pages are the caller's, nothing of them is lost, and no thread uses what is there.
    pub unsafe fn map(
        &self,
        run: Range<usize>,
        access: ProtFlags,
        frames: BorrowedFd<'_>,
        offset: u64,
    ) -> Result<(), Errno> {
        let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::POPULATE;
        // SAFETY: the caller's promise.
        unsafe { self.map_at(run, access, flags, frames, offset) }.map(|_| ())
    }

    /// Puts the reservation over a run, but for lost pages.
    ///
    /// # Safety
    /// The pages are the caller's, and no thread uses what is there.
    pub unsafe fn cover(&self, run: Range<usize>) -> Result<(), Errno> {
        self.kept(run).try_for_each(|part| {
            // SAFETY: the caller's promise; nothing of it is lost.
            unsafe { self.put(part, MapFlags::FIXED) }.map(|_| ())
        })
    }

    /// Gives all addresses back, but for lost pages.
    ///
    /// # Safety
    /// No thread uses the range any more.
    pub unsafe fn give_back(&self) -> Result<(), Errno> {
        self.kept(0..self.pages).try_for_each(|part| {
            // SAFETY: ours, which no thread uses; nothing of it is lost.
            unsafe { munmap(self.pointer(part.start), self.bytes(part.len())) }
        })
    }

    /// A call that named `run` has failed: finds out what it left. `is_mapped` says whether a piece
    /// was there before; `on_loss` is told of every run that is another's by now.
    pub fn restore(
        &self,
        run: Range<usize>,
        is_mapped: impl Fn(usize) -> bool,
        mut on_loss: impl FnMut(Range<usize>),
    ) {
        if self.put_back(run.clone()) {
            return;
        }
        // Everything before this page is settled.
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
        // Without /proc nothing is known of what is left: not even whether pieces are still there.
        if all_read.is_none() {
            self.lose(at..run.end, |_| ());
        } else if !self.put_back(at..run.end) {
            self.lose(at..run.end, on_loss);
        }
    }

    /// Puts the reservation where nothing is; whether it is there now.
    fn put_back(&self, run: Range<usize>) -> bool {
        if run.is_empty() {
            return true;
        }
        // SAFETY: replaces nothing.
        let Ok(there) = (unsafe { self.put(run.clone(), MapFlags::FIXED_NOREPLACE) }) else {
            return false;
        };
        // Before Linux 4.17 the address is a wish.
        let is_there = there == self.pointer(run.start);
        if !is_there {
            // SAFETY: just mapped, and not used yet.
            let _ = unsafe { munmap(there, self.bytes(run.len())) };
        }
        is_there
    }

    fn lose(&self, run: Range<usize>, mut on_loss: impl FnMut(Range<usize>)) {
        let lost = self.lost.set(run.clone());
        // Relaxed: the pages are the caller's, who hands them on; the sum is a hint to others.
        self.lost_pages.fetch_add(lost, Ordering::Relaxed);
        if !run.is_empty() {
            on_loss(run);
        }
    }

    /// Whether what lies at a page is this range's.
    fn is_ours(&self, mapped: &Mapped, is_mapped: bool) -> bool {
        let distance = mapped.range.start.checked_sub(self.start.as_ptr().addr());
        let is_reservation =
            mapped.file == self.file_id && distance == Some(mapped.offset as usize);
        is_reservation || is_mapped && mapped.is_shared && mapped.file == self.frames_id
    }

    /// The pages that a mapping lies in, in part or whole, as far as they are in the range.
    fn pages_of(&self, mapped: &Mapped) -> Range<usize> {
        let distance = |addr: usize| addr.saturating_sub(self.start.as_ptr().addr());
        let page_bytes = self.page_size.bytes();
        let (start, end) = (distance(mapped.range.start), distance(mapped.range.end));
        (start / page_bytes).min(self.pages)..end.div_ceil(page_bytes).min(self.pages)
    }

    pub fn lost_pages(&self) -> u32 {
        // Relaxed: see `lose`.
        self.lost_pages.load(Ordering::Relaxed)
    }

    /// The first run of lost pages in `run`.
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

    /// Maps the reservation.
    ///
    /// # Safety
    /// As for `map_at`.
    unsafe fn put(&self, run: Range<usize>, fixed: MapFlags) -> Result<*mut c_void, Errno> {
        let (offset, flags) =
            (self.bytes(run.start), MapFlags::PRIVATE | MapFlags::NORESERVE | fixed);
        // SAFETY: the caller's promise.
        unsafe { self.map_at(run, ProtFlags::empty(), flags, self.file.as_fd(), offset as u64) }
    }

    /// The one way in which something is mapped into the range.
    ///
    /// # Safety
    /// What lies there is replaced if the flags say so: then it is the caller's.
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

/// Cuts `run` where `test` changes: its parts in order, with what `test` said of their pages.
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
