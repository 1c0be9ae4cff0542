//! Changes of a zone's count of free pages that are not in it yet, and whether requests need to
//! read that count.
//!
//! # Deltas
//! One counter that all CPUs change would pass its cache line between them. So each CPU keeps its
//! changes in a [`Delta`], and adds them to the zone's count when they are more than `D` pages
//! ([`Zone::delta_max`]), as Linux does by `mod_zone_page_state` (`mm/vmstat.c`). On 256 CPUs that
//! is still too often: in `producer-consumer`, where one CPU of two only takes from the store and
//! the other only gives, they waited for the count's line 40 % of the time.
//!
//! A change of `D` or more, by a large block, goes to the zone's count by one operation where there
//! are no groups: to keep it and report it are several.
//!
//! So a zone of more than [`GROUP_CPUS`] CPUs has a second level: [`GROUP_CPUS`] CPUs with numbers
//! that follow each other, which mostly share a cache or a socket, are a *group* with a delta of
//! its own. CPUs report to their group, and the group to the zone when it has more than
//! [`GROUP_DELTAS`] times `D`. What one CPU of a group takes and another gives never gets to the
//! zone. Groups are for plenty: below the drift mark ([`DriftMark`]) CPUs report to the zone
//! itself, and what the group still has they take along, as kswapd lowers the threshold of vmstat
//! (`set_pgdat_percpu_threshold`).
//!
//! *Error.* The zone's count is off by `D` for each CPU and `GROUP_DELTAS * D` for each group, and
//! by what is on its way between levels ([`Zone::estimate_error`]). Near a watermark all levels are
//! summed, so what a request may take is not decided by an estimate.
//!
//! *A sum is not too high because of a report.* A report of pages that were taken subtracts them
//! above before it forgets them below, and a report of pages that were freed forgets them below
//! before it adds them above. A report between its steps makes a sum too low, however long its
//! thread stands still. A sum reads each upper level before and after the levels below it, and
//! takes the less of the two. A reader that has seen a delta forgotten then sees what was
//! subtracted for it, and one that has seen freed pages added above sees them forgotten below
//! (Acquire and Release of both); so if the second count above has what the reader has found below,
//! the first has not. Only where pages that were freed and pages that were taken are both reported
//! within the same sum, by however many reports, the less of the two may be too high: by the
//! smaller of the two totals at most. Reports are announced as in flight: a request does not fail
//! because of a sum that was too low.
//!
//! *Reports at once.* Two callers may subtract the same delta, of taken pages, above. Each forgets
//! as many below, so the sum stays exact, the count is too low, and the delta is now of freed
//! pages; if they are too many, the next report takes them away. Of freed pages only one caller
//! gets each, because a count that is too high would let requests pass.
//!
//! [`DriftMark`]: super::delta::DriftMark
//! [`Zone::delta_max`]: super::Zone::delta_max
//! [`Zone::estimate_error`]: super::Zone::estimate_error
//!
//! # The drift mark
//! A zone may be so far above its watermarks that requests need not read the count of its free
//! pages. The count lags behind: each CPU keeps changes of up to `D` pages to itself ([`Zone`]'s
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
//! goes to the zone and clears the bit before it forgets the delta. So a CPU that
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

use crate::sync::model::{Mutant, bound, is_mutant};
use crate::sync::prim::{AtomicI64, AtomicU64, Ordering};
use crate::sync::total::DRIFT_MARK;

/// CPUs of a group.
pub const GROUP_CPUS: u32 = bound(16, 4);
/// Most pages that a group keeps to itself, in deltas of a CPU.
pub const GROUP_DELTAS: i64 = bound(8, 1);

/// The changes of a zone's count of free pages that one CPU has not reported yet.
#[derive(Default)]
pub struct Delta(AtomicI64);

impl Delta {
    /// Pages, as a part of a sum.
    pub fn read(&self) -> i64 {
        // Acquire: pairs with the Release in `report`, see the module.
        self.0.load(Ordering::Acquire)
    }

    /// Adds a change; returns all of them.
    #[inline]
    pub fn add(&self, pages: i64) -> i64 {
        // Relaxed: the pages themselves are published by the store, and a change that was forgotten
        // before is Released to readers still, because this continues its release sequence.
        self.0.fetch_add(pages, Ordering::Relaxed) + pages
    }

