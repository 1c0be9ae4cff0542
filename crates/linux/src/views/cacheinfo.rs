//! The caches of the CPUs: how often they serve, and the pages that are stranded there. Linux shows
//! none of this.

use std::fmt;

use pagedepot::cpus::{Cpus as _, Environment as _};
use pagedepot::{CpuId, CpuStats, ZoneId};

use crate::cpus::linux::Fronts;
use crate::depot::handle::Depot;

/// The pages that each CPU caches of each zone. Its `Display` is a table of 80 columns.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct CacheInfo {
    /// Caches by zone, and then by CPU.
    pub caches: Vec<CpuCache>,
}

/// The pages that a CPU caches of a zone.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct CpuCache {
    /// The CPU's number.
    pub cpu: u32,
    /// The zone's number.
    pub zone: u32,
    /// The zone's name.
    pub zone_name: String,
    /// Allocations and frees that the fronts served alone.
    pub hits: u64,
    /// Times that a slow path served one or moved a magazine for it.
    pub slow_paths: u64,
    /// Pages in fronts: a quiet drain does not reach them.
    pub front_pages: u64,
    /// Pages on shelves: any CPU takes them, at any time.
    pub shelved_pages: u64,
    /// Pages handed over and not collected yet: any CPU takes them, at any time.
    pub handed_pages: u64,
    /// The most pages that the CPU may cache now.
    pub high_pages: u64,
    /// Milliseconds since the CPU's slow path last ran: how long what it caches has been stranded,
    /// at most. A CPU that only hits its fronts ages, too.
    pub idle_ms: u64,
    /// Whether the CPU may cache at all.
    pub is_enabled: bool,
    /// The means that reach the fronts besides their owner.
    pub fronts_reach: FrontReach,
}

/// The means that reach a CPU's fronts besides their owner, which hands them over when it is
/// [asked](Depot::drain_handover) and allocates or frees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum FrontReach {
    /// A full drain, by a fence that interrupts the CPU if it runs this process.
    Fence,
    /// A full drain, by the CPU's lock.
    Lock,
    /// Nothing: the CPU is isolated, and [has no lock](crate::Builder::locked_cpus).
    Isolated,
    /// Nothing: the system refused to fence CPUs.
    NoFence,
}

impl FrontReach {
    /// The means in words, for a table.
    fn words(self) -> &'static str {
        match self {
            FrontReach::Fence => "owner, a fence",
            FrontReach::Lock => "owner, its lock",
            FrontReach::Isolated => "owner: isolated",
            FrontReach::NoFence => "owner: no fence",
        }
    }

    fn of(depot: &Depot, cpu: CpuId) -> Self {
        let frames = depot.raw().frames();
        match frames.cpus().sequences().fronts() {
            _ if frames.cpus().is_behind_lock(cpu) => FrontReach::Lock,
            _ if frames.cpus().environment().is_isolated(cpu) => FrontReach::Isolated,
            Fronts::SequencesWithoutFence => FrontReach::NoFence,
            _ => FrontReach::Fence,
        }
    }
}

/// Saturating: a view that was read from a file may have any figures.
fn sum(pages: impl IntoIterator<Item = u64>) -> u64 {
    pages.into_iter().fold(0, u64::saturating_add)
}

impl CacheInfo {
    /// The caches of a depot's CPUs now.
    pub fn of(depot: &Depot) -> Self {
        let mut caches = Vec::new();
        for zone in depot.zone_ids() {
            let Some(stats) = depot.zone_stats(zone) else { continue };
            let name = stats.name.as_str();
            let cpus = (0..).map(CpuId::new).map_while(|cpu| CpuCache::of(depot, cpu, zone, name));
            caches.extend(cpus);
        }
        CacheInfo { caches }
    }

    /// Pages cached by all CPUs.
    pub fn cached_pages(&self) -> u64 {
        sum(self.caches.iter().map(CpuCache::cached_pages))
    }

    /// Pages stranded in the caches of CPUs that have been idle for so long.
    pub fn stranded_pages(&self, idle_ms: u64) -> u64 {
        let stranded = self.caches.iter().filter(|cache| cache.idle_ms >= idle_ms);
        sum(stranded.map(CpuCache::cached_pages))
    }
}

impl CpuCache {
    fn of(depot: &Depot, cpu: CpuId, zone: ZoneId, zone_name: &str) -> Option<Self> {
        let stats: CpuStats = depot.cpu_stats(cpu, zone)?;
        let counts = stats.counts;
        let slow = [
            counts.shelf_hits,
            counts.refills,
            counts.spills,
            counts.direct_allocs,
            counts.direct_frees,
        ];
        Some(CpuCache {
            cpu: cpu.get(),
            zone: zone.get(),
            zone_name: zone_name.to_owned(),
            hits: counts.hits,
            slow_paths: slow.iter().sum(),
            front_pages: stats.unreachable_pages,
            shelved_pages: stats.shelved_pages,
            handed_pages: stats.handed_pages,
            high_pages: stats.high_pages,
            idle_ms: stats.idle_ms,
            is_enabled: depot.raw().frames().cpu_caches().are_enabled(cpu),
            fronts_reach: FrontReach::of(depot, cpu),
        })
    }

    /// Pages in fronts, on shelves and handed over.
    pub fn cached_pages(&self) -> u64 {
        sum([self.front_pages, self.shelved_pages, self.handed_pages])
    }

    /// Pages that a quiet drain takes, which interrupts no CPU.
    pub fn quietly_drainable_pages(&self) -> u64 {
        sum([self.shelved_pages, self.handed_pages])
    }

    /// Hits of 1000 operations; `None` before the first.
    pub fn hit_permille(&self) -> Option<f64> {
        let all = self.hits.saturating_add(self.slow_paths);
        (all > 0).then(|| self.hits as f64 * 1000.0 / all as f64)
    }
}

impl fmt::Display for CacheInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            " cpu     zone   hits%  cached  fronts shelves  handed    idle s  fronts go to"
        )?;
        for cache in &self.caches {
            write!(f, "{:>4} {:>8} ", cache.cpu, cache.zone_name)?;
            match cache.hit_permille() {
                Some(permille) => write!(f, "{:>7.2}", permille / 10.0)?,
                None => write!(f, "{:>7}", "-")?,
            }
            write!(
                f,
                " {:>7} {:>7} {:>7} {:>7} {:>9.1}",
                cache.cached_pages(),
                cache.front_pages,
                cache.shelved_pages,
                cache.handed_pages,
                cache.idle_ms as f64 / 1000.0
            )?;
            let reach =
                if cache.is_enabled { cache.fronts_reach.words() } else { "caches are off" };
            writeln!(f, "  {reach}")?;
        }
        writeln!(
            f,
            "Any CPU takes shelves and what is handed over: {} of {} pages.",
            sum(self.caches.iter().map(CpuCache::quietly_drainable_pages)),
            self.cached_pages()
        )
    }
}
