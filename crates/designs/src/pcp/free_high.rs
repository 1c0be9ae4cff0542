//! Limits on the cache of a CPU that frees blocks of orders 1 to 3 and allocates none: the options
//! of "netperf -18.0% regression" (2022), with the rule for when they apply.

/// The rule by which a CPU counts as one that only frees blocks of orders 1 to 3, and its limit
/// then. The default is mainline's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FreeHighPolicy {
    /// The rule by which a CPU counts as one that only frees.
    pub rule: FreeHighRule,
    /// The limit of such a CPU.
    pub limit: FreeHighLimit,
}

/// The rule by which a CPU counts as one that only frees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FreeHighRule {
    /// Today's: `free_count` has reached `batch + high_min / 2` pages. Each allocation halves it.
    #[default]
    FreeCount,
    /// The rule of 2022: `free_factor` is above 0, which grows when the CPU spills because it
    /// caches `high` pages and is halved by allocations.
    FreeFactor,
}

/// The value of `nr_pcp_high` for such a CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FreeHighLimit {
    /// 0: everything goes back (mainline).
    #[default]
    Zero,
    /// `batch`.
    Batch,
    /// `4 * batch`.
    FourBatches,
    /// `high`: as if the rule did not exist.
    High,
}

impl FreeHighLimit {
    /// The limit in pages, for a CPU with this `batch` and `high`.
    pub fn pages(self, batch: u32, high: u32) -> u32 {
        match self {
            FreeHighLimit::Zero => 0,
            FreeHighLimit::Batch => batch.min(high),
            FreeHighLimit::FourBatches => batch.saturating_mul(4).min(high),
            FreeHighLimit::High => high,
        }
    }
}

/// Converts the limit for pagedepot's own rule.
impl From<FreeHighLimit> for pagedepot::FreeHigh {
    fn from(limit: FreeHighLimit) -> Self {
        match limit {
            FreeHighLimit::Zero => Self::MAINLINE,
            FreeHighLimit::Batch => Self::batches(1),
            FreeHighLimit::FourBatches => Self::batches(4),
            FreeHighLimit::High => Self::OFF,
        }
    }
}