    /// Adds a change from the level below; returns all of them.
    pub fn add_from_below(&self, pages: i64) -> i64 {
        // AcqRel: pairs with the Release in `report`: a CPU that finds the delta forgotten sees
        // what the level above noted for it, the drift mark's bit. And with the Acquire in `read`:
        // a sum that has freed pages here sees them forgotten below.
        self.0.fetch_add(pages, Ordering::AcqRel) + pages
    }

    /// Moves the changes to the level above, by `add_above`.
    pub fn report(&self, add_above: impl FnOnce(i64)) {
        let mut pages = self.read();
        if is_mutant(Mutant::ForgetsFirst) {
            return add_above(self.0.swap(0, Ordering::AcqRel));
        }
        while pages > 0 {
            // Release: as below; a reader that misses the pages finds them announced.
            match self.0.compare_exchange(pages, 0, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return add_above(pages),
                Err(now) => pages = now,
            }
        }
        if pages < 0 {
            add_above(pages);
            // Release: pairs with the Acquire in `read`: a reader for whom they are gone here sees
            // them subtracted above.
            self.0.fetch_sub(pages, Ordering::AcqRel);
        }
    }
}

/// The count of one level with what is below it: not too high because of a report in between, see
/// the module.
#[inline]
pub fn sum(above: impl Fn() -> i64, below: impl FnOnce() -> i64) -> i64 {
    let before = if is_mutant(Mutant::SumsOnce) { i64::MAX } else { above() };
    let below = below();
    before.min(above()) + below
}

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
#[derive(Default)]
pub struct DriftMark(AtomicU64);

impl DriftMark {
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
    use super::*;

    #[test]
    fn a_delta_moves_as_a_whole() {
        let delta = Delta::default();
        for pages in [5, -5] {
            assert_eq!(delta.add(pages), pages);
            let mut above = 0;
            delta.report(|pages| above += pages);
            assert_eq!((above, delta.read()), (pages, 0));
            delta.report(|_| panic!("nothing is left"));
        }
    }

    /// Checks that pages freed during a report are taken along, and that pages taken meanwhile
    /// stay.
    #[test]
    fn changes_during_a_report_are_kept() {
        let delta = Delta::default();
        delta.add(-5);
        delta.report(|pages| {
            assert_eq!((pages, delta.read()), (-5, -5), "taken pages are subtracted first");
            delta.add(-2);
        });
        assert_eq!(delta.read(), -2);
        delta.add(7);
        delta.report(|pages| {
            assert_eq!((pages, delta.read()), (5, 0), "freed pages are forgotten first");
            delta.add(1);
        });
        assert_eq!(delta.read(), 1);
    }
}

#[cfg(all(test, not(loom)))]
mod drift_mark_tests {
    use super::super::{Watermarks, Zone};
    use super::*;
    use crate::frame::NodeId;

    const PAGES: u64 = 1 << 20;

    /// A zone of two CPUs, each of which keeps 4096 pages to itself at most: the mark is 32768
    /// pages above `high`, and the bit is set 8192 pages above that.
    fn zone(high: u64) -> Zone {
        let zone = Zone::new("z", NodeId::new(0), 0, 2, false);
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
        let small = Zone::new("z", NodeId::new(0), 0, 64, false);
        small.add_managed(PAGES / 8);
        // In four groups, which keep 8 times as much each.
        small.add_free((64 + 4 * 8) * 64 * 5);
        assert!(small.is_above_drift(1), "64 CPUs keep 64 pages each");
        small.add_managed(PAGES);
        assert!(!small.is_above_drift(1), "64 CPUs keep 288 pages each");
    }

    #[test]
    fn a_backed_zone_is_never_above() {
        let zone = Zone::new("z", NodeId::new(0), 0, 1, true);
        zone.add_managed(PAGES);
        zone.add_free(PAGES as i64);
        assert!(!zone.is_above_drift(0));
    }

    /// A claim that was removed is not another caller's.
    #[test]
    fn versions_differ() {
        let mark = DriftMark::default();
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
