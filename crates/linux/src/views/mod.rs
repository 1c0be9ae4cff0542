//! Views of a depot's inside: the kernel's `/proc` files for it, and more.
//!
//! Each view is a value: what was there when it was made. It has public fields, prints itself by
//! `Display`, and with the feature `serde` is written to JSON and the like and read again.
//!
//! | view | question | in the kernel |
//! |---|---|---|
//! | [`ZoneInfo`] | How many pages does each zone have, and each CPU cache? | `/proc/zoneinfo` |
//! | [`BuddyInfo`] | How many free blocks of each order are there? | `/proc/buddyinfo` |
//! | [`PageTypeInfo`] | The same by mobility, and pageblocks by mobility | `/proc/pagetypeinfo` |
//! | [`VmallocInfo`] | Which areas are there, and what allocated them? | `/proc/vmallocinfo` |
//! | [`CacheInfo`] | How often do caches serve? What is stranded there, within whose reach? | - |
//! | [`FragmentationInfo`] | Where is free memory, and in how large pieces? | - |
//!
//! ```
//! use pagedepot_linux::views::{BuddyInfo, CacheInfo, ZoneInfo};
//! use pagedepot_linux::{Depot, Order};
//!
//! let depot = Depot::new(64 << 20)?;
//! let page = depot.page(Order::BASE)?;
//! print!("{}{}{}", ZoneInfo::of(&depot), BuddyInfo::of(&depot), CacheInfo::of(&depot));
//! assert_eq!(ZoneInfo::of(&depot).zones[0].managed_pages, 16384);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! With the feature `prometheus` a `prometheus::DepotCollector` gives the figures to a registry of
//! the crate `prometheus-client`.
//!
//! # What it costs
//! | view | time |
//! |---|---|
//! | [`ZoneInfo`], [`CacheInfo`] | O(CPUs x zones) |
//! | the other three | O(pages / 64), and O(512) for each pageblock that is partly free |
//! | [`VmallocInfo`] | O(areas + mapped pages) |
//!
//! No view takes a lock of the depot or interrupts a CPU. Beside threads that allocate and free,
//! each figure is as of some moment, and sums of them may be off by what moved meanwhile.

mod buddyinfo;
mod cacheinfo;
mod fragmentation;
mod free_blocks;
mod pagetypeinfo;
#[cfg(feature = "prometheus")]
pub mod prometheus;
#[cfg(test)]
mod tests;
mod vmallocinfo;
mod zoneinfo;

pub use buddyinfo::{BuddyInfo, ZoneBlocks};
pub use cacheinfo::{CacheInfo, CpuCache, FrontReach};
pub use fragmentation::{FragmentationInfo, FragmentationMap, MapCell};
pub use pagetypeinfo::{PageTypeInfo, ZoneTypes};
pub use vmallocinfo::{ListedLine, VmallocInfo};
pub use zoneinfo::{Pageset, Zone, ZoneInfo};
