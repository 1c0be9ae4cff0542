//! Rows of figures, and rates between two looks.

use std::cmp::Ordering;
use std::collections::HashMap;

use pagedepot_linux::allocinfo::Site;
use pagedepot_linux::publish::Snapshot;
use pagedepot_linux::views::{CpuCache, Zone};

use crate::report::printable;

/// The tables that can be looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tab {
    Cpus,
    Zones,
    Areas,
    Sites,
    Map,
}

/// A column of a table.
pub(super) struct Column {
    pub title: &'static str,
    pub width: u16,
    /// Written from the left, and sorted as text.
    pub is_text: bool,
}

const fn number(title: &'static str, width: u16) -> Column {
    Column { title, width, is_text: false }
}

const fn text(title: &'static str, width: u16) -> Column {
    Column { title, width, is_text: true }
}

/// A figure or a name, and what it is sorted by.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Cell {
    pub text: String,
    key: f64,
}

impl Cell {
    /// `-` for what is not known.
    fn figure(value: Option<f64>, decimals: usize) -> Self {
        let text = value.map_or("-".to_owned(), |value| short(value, decimals));
        Cell { text, key: value.unwrap_or(f64::NEG_INFINITY) }
    }

    fn count(value: u64) -> Self {
        Cell { text: short(value as f64, 0), key: value as f64 }
    }

    /// Names come from another program.
    fn name(name: &str) -> Self {
        Cell { text: printable(name), key: 0.0 }
    }

    /// Compares by key, then by text.
    pub fn compare(&self, other: &Cell) -> Ordering {
        self.key.total_cmp(&other.key).then_with(|| self.text.cmp(&other.text))
    }
}

/// A figure of at most seven characters.
fn short(value: f64, decimals: usize) -> String {
    const UNITS: [(f64, &str); 3] = [(1e12, "T"), (1e9, "G"), (1e6, "M")];
    match UNITS.iter().find(|(unit, _)| value.abs() >= *unit) {
        Some((unit, name)) if value.abs() >= 100.0 * unit => format!("{:.0}{name}", value / unit),
        Some((unit, name)) => format!("{:.2}{name}", value / unit),
        None => format!("{value:.decimals$}"),
    }
}

/// A table's rows; `id` finds a row again in the next look.
pub(super) struct Line {
    pub id: String,
    pub cells: Vec<Cell>,
    /// The CPU that the row is about.
    pub cpu: Option<u32>,
}

impl Tab {
    pub const ALL: [Tab; 5] = [Tab::Cpus, Tab::Zones, Tab::Areas, Tab::Sites, Tab::Map];

    pub fn name(self) -> &'static str {
        match self {
            Tab::Cpus => "1 CPUs",
            Tab::Zones => "2 zones",
            Tab::Areas => "3 areas",
            Tab::Sites => "4 call sites",
            Tab::Map => "5 map",
        }
    }

    /// The table's columns; a map has none.
    pub fn columns(self) -> &'static [Column] {
        const CPUS: &[Column] = &[
            number("cpu", 4),
            text("zone", 8),
            number("hits%", 6),
            number("ops/s", 8),
            number("cached", 7),
            number("fronts", 7),
            number("shelves", 7),
            number("handed", 6),
            number("high", 7),
            number("idle s", 7),
        ];
        const ZONES: &[Column] = &[
            text("zone", 9),
            number("managed", 8),
            number("free", 8),
            number("low", 7),
            number("cached", 8),
            number("refills/s", 9),
            number("spills/s", 8),
            number("drained/s", 9),
            number("fails", 5),
        ];
        const AREAS: &[Column] = &[
            text("start", 14),
            number("KiB", 9),
            number("pages", 7),
            text("state", 5),
            text("caller", 40),
        ];
        const SITES: &[Column] = &[
            number("KiB", 10),
            number("KiB/s", 9),
            number("calls", 8),
            text("of", 5),
            text("call site", 42),
        ];
        match self {
            Tab::Cpus => CPUS,
            Tab::Zones => ZONES,
            Tab::Areas => AREAS,
            Tab::Sites => SITES,
            Tab::Map => &[],
        }
    }

    /// The table's rows, in no order.
    pub fn lines(self, looks: &Looks) -> Vec<Line> {
        match self {
            Tab::Cpus => looks.cpus(),
            Tab::Zones => looks.zones(),
            Tab::Areas => looks.areas(),
            Tab::Sites => looks.sites(),
            Tab::Map => Vec::new(),
        }
    }
}

/// The snapshots of now and before.
pub(super) struct Looks {
    pub now: Snapshot,
    pub before: Option<Snapshot>,
}

impl Looks {
    /// Growth of a figure per second.
    fn rate(&self, now: u64, before: impl FnOnce(&Snapshot) -> Option<u64>) -> Option<f64> {
        let earlier = self.before.as_ref()?;
        let seconds = self.now.at.checked_sub(earlier.at)?.as_secs_f64();
        let grown = now as f64 - before(earlier)? as f64;
        (seconds > 0.0).then(|| grown / seconds)
    }

