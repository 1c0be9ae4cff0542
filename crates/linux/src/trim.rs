//! Giving the memory of free pages back to the system.
//!
//! # How
//! Chunk by chunk of address space: find pages that are free in the store and present, take them
//! from the store, so that no request can get one meanwhile; drop their memory by one call with as many
//! ranges as it takes; return them to the store.
//!
//! Each call interrupts every CPU that runs the process, to flush its TLB, so ranges are merged and
//! handed over in vectors: single `madvise` calls burn the CPUs (wasmtime issues 4637, 8590,
//! 13830). `process_madvise` takes `MADV_DONTNEED` for the caller's own process since Linux 6.13;
//! before, and for a memory file, each range is a call of its own.
//!
//! Whole pageblocks (2 MiB) come first, in all of the depot, and what lies in partly used ones
//! afterwards: a trim that ends early has given back what is largest and least likely to be wanted
//! soon. A run never crosses a pageblock, so one that was whole is taken, and comes back, as one
//! block of order 9. (Linux's free page reporting, `mm/page_reporting.c`, and HyperAlloc report
//! blocks of 2 MiB alone.)
//!
//! # Running short meanwhile
//! Pages taken here are missing for others. A request that would fail tells the reclaim callbacks
//! first; [`TrimState`] is one of them: it sleeps until the chunk is back, and keeps trims away for
//! long enough that the request gets its page before the next chunk is taken.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::{fmt, io};

use pagedepot::{Flags, Mode, Pfn, Pressure, Reclaim, Scope};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use rustix::mm::{Advice, madvise};
use rustix::process::{PidfdFlags, getpid, pidfd_open};

use crate::memory::{HUGE_BYTES, Memory};
use crate::numa::last_errno;
use crate::pins::Pins;
use crate::raw::Shared;
use crate::trim_state::{TrimState, Trimming};

/// Address space looked at, and at most taken from the store, at a time.
const CHUNK_BYTES: usize = 16 << 20;
/// Most ranges in one vector (`UIO_MAXIOV`).
const RANGES_MAX: usize = 1024;

/// What a [`Depot::trim`](crate::Depot::trim) gave back.
///
/// ```
/// use pagedepot_linux::{Depot, Mode, Order, Scope};
///
/// let depot = Depot::new(16 << 20)?;
/// depot.page(Order::MAX)?.fill(1); // 4 MiB, touched and freed
/// depot.drain(Scope::ALL, Mode::Full);
/// let trimmed = depot.trim()?;
/// assert!(trimmed.bytes >= 4 << 20 || trimmed.cut_short);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Trimmed {
    /// Bytes that were present and are no more.
    pub bytes: u64,
    /// Pageblocks of 2 MiB that were given back whole; they came before all else.
    pub whole_pageblocks: u64,
    /// System calls that gave them back.
    pub calls: u64,
    /// Whether there may be more: another thread trims, or a request ran out of pages less than 20
    /// ms ago and needs what is free.
    pub cut_short: bool,
}

/// Why memory was not given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TrimError {
    /// The system did not take it.
    Refused {
        /// What it took before.
        trimmed: Trimmed,
        /// What it said.
        errno: Errno,
    },
    /// The depot was built never to be trimmed.
    Pinned,
    /// This is a child of the process that made the depot.
    Forked,
}

impl fmt::Display for TrimError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TrimError::Refused { trimmed, errno } => write!(
                f,
                "the system took {} bytes back, then refused ({errno}): unlock locked memory (mlockall), \
                 allow madvise and fallocate",
                trimmed.bytes
            ),
            TrimError::Pinned => f.write_str("the depot was built with Builder::pinned(true)"),
            TrimError::Forked => f.write_str("the depot is the parent process's: trim it there"),
        }
    }
}

impl std::error::Error for TrimError {}

impl From<TrimError> for io::Error {
    fn from(error: TrimError) -> Self {
        let kind = match error {
            TrimError::Refused { errno, .. } => io::Error::from(errno).kind(),
            TrimError::Pinned | TrimError::Forked => io::ErrorKind::Unsupported,
        };
        io::Error::new(kind, error)
    }
}

impl Reclaim for TrimState {
    /// It only waits: as many requests as run short wait for the same chunk at once.
    fn is_shared(&self) -> bool {
        true
    }

    /// Waits until the pages taken for a trim are back.
    fn reclaim(&self, pressure: Pressure) -> u64 {
        if pressure.is_last_resort { self.wait_for_pages().into() } else { 0 }
    }
}

