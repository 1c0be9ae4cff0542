//! `/proc/zoneinfo`: a kernel's zones, their watermarks and per-CPU caches. All sizes are in pages.

use std::ops::Range;
use std::path::Path;

use super::error::TraceError;
use super::header::CPUS_MAX;
use super::input::read_whole;
use super::listing::{self, ListedZones, excerpt};
use super::reader::printable;

/// Most zones with pages. Kernels have up to 1024 nodes; the largest machines have some 100.
const ZONES_MAX: usize = 255;

/// The zones of a machine that have pages. Kernels list others, too: each node has a zone of every
/// kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Zoneinfo {
    /// Zones, in the order of the file.
    pub zones: Vec<Zone>,
    /// Number of zones without pages, which are left out.
    pub zones_without_pages: usize,
    /// Whether `managed` is `present`, because a kernel before 3.10 does not tell it.
    pub managed_is_present: bool,
}

/// One zone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Zone {
    /// NUMA node of the zone.
    pub node: u32,
    /// Name of the zone.
    pub name: String,
    /// Free pages, those in per-CPU caches not included.
    pub free: u64,
    /// The lowest watermark.
    pub min: u64,
    /// The watermark that wakes reclaim.
    pub low: u64,
    /// The watermark at which reclaim stops.
    pub high: u64,
    /// Pages from the first to the last, holes included.
    pub spanned: u64,
    /// Pages of memory.
    pub present: u64,
    /// Pages that the buddy allocator has or had.
    pub managed: u64,
    /// Pages that requests for a higher zone must leave in this one, by the place of that zone.
    pub protection: Vec<u64>,
    /// First frame.
    pub start_pfn: u64,
    /// The pages that each CPU caches.
    pub pagesets: Vec<Pageset>,
}

/// A CPU's cache of a zone's pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pageset {
    /// The CPU.
    pub cpu: u32,
    /// Pages cached.
    pub count: u64,
    /// Most pages that the CPU may cache at the moment.
    pub high: u64,
    /// Pages per refill.
    pub batch: u64,
    /// The lower bound of `high`; kernels before 6.7 have none.
    pub high_min: Option<u64>,
    /// The upper bound.
    pub high_max: Option<u64>,
}

impl Zoneinfo {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// When it cannot be opened or is no zoneinfo.
    pub fn read_file(path: &Path) -> Result<Self, TraceError> {
        let text = read_whole(path, |name, what| TraceError::NotZoneinfo { name, what })?;
        Self::parse(&text, &path.display().to_string())
    }

    /// Reads the text of the file that errors call `name`.
    ///
    /// # Errors
    /// When it is no zoneinfo, not a whole one, or more than one; when it has no zone with pages.
    pub fn parse(text: &str, name: &str) -> Result<Self, TraceError> {
        Self::of_text(text).map_err(|what| TraceError::NotZoneinfo { name: name.to_owned(), what })
    }

    fn of_text(text: &str) -> Result<Self, String> {
        let mut listed = ListedZones::default();
        let mut all: Vec<Lines> = Vec::new();
        for (at, line) in (1..).zip(listing::whole(text)?.lines()) {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            if let ["Node", node, "zone", name] = words[..] {
                let node =
                    listing::node(node).ok_or_else(|| format!("line {at}: {node:?} is no node"))?;
                listed.add(node, name, at)?;
                all.push(Lines::new(node, name));
            } else if let Some(lines) = all.last_mut() {
                lines.take(&words).map_err(|why| format!("line {at}: {why}"))?;
            } else if !words.is_empty() {
                return Err(format!(
                    "line {at}, {}, comes before the first zone, so the beginning is missing",
                    excerpt(line)
                ));
            }
        }
        if all.is_empty() {
            return Err("it lists no zone".to_owned());
        }
        let managed_is_present = all.iter().all(|lines| lines.managed.is_none());
        let zones = all.iter().map(|lines| lines.zone(managed_is_present));
        let zones: Vec<Zone> = zones.collect::<Result<_, _>>()?;
        let listed = zones.len();
        let zones: Vec<Zone> = zones.into_iter().filter(|zone| zone.managed > 0).collect();
        match zones.len() {
            0 => Err(format!("none of its {listed} zones has pages")),
            ZONES_MAX.. => Err(format!("{} zones have pages: more than any machine", zones.len())),
            many => Ok(Zoneinfo { zones, zones_without_pages: listed - many, managed_is_present }),
        }
    }

    /// Pages each CPU caches, over all zones, by CPU.
    pub fn cached_pages(&self) -> Vec<(u32, u64)> {
        let mut cached = std::collections::BTreeMap::new();
        for pageset in self.zones.iter().flat_map(|zone| &zone.pagesets) {
            *cached.entry(pageset.cpu).or_insert(0) += pageset.count;
        }
        cached.into_iter().collect()
    }
}

impl Zone {
    /// Pages that CPUs cache.
    pub fn cached(&self) -> u64 {
        self.pagesets.iter().fold(0, |pages, pageset| pages.saturating_add(pageset.count))
    }

    /// The frames it spans.
    pub fn frames(&self) -> Range<u64> {
        self.start_pfn..self.start_pfn.saturating_add(self.spanned)
    }
}

