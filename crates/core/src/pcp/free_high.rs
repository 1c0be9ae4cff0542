//! The limit on the cache of a CPU that frees blocks of orders 1 to 3 and allocates few.
//!
//! The receiver of a network stream frees what its sender allocates on another CPU. No request
//! comes to the receiver's cache: the sender gets memory that is in no processor cache, while warm
//! pages lie on the receiver's shelf. Mainline looks at every free (`free_frozen_page_commit` in
//! `mm/page_alloc.c`). Here a CPU moves full magazines, so the rule counts magazines: those that
//! its fronts push out, and those that come back to them.
//!
//! The rule is in use: [`Config::free_high`](crate::Config) is mainline's unless an embedder
//! changes it. The other rules and limits of the thread that asked about it ("netperf -18.0%
//! regression", 2022) are for comparison, in `pagedepot-designs`.
//!
//! Only orders 1 to 3 are regarded, as in mainline. Order 0 is what exiting processes free in large
//! batches, to be allocated again soon; and of larger blocks frees alone fill few magazines.

use crate::frame::Class;
use crate::zone::CacheLimits;

/// The limit on an order from 1 to 3 that a CPU only frees, beside the two magazines of a front.
/// The default is mainline's.
///
/// A CPU only frees an order when it has freed `batch + high_min / 2` pages of it more than it
/// allocated (`free_count`). Mainline halves that number at every allocation, of any order. An
/// allocator that moves magazines forgets it, by order, when one comes back, and takes what that
/// brings off later frees, so that a CPU which frees in bursts what it allocated in bursts never
/// gets there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeHigh {
    /// `None`: `high`.
    batches: Option<u32>,
}

impl FreeHigh {
    /// Every CPU caches up to `high`, whatever it frees.
    pub const OFF: Self = FreeHigh { batches: None };
    /// Mainline's rule, the [`default`](Self::default), for constants: the CPU keeps no such pages.
    pub const MAINLINE: Self = Self::batches(0);

    /// Limits the pages to so many times `batch`, and not more than `high`.
    pub const fn batches(batches: u32) -> Self {
        FreeHigh { batches: Some(batches) }
    }

    /// The limit in pages, for a CPU with this `batch` and `high`.
    pub(crate) fn pages(self, batch: u64, high: u64) -> u64 {
        self.batches.map_or(high, |batches| batch.saturating_mul(batches.into()).min(high))
    }
}

impl Default for FreeHigh {
    fn default() -> Self {
        Self::MAINLINE
    }
}

/// Pages that a front moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MovedPages {
    /// Pages that came to the front, from the shelf or the store.
    In(u64),
    /// Pages that left the front.
    Out(u64),
}

/// Whether blocks of this class are counted.
#[inline]
pub(super) fn regards(class: Class) -> bool {
    matches!(class, Class::Order1 | Class::Order2 | Class::Order3)
}

/// The count after `moved`, when it was `count` before.
///
/// The count ends at the threshold. A magazine that comes back leaves nothing of it: mainline
/// halves it at each of the allocations that empty one. Below it ends at `-managed`, since no CPU
/// can still have more to free of what it allocated than the zone has pages.
pub(super) fn count(count: i64, moved: MovedPages, limits: CacheLimits, managed: u64) -> i64 {
    match moved {
        MovedPages::In(pages) => (count.min(0) - pages as i64).max(-(managed as i64)),
        MovedPages::Out(pages) => (count + pages as i64).min(threshold(limits)),
    }
}

/// Whether a CPU with this count only frees.
pub(super) fn only_frees(count: i64, limits: CacheLimits) -> bool {
    count >= threshold(limits)
}

/// Pages freed after which a CPU only frees.
fn threshold(limits: CacheLimits) -> i64 {
    (limits.batch + limits.high_min / 2) as i64
}
