//! The seam to what provides the memory: told which of it is free, and asked for it again.

use core::fmt;

use crate::frame::FrameRange;
use crate::sync::late_init::LateInit;
use crate::sync::prim::{AtomicBool, AtomicU64, Ordering};

/// The provider of the memory below the allocator, which has a use for free memory: a hypervisor,
/// or the operating system of a program (Linux: `struct page_reporting_dev_info`; HyperAlloc's
/// install and reclaim, EuroSys 2025).
///
/// A device is registered by `pagedepot_contiguity::Reporting::register`, and gets whole
/// pageblocks: aligned runs of 512 frames, 2 MiB of 4 KiB pages.
pub trait ReportingDevice: Sync {
    /// Reports ranges of free pageblocks: ascending, apart, at most 32 pageblocks in all. Until
    /// this returns the frames are the device's alone: no request gets one. The device may take the
    /// memory away, so that the contents are lost.
    ///
    /// `false`: the device did not take the report; the frames are free as before. They are offered
    /// again by the next pass.
    ///
    /// It may allocate and free. A panic leaves the frames free and unreported.
    fn report(&self, ranges: &[FrameRange]) -> bool;

    /// Frames of a reported pageblock are about to be handed out, all of which are needed again.
    /// Returns once they can be used. The default is for devices that bring memory back when it is
    /// touched, as Linux does: there is nothing to do.
    ///
    /// `false`: the memory cannot be had now. The pageblock stays reported, and the request goes on
    /// to other memory. Requests pass the pageblock by until one finds nothing else: that one asks
    /// for it once more, so at most twice in all.
    ///
    /// Called on the slow path of any request, so also from interrupt and signal handlers where
    /// those allocate. It must not call the allocator, and must not panic: frames that the request
    /// has in hand would be lost.
    fn needed(&self, pageblock: FrameRange) -> bool {
        let _ = pageblock;
        true
    }
}

/// There is a device already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceRegistered;

impl fmt::Display for DeviceRegistered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a reporting device is registered already: let one tell the others")
    }
}

impl core::error::Error for DeviceRegistered {}

/// Counts of pageblocks that were reported and needed again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReportCounts {
    /// Reported now.
    pub reported: u64,
    /// Reported since construction.
    pub reports: u64,
    /// Needed again since construction.
    pub needed: u64,
    /// Number of times that [`ReportingDevice::needed`] said `false`.
    pub refused: u64,
}

/// The device, once there is one, and what was reported to it. The counts are Relaxed: statistics,
/// and `reported` besides (see [`is_any`](Self::is_any)).
pub struct Reports<'m> {
    device: LateInit<&'m dyn ReportingDevice>,
    /// Pageblocks that are reported now; for a moment more than have the bit.
    reported: AtomicU64,
    reports: AtomicU64,
    needed: AtomicU64,
    refused: AtomicU64,
    /// Whether a section has refused pageblocks.
    has_refusals: AtomicBool,
}

impl<'m> Reports<'m> {
    pub fn new() -> Self {
        Reports {
            device: LateInit::new(),
            reported: AtomicU64::new(0),
            reports: AtomicU64::new(0),
            needed: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            has_refusals: AtomicBool::new(false),
        }
    }

    /// Registers the device, for good.
    pub fn register(&self, device: &'m dyn ReportingDevice) -> Result<(), DeviceRegistered> {
        self.device.init(|| Ok::<_, ()>(device)).map(drop).map_err(|_| DeviceRegistered)
    }

    /// The device.
    pub fn device(&self) -> Option<&'m dyn ReportingDevice> {
        self.device.get().copied()
    }

    /// Whether a pageblock is reported now.
    ///
    /// Relaxed: a search that must see a report has seen the end of the pass as an ended move.
    #[inline]
    pub fn is_any(&self) -> bool {
        self.reported.load(Ordering::Relaxed) > 0
    }

    /// Counts a pageblock that is about to get its bit.
    pub fn count_report(&self) {
        self.reported.fetch_add(1, Ordering::Relaxed);
        self.reports.fetch_add(1, Ordering::Relaxed);
    }

    /// Asks for a pageblock whose bit the caller has cleared; `false`: the device refused.
    pub fn need(&self, pageblock: FrameRange) -> bool {
        let is_here = self.device().is_none_or(|device| device.needed(pageblock));
        if is_here {
            self.reported.fetch_sub(1, Ordering::Relaxed);
            self.needed.fetch_add(1, Ordering::Relaxed);
        } else {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        is_here
    }

    /// Notes that a section has a refused pageblock. Call after its bit was set.
    pub fn note_refusal(&self) {
        // Release: pairs with the Acquire in `take_refusals`, whose caller clears the bit.
        self.has_refusals.store(true, Ordering::Release);
    }

    /// Whether a section may have refused pageblocks, all of which the caller forgets.
    pub fn take_refusals(&self) -> bool {
        // Relaxed: a caller that misses a refusal beside it may count as the earlier one. Acquire:
        // pairs with the Release in `note_refusal`.
        self.has_refusals.load(Ordering::Relaxed)
            && self.has_refusals.swap(false, Ordering::Acquire)
    }

    pub fn counts(&self) -> ReportCounts {
        ReportCounts {
            reported: self.reported.load(Ordering::Relaxed),
            reports: self.reports.load(Ordering::Relaxed),
            needed: self.needed.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
        }
    }
}
