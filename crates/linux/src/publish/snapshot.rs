//! The snapshot that is published.

use std::time::Duration;

use pagedepot::DrainResult;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::allocinfo::AllocInfo;
use crate::depot::handle::Depot;
use crate::reclaim::Ceiling;
use crate::views::{CacheInfo, FragmentationInfo, VmallocInfo, ZoneInfo};
use crate::vmalloc::Vmalloc;

use super::process;

/// Areas and sites that are published, at most: those first in their lists.
const LISTED_MAX: usize = 1000;

/// A depot at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Snapshot {
    /// The program's name.
    pub program: String,
    /// `CLOCK_MONOTONIC` when it was taken.
    pub at: Duration,
    /// Bytes of the depot's memory.
    pub bytes: u64,
    /// The [ceiling](crate::reclaim::Ceiling) in force; `bytes` without one. `None`: of a program
    /// with an older version of this crate.
    #[serde(default)]
    pub ceiling_bytes: Option<u64>,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Bytes that the depot uses for itself.
    pub metadata_bytes: u64,
    /// The way in which threads reach their CPU's caches.
    pub fronts: String,
    /// The depot's zones.
    pub zones: ZoneInfo,
    /// The caches of the CPUs.
    pub caches: CacheInfo,
    /// The places of free memory.
    pub fragmentation: FragmentationInfo,
    /// The areas of the address spaces that are published with it; 1000 at most.
    pub areas: VmallocInfo,
    /// All areas.
    pub areas_count: u64,
    /// The memory that call sites hold; 1000 of them at most. `None`: the program was built without
    /// the feature `allocinfo`.
    pub sites: Option<AllocInfo>,
    /// The last drain that a reader asked for.
    pub drained: Option<DrainAnswer>,
}

/// The result of a drain that a reader asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DrainAnswer {
    /// The number of the request.
    pub request: u64,
    /// Whether the program lets no reader drain.
    pub is_refused: bool,
    /// Whether the drain ended by a panic, as a report of misuse is by default: a part of the
    /// caches was drained. `false`, too, of a program with an older version of this crate.
    #[serde(default)]
    pub has_failed: bool,
    /// Pages that went to the store.
    pub taken_pages: u64,
    /// Pages in fronts that were not taken.
    pub unreachable_pages: u64,
    /// Fences waited for.
    pub fences: u64,
    /// CPUs that were asked and have not handed over.
    pub pending_cpus: u64,
}

impl DrainAnswer {
    pub(super) fn of(request: u64, drained: Option<DrainResult>) -> Self {
        let done = drained.unwrap_or_default();
        DrainAnswer {
            request,
            is_refused: drained.is_none(),
            has_failed: false,
            taken_pages: done.taken_pages,
            unreachable_pages: done.unreachable_pages,
            fences: done.fences,
            pending_cpus: done.pending_cpus,
        }
    }
}

impl Snapshot {
    /// A depot, and address spaces over it, as they are now.
    pub fn of(depot: &Depot, spaces: &[Vmalloc]) -> Self {
        let now = clock_gettime(ClockId::Monotonic);
        let mut areas: Vec<_> =
            spaces.iter().flat_map(|space| VmallocInfo::of(space).areas).collect();
        let areas_count = areas.len() as u64;
        areas.truncate(LISTED_MAX);
        Snapshot {
            program: process::name(),
            at: Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32),
            bytes: depot.bytes() as u64,
            ceiling_bytes: Some(Ceiling::of(depot).bytes() as u64),
            page_bytes: depot.page_size().bytes() as u64,
            metadata_bytes: depot.metadata_use().total() as u64,
            fronts: format!("{:?}", depot.fronts()),
            zones: ZoneInfo::of(depot),
            caches: CacheInfo::of(depot),
            fragmentation: FragmentationInfo::of(depot),
            areas: VmallocInfo { areas },
            areas_count,
            sites: sites(depot, spaces),
            drained: None,
        }
    }
}

#[cfg(feature = "allocinfo")]
fn sites(depot: &Depot, spaces: &[Vmalloc]) -> Option<AllocInfo> {
    let mut info = AllocInfo::with_spaces(depot, spaces);
    info.sites.truncate(LISTED_MAX);
    Some(info)
}

#[cfg(not(feature = "allocinfo"))]
fn sites(_depot: &Depot, _spaces: &[Vmalloc]) -> Option<AllocInfo> {
    None
}