pub(crate) fn trim(depot: &Shared) -> Result<Trimmed, TrimError> {
    let state = depot.trimming();
    depot.check_parent().map_err(|_| TrimError::Forked)?;
    if depot.is_pinned() {
        return Err(TrimError::Pinned);
    }
    let mut trimmed = Trimmed::default();
    let Some(trimming) = state.begin().filter(|trimming| !trimming.is_unwelcome()) else {
        trimmed.cut_short = true;
        return Ok(trimmed);
    };
    depot.frames().drain(Scope::ALL, Mode::Quiet);
    let mut system = System::new(depot.memory());
    let chunks = || (0..depot.bytes()).step_by(CHUNK_BYTES);
    let runs = [Runs::Whole, Runs::Parts].into_iter();
    for (runs, chunk) in runs.flat_map(|runs| chunks().map(move |chunk| (runs, chunk))) {
        if trimming.is_unwelcome() {
            trimmed.cut_short = true;
            break;
        }
        let chunk = chunk..(chunk + CHUNK_BYTES).min(depot.bytes());
        // Until the chunk's memory is given back: see `pins.rs`.
        let pins = depot.pins().lock().map_err(|_| TrimError::Forked)?;
        trim_chunk((depot, &pins), &trimming, &mut system, (chunk, runs), &mut trimmed)
            .map_err(|errno| TrimError::Refused { trimmed, errno })?;
    }
    Ok(trimmed)
}

fn trim_chunk(
    (depot, pins): (&Shared, &Pins),
    trimming: &Trimming<'_>,
    system: &mut System<'_>,
    (chunk, runs): (Range<usize>, Runs),
    trimmed: &mut Trimmed,
) -> Result<(), Errno> {
    // SAFETY: the chunk is inside the depot's memory.
    let start = unsafe { depot.base().add(chunk.start) };
    let present = resident(start, chunk.len())?;
    let taken = Taken::new((depot, pins), trimming, (chunk, runs), &present);
    let result = system.give_back(&taken.merged(), trimmed);
    if runs == Runs::Whole && result.is_ok() {
        trimmed.whole_pageblocks += taken.ranges.len() as u64;
    }
    drop(taken);
    result
}

/// Which of the system's pages in a range are present.
pub(crate) fn resident(start: NonNull<u8>, bytes: usize) -> Result<Vec<bool>, Errno> {
    let mut states = vec![0u8; bytes.div_ceil(rustix::param::page_size())];
    // SAFETY: one byte per page is written. The range is mapped; mincore does not touch it.
    match unsafe { libc::mincore(start.as_ptr().cast(), bytes, states.as_mut_ptr()) } {
        0 => Ok(states.into_iter().map(|state| state & 1 != 0).collect()),
        _ => Err(last_errno()),
    }
}

/// Which runs of free pages a pass takes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Runs {
    /// Whole pageblocks of 2 MiB.
    Whole,
    /// Shorter ones.
    Parts,
}

/// Ranges of bytes taken from the store; returned when dropped.
struct Taken<'d> {
    depot: &'d Shared,
    trimming: &'d Trimming<'d>,
    /// Ascending, apart, none across an aligned 2 MiB.
    ranges: Vec<Range<usize>>,
}

impl<'d> Taken<'d> {
    /// Takes what is free, not pinned and at least partly present in a chunk.
    fn new(
        (depot, pins): (&'d Shared, &Pins),
        trimming: &'d Trimming<'d>,
        (chunk, runs): (Range<usize>, Runs),
        present: &[bool],
    ) -> Self {
        let mut taken = Taken { depot, trimming, ranges: Vec::new() };
        let system_page = rustix::param::page_size();
        for huge in chunk.clone().step_by(HUGE_BYTES) {
            let huge = huge..(huge + HUGE_BYTES).min(chunk.end);
            let is_meant = |run: &Range<usize>| (run.len() == HUGE_BYTES) == (runs == Runs::Whole);
            for run in free_runs(depot, pins, huge).into_iter().filter(is_meant) {
                let pages = (run.start - chunk.start) / system_page
                    ..(run.end - chunk.start).div_ceil(system_page);
                if present[pages].iter().any(|&present| present) {
                    taken.take(run);
                }
            }
        }
        taken
    }

    fn take(&mut self, run: Range<usize>) {
        let (start, count) = frames(self.depot, &run);
        // `try_alloc_at` announces its move (SeqCst) before it takes anything: a request that has
        // not seen the move before it looked for pages sees it afterwards and does not fail
        // yet.
        let claim =
            || self.depot.frames().try_alloc_at(start, count, Flags::MOVABLE.no_reclaim()).is_ok();
        // Where another caller was faster, it needs the pages: leave them.
        if self.trimming.take(count, claim) {
            self.ranges.push(run);
        }
    }

    /// The ranges, neighbours merged.
    fn merged(&self) -> Vec<Range<usize>> {
        let mut merged: Vec<Range<usize>> = Vec::new();
        for range in &self.ranges {
            match merged.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ => merged.push(range.clone()),
            }
        }
        merged
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        for range in &self.ranges {
            let (start, count) = frames(self.depot, range);
            // Allocated by `take`, and no caller was told.
            let freed = self.depot.frames().free_contiguous(start, count);
            debug_assert_eq!(freed, Ok(()));
        }
        self.trimming.returned();
    }
}

