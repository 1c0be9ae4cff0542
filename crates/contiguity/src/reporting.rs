//! Free page reporting: passes that report whole free pageblocks to what provides the memory.
//!
//! # States of a pageblock that is whole
//! | state | next |
//! |---|---|
//! | free | taken by a pass, which owns its frames; or by any request |
//! | taken by a pass | reported, when the device has taken the report; else free again |
//! | reported | needed, by a request that finds nothing else, or a claim of given frames |
//! | needed | held by that request, the rest free, when the device has made it usable; else reported again |
//!
//! `store/reported.rs` of the core has the invariants of the second half. Of a pass:
//! 1. It takes pageblocks as any request does, by a claim of all their frames, so that no caller
//!    has one of them while the device looks at them.
//! 2. What it takes is announced as in flight from before it takes the first until it has given all
//!    back: a request that finds nothing meanwhile looks again before it fails.
//! 3. The zone's free pages are counted without those that it has and those that compaction hides,
//!    and one pass does not bring them below the `low` watermark. Of two that look at the same
//!    moment each may take the last pageblock above it, for one call of the device. The kernel's
//!    `page_reporting_process_zone` has the same rule.
//! 4. A device that panics, or refuses, leaves the pageblocks free and unreported.
//!
//! The kernel's `mm/page_reporting.c` reports 32 blocks per call, as this does, and at most a
//! sixteenth of a free list per pass, two seconds apart. Budget and rhythm are the caller's here.

use core::fmt;

use pagedepot::cpus::Cpus;
use pagedepot::seam::{
    DeviceRegistered, InFlightGuard, NoAccess, PAGEBLOCK_FRAMES, PageblockIndex, PageblockState,
    ReportCounts, ReportingDevice, ZoneAccess, reports,
};
use pagedepot::sync::model::{Mutant, bound, is_mutant};
use pagedepot::{Allocator, FrameRange, Pfn, ZoneId};

/// Most pageblocks of one report (Linux: `PAGE_REPORTING_CAPACITY`).
const CAPACITY: usize = bound(32, 2);

/// Reports whole free pageblocks (512 frames each) of an allocator to the device that provides its
/// memory, which may take it away until it is needed again.
///
/// ```
/// # use pagedepot::cpus::{CpuLock, Environment, LockedCpus, WhichCpu};
/// # use pagedepot::{
/// #     Allocator, Config, CpuId, Flags, FrameRange, NodeId, Order, Pfn, ZoneConfig, ZoneId,
/// # };
/// # struct First;
/// # impl Environment for First {}
/// # impl WhichCpu for First {
/// #     fn cpu(&self) -> Option<CpuId> { Some(CpuId::new(0)) }
/// # }
/// # let ranges = [FrameRange::new(Pfn::new(0), 1 << 15)];
/// # let zones = [ZoneConfig {
/// #     name: "Normal", node: NodeId::new(0), level: 2, ranges: &ranges, watermarks: None,
/// # }];
/// # let config = Config::new(1, &zones);
/// # let locks = [CpuLock::new()];
/// # type Depot<'m> = Allocator<'m, LockedCpus<'m, First>>;
/// # let mut metadata = vec![std::mem::MaybeUninit::uninit(); Depot::metadata_bytes(&config)?];
/// use pagedepot_contiguity::{Reporting, ReportingDevice};
///
/// /// A hypervisor that takes what is free, and brings it back before it is touched.
/// struct Hypervisor;
///
/// impl ReportingDevice for Hypervisor {
///     fn report(&self, ranges: &[FrameRange]) -> bool {
///         // One hypercall for all of them.
///         ranges.iter().all(|range| range.frames > 0)
///     }
///     fn needed(&self, _pageblock: FrameRange) -> bool {
///         true // Installed.
///     }
/// }
///
/// # let device = Hypervisor;
/// # let depot = Depot::new(&config, &mut metadata, LockedCpus::new(&locks, First))?;
/// let reporting = Reporting::of(&depot);
/// reporting.register(&device)?;
/// let done = reporting.pass(ZoneId::new(0), 16)?;
/// assert_eq!(done.pageblocks, 16);
/// assert_eq!(reporting.counts().reported, 16);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Reporting<'a, 'm, C>(&'a Allocator<'m, C>);

impl<C> fmt::Debug for Reporting<'_, '_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Reporting").field(&reports(self.0).counts()).finish()
    }
}

