//! Changes of a zone's count of free pages that are not in it yet.
//!
//! # Theory
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
//! [`DriftMark`]: super::drift_mark::DriftMark
//! [`Zone::delta_max`]: super::Zone::delta_max
//! [`Zone::estimate_error`]: super::Zone::estimate_error

use crate::sync::model::{Mutant, is_mutant};
use crate::sync::prim::{AtomicI64, Ordering};

/// CPUs of a group.
pub const GROUP_CPUS: u32 = if cfg!(loom) { 4 } else { 16 };
/// Most pages that a group keeps to itself, in deltas of a CPU.
pub const GROUP_DELTAS: i64 = if cfg!(loom) { 1 } else { 8 };

/// The changes of a zone's count of free pages that one CPU has not reported yet.
pub struct Delta(AtomicI64);

impl Delta {
    pub fn new() -> Self {
        Delta(AtomicI64::new(0))
    }

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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_delta_moves_as_a_whole() {
        let delta = Delta::new();
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
        let delta = Delta::new();
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
