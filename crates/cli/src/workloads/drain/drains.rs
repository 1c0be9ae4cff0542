//! Times of drains, and what they took.

use pagedepot_designs::{Counts, DrainResult};

use crate::harness::clock::{self, Scale, ticks};
use crate::harness::histogram::Histogram;

/// Drains longer than this are counted as this long.
const DRAIN_TICKS_MAX: u64 = 1 << 40;

/// Times of drains. Its size is fixed: memory that grows is memory given back, and that interrupts
/// the owner.
pub struct DrainTimes {
    ticks: Histogram,
    clock_ticks: u64,
    pages: u64,
    pending_pages: u64,
    /// Number of drains that told how many pages they took.
    told: u64,
}

impl DrainTimes {
    /// No drain yet.
    pub fn new() -> Self {
        let clock_ticks = clock::read_cost_ticks(ticks).round() as u64;
        let ticks = Histogram::new(DRAIN_TICKS_MAX);
        DrainTimes { ticks, clock_ticks, pages: 0, pending_pages: 0, told: 0 }
    }

    /// Times a drain, and adds up what it says it did.
    #[inline]
    pub fn time(&mut self, drain: impl FnOnce() -> Option<DrainResult>) {
        let start = ticks();
        let done = drain();
        let elapsed = ticks() - start;
        self.ticks.record(elapsed.saturating_sub(self.clock_ticks));
        if let Some(done) = done {
            self.pages += done.taken_pages;
            self.pending_pages += done.pending_pages;
            self.told += 1;
        }
    }

    /// Median time of a drain; not-a-number without one.
    pub fn median_ns(&self, scale: &Scale) -> f64 {
        self.ns(scale, self.ticks.quantile(0.5))
    }

    /// Time of the longest drain.
    pub fn longest_ns(&self, scale: &Scale) -> f64 {
        self.ns(scale, self.ticks.max())
    }

    fn ns(&self, scale: &Scale, ticks: u64) -> f64 {
        if self.ticks.is_empty() { f64::NAN } else { ticks as f64 * scale.ns_per_tick() }
    }

    /// Pages that a drain took, on average; not-a-number if none told.
    pub fn mean_pages(&self) -> f64 {
        self.pages as f64 / self.told as f64
    }

    /// Pages that waited for the end of a grace period after a drain, on average.
    pub fn mean_pending_pages(&self) -> f64 {
        self.pending_pages as f64 / self.told as f64
    }
}

/// Counts of a design between two moments.
#[derive(Clone, Copy)]
pub struct DrainSample {
    /// Times that a drain stopped a CPU, by the design's own count.
    pub interruptions: f64,
    /// Time from switching lists to collecting them, on average; not-a-number where nothing is
    /// switched.
    pub collect_ns: f64,
}

impl DrainSample {
    /// Counts between `before` and `after`; not-a-number for designs that do not count.
    pub fn between(before: Option<Counts>, after: Option<Counts>) -> Self {
        let Some((before, after)) = before.zip(after) else {
            return DrainSample { interruptions: f64::NAN, collect_ns: f64::NAN };
        };
        let (ns, times) =
            (after.collect_ns - before.collect_ns, after.collected - before.collected);
        let interruptions = (after.interruptions - before.interruptions) as f64;
        DrainSample { interruptions, collect_ns: ns as f64 / times as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_of_the_time_between() {
        let mut before = Counts::default();
        (before.interruptions, before.collected, before.collect_ns) = (5, 1, 100);
        let mut after = before;
        (after.interruptions, after.collected, after.collect_ns) = (7, 3, 500);
        let counted = DrainSample::between(Some(before), Some(after));
        assert_eq!((counted.interruptions, counted.collect_ns), (2.0, 200.0));
        assert!(DrainSample::between(Some(before), Some(before)).collect_ns.is_nan());
        assert!(DrainSample::between(None, None).interruptions.is_nan());
    }

    #[test]
    fn pages_are_averaged_over_drains_that_tell() {
        let scale = Scale::start();
        let mut drains = DrainTimes::new();
        assert!(drains.mean_pages().is_nan() && drains.median_ns(&scale).is_nan());
        for pages in [Some(504), None, Some(0)] {
            drains.time(|| {
                let mut done = DrainResult::default();
                (done.taken_pages, done.pending_pages) = (pages?, 2 * pages?);
                Some(done)
            });
        }
        assert_eq!((drains.mean_pages(), drains.mean_pending_pages()), (252.0, 504.0));
        assert!(drains.ticks.quantile(0.5) <= drains.ticks.max());
        assert!(drains.median_ns(&scale).is_finite() && drains.longest_ns(&scale).is_finite());
    }
}
