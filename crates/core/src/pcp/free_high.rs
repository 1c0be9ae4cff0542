//! What a CPU may cache that frees blocks of orders 1 to 3 and allocates few.
//!
//! The receiver of a network stream frees what its sender allocates on another CPU. Nobody
//! allocates from what the receiver caches: the sender gets memory that no cache has seen lately,
//! while warm pages lie on the receiver's shelf. Mainline looks at every free
//! (`free_frozen_page_commit` in `mm/page_alloc.c`). Here a CPU moves full magazines, so that is
//! what the rules count: those that its fronts push out, and those that come back to them.
//!
//! Only orders 1 to 3 are regarded, as in mainline. Order 0 is what exiting processes free in large
//! batches, to be allocated again soon; and of order 9 a magazine is one block.

use crate::frame::Class;
use crate::zone::CacheLimits;

/// When a CPU counts as one that only frees blocks of an order from 1 to 3, and how much of them it
/// may cache then, beside the two magazines of a front. The default is mainline's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FreeHigh {
    /// When.
    pub rule: FreeHighRule,
    /// How much.
    pub limit: FreeHighLimit,
}

impl FreeHigh {
    /// No rule: every CPU caches up to `high`, whatever it frees.
    pub const OFF: Self = FreeHigh { rule: FreeHighRule::FreeCount, limit: FreeHighLimit::High };
    /// As [`default`](Self::default), for constants.
    pub const MAINLINE: Self =
        FreeHigh { rule: FreeHighRule::FreeCount, limit: FreeHighLimit::Zero };
}

/// When a CPU counts as one that only frees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FreeHighRule {
    /// Today's: `free_count` has reached `batch + high_min / 2` pages. Mainline halves that number
    /// at every allocation, of any order. An allocator that moves magazines forgets it, by order,
    /// when one comes back, and takes what that brings off later frees, so that a CPU which frees
    /// in bursts what it allocated in bursts never gets there.
    #[default]
    FreeCount,
    /// That of 2022: `free_factor` is above 0, which grows when the CPU spills because it caches
    /// `high` pages and is halved by allocations.
    FreeFactor,
}

/// What `nr_pcp_high` returns for such a CPU.
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
    /// In pages, for a CPU with this `batch` and `high`.
    pub fn pages(self, batch: u64, high: u64) -> u64 {
        match self {
            FreeHighLimit::Zero => 0,
            FreeHighLimit::Batch => batch.min(high),
            FreeHighLimit::FourBatches => batch.saturating_mul(4).min(high),
            FreeHighLimit::High => high,
        }
    }
}

/// `free_factor` grows no further (`CONFIG_PCP_BATCH_SCALE_MAX`).
const FREE_FACTOR_MAX: i64 = 5;

/// What the rules count, of one CPU, zone and class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    /// Pages came to the front, from the shelf or the store.
    In(u64),
    /// Pages left the front.
    Out(u64),
    /// A magazine left the CPU because it caches `high` pages.
    Spilled,
}

impl FreeHigh {
    /// Whether blocks of this class are counted.
    #[inline]
    pub(crate) fn regards(self, class: Class) -> bool {
        matches!(class, Class::Order1 | Class::Order2 | Class::Order3)
    }

    /// What is counted after `moved`, when it was `count` before.
    ///
    /// `free_count` ends at the threshold. A magazine that comes back leaves nothing of it:
    /// mainline halves it at each of the allocations that empty one. Below it ends at
    /// `-managed`, since no CPU can still have more to free of what it allocated than the zone
    /// has pages.
    pub(crate) fn count(self, count: i64, moved: Moved, limits: CacheLimits, managed: u64) -> i64 {
        match (self.rule, moved) {
            (FreeHighRule::FreeCount, Moved::In(pages)) => {
                (count.min(0) - pages as i64).max(-(managed as i64))
            }
            (FreeHighRule::FreeCount, Moved::Out(pages)) => {
                (count + pages as i64).min(threshold(limits))
            }
            (FreeHighRule::FreeFactor, Moved::In(_)) => count >> 1,
            (FreeHighRule::FreeFactor, Moved::Spilled) => (count + 1).min(FREE_FACTOR_MAX),
            _ => count,
        }
    }

    /// Whether a CPU with this count only frees.
    pub(crate) fn only_frees(self, count: i64, limits: CacheLimits) -> bool {
        match self.rule {
            FreeHighRule::FreeCount => count >= threshold(limits),
            FreeHighRule::FreeFactor => count > 0,
        }
    }
}

/// Pages freed after which a CPU only frees.
fn threshold(limits: CacheLimits) -> i64 {
    (limits.batch + limits.high_min / 2) as i64
}