    fn cpus(&self) -> Vec<Line> {
        let operations = |cache: &CpuCache| cache.hits.saturating_add(cache.slow_paths);
        let line = |cache: &CpuCache| {
            let rate = self.rate(operations(cache), |earlier| {
                let same = |other: &&CpuCache| (other.cpu, other.zone) == (cache.cpu, cache.zone);
                earlier.caches.caches.iter().find(same).map(operations)
            });
            let hits = cache.hit_permille().map(|permille| permille / 10.0);
            let cells = vec![
                Cell::count(cache.cpu.into()),
                Cell::name(&cache.zone_name),
                Cell::figure(hits, 2),
                Cell::figure(rate, 0),
                Cell::count(cache.cached_pages()),
                Cell::count(cache.front_pages),
                Cell::count(cache.shelved_pages),
                Cell::count(cache.handed_pages),
                Cell::count(cache.high_pages),
                Cell::figure(Some(cache.idle_ms as f64 / 1000.0), 1),
            ];
            Line { id: format!("{} {}", cache.cpu, cache.zone), cells, cpu: Some(cache.cpu) }
        };
        self.now.caches.caches.iter().map(line).collect()
    }

    fn zones(&self) -> Vec<Line> {
        let line = |(number, zone): (usize, &Zone)| {
            let counter = |zone: &Zone, name: &str| zone.counters.get(name).copied().unwrap_or(0);
            let rate = |name: &str| {
                let of = |earlier: &Snapshot| Some(counter(earlier.zones.zones.get(number)?, name));
                Cell::figure(self.rate(counter(zone, name), of), 0)
            };
            let cells = vec![
                Cell::name(&format!("{number} {}", zone.name)),
                Cell::count(zone.managed_pages),
                Cell::count(zone.free_pages),
                Cell::count(zone.low_pages),
                Cell::count(zone.cached_pages),
                rate("refills"),
                rate("spills"),
                rate("drained_pages"),
                Cell::count(counter(zone, "failures")),
            ];
            Line { id: number.to_string(), cells, cpu: None }
        };
        self.now.zones.zones.iter().enumerate().map(line).collect()
    }

    fn areas(&self) -> Vec<Line> {
        let areas = self.now.areas.areas.iter().map(|area| {
            let caller = area.caller.as_ref();
            let caller = caller.map_or(String::new(), |(file, line, _)| format!("{file}:{line}"));
            let cells = vec![
                Cell::name(&format!("{:#x}", area.start)),
                Cell::count(area.bytes / 1024),
                Cell::count(area.mapped_pages.into()),
                Cell::name(if area.is_busy { "busy" } else { "freed" }),
                Cell::name(&end_of(&caller, 40)),
            ];
            Line { id: area.start.to_string(), cells, cpu: None }
        });
        areas.collect()
    }

    fn sites(&self) -> Vec<Line> {
        let Some(info) = &self.now.sites else { return Vec::new() };
        let earlier = self.before.as_ref().and_then(|before| before.sites.as_ref());
        let before: HashMap<&Site, u64> = earlier
            .into_iter()
            .flat_map(|info| &info.sites)
            .map(|info| (&info.site, info.bytes))
            .collect();
        let sites = info.sites.iter().map(|info| {
            let kib = info.bytes as f64 / 1024.0;
            let growth = self.rate(info.bytes, |_| Some(*before.get(&info.site).unwrap_or(&0)));
            let place = format!("{}:{}", info.site.file, info.site.line);
            let cells = vec![
                Cell::figure(Some(kib), 0),
                Cell::figure(growth.map(|bytes| bytes / 1024.0), 0),
                Cell::count(info.calls),
                Cell::name(info.site.kind.name()),
                Cell::name(&end_of(&place, 42)),
            ];
            Line { id: info.site.to_string(), cells, cpu: None }
        });
        sites.collect()
    }
}

/// The end of a path, which tells more than its beginning.
fn end_of(path: &str, characters: usize) -> String {
    let count = path.chars().count();
    if count <= characters {
        return path.to_owned();
    }
    let end: String = path.chars().skip(count + 1 - characters).collect();
    format!("…{end}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_fits_80_columns() {
        for tab in Tab::ALL {
            let widths: u16 = tab.columns().iter().map(|column| column.width + 1).sum();
            assert!(widths <= 80, "{tab:?}: {widths}");
        }
    }

    #[test]
    fn figures_fit_their_columns() {
        for value in [0.0, 999_999.0, 1e6, 999.99e6, 1e11, 9.99e14, -5e8] {
            assert!(short(value, 0).len() <= 7, "{value}: {}", short(value, 0));
        }
        assert_eq!(Cell::figure(None, 0).text, "-");
        assert_eq!(Cell::figure(None, 0).compare(&Cell::count(0)), Ordering::Less);
        assert_eq!(end_of("src/a.rs:7", 10), "src/a.rs:7");
        assert_eq!(end_of("long/src/a.rs:7", 10), "…rc/a.rs:7");
    }
}
