//! `/proc/zoneinfo`: a kernel's zones, their watermarks and per-CPU caches. All sizes are in pages.

use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::Path;

use super::error::TraceError;

/// Most bytes read: more than the largest machine prints.
const BYTES_MAX: u64 = 64 << 20;

/// All zones of a machine, also those without pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zoneinfo {
    /// In the order of the file.
    pub zones: Vec<Zone>,
}

/// One zone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Zone {
    /// Its NUMA node.
    pub node: u32,
    /// Its name.
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
    /// First frame. The last line of a zone; a zone without pages has none.
    pub start_pfn: Option<u64>,
    /// What each CPU caches.
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
        let name = path.display().to_string();
        let mut bytes = Vec::new();
        // Devices may have no end.
        let read =
            File::open(path).and_then(|file| file.take(BYTES_MAX + 1).read_to_end(&mut bytes));
        match read {
            Ok(read) if read as u64 > BYTES_MAX => {
                let what = format!("it holds more than {} MiB", BYTES_MAX >> 20);
                Err(TraceError::NotZoneinfo { name, what })
            }
            Ok(_) => Self::parse(&String::from_utf8_lossy(&bytes), &name),
            Err(source) => Err(TraceError::Open { name, source }),
        }
    }

    /// Reads the text of the file that errors call `name`.
    ///
    /// # Errors
    /// When there is no zone in it, or something that should be a number is none.
    pub fn parse(text: &str, name: &str) -> Result<Self, TraceError> {
        let bad = |what: String| TraceError::NotZoneinfo { name: name.to_owned(), what };
        let mut zones = Vec::new();
        for (at, line) in text.lines().enumerate() {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            take_line(&mut zones, &words).map_err(|word| {
                bad(format!("line {}: {word:?} is not a number of pages", at + 1))
            })?;
        }
        if zones.is_empty() {
            return Err(bad("it lists no zone".to_owned()));
        }
        zones.iter().try_for_each(Zone::check).map_err(bad)?;
        Ok(Zoneinfo { zones })
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
        let start = self.start_pfn.unwrap_or(0);
        start..start.saturating_add(self.spanned)
    }

    /// Refuses impossible numbers and incomplete files.
    fn check(&self) -> Result<(), String> {
        let Zone { node, name, managed, .. } = self;
        if *managed > 0 && self.start_pfn.is_none() {
            return Err(format!("node {node}, zone {name} lacks its last line, start_pfn"));
        }
        if self.cached() > *managed {
            let cached = self.cached();
            return Err(format!(
                "node {node}, zone {name} has {managed} pages, and CPUs cache {cached} of them"
            ));
        }
        Ok(())
    }
}

/// Adds one line to the last zone.
fn take_line<'a>(zones: &mut Vec<Zone>, words: &[&'a str]) -> Result<(), &'a str> {
    if let ["Node", node, "zone", name] = words {
        let node = number(node.trim_end_matches(','))? as u32;
        zones.push(Zone { node, name: (*name).to_owned(), ..Zone::default() });
        return Ok(());
    }
    let Some(zone) = zones.last_mut() else { return Ok(()) };
    match words {
        ["pages", "free", n] => zone.free = number(n)?,
        ["min", n] => zone.min = number(n)?,
        ["low", n] => zone.low = number(n)?,
        ["high", n] => zone.high = number(n)?,
        ["spanned", n] => zone.spanned = number(n)?,
        ["present", n] => zone.present = number(n)?,
        ["managed", n] => zone.managed = number(n)?,
        ["start_pfn:", n] => zone.start_pfn = Some(number(n)?),
        ["cpu:", n] => zone.pagesets.push(Pageset { cpu: number(n)? as u32, ..Pageset::default() }),
        ["protection:", pages @ ..] => {
            let words = pages.iter().map(|word| word.trim_matches(['(', ')', ',']));
            zone.protection = words.map(number).collect::<Result<_, _>>()?;
        }
        [key, n] => take_pageset_line(zone, key, n)?,
        _ => {}
    }
    Ok(())
}

fn take_pageset_line<'a>(zone: &mut Zone, key: &str, n: &'a str) -> Result<(), &'a str> {
    let Some(pageset) = zone.pagesets.last_mut() else { return Ok(()) };
    match key {
        "count:" => pageset.count = number(n)?,
        "high:" => pageset.high = number(n)?,
        "batch:" => pageset.batch = number(n)?,
        "high_min:" => pageset.high_min = Some(number(n)?),
        "high_max:" => pageset.high_max = Some(number(n)?),
        _ => {}
    }
    Ok(())
}

/// Most pages accepted: more than any machine has, and few enough that sums do not overflow.
const NUMBER_MAX: u64 = 1 << 48;

fn number(word: &str) -> Result<u64, &str> {
    word.parse().ok().filter(|number| *number <= NUMBER_MAX).ok_or(word)
}
