//! Watermarks.

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
