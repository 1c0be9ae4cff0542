//! The limits on the pages that a CPU may cache of a zone.

use crate::frame::PageSize;

/// Watermarks and limits above this many pages mean this many: more than there are frame numbers,
/// and sums of a few of them still fit.
pub const PAGES_MAX: u64 = 1 << 40;

/// The policy for the number of pages that a CPU may cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HighPolicy {
    /// Adapted to demand between the kernel's `high_min` and `high_max`. While pageblocks evacuate,
    /// all CPUs together shelve a 32nd of what is free at most, but each as much as `high_min`.
    #[default]
    Auto,
    /// Fixed at `managed / n / cpus` pages (`percpu_pagelist_high_fraction`; at least 8).
    Fraction(u32),
    /// Fixed, in pages.
    Fixed(u64),
}

/// The most pages a CPU caches of a zone, and how many move at once (`zone_highsize`,
/// `zone_batchsize` in `mm/page_alloc.c`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheLimits {
    /// Pages per refill of order 0.
    pub batch: u64,
    /// Least value of `high`, in pages.
    pub high_min: u64,
    /// Greatest value of `high`, in pages.
    pub high_max: u64,
}

impl CacheLimits {
    /// The kernel's formula for a zone of `managed` pages and `cpus` CPUs near it.
    pub fn new(managed: u64, low: u64, cpus: u64, page_size: PageSize, policy: HighPolicy) -> Self {
        let cpus = cpus.max(1);
        let batch = match (managed >> 12).min(256 * 1024 / page_size.bytes() as u64) {
            0 | 1 => 1,
            b => {
                let b = b + b / 2;
                (1 << b.ilog2()) - 1
            }
        };
        let (high_min, high_max) = match policy {
            HighPolicy::Auto => ((low / cpus).max(4 * batch), (managed / 8 / cpus).max(4 * batch)),
            HighPolicy::Fraction(fraction) => {
                let high = (managed / u64::from(fraction.max(8)) / cpus).max(4 * batch);
                (high, high)
            }
            HighPolicy::Fixed(pages) => (pages.min(PAGES_MAX), pages.min(PAGES_MAX)),
        };
        CacheLimits { batch, high_min, high_max: high_max.max(high_min) }
    }

    /// Whether `high` adapts to demand.
    pub fn adapts(self) -> bool {
        self.high_min < self.high_max
    }
}
