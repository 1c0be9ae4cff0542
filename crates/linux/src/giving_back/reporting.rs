//! Reports whole free pageblocks to the system, and gives their memory back.
//!
//! The core's passes choose pageblocks that are whole and not reported yet, and own them while
//! [`GiveBack`] drops their memory. The system provides memory again at the next touch, so a
//! pageblock needs no work when it is used again.
//!
//! To other code a pass is a trim. Only one caller at a time trims or reports. Requests that run
//! short wait until the chunk is back ([`trim_state`](crate::giving_back::trim_state)). Pins are
//! locked while memory is dropped ([`pins`](crate::moving::pins)). A run with a pinned page is
//! reported too, and keeps its memory.

use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;

use pagedepot::{FrameRange, Pfn};
use pagedepot_contiguity::{ReportCounts, ReportEnd, ReportError, ReportPass, ReportingDevice};

use crate::cpus::linux::LinuxCpus;
use crate::giving_back::returnable::ReturnableFrames;
use crate::giving_back::system::{DroppedMemory, System};
use crate::giving_back::trim::TrimError;
use crate::giving_back::trim_state::Trimming;
use crate::memory::region::PAGEBLOCK_PAGES;

/// Pageblocks taken from the store at a time: 16 MiB of 4 KiB pages, as in a trim.
const CHUNK_PAGEBLOCKS: u64 = 8;

/// Gives whole free pageblocks (aligned runs of 512 pages, 2 MiB of 4 KiB pages) back to the
/// system. Each is given back once, until it is used again. Memory goes back by `madvise`
/// (`MADV_DONTNEED`), or by `fallocate` for a memory file.
///
/// A [trim](crate::Depot::trim) looks at all memory and also gives back parts of pageblocks. A pass
/// looks at one bit per pageblock, so a program can repeat it every few seconds. Requests prefer
/// pageblocks that were not given back.
///
/// ```
/// use pagedepot_linux::reclaim::Reporting;
/// use pagedepot_linux::{Depot, Mode, Order, Scope};
///
/// let depot = Depot::new(64 << 20)?;
/// drop(depot.page(Order::MAX)?);
/// depot.drain(Scope::ALL, Mode::Full);
/// let reporting = Reporting::of(&depot);
/// assert_eq!(reporting.pass(8)?.pageblocks, 8);
/// assert_eq!(reporting.counts().reported, 8);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Reporting<'d>(&'d ReturnableFrames);

impl ReportingDevice for ReturnableFrames {
    fn report(&self, ranges: &[FrameRange]) -> bool {
        let Ok(pins) = self.pins().lock() else { return false };
        let is_pinned =
            |range: &FrameRange| (0..range.frames).any(|at| pins.contains(range.start.add(at)));
        let bytes = |range: &FrameRange| {
            let start = self.offset(range.start);
            start..start + ((range.frames as usize) << self.page_size().shift())
        };
        let unpinned: Vec<_> = ranges.iter().filter(|range| !is_pinned(range)).map(bytes).collect();
        let mut dropped = DroppedMemory::default();
        // A trim may have given them back already.
        let present_bytes = |range: &Range<usize>| self.present_bytes(range);
        let is_done = System::new(self).give_back(&unpinned, present_bytes, &mut dropped).is_ok();
        self.trimming().count_reported(dropped.bytes);
        is_done
    }
}

impl fmt::Debug for Reporting<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Reporting").field(&self.counts()).finish()
    }
}

impl<'d> Reporting<'d> {
    /// The reporting of these frames.
    pub(crate) fn over(frames: &'d ReturnableFrames) -> Self {
        Reporting(frames)
    }

