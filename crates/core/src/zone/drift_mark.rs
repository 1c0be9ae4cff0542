//! Whether a zone is so far above its watermarks that requests need not read the count of its free
//! pages.
//!
//! # Theory
//! The zone's count lags behind: each CPU keeps changes of up to `D` pages to itself ([`Zone`]'s
//! `delta_max`), and each group of CPUs, if there are any, changes of up to `T` ([`GROUP_DELTAS`]
//! times `D`). So with `n` CPUs in `g` groups the count is off by `n * D + g * T` at most, the
//! *drift*. Kernels know this from `percpu_drift_mark` (`mm/vmstat.c`): below that mark a check of
//! watermarks sums the CPUs' changes, above it the count is good enough. Here a check above the
//! mark does not read the count either, because every CPU that reports a change takes the count's
//! line from all others. It reads one bit of a word that changes only when the count passes the
//! mark.
//!
//! The mark is `high + 4 * drift`. A caller that changes the count calls [`note`](DriftMark::note)
//! with the new value: one below the mark clears the bit, one above mark and drift may set it.
//!
//! *The bit never lets a request below `high`.* Let the count pass the mark downwards. Callers that
//! still see the bit take pages, but no CPU takes more than `2 * D` before its next report, and no
//! request that relies on the bit takes more than `D` at once. Without groups that report clears
//! the bit, and the CPU's next request sees it cleared. Until every CPU has reported, the zone so
//! loses `3 * n * D` pages at most, and as the count was off by the drift before, `high` pages are
//! left. With groups, reports that leave a group's delta above `-T` clear nothing: they bring it
//! from `T` to `-T`, so the zone loses `2 * g * T` more. A report that finds the delta beyond `-T`
//! goes to the zone and clears the bit before it forgets the delta (`zone/delta.rs`). So a CPU that
//! reports later finds the delta beyond `-T` still, and clears the bit itself, or it finds it
//! forgotten, and sees the bit cleared, because it reads the delta by an Acquire. A thread that
//! stops between its check and its report adds what it holds, as it does with an exact check.
//!
//! *The bit is not set late.* A caller that saw the count above the mark may stop before it sets
//! the bit, and go on when the zone is empty. So setting has two steps: it stores a claim, reads
//! the count again, and turns its claim into the bit. Clearing removes claims, too. The claim and
//! the second read, and a report and its look at the word, are Dekker's pattern: either the reading
//! shows the report, or the report removes the claim. What removes it makes a new version of the
//! word, so that a claim which was removed is not mistaken for a later one. Callers may share a
//! claim.
//!
//! [`GROUP_DELTAS`]: super::delta::GROUP_DELTAS
//! [`Zone`]: super::Zone

use crate::sync::model::{Mutant, is_mutant};
use crate::sync::prim::{AtomicU64, Ordering};
use crate::sync::total::DRIFT_MARK;

/// Set while the zone is above the mark.
const ABOVE: u64 = 1;
/// A caller that may set `ABOVE` is about to read the count again.
const CLAIMED: u64 = 2;
/// The version begins here.
const VERSION: u64 = 4;

/// The word of a zone; see the module. It begins below the mark.
///
/// | from | to | by |
/// |---|---|---|
/// | any but `ABOVE` | `CLAIMED` | a caller that has seen the count far above the mark |
/// | `CLAIMED` of that version | `ABOVE` | the same caller, if the count is above the mark still |
/// | `ABOVE` or `CLAIMED` | neither, next version | a caller that saw the count below the mark |
pub struct DriftMark(AtomicU64);

impl DriftMark {
    pub fn new() -> Self {
        DriftMark(AtomicU64::new(0))
    }

    /// Whether the zone is above the mark.
    #[inline]
    pub fn is_above(&self) -> bool {
        // Relaxed: a CPU sees its own report's change of this word, and what it sees by its group's
        // delta; no other is relied on.
        self.0.load(Ordering::Relaxed) & ABOVE != 0
    }

    /// Notes that the caller has changed the count to `count`, or the mark, by a SeqCst
    /// read-modify-write. `level` reads the mark and the drift, `recount` the count.
    #[inline]
    pub fn note(&self, count: i64, level: impl Fn() -> (i64, i64), recount: impl FnOnce() -> i64) {
        DRIFT_MARK.fence();
        let (mark, drift) = level();
        if count < mark {
            self.clear();
        } else if count - mark >= drift && !self.is_above() {
            self.set(|| recount() >= level().0);
        }
    }