fn frames(depot: &Shared, range: &Range<usize>) -> (Pfn, u32) {
    let shift = depot.page_size().shift();
    (Pfn::new((range.start >> shift) as u32), (range.len() >> shift) as u32)
}

/// Runs of bytes in an aligned 2 MiB that are free in the store now and not pinned. Of huge pages
/// all or nothing.
fn free_runs(depot: &Shared, pins: &Pins, huge: Range<usize>) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    let page = depot.page_size().bytes();
    for at in huge.clone().step_by(page) {
        let pfn = Pfn::new((at >> depot.page_size().shift()) as u32);
        if !depot.frames().is_free(pfn) || pins.contains(pfn) {
            continue;
        }
        match runs.last_mut() {
            Some(last) if last.end == at => last.end += page,
            _ => runs.push(at..at + page),
        }
    }
    if depot.memory().is_huge() {
        runs.retain(|run| *run == huge);
    }
    runs
}

/// How this system takes memory back.
pub(crate) struct System<'d> {
    memory: &'d Memory,
    /// This process, while vectors may work.
    process: Option<OwnedFd>,
}

impl<'d> System<'d> {
    pub fn new(memory: &'d Memory) -> Self {
        let process = match memory.fd() {
            Some(_) => None,
            None => pidfd_open(getpid(), PidfdFlags::empty()).ok(),
        };
        System { memory, process }
    }

    /// Drops the memory of ranges, counting what and how.
    pub fn give_back(
        &mut self,
        ranges: &[Range<usize>],
        trimmed: &mut Trimmed,
    ) -> Result<(), Errno> {
        for ranges in ranges.chunks(RANGES_MAX) {
            let vector: Vec<_> = ranges.iter().map(|range| self.iovec(range)).collect();
            let bytes: usize = ranges.iter().map(ExactSizeIterator::len).sum();
            if self.by_vector(&vector, bytes) {
                trimmed.calls += 1;
            } else {
                for range in ranges {
                    self.one_by_one(range)?;
                    trimmed.calls += 1;
                }
            }
            trimmed.bytes += bytes as u64;
        }
        Ok(())
    }

    fn iovec(&self, range: &Range<usize>) -> libc::iovec {
        // SAFETY: inside the memory.
        let start = unsafe { self.memory.start().add(range.start) };
        libc::iovec { iov_base: start.as_ptr().cast(), iov_len: range.len() }
    }

    /// All ranges by one call; `false` when that does not work, now or ever.
    fn by_vector(&mut self, vector: &[libc::iovec], bytes: usize) -> bool {
        use std::os::fd::AsRawFd;
        let Some(process) = &self.process else { return false };
        let (fd, count) = (process.as_raw_fd(), vector.len());
        // SAFETY: the ranges are free pages taken from the store, whose contents no caller needs.
        // libc and rustix have no wrapper.
        let done = unsafe {
            libc::syscall(
                libc::SYS_process_madvise,
                fd,
                vector.as_ptr(),
                count,
                libc::MADV_DONTNEED,
                0,
            )
        };
        if done < 0 {
            // EINVAL, EPERM before Linux 6.13, ENOSYS before 5.10: do not try again.
            self.process = None;
        }
        done == bytes as libc::c_long
    }

    fn one_by_one(&self, range: &Range<usize>) -> Result<(), Errno> {
        match self.memory.fd() {
            Some(file) => {
                let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                fallocate(file, mode, range.start as u64, range.len() as u64)
            }
            None => {
                let vector = self.iovec(range);
                // SAFETY: as in `by_vector`.
                unsafe { madvise(vector.iov_base, vector.iov_len, Advice::LinuxDontNeed) }
            }
        }
    }
}
