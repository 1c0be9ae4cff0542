//! Zones and what each CPU caches of them, as `/proc/zoneinfo`.

use std::collections::BTreeMap;
use std::fmt;

use pagedepot::{CpuId, Residency, ZoneId};
use pagedepot_contiguity::Pageblocks;

use crate::depot::handle::Depot;

/// A depot's zones. Its `Display` is what `/proc/zoneinfo` would print: readers of that file read
/// it, `pagedepot replay --zoneinfo` among them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ZoneInfo {
    /// Zones of the depot: one, or one per NUMA node.
    pub zones: Vec<Zone>,
}

/// A zone. All sizes are in pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Zone {
    /// The NUMA node of its memory.
    pub node: u32,
    /// Name of the zone, as configured.
    pub name: String,
    /// Free in the store.
    pub free_pages: u64,
    /// The watermarks `min`, `low` and `high`.
    pub min_pages: u64,
    /// The watermark `low`: see `min_pages`.
    pub low_pages: u64,
    /// The watermark `high`: see `min_pages`.
    pub high_pages: u64,
    /// All pages that were given to it, but those removed again.
    pub managed_pages: u64,
    /// Pages that CPUs cache.
    pub cached_pages: u64,
    /// Taken by the allocator for magazines.
    pub carved_pages: u64,
    /// Page frame number of the first page.
    pub start_pfn: u64,
    /// Counters since construction, by name: the fields of [`Counts`](crate::stats::Counts) and of
    /// [`ResidencyCounts`](crate::stats::ResidencyCounts).
    pub counters: BTreeMap<String, u64>,
    /// The pages that each CPU caches.
    pub pagesets: Vec<Pageset>,
}

/// The pages that a CPU caches of a zone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Pageset {
    /// Number of the CPU.
    pub cpu: u32,
    /// Cached now.
    pub count: u64,
    /// The most that it may cache now.
    pub high: u64,
    /// Pages per refill of order 0.
    pub batch: u64,
    /// The least value of `high`.
    pub high_min: u64,
    /// The greatest value of `high`.
    pub high_max: u64,
}

impl ZoneInfo {
    /// A depot's zones as they are now.
    pub fn of(depot: &Depot) -> Self {
        ZoneInfo { zones: depot.zone_ids().filter_map(|zone| Zone::of(depot, zone)).collect() }
    }
}

impl Zone {
    fn of(depot: &Depot, zone: ZoneId) -> Option<Self> {
        let stats = depot.zone_stats(zone)?;
        let first = Pageblocks::of(depot.raw().frames(), zone)?.next();
        let pageset = |cpu| {
            let (caches, limits) = (depot.cpu_stats(CpuId::new(cpu), zone)?, stats.limits);
            Some(Pageset {
                cpu,
                count: caches.cached_pages(),
                high: caches.high_pages,
                batch: limits.batch,
                high_min: limits.high_min,
                high_max: limits.high_max,
            })
        };
        let residency = Residency::of(depot.raw().frames()).counts_of(zone);
        let touches =
            [("first_touches", residency.first_touches), ("refaults", residency.refaults)];
        let counters =
            stats.counts.named().chain(touches).map(|(name, count)| (name.to_owned(), count));
        Some(Zone {
            node: stats.node.get(),
            name: stats.name.as_str().to_owned(),
            free_pages: stats.free_pages,
            min_pages: stats.watermarks.min,
            low_pages: stats.watermarks.low,
            high_pages: stats.watermarks.high,
            managed_pages: stats.managed_pages,
            cached_pages: stats.cached_pages,
            carved_pages: stats.carved_pages,
            start_pfn: first.map_or(0, |pageblock| pageblock.first.get().into()),
            counters: counters.collect(),
            pagesets: (0..).map_while(pageset).collect(),
        })
    }
}

impl fmt::Display for ZoneInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.zones.iter().try_for_each(|zone| zone.fmt(f))
    }
}

/// Prints like `zoneinfo_show_print` in the kernel's `mm/vmstat.c`.
impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Node {}, zone {:>8}", self.node, self.name)?;
        writeln!(f, "  pages free     {}", self.free_pages)?;
        for (name, pages) in [
            ("boost", 0),
            ("min", self.min_pages),
            ("low", self.low_pages),
            ("high", self.high_pages),
            ("spanned", self.managed_pages),
            ("present", self.managed_pages),
            ("managed", self.managed_pages),
            ("cached", self.cached_pages),
            ("carved", self.carved_pages),
        ] {
            writeln!(f, "        {name:<8} {pages}")?;
        }
        writeln!(f, "        protection: (0)")?;
        for (name, count) in &self.counters {
            writeln!(f, "      depot_{name} {count}")?;
        }
        writeln!(f, "  pagesets")?;
        for pageset in &self.pagesets {
            writeln!(f, "    cpu: {}", pageset.cpu)?;
            for (name, pages) in [
                ("count:", pageset.count),
                ("high:", pageset.high),
                ("batch:", pageset.batch),
                ("high_min:", pageset.high_min),
                ("high_max:", pageset.high_max),
            ] {
                writeln!(f, "              {name:<9} {pages}")?;
            }
        }
        writeln!(f, "  start_pfn:           {}", self.start_pfn)
    }
}