    fn clear(&self) {
        // SeqCst: the caller's change comes before it; pairs with the claim in `set`, whose caller
        // reads count and mark afterwards.
        let mut word = self.0.load(DRIFT_MARK.look());
        while word & (ABOVE | CLAIMED) != 0 {
            let next = if is_mutant(Mutant::ClaimsAlike) { 0 } else { VERSION };
            let cleared = (word & !(ABOVE | CLAIMED)).wrapping_add(next);
            match self.0.compare_exchange(word, cleared, DRIFT_MARK.change(), DRIFT_MARK.look()) {
                Ok(_) => return,
                Err(now) => word = now,
            }
        }
    }

    #[cold]
    fn set(&self, is_still_above: impl FnOnce() -> bool) {
        // Relaxed: the exchange fails if it is an old word.
        let word = self.0.load(Ordering::Relaxed);
        if word & ABOVE != 0 {
            return;
        }
        let claim = word | CLAIMED;
        // SeqCst: pairs with the load in `clear`, whose caller changed count or mark before it.
        if self.0.compare_exchange(word, claim, DRIFT_MARK.change(), Ordering::Relaxed).is_err() {
            return;
        }
        DRIFT_MARK.fence();
        if !is_mutant(Mutant::LooksOnce) && !is_still_above() {
            return self.clear();
        }
        // SeqCst: as the claim. A caller that clears the bit finds either.
        let above = (claim & !CLAIMED) | ABOVE;
        _ = self.0.compare_exchange(claim, above, DRIFT_MARK.change(), Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::{Evacuation, Watermarks, Zone};
    use super::*;
    use crate::frame::NodeId;

    const PAGES: u64 = 1 << 20;

    /// A zone of two CPUs, each of which keeps 4096 pages to itself at most: the mark is 32768
    /// pages above `high`, and the bit is set 8192 pages above that.
    fn zone(high: u64) -> Zone {
        let zone = Zone::new("z", NodeId::new(0), 0, 2, false, Evacuation::Off);
        zone.set_watermarks(Watermarks { min: 0, low: 0, high });
        zone.add_managed(PAGES);
        assert_eq!((zone.delta_max(), zone.estimate_error()), (4096, 8192));
        zone
    }

    #[test]
    fn the_bit_follows_the_count_with_a_drift_of_slack() {
        let zone = zone(1000);
        zone.add_free(1000 + 32768 + 8191);
        assert!(!zone.is_above_drift(1));
        zone.add_free(1);
        assert!(zone.is_above_drift(1));
        zone.add_free(-8192);
        assert!(zone.is_above_drift(1));
        zone.add_free(-1);
        assert!(!zone.is_above_drift(1));
        zone.add_free(8192);
        assert!(!zone.is_above_drift(1));
        zone.add_free(1);
        assert!(zone.is_above_drift(1));
    }

    #[test]
    fn large_requests_look_at_the_count() {
        let zone = zone(0);
        zone.add_free(PAGES as i64);
        assert!(zone.is_above_drift(4096));
        assert!(!zone.is_above_drift(4097));
    }

    #[test]
    fn watermarks_and_memory_move_the_mark() {
        let zone = zone(0);
        zone.add_free(1 << 17);
        assert!(zone.is_above_drift(1));
        zone.set_watermarks(Watermarks { min: 0, low: 0, high: 1 << 17 });
        assert!(!zone.is_above_drift(1));
        zone.set_watermarks(Watermarks::default());
        assert!(zone.is_above_drift(1));
        let small = Zone::new("z", NodeId::new(0), 0, 64, false, Evacuation::Off);
        small.add_managed(PAGES / 8);
        // In four groups, which keep 8 times as much each.
        small.add_free((64 + 4 * 8) * 64 * 5);
        assert!(small.is_above_drift(1), "64 CPUs keep 64 pages each");
        small.add_managed(PAGES);
        assert!(!small.is_above_drift(1), "64 CPUs keep 288 pages each");
    }

    #[test]
    fn a_backed_zone_is_never_above() {
        let zone = Zone::new("z", NodeId::new(0), 0, 1, true, Evacuation::Off);
        zone.add_managed(PAGES);
        zone.add_free(PAGES as i64);
        assert!(!zone.is_above_drift(0));
    }

    /// A claim that was removed is not another caller's.
    #[test]
    fn versions_differ() {
        let mark = DriftMark::new();
        let level = || (1, 0);
        let inner = || {
            mark.note(0, level, || 0);
            mark.note(1, level, || {
                mark.note(0, level, || 0);
                0
            });
            1
        };
        mark.note(1, level, inner);
        assert!(!mark.is_above());
        mark.note(1, level, || 1);
        assert!(mark.is_above());
    }
}
