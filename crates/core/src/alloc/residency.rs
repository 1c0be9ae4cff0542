//! The free memory that is present, and memory that went back to what provides it.
//!
//! The argument, and how searches use it, are in `store/hints.rs`.

use core::fmt;

use super::allocator::Allocator;
use super::error::FreeError;
use crate::cpus::Cpus;
use crate::frame::pageblock::{PageblockIndex, SECTION_PAGEBLOCKS, Tag};
use crate::frame::{Pfn, ZoneId};

/// Tells an allocator which of its memory is not present, so that it hands out what is present
/// first: pageblocks (512 frames each) that were in use before such as were never touched or were
/// given back. A program's footprint is then its peak, and memory that is used again costs no page
/// faults.
///
/// New memory counts as not present. An embedder whose memory is always present has nothing to do.
///
/// ```
/// # use pagedepot::cpus::{CpuLock, Environment, LockedCpus, WhichCpu};
/// # use pagedepot::{
/// #     Allocator, Config, CpuId, Flags, FrameRange, NodeId, Pfn, ZoneConfig,
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
/// # let depot = Depot::new(&config, &mut metadata, LockedCpus::new(&locks, First))?;
/// use pagedepot::Residency;
///
/// let residency = Residency::of(&depot);
/// let used = depot.alloc_contiguous(1536, 512, Flags::default())?; // and written to
/// assert_eq!(residency.counts().first_touches, 3);
/// depot.free_contiguous(used, 1536)?;
///
/// // A scan takes free memory, gives it back to the system, and returns it.
/// depot.try_alloc_at(used, 512, Flags::default())?;
/// residency.free_absent(used, 512)?;
///
/// // What is still present is handed out first.
/// let again = depot.alloc_contiguous(512, 512, Flags::default())?;
/// assert_eq!(again, used.add(512));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Residency<'a, 'm, C>(&'a Allocator<'m, C>);

impl<C: Cpus> fmt::Debug for Residency<'_, '_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Residency").field(&self.counts()).finish()
    }
}

/// Counts of memory that was handed out and not present, in pageblocks (512 frames each).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ResidencyCounts {
    /// Pageblocks of which a frame was taken for the first time: by a request, or to report or
    /// remove them. The memory of the others was never handed out.
    pub first_touches: u64,
    /// Pageblocks of which a frame was handed out after their memory had been given back. A count
    /// that rises says that memory is given back which is needed again.
    pub refaults: u64,
}

impl<'a, 'm, C: Cpus> Residency<'a, 'm, C> {
    /// The residency of an allocator's memory. A borrow: it can be made whenever it is needed.
    pub fn of(allocator: &'a Allocator<'m, C>) -> Self {
        Residency(allocator)
    }

    /// Frees frames as [`Allocator::free_contiguous`] does, whose memory the caller has given back
    /// to what provides it. They go to the store, past the caches. Pageblocks that they fill are
    /// handed out after those whose memory is present.
    ///
    /// # Errors
    /// Fails like [`Allocator::free_contiguous`].
    pub fn free_absent(&self, start: Pfn, frames: u32) -> Result<(), FreeError> {
        self.0.slow().free_absent_range(start, frames)
    }

    /// Counts what was handed out so far that was not present. Over a [`Backing`](crate::Backing)
    /// nothing is counted. O(sections).
    pub fn counts(&self) -> ResidencyCounts {
        self.sum(|_| true)
    }

    /// Counts as [`counts`](Self::counts) does, for one zone. A section (2^18 frames) that two
    /// zones share is counted for the first of them.
    pub fn counts_of(&self, zone: ZoneId) -> ResidencyCounts {
        let tags = self.0.caches.store.tags();
        self.sum(|number| {
            let pageblocks = number * SECTION_PAGEBLOCKS..(number + 1) * SECTION_PAGEBLOCKS;
            let mut tags = pageblocks.map(|pageblock| tags.raw(PageblockIndex(pageblock as u32)));
            tags.find(|&tag| tag != Tag::ABSENT).is_some_and(|tag| tag.zone() == zone)
        })
    }

    /// Sums up the counts of the sections whose number `is_meant`.
    fn sum(&self, is_meant: impl Fn(usize) -> bool) -> ResidencyCounts {
        let store = &self.0.caches.store;
        let Some(bitmap) = store.bitmap() else { return ResidencyCounts::default() };
        let numbers = (0..store.sections_max()).filter(|&number| is_meant(number));
        let sections = numbers.filter_map(|number| bitmap.section(number));
        sections.fold(ResidencyCounts::default(), |sum, section| ResidencyCounts {
            first_touches: sum.first_touches + section.presence.first_touches(),
            refaults: sum.refaults + section.presence.refaults(),
        })
    }
}
