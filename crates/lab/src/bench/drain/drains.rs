//! Times of drains, and what they took.

use hdrhistogram::Histogram;

use crate::harness::clock::{self, Scale, ticks};

/// Drains longer than this are counted as this long.
const DRAIN_TICKS_MAX: u64 = 1 << 40;

/// See the module. Its size is fixed: memory that grows is memory given back, and that interrupts
/// the owner.
pub struct Drains {
    ticks: Histogram<u32>,
    clock_ticks: u64,
    pages: u64,
    /// Drains that told how many pages they took.
    told: u64,
}

impl Drains {
    /// None yet.
    pub fn new() -> Self {
        // Three digits: a tenth of a percent.
        let clock_ticks = clock::read_cost_ticks(ticks).round() as u64;
        let ticks = Histogram::new_with_max(DRAIN_TICKS_MAX, 3).expect("valid bounds");
        Drains { ticks, clock_ticks, pages: 0, told: 0 }
    }

    /// Times one, which takes so many pages, if it tells.
    #[inline]
    pub fn time(&mut self, drain: impl FnOnce() -> Option<u64>) {
        let start = ticks();
        let pages = drain();
        let elapsed = ticks() - start;
        self.ticks.saturating_record(elapsed.saturating_sub(self.clock_ticks));
        self.pages += pages.unwrap_or(0);
        self.told += u64::from(pages.is_some());
    }

    /// Median time of a drain; not-a-number without one.
    pub fn median_ns(&self, scale: &Scale) -> f64 {
        self.ns(scale, self.ticks.value_at_quantile(0.5))
    }

    /// Time of the longest.
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_averaged_over_drains_that_tell() {
        let scale = Scale::start();
        let mut drains = Drains::new();
        assert!(drains.mean_pages().is_nan() && drains.median_ns(&scale).is_nan());
        for pages in [Some(504), None, Some(0)] {
            drains.time(|| pages);
        }
        assert_eq!(drains.mean_pages(), 252.0);
        assert!(drains.ticks.value_at_quantile(0.5) <= drains.ticks.max());
        assert!(drains.median_ns(&scale).is_finite() && drains.longest_ns(&scale).is_finite());
    }
}
