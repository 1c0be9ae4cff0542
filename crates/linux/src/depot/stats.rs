//! Counters of a depot: the types that its methods return.
//!
//! | question | call |
//! |---|---|
//! | Where are the pages, when a request failed? | [`Depot::shortage`](crate::Depot::shortage) |
//! | How many pages has a zone, and what was done with them? | [`Depot::zone_stats`](crate::Depot::zone_stats) |
//! | How many pageblocks (512 pages) are whole? | [`Depot::pageblock_stats`](crate::Depot::pageblock_stats) |
//! | How much memory was handed out that was not present? | [`Depot::residency`](crate::Depot::residency) |
//! | What does a CPU cache, and for how long has it rested? | [`Depot::cpu_stats`](crate::Depot::cpu_stats) |
//! | How much memory does the depot use for itself? | [`Depot::metadata_use`](crate::Depot::metadata_use) |
//! | Is every page in one place? | [`Depot::validate`](crate::Depot::validate) |
//! | The same in the kernel's formats? | module [`views`](crate::views) |
//! | How do threads reach their CPU's caches? | [`Depot::fronts`](crate::Depot::fronts) |

pub use crate::cpus::linux::Fronts;
pub use pagedepot::{
    Census, Counts, CpuStats, Fault, MetadataUse, ResidencyCounts, Shortage, ZoneName,
    ZoneShortage, ZoneStats,
};
pub use pagedepot_contiguity::PageblockStats;
