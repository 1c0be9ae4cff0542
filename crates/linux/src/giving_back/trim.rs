//! Giving the memory of free pages back to the system.
//!
//! # How
//! A trim works through the addresses in chunks. It finds pages that are free in the store and
//! present, and takes them from the store, so that no request gets one. It drops the memory of as
//! many ranges as possible by one system call. Then it returns the pages to the store.
//!
//! Each call interrupts every CPU that runs the process, to flush its TLB. So ranges are merged and
//! passed in vectors: a `madvise` call per range keeps the CPUs busy with interrupts (wasmtime
//! issues 4637, 8590, 13830). `process_madvise` takes `MADV_DONTNEED` for the caller's own process
//! since Linux 6.13. Before, and for a memory file, each range takes a call of its own.
//!
//! A trim gives back whole pageblocks (512 pages) of the whole depot first, and then free parts of
//! others. So a trim that ends early has given back the largest pieces, which are least likely to
//! be needed soon. A run never crosses a pageblock. What went back is returned as absent: requests
//! get memory that is present first ([`pagedepot::Residency`]), which is known of whole pageblocks
//! alone. (Linux's free page reporting, `mm/page_reporting.c`, and HyperAlloc report blocks of 2
//! MiB only.)
//!
//! Memory that went back stays away until it is used: from then on the system makes no huge pages
//! of the depot's memory, unless the depot asked for them ([`Memory::keep_small`]).
//!
//! # Good moments
//! A caller may have each system call wait for a moment at which it interrupts no isolated CPU. The
//! pages are taken by then: such a moment is short. If none comes soon, the pages go back for a
//! while, and so does the lock of the pins. So neither requests nor pins nor ceilings wait as long
//! as the caller does.
//!
//! # Requests that run short during a trim
//! A request cannot find the pages that a trim has taken. A request that would fail calls the
//! reclaim callbacks first, and [`TrimState`] is one of them. It sleeps until the chunk is back,
//! and then keeps trims away for long enough that the request gets its page before the next chunk
//! is taken.

use std::cell::Cell;
use std::ops::Range;
use std::time::Duration;
use std::{fmt, io, thread};

use pagedepot::{Flags, Mode, Pfn, Pressure, Reclaim, Residency, Scope};
use rustix::io::Errno;

use crate::error::BuildError;
use crate::giving_back::returnable::ReturnableFrames;
use crate::giving_back::system::{DroppedMemory, System};
use crate::giving_back::trim_state::{TrimState, Trimming};
use crate::memory::region::resident;
use crate::moving::pins::Pins;
use crate::system::first_panic::FirstPanic;
use crate::system::sync::LockError;

/// Bytes of addresses per chunk, the most memory that a trim takes from the store at a time; but a
/// pageblock at least. Where a CPU is isolated a chunk is one pageblock. A call that drops 2 MiB
/// ends within a fraction of a millisecond, before a thread there that has just fallen asleep works
/// again; one that drops a pageblock of larger pages takes as much longer.
const CHUNK_BYTES: usize = 16 << 20;
/// Time between two tries of a chunk, in which requests get its pages and other threads the lock of
/// the pins.
const PAUSE: Duration = Duration::from_millis(10);
/// Both passes of a trim, in their order.
pub(crate) const ALL_RUNS: [Runs; 2] = [Runs::Whole, Runs::Parts];

/// The result of a [`Depot::trim`](crate::Depot::trim).
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
pub struct TrimResult {
    /// Bytes that were present before the trim and are not any more.
    pub bytes: u64,
    /// Pageblocks (512 pages) that were given back whole.
    pub whole_pageblocks: u64,
    /// System calls that dropped memory.
    pub calls: u64,
    /// Free pages, in pageblocks of which some page is present, that were left alone because they
    /// are [pinned](crate::Depot::pin_range) or [registered](crate::Depot::registered_iovecs).
    pub pinned_pages: u64,
    /// Whether the trim ended early: another thread was trimming, or a request had run out of pages
    /// less than 20 ms before and needed what was free.
    pub cut_short: bool,
}