/// The reason why a pass ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReportEnd {
    /// No pageblock is left that is whole and not reported.
    #[default]
    NothingLeft,
    /// The pass reported as many pageblocks as the caller allowed.
    Budget,
    /// With one more, the zone's free pages would have fallen below its `low` watermark.
    LowMemory,
    /// The device did not take a report.
    Refused,
}

/// The result of a pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReportPass {
    /// The reason why it ended.
    pub end: ReportEnd,
    /// Pageblocks that were reported.
    pub pageblocks: u64,
    /// Calls of [`ReportingDevice::report`].
    pub calls: u64,
}

/// The reason why nothing was reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReportError {
    /// No device is registered.
    NoDevice,
    /// No zone has this number.
    NoSuchZone {
        /// The number.
        zone: u32,
    },
    /// The [`Backing`](pagedepot::Backing) under this allocator keeps the free frames.
    Unsupported,
    /// This process is a fork of the one that made the allocator.
    Forked,
}

impl fmt::Display for ReportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            ReportError::NoDevice => {
                f.write_str("no reporting device is registered: call Reporting::register first")
            }
            ReportError::NoSuchZone { zone } => write!(
                f,
                "there is no zone {zone}: zones are numbered from 0, as they stand in Config::zones"
            ),
            ReportError::Unsupported => f.write_str(
                "the backing keeps the free frames: report there, or use the allocator's own store",
            ),
            ReportError::Forked => f.write_str(
                "this process is a fork of the one that made the allocator, whose pages it does \
                 not own",
            ),
        }
    }
}

impl core::error::Error for ReportError {}

impl<'a, 'm, C: Cpus> Reporting<'a, 'm, C> {
    /// The reporting of an allocator. A borrow: it can be made whenever it is needed.
    pub fn of(allocator: &'a Allocator<'m, C>) -> Self {
        Reporting(allocator)
    }

    /// Registers the device, for the allocator's life. Without one nothing is ever reported.
    ///
    /// # Errors
    /// [`DeviceRegistered`]: there is one already, or another call registers one at this moment.
    pub fn register(&self, device: &'m dyn ReportingDevice) -> Result<(), DeviceRegistered> {
        reports(self.0).register(device)
    }

    /// Counts of pageblocks reported and needed again so far.
    pub fn counts(&self) -> ReportCounts {
        reports(self.0).counts()
    }

    /// Whether the pageblock of this frame is reported now.
    pub fn is_reported(&self, pfn: Pfn) -> bool {
        ZoneAccess::of(self.0, ZoneId::new(0))
            .is_ok_and(|zone| zone.is_reported(PageblockIndex::of(pfn)))
    }

    /// Reports whole free pageblocks of a zone that are not reported yet, from the last one
    /// down, at most `pageblocks_max`, and up to 32 by one call of the device. They are missing
    /// for requests while the device looks at them; the zone's free pages do not fall below its
    /// `low` watermark for that, but where several passes meet, by a pageblock for each.
    ///
    /// A caller that repeats this every few seconds with a sixteenth of the free pageblocks does
    /// what the kernel does. What CPUs cache is not free here: drain before, if it should be.
    ///
    /// O(zone's frames / 2^15), and what the device costs. Passes may run at the same time, and
    /// report different pageblocks.
    ///
    /// # Errors
    /// [`ReportError`], before anything was reported.
    ///
    /// # Panics
    /// When the device does: what it was told is free and not reported. And, after the pass, when
    /// frames were freed that were free already: see
    /// [`Config::on_misuse`](pagedepot::Config::on_misuse).
    pub fn pass(&self, zone: ZoneId, pageblocks_max: u64) -> Result<ReportPass, ReportError> {
        let access = ZoneAccess::of(self.0, zone).map_err(|why| match why {
            NoAccess::Forked => ReportError::Forked,
            NoAccess::NoSuchZone => ReportError::NoSuchZone { zone: zone.get() },
        })?;
        if !access.has_own_store() {
            return Err(ReportError::Unsupported);
        }
        let device = reports(self.0).device().ok_or(ReportError::NoDevice)?;
        let mut pass =
            Pass { zone: access, device, left: pageblocks_max, done: ReportPass::default() };
        pass.run();
        let done = pass.done;
        access.end_call();
        Ok(done)
    }
}

