//! Watermarks of a zone, and the limits on the pages that a CPU may cache of it.

use crate::frame::PageSize;

/// Free pages below which a zone becomes careful, in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Watermarks {
    /// Free pages below which only requests that may use reserves are served.
    pub min: u64,
    /// Free pages below which reclaim callbacks are called.
    pub low: u64,
    /// Pressure is over, and caches may grow, above this.
    pub high: u64,
}

impl Watermarks {
    /// Computes Linux's watermarks: `min` is 4 * sqrt(KiB managed) KiB, between 128 KiB and 256
    /// MiB; `low` and `high` are a quarter and a half above it (`mm/page_alloc.c`,
    /// `calculate_min_free_kbytes`, `__setup_per_zone_wmarks`).
    pub fn kernel(managed_pages: u64, page_size: PageSize) -> Self {
        let kib_per_page = page_size.bytes() as u64 / 1024;
        let min_kib =
            managed_pages.saturating_mul(kib_per_page * 16).isqrt().clamp(128, 256 * 1024);
        let min = (min_kib / kib_per_page).min(managed_pages / 4);
        Watermarks { min, low: min + min / 4, high: min + min / 2 }
    }

    pub(crate) fn ascend(self) -> bool {
        self.min <= self.low && self.low <= self.high
    }

    /// Computes watermarks like [`kernel`](Self::kernel), but with nothing held back: every page
    /// can be allocated.
    pub fn without_reserve(managed_pages: u64, page_size: PageSize) -> Self {
        Watermarks { min: 0, ..Self::kernel(managed_pages, page_size) }
    }
}

/// The watermark down to which a request may take a zone's free pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reserve {
    AboveLow,
    AboveMin,
    /// All free pages: for requests that may not wait.
    All,
}

impl Reserve {
    /// Free pages that the request must leave.
    pub(crate) fn floor_pages(self, marks: Watermarks) -> u64 {
        match self {
            Reserve::AboveLow => marks.low,
            Reserve::AboveMin => marks.min,
            Reserve::All => 0,
        }
    }
}

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