/// The reason why memory was not given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TrimError {
    /// The system refused to take memory back.
    Refused {
        /// The result up to the refusal.
        trimmed: TrimResult,
        /// The system's error.
        errno: Errno,
    },
    /// The depot was built with [`Builder::pinned`](crate::Builder::pinned), or the page is
    /// [pinned](crate::Depot::pin_range).
    Pinned,
    /// This process is a forked child of the one that made the depot.
    Forked,
    /// The calling thread is pinning or giving back memory: this call was made by a signal handler.
    Reentrant,
}

impl TrimError {
    /// The error of a [`System`] that dropped no more than `trimmed`.
    pub(crate) fn refused(trimmed: TrimResult, errno: Errno) -> Self {
        match errno {
            Errno::CHILD => TrimError::Forked,
            _ => TrimError::Refused { trimmed, errno },
        }
    }
}

impl From<LockError> for TrimError {
    fn from(error: LockError) -> Self {
        match error {
            LockError::Forked => TrimError::Forked,
            LockError::Reentrant => TrimError::Reentrant,
        }
    }
}

impl fmt::Display for TrimError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TrimError::Refused { trimmed, errno } => write!(
                f,
                "the system took {} bytes back, then refused ({errno}): unlock locked memory \
                 (mlockall), allow madvise and fallocate",
                trimmed.bytes
            ),
            TrimError::Pinned => f.write_str(
                "the memory is pinned: the depot was built with Builder::pinned(true), or a page \
                 has a pin that is to be ended first",
            ),
            TrimError::Forked => f.write_str("the depot is the parent process's: trim it there"),
            TrimError::Reentrant => BuildError::Reentrant.fmt(f),
        }
    }
}

impl std::error::Error for TrimError {}

impl From<TrimError> for io::Error {
    fn from(error: TrimError) -> Self {
        let kind = match error {
            TrimError::Refused { errno, .. } => io::Error::from(errno).kind(),
            TrimError::Pinned | TrimError::Forked => io::ErrorKind::Unsupported,
            TrimError::Reentrant => io::ErrorKind::Deadlock,
        };
        io::Error::new(kind, error)
    }
}

impl Reclaim for TrimState {
    /// The callback only waits, so any number of requests may run it at once.
    fn is_shared(&self) -> bool {
        true
    }

    /// Waits until the trim has returned the pages that it took.
    fn reclaim(&self, pressure: Pressure) -> u64 {
        if pressure.is_last_resort { self.wait_for_pages().into() } else { 0 }
    }
}

/// The reason why a trim ended before it had looked at all memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The trim gave back as many bytes as were asked for.
    Enough,
    /// A request ran short of pages a moment before.
    LowMemory,
    /// Another thread is trimming.
    Busy,
    /// The time was up.
    Deadline,
    /// A thread of this process ran on an isolated CPU all the time.
    Isolated,
}

/// A trim's amount and pace.
pub(crate) struct Bounds<'b> {
    /// The trim ends as soon as so many bytes went back. The last run is taken whole.
    pub bytes_max: u64,
    /// The pieces that are taken.
    pub runs: &'b [Runs],
    /// Called before each system call that drops memory, with the pages of one chunk taken and the
    /// pins locked. May wait a little for a good moment. `false`: none came yet, so the pages go
    /// back, and the chunk is tried again [`PAUSE`] later.
    pub moment: &'b mut dyn FnMut() -> Result<bool, Stop>,
}

/// Gives back all free memory now, whatever CPUs it interrupts.
pub(crate) fn trim(depot: &ReturnableFrames) -> Result<TrimResult, TrimError> {
    depot.check_parent().map_err(|_| TrimError::Forked)?;
    if depot.is_pinned() {
        return Err(TrimError::Pinned);
    }
    depot.frames().drain(Scope::ALL, Mode::Quiet);
    let bounds = Bounds { bytes_max: u64::MAX, runs: &ALL_RUNS, moment: &mut || Ok(true) };
    let mut trimmed = TrimResult::default();
    let stop = trim_within(depot, bounds, &mut trimmed)?;
    trimmed.cut_short = stop.is_some();
    Ok(trimmed)
}

