//! Counting events.

use super::prim::{AtomicU64, Ordering};

/// Adds to a counter.
#[inline]
pub fn count(cell: &AtomicU64, n: u64) {
    // No protocol reads counters; to a model each would be one more place to switch threads.
    if cfg!(loom) {
        return;
    }
    // Relaxed: a statistic.
    cell.fetch_add(n, Ordering::Relaxed);
}