/// A pass over a zone.
struct Pass<'p, 'm, C> {
    zone: ZoneAccess<'p, 'm, C>,
    device: &'m dyn ReportingDevice,
    /// Pageblocks that may still be reported.
    left: u64,
    done: ReportPass,
}

impl<'p, 'm, C: Cpus> Pass<'p, 'm, C> {
    fn run(&mut self) {
        let mut batch = Batch::new(self.zone);
        let mut rest = self.zone.pageblocks();
        while let Some(pageblock) = self.zone.last_whole(rest.clone()) {
            rest.end = pageblock.0;
            let end = match () {
                () if self.left == batch.length as u64 => Some(ReportEnd::Budget),
                () if !self.zone.has_spare(PAGEBLOCK_FRAMES.into()) => Some(ReportEnd::LowMemory),
                () => None,
            };
            if let Some(end) = end {
                self.done.end = end;
                break;
            }
            batch.take(pageblock);
            if batch.length == CAPACITY && !self.report(&mut batch) {
                break;
            }
        }
        if batch.length > 0 {
            self.report(&mut batch);
        }
    }

    /// Reports a batch, which is empty then. `false`: the device refused, which ends the pass.
    fn report(&mut self, batch: &mut Batch<'p, 'm, C>) -> bool {
        let mut ranges = [FrameRange::new(Pfn::new(0), 0); CAPACITY];
        let length = batch.ranges(&mut ranges);
        self.done.calls += 1;
        if is_mutant(Mutant::ReportsLate) {
            let reported = batch.length as u64;
            batch.give_back(true);
            self.device.report(&ranges[..length]);
            self.done.pageblocks += reported;
            return true;
        }
        let is_taken = self.device.report(&ranges[..length]);
        if is_taken {
            self.done.pageblocks += batch.length as u64;
            self.left -= batch.length as u64;
        } else {
            self.done.end = ReportEnd::Refused;
        }
        batch.give_back(is_taken);
        is_taken
    }
}

/// Pageblocks that a pass owns, descending; they are free when this is dropped.
struct Batch<'p, 'm, C: Cpus> {
    zone: ZoneAccess<'p, 'm, C>,
    pageblocks: [PageblockIndex; CAPACITY],
    length: usize,
    /// The announcement of its pages, while it has some.
    moving: Option<InFlightGuard<'p>>,
}

impl<'p, 'm, C: Cpus> Batch<'p, 'm, C> {
    fn new(zone: ZoneAccess<'p, 'm, C>) -> Self {
        Batch { zone, pageblocks: [PageblockIndex(0); CAPACITY], length: 0, moving: None }
    }

    fn take(&mut self, pageblock: PageblockIndex) {
        // Sections may have pageblocks of other zones, for which nothing is announced.
        if self.zone.state(pageblock) != PageblockState::Serving(self.zone.id()) {
            return;
        }
        let pages = CAPACITY as u64 * u64::from(PAGEBLOCK_FRAMES);
        self.moving.get_or_insert_with(|| self.zone.announce(pages));
        if self.zone.take_whole(pageblock) {
            self.pageblocks[self.length] = pageblock;
            self.length += 1;
        }
    }

    /// Writes the pageblocks as ranges, ascending, neighbours merged; returns how many there are.
    fn ranges(&self, ranges: &mut [FrameRange; CAPACITY]) -> usize {
        let mut length: usize = 0;
        for pageblock in self.pageblocks[..self.length].iter().rev() {
            let start = pageblock.first();
            match length.checked_sub(1).map(|last| &mut ranges[last]) {
                Some(last) if last.end() == u64::from(start.get()) => {
                    last.frames += PAGEBLOCK_FRAMES;
                }
                _ => {
                    ranges[length] = FrameRange::new(start, PAGEBLOCK_FRAMES);
                    length += 1;
                }
            }
        }
        length
    }

    /// Gives up the pageblocks: as reported, or as free as they were.
    fn give_back(&mut self, is_reported: bool) {
        for pageblock in &self.pageblocks[..self.length] {
            self.zone.put_whole(*pageblock, is_reported);
        }
        self.length = 0;
        self.moving = None;
    }
}

impl<C: Cpus> Drop for Batch<'_, '_, C> {
    fn drop(&mut self) {
        self.give_back(false);
    }
}