/// The lines of a zone that were read so far.
#[derive(Default)]
struct Lines {
    zone: Zone,
    free: Option<u64>,
    spanned: Option<u64>,
    present: Option<u64>,
    managed: Option<u64>,
    /// A zone without pages has none.
    start_pfn: Option<u64>,
}

impl Lines {
    fn new(node: u32, name: &str) -> Self {
        let zone = Zone { node, name: name.to_owned(), ..Zone::default() };
        Lines { zone, ..Lines::default() }
    }

    fn take(&mut self, words: &[&str]) -> Result<(), String> {
        let zone = &mut self.zone;
        match *words {
            ["pages", "free", n] => once(&mut self.free, "pages free", n)?,
            ["spanned", n] => once(&mut self.spanned, "spanned", n)?,
            ["present", n] => once(&mut self.present, "present", n)?,
            ["managed", n] => once(&mut self.managed, "managed", n)?,
            ["start_pfn:", n] => once(&mut self.start_pfn, "start_pfn", n)?,
            ["min", n] => zone.min = number(n)?,
            ["low", n] => zone.low = number(n)?,
            ["high", n] => zone.high = number(n)?,
            ["cpu:", cpu] => zone.add_pageset(cpu)?,
            // Kernels before 2.6.25 have two caches: hot (0) and cold.
            ["cpu:", cpu, "pcp:", "0"] => zone.add_pageset(cpu)?,
            ["protection:", ref pages @ ..] => {
                let words = pages.iter().map(|word| word.trim_matches(['(', ')', ',']));
                zone.protection = words.map(number).collect::<Result<_, _>>()?;
            }
            [key, n] => zone.take_pageset_line(key, n)?,
            _ => {}
        }
        Ok(())
    }

    /// The zone, if its lines are all there.
    fn zone(&self, managed_is_present: bool) -> Result<Zone, String> {
        let Zone { node, name, .. } = &self.zone;
        let name = printable(name);
        let told = |number: Option<u64>, key: &str| {
            number.ok_or_else(|| {
                format!("node {node}, zone {name} lacks `{key}`, so a part of it is missing")
            })
        };
        let managed = if managed_is_present {
            told(self.present, "present")?
        } else {
            told(self.managed, "managed")?
        };
        if managed == 0 {
            return Ok(Zone { managed, ..self.zone.clone() });
        }
        let zone = Zone {
            free: told(self.free, "pages free")?,
            spanned: told(self.spanned, "spanned")?,
            present: self.present.unwrap_or(managed),
            managed,
            start_pfn: self.start_pfn.ok_or_else(|| {
                format!("node {node}, zone {name} lacks its last line, start_pfn")
            })?,
            ..self.zone.clone()
        };
        // Counts of CPUs reach a zone's own late, by this many pages of each at most.
        let late = STAT_THRESHOLD_MAX * zone.pagesets.len() as u64;
        if zone.free > managed + late {
            return Err(format!(
                "node {node}, zone {name} has {managed} pages, and {} of them are free",
                zone.free
            ));
        }
        let cached = zone.cached();
        if cached > managed {
            return Err(format!(
                "node {node}, zone {name} has {managed} pages, and CPUs cache {cached} of them"
            ));
        }
        Ok(zone)
    }
}

/// Notes a number that a zone has once.
fn once(place: &mut Option<u64>, key: &str, word: &str) -> Result<(), String> {
    match place.replace(number(word)?) {
        None => Ok(()),
        Some(_) => Err(format!("`{key}` is there a second time, so a zone's beginning is missing")),
    }
}

impl Zone {
    fn add_pageset(&mut self, word: &str) -> Result<(), String> {
        let cpu = number(word)?;
        let cpu = u32::try_from(cpu).ok().filter(|&cpu| cpu < CPUS_MAX.into());
        let cpu = cpu.ok_or_else(|| format!("{word:?} is the number of no CPU"))?;
        // The kernel counts upwards.
        if self.pagesets.last().is_some_and(|last| last.cpu >= cpu) {
            return Err(format!("CPU {cpu} does not follow the one above it"));
        }
        self.pagesets.push(Pageset { cpu, ..Pageset::default() });
        Ok(())
    }

    fn take_pageset_line(&mut self, key: &str, n: &str) -> Result<(), String> {
        let Some(pageset) = self.pagesets.last_mut() else { return Ok(()) };
        match key {
            // Kernels before 2.6.25 tell it twice, of two caches.
            "count:" => pageset.count = pageset.count.saturating_add(number(n)?),
            "high:" => pageset.high = pageset.high.saturating_add(number(n)?),
            "batch:" => pageset.batch = number(n)?,
            "high_min:" => pageset.high_min = Some(number(n)?),
            "high_max:" => pageset.high_max = Some(number(n)?),
            _ => {}
        }
        Ok(())
    }
}

/// Most pages accepted: more than any machine has, and few enough that sums do not overflow.
const NUMBER_MAX: u64 = 1 << 48;
/// Largest `stat_threshold` (`calculate_normal_threshold()` in `mm/vmstat.c`).
const STAT_THRESHOLD_MAX: u64 = 125;

fn number(word: &str) -> Result<u64, String> {
    let number = word.parse().ok().filter(|number| *number <= NUMBER_MAX);
    number.ok_or_else(|| format!("{word:?} is not a number of pages"))
}
