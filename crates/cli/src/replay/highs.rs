//! The values of the recorded CPUs' `high`, at times.
//!
//! A CPU spills when what it caches reaches `high`. What it caches follows from the zoneinfo and
//! the kernel's own events; so the first block that a spill returns tells `high` within a batch of
//! frees. Decay returns blocks at other times, and is left out.

use std::collections::{HashMap, HashSet};

use super::initial::{ListKey, is_cached};
use super::plan::HighSeen;
use super::zone_map::ZoneMap;
use pagedepot_trace::Record;

/// The recorded `high` of each CPU and zone, at times.
#[derive(Default)]
pub struct Highs {
    /// Pages cached, by the kernel's number of the CPU and by zone.
    cached: HashMap<(u16, u8), i64>,
    /// CPUs whose last event was a block returned.
    returning: HashSet<u16>,
    seen: Vec<HighSeen>,
}

impl Highs {
    /// Begins with a machine that cached this.
    pub fn new(zones: &ZoneMap) -> Self {
        let cached = zones.cached().map(|(zone, cpu, pages)| ((cpu, zone), pages as i64)).collect();
        Highs { cached, ..Highs::default() }
    }

    /// A block came to a list.
    pub fn came(&mut self, list: ListKey) {
        self.change(list, 1);
    }

    /// A block left a list for a request.
    pub fn left(&mut self, list: ListKey) {
        self.change(list, -1);
    }

    fn change(&mut self, list: ListKey, sign: i64) {
        self.returning.remove(&list.cpu);
        if is_cached(list.order) {
            *self.cached.entry((list.cpu, list.zone)).or_default() +=
                sign * i64::from(list.order.frames());
        }
    }

    /// A block left a list for the zone.
    pub fn returned(&mut self, list: ListKey, ms: u32, record: &Record<'_>) {
        let cached = self.cached.entry((list.cpu, list.zone)).or_default();
        if self.returning.insert(list.cpu) && !record.comm.starts_with("kworker") {
            let high = (*cached).max(0).unsigned_abs();
            self.seen.push(HighSeen { ms, cpu: list.cpu, zone: list.zone, high });
        }
        *cached -= i64::from(list.order.frames());
    }

    /// All, with these CPUs.
    pub fn finish(mut self, cpus: &[u16]) -> Vec<HighSeen> {
        self.seen.retain(|seen| cpus.binary_search(&seen.cpu).is_ok());
        for seen in &mut self.seen {
            seen.cpu = cpus.binary_search(&seen.cpu).unwrap_or(0) as u16;
        }
        self.seen
    }
}