/// Gives back free memory within bounds, and adds to `trimmed`. Drains nothing. `None`: it looked
/// at all memory.
pub(crate) fn trim_within(
    depot: &ReturnableFrames,
    mut bounds: Bounds<'_>,
    trimmed: &mut TrimResult,
) -> Result<Option<Stop>, TrimError> {
    depot.check_parent().map_err(|_| TrimError::Forked)?;
    if depot.is_pinned() {
        return Err(TrimError::Pinned);
    }
    let Some(trimming) = depot.trimming().begin() else { return Ok(Some(Stop::Busy)) };
    let mut system = System::new(depot);
    let chunk_bytes = match depot.isolated_cpus().is_empty() {
        true => CHUNK_BYTES.max(depot.pageblock_bytes()),
        false => depot.pageblock_bytes(),
    };
    let chunks = || (0..depot.bytes()).step_by(chunk_bytes);
    let runs = bounds.runs.iter().copied();
    let enough = trimmed.bytes.saturating_add(bounds.bytes_max);
    for (runs, chunk) in runs.flat_map(|runs| chunks().map(move |chunk| (runs, chunk))) {
        let bytes = chunk..(chunk + chunk_bytes).min(depot.bytes());
        loop {
            if trimmed.bytes >= enough {
                return Ok(Some(Stop::Enough));
            }
            if trimming.is_unwelcome() {
                return Ok(Some(Stop::LowMemory));
            }
            let bytes_max = enough - trimmed.bytes;
            let chunk = Chunk { bytes: bytes.clone(), runs, bytes_max };
            // Made before the lock, and so dropped after it: a waker may pin, end pins and trim.
            let bringing = depot.bringing();
            // Held until the chunk's memory is dropped: see `pins.rs`.
            let pins = depot.pins().lock()?;
            let result = trim_chunk(
                (depot, &pins),
                (&trimming, &mut bounds.moment),
                &mut system,
                chunk,
                trimmed,
            );
            drop(pins);
            drop(bringing);
            match result {
                Ok(true) => break,
                Ok(false) => thread::sleep(PAUSE),
                Err(End::Stopped(stop)) => return Ok(Some(stop)),
                Err(End::Refused(errno)) => return Err(TrimError::refused(*trimmed, errno)),
            }
        }
    }
    Ok((trimmed.bytes >= enough).then_some(Stop::Enough))
}

/// The part of a trim that is done under one lock of the pins.
struct Chunk {
    bytes: Range<usize>,
    runs: Runs,
    /// Bytes after which no further run is taken.
    bytes_max: u64,
}

/// The reason why a chunk's memory was not dropped.
enum End {
    Stopped(Stop),
    Refused(Errno),
}

impl From<Errno> for End {
    fn from(errno: Errno) -> Self {
        End::Refused(errno)
    }
}

/// Gives back what is free of a chunk. `false`: it was no good moment, and nothing has changed.
fn trim_chunk(
    (depot, pins): (&ReturnableFrames, &Pins),
    (trimming, moment): (&Trimming<'_>, &mut dyn FnMut() -> Result<bool, Stop>),
    system: &mut System<'_>,
    chunk: Chunk,
    trimmed: &mut TrimResult,
) -> Result<bool, End> {
    let (runs, start_at) = (chunk.runs, chunk.bytes.start);
    // SAFETY: the chunk is inside the depot's memory.
    let start = unsafe { depot.base().add(start_at) };
    let present = Present { start: start_at, pages: resident(start, chunk.bytes.len())? };
    let mut taken = TrimRanges::new((depot, pins), trimming, chunk, &present);
    let merged = taken.merged();
    if !merged.is_empty() && !moment().map_err(End::Stopped)? {
        return Ok(false);
    }
    // Each pass meets the same ones.
    if runs == Runs::Whole {
        trimmed.pinned_pages += taken.pinned_pages;
    }
    let mut dropped = DroppedMemory::default();
    let result = system.give_back(&merged, |range| present.bytes(range), &mut dropped);
    trimmed.bytes += dropped.bytes;
    trimmed.calls += dropped.calls;
    taken.are_absent = result.is_ok();
    if runs == Runs::Whole && result.is_ok() {
        trimmed.whole_pageblocks += taken.ranges.len() as u64;
    }
    drop(taken);
    Ok(result.map(|()| true)?)
}

/// The pages of a chunk that are present.
struct Present {
    /// Offset of the first page in the depot's memory.
    start: usize,
    /// Whether each page of the system is present.
    pages: Vec<bool>,
}

impl Present {
    fn of(&self, range: &Range<usize>) -> &[bool] {
        let system_page = rustix::param::page_size();
        let first = (range.start - self.start) / system_page;
        &self.pages[first..(range.end - self.start).div_ceil(system_page)]
    }

    fn has_some(&self, range: &Range<usize>) -> bool {
        self.of(range).contains(&true)
    }

    fn bytes(&self, range: &Range<usize>) -> u64 {
        let pages = self.of(range).iter().filter(|&&is_present| is_present).count();
        (pages * rustix::param::page_size()) as u64
    }
}

/// The runs of free pages that a pass takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Runs {
    /// Whole pageblocks.
    Whole,
    /// Runs inside partly used pageblocks.
    Parts,
}

