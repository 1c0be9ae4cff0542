//! Times at which each recorded CPU did its periodic work (`vmstat_update` in `mm/vmstat.c`), which
//! lowers `high` and returns what is above.
//!
//! `pagedepot record` records each. Other recordings show it only when pages were returned: then a
//! kernel worker drains. Its timer is deferrable and rounded, so that intervals are often a little
//! longer than a second, and the first comes anytime. Seen ticks are taken as they are; the time
//! between two of them is divided evenly.

use std::collections::HashMap;

use pagedepot_trace::Record;

/// `vm.stat_interval`: one second.
pub const INTERVAL_MS: u32 = 1000;

/// A CPU's periodic work at some time after the first event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tick {
    pub ms: u32,
    /// Counts the CPUs of the plan.
    pub cpu: u16,
}

/// The ticks that the recording shows.
#[derive(Default)]
pub struct Ticks {
    first_ns: Option<u64>,
    seen: HashMap<u16, Vec<u32>>,
    /// Whether all ticks were recorded.
    complete: bool,
}

impl Ticks {
    /// A record; the first one begins the time.
    pub fn note(&mut self, record: &Record<'_>) {
        self.first_ns.get_or_insert(record.time_ns);
    }

    /// Whether each tick has a record.
    pub fn are_recorded(&self) -> bool {
        self.complete
    }

    /// A CPU did its work.
    pub fn updated(&mut self, record: &Record<'_>) {
        if !self.complete {
            self.seen.clear();
            self.complete = true;
        }
        let ms = self.ms(record);
        self.seen.entry(record.cpu).or_default().push(ms);
    }

    fn ms(&self, record: &Record<'_>) -> u32 {
        let start = self.first_ns.unwrap_or(record.time_ns);
        u32::try_from(record.time_ns.saturating_sub(start) / 1_000_000).unwrap_or(u32::MAX)
    }

    /// A block was drained.
    pub fn drained(&mut self, record: &Record<'_>) {
        if self.complete || !record.comm.starts_with("kworker") {
            return;
        }
        let ms = self.ms(record);
        let seen = self.seen.entry(record.cpu).or_default();
        if seen.last().is_none_or(|&last| ms >= last.saturating_add(INTERVAL_MS / 2)) {
            seen.push(ms);
        }
    }

    /// All ticks of these CPUs up to `end_ms`, in order.
    pub fn finish(&self, cpus: &[u16], end_ms: u32) -> Vec<Tick> {
        let mut ticks = Vec::new();
        for (index, cpu) in (0..).zip(cpus) {
            let seen = self.seen.get(cpu).map_or(&[][..], Vec::as_slice);
            let all = if self.complete { seen.to_vec() } else { fill(seen, end_ms) };
            ticks.extend(all.into_iter().map(|ms| Tick { ms, cpu: index }));
        }
        ticks.sort_unstable();
        ticks
    }
}

impl Ticks {
    /// The time until which no tick of each CPU was seen; `u32::MAX` without any.
    pub fn unseen(&self, cpus: &[u16]) -> Vec<Tick> {
        if self.complete {
            return Vec::new();
        }
        let first =
            |cpu| self.seen.get(cpu).and_then(|seen| seen.first().copied()).unwrap_or(u32::MAX);
        (0..).zip(cpus).map(|(index, cpu)| Tick { ms: first(cpu), cpu: index }).collect()
    }
}

/// Ticks once a second from `first_ms` on, up to `end_ms`.
pub fn from(first_ms: u32, end_ms: u32) -> impl Iterator<Item = u32> {
    (first_ms..=end_ms).step_by(INTERVAL_MS as usize)
}

/// The seen ticks and those that must have been between, before and after them.
fn fill(seen: &[u32], end_ms: u32) -> Vec<u32> {
    let (Some(&first), Some(&last)) = (seen.first(), seen.last()) else {
        return from(INTERVAL_MS, end_ms).collect();
    };
    let mut all: Vec<u32> = from((first.max(1) - 1) % INTERVAL_MS + 1, first).collect();
    for pair in seen.windows(2) {
        let gap = pair[1] - pair[0];
        let parts = (gap.saturating_add(INTERVAL_MS / 2) / INTERVAL_MS).max(1);
        let share = |n| (u64::from(n) * u64::from(gap) / u64::from(parts)) as u32;
        all.extend((1..=parts).map(|n| pair[0] + share(n)));
    }
    all.extend(from(last, end_ms).skip(1));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_come_once_a_second_and_agree_with_those_seen() {
        assert_eq!(fill(&[], 3500), [1000, 2000, 3000]);
        assert!(fill(&[], 500).is_empty());
        assert_eq!(fill(&[2300, 5600], 7000), [300, 1300, 2300, 3400, 4500, 5600, 6600]);
        assert_eq!(fill(&[1000], 1200), [1000]);
        // A time that was damaged.
        assert_eq!(fill(&[1000, u32::MAX], u32::MAX).last(), Some(&u32::MAX));
    }
}