    fn core(&self) -> pagedepot_contiguity::Reporting<'_, 'static, LinuxCpus<'static>> {
        pagedepot_contiguity::Reporting::of(self.0.frames())
    }

    /// Gives back at most `pageblocks_max` pageblocks, over all zones. Requests cannot use them
    /// while their memory is dropped, 16 MiB at a time. A pass never brings a zone's free pages
    /// below its `low` watermark. Pages that CPUs cache are not free here: drain first to include
    /// them.
    ///
    /// Only one caller at a time gives memory back. Another caller, or one that comes just after a
    /// request ran out of pages, gives back nothing: [`ReportEnd::LowMemory`]. Over a store of the
    /// program's own there is nothing to give back.
    ///
    /// O(pages / 2^15) for each 8 pageblocks. Each 8 pageblocks cost one system call, or one for
    /// each run of neighbours if the kernel takes no vectors. Each call interrupts every CPU that
    /// runs this process.
    ///
    /// # Errors
    /// [`TrimError::Pinned`] when the depot was built with
    /// [`Builder::pinned`](crate::Builder::pinned), [`TrimError::Forked`] in a child. A system that
    /// refuses ends the pass, and so does a pin that the calling thread is making, under a signal
    /// handler: [`ReportEnd::Refused`].
    pub fn pass(&self, pageblocks_max: u64) -> Result<ReportPass, TrimError> {
        self.counted_pass(pageblocks_max).map(|(done, _)| done)
    }

    /// A [`pass`](Self::pass), and the bytes that it gave back: those that were present.
    pub(crate) fn counted_pass(&self, pageblocks_max: u64) -> Result<(ReportPass, u64), TrimError> {
        let shared = self.0;
        shared.check_parent().map_err(|_| TrimError::Forked)?;
        if shared.is_pinned() {
            return Err(TrimError::Pinned);
        }
        let core = self.core();
        // SAFETY: the allocator lies in the same `DepotState`, which does not move. It alone gets
        // this reference, and is dropped before the rest.
        let device: &'static ReturnableFrames = unsafe { NonNull::from(shared).as_ref() };
        // An earlier pass may have registered it.
        let _ = core.register(device);
        let Some(trimming) = shared.trimming().begin() else {
            let mut nothing = ReportPass::default();
            nothing.end = ReportEnd::LowMemory;
            return Ok((nothing, 0));
        };
        let before_bytes = trimming.reported_bytes();
        let done = self.pass_as(&trimming, pageblocks_max)?;
        Ok((done, trimming.reported_bytes() - before_bytes))
    }

    /// A pass of the caller that has the right to trim.
    fn pass_as(
        &self,
        trimming: &Trimming<'_>,
        pageblocks_max: u64,
    ) -> Result<ReportPass, TrimError> {
        let core = self.core();
        let mut sum = ReportPass::default();
        for zone in self.0.frames().zone_ids() {
            loop {
                if trimming.is_unwelcome() {
                    sum.end = ReportEnd::LowMemory;
                    return Ok(sum);
                }
                let most = CHUNK_PAGEBLOCKS.min(pageblocks_max - sum.pageblocks);
                // Dropped when the chunk is back: a request that looked meanwhile found less.
                let _bringing = self.0.bringing();
                // Raised before the pass takes pages, as invariant 2 of `trim_state` has it.
                trimming.take(most as u32 * PAGEBLOCK_PAGES, || true);
                let done = core.pass(zone, most);
                trimming.returned();
                let done = match done {
                    Ok(done) => done,
                    Err(ReportError::Forked) => return Err(TrimError::Forked),
                    // The store is the program's own.
                    Err(_) => return Ok(sum),
                };
                sum.pageblocks += done.pageblocks;
                sum.calls += done.calls;
                sum.end = done.end;
                let is_spent = sum.pageblocks == pageblocks_max;
                if is_spent || done.end == ReportEnd::Refused {
                    return Ok(sum);
                }
                if done.end != ReportEnd::Budget {
                    break;
                }
            }
        }
        Ok(sum)
    }

    /// Pageblocks given back, and used again, so far.
    pub fn counts(&self) -> ReportCounts {
        self.core().counts()
    }

    /// Whether the pageblock of a page was given back and has not been used since.
    pub fn is_reported(&self, pfn: Pfn) -> bool {
        self.core().is_reported(pfn)
    }
}