std::thread_local! {
    /// The first frame and the number of those that the thread takes for a trim; none is (0, 0).
    static TAKING: Cell<(u32, u32)> = const { Cell::new((0, 0)) };
}

/// Whether the calling thread takes just these frames from the store for a trim, which puts them
/// back: the ceiling of a process says nothing of them.
pub(crate) fn is_taking_here(start: u32, frames: u32) -> bool {
    frames > 0 && TAKING.get() == (start, frames)
}

/// Calls `take` for a trim that takes these frames. A call that panics ends that, too.
fn taking<R>(start: u32, frames: u32, take: impl FnOnce() -> R) -> R {
    struct End;
    impl Drop for End {
        fn drop(&mut self) {
            TAKING.set((0, 0));
        }
    }
    TAKING.set((start, frames));
    let _end = End;
    take()
}

/// Ranges of bytes whose pages were taken from the store. Returns them on drop, which tells no
/// request that waits: the caller does, when it has given the pins' lock back.
struct TrimRanges<'d> {
    depot: &'d ReturnableFrames,
    trimming: &'d Trimming<'d>,
    /// Ascending and disjoint; none crosses a boundary of pageblocks.
    ranges: Vec<Range<usize>>,
    /// Free, and not taken because they are pinned.
    pinned_pages: u64,
    /// Whether the memory of all ranges went back to the system.
    are_absent: bool,
}

impl<'d> TrimRanges<'d> {
    /// Takes the pages of a chunk that are free, not pinned and at least partly present.
    fn new(
        (depot, pins): (&'d ReturnableFrames, &Pins),
        trimming: &'d Trimming<'d>,
        chunk: Chunk,
        present: &Present,
    ) -> Self {
        let Chunk { bytes: chunk, runs, bytes_max } = chunk;
        let ranges = Vec::new();
        let mut taken = TrimRanges { depot, trimming, ranges, pinned_pages: 0, are_absent: false };
        let (mut bytes, whole) = (0, depot.pageblock_bytes());
        for start in chunk.clone().step_by(whole) {
            let pageblock = start..(start + whole).min(chunk.end);
            // In a large depot most of it is not present: do not ask about each page.
            if !present.has_some(&pageblock) {
                continue;
            }
            let is_meant = |run: &Range<usize>| (run.len() == whole) == (runs == Runs::Whole);
            let (free, pinned_pages) = free_runs(depot, pins, pageblock);
            taken.pinned_pages += pinned_pages;
            for run in free.into_iter().filter(is_meant) {
                if bytes < bytes_max && present.has_some(&run) {
                    bytes += present.bytes(&run);
                    taken.take(run);
                }
            }
        }
        taken
    }

    fn take(&mut self, run: Range<usize>) {
        let (start, count) = frames(self.depot, &run);
        // `try_alloc_at` announces its move (SeqCst) before it takes anything. So a request that
        // looked for pages before it could see the move sees it afterwards, and does not fail yet.
        let claim = || {
            let flags = Flags::MOVABLE.no_reclaim();
            let take = || self.depot.frames().try_alloc_at(start, count, flags).is_ok();
            taking(start.get(), count, take)
        };
        // If another caller was faster, it needs the pages: leave them to it.
        if self.trimming.take(count, claim) {
            self.ranges.push(run);
        }
    }

    /// The ranges, with adjacent ones merged.
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

impl Drop for TrimRanges<'_> {
    fn drop(&mut self) {
        let mut panics = FirstPanic::default();
        for range in &self.ranges {
            let (start, count) = frames(self.depot, range);
            let residency = Residency::of(self.depot.frames());
            // `take` allocated these pages, and handed them to no caller. They are refused only
            // where another process has written to the store of a segment. Past the caches: the
            // next try looks for them in the store.
            let free = || match self.are_absent {
                true => residency.free_absent(start, count),
                false => residency.free_present(start, count),
            };
            // A report of misuse, after the free, keeps no other pages here.
            panics.catch(free);
        }
        self.trimming.returned();
        panics.resume();
    }
}

fn frames(depot: &ReturnableFrames, range: &Range<usize>) -> (Pfn, u32) {
    let shift = depot.page_size().shift();
    (Pfn::new((range.start >> shift) as u32), (range.len() >> shift) as u32)
}

/// The runs of bytes in a pageblock that are free in the store now and not pinned, and how many
/// free pages are pinned. Huge pages, or pageblocks of one that is larger, are in a run whole or
/// not at all.
fn free_runs(
    depot: &ReturnableFrames,
    pins: &Pins,
    pageblock: Range<usize>,
) -> (Vec<Range<usize>>, u64) {
    let (mut runs, mut pinned_pages) = (Vec::<Range<usize>>::new(), 0);
    let page = depot.page_size().bytes();
    let end = pageblock.end;
    for at in pageblock.step_by(page) {
        let pfn = Pfn::new((at >> depot.page_size().shift()) as u32);
        if !depot.frames().is_free(pfn) {
            continue;
        }
        if pins.contains(pfn) {
            pinned_pages += 1;
            continue;
        }
        match runs.last_mut() {
            Some(last) if last.end == at => last.end += page,
            _ => runs.push(at..at + page),
        }
    }
    if let Some(huge) = depot.memory().huge_bytes() {
        let unit = huge.min(depot.pageblock_bytes());
        runs.iter_mut().for_each(|run| *run = whole_units(run, unit, end));
        runs.retain(|run| !run.is_empty());
    }
    (runs, pinned_pages)
}

/// The part of a range that whole units fill, of which the last may be cut off at `end`.
fn whole_units(range: &Range<usize>, unit: usize, end: usize) -> Range<usize> {
    let last = if range.end == end { end } else { range.end / unit * unit };
    range.start.next_multiple_of(unit)..last
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use pagedepot::Order;

    use super::*;
    use crate::Depot;
    use crate::test_units::mib;

    #[test]
    fn a_claim_that_panics_takes_nothing_any_more() {
        let seen = taking(7, 2, || (is_taking_here(7, 2), is_taking_here(7, 1)));
        assert_eq!(seen, (true, false));
        catch_unwind(|| taking(7, 2, || panic!("misuse is reported"))).unwrap_err();
        assert!(!is_taking_here(7, 2) && !is_taking_here(0, 0));
    }

    /// A page that was freed twice is reported as a trim returns its pages. All of them come back.
    #[test]
    fn a_report_of_misuse_keeps_no_pages() {
        let depot = Depot::builder(8 * mib())
            .caches(false)
            .isolated_cpus(Default::default())
            .build()
            .unwrap();
        let blocks: Vec<_> = (0..4).map(|_| depot.page(Order::PAGEBLOCK).unwrap()).collect();
        let twice = blocks.iter().map(|block| block.pfn()).min().unwrap();
        blocks.into_iter().for_each(|mut block| block.fill(1));
        let mut moment = || {
            // SAFETY: the page is free, but for the trim; its contents are of no use.
            let freed = unsafe { depot.raw().free(twice, Order::BASE) };
            assert_eq!(freed, Ok(()));
            Ok(true)
        };
        let bounds = Bounds { bytes_max: u64::MAX, runs: &ALL_RUNS, moment: &mut moment };
        let mut trimmed = TrimResult::default();
        let trim = || trim_within(depot.shared(), bounds, &mut trimmed);
        let panic = catch_unwind(AssertUnwindSafe(trim)).unwrap_err();
        assert!(panic.downcast_ref::<String>().unwrap().contains("double free"));
        let in_a_chunk = (CHUNK_BYTES / depot.shared().pageblock_bytes()).clamp(1, 4);
        assert_eq!(trimmed.whole_pageblocks, in_a_chunk as u64);
        assert_eq!(depot.validate().unwrap().held_pages(), 0);
        assert_eq!(depot.trim().map(|trimmed| trimmed.cut_short), Ok(false));
    }
}
