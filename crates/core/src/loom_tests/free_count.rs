//! 1. A sum of a zone's count and of what a CPU and its group have not reported yet is not too high
//!    while they report pages that were taken, or pages that were freed.
//! 2. It is exact when they are done, also if two callers report for the same CPU.
//! 3. Once a group's reports have brought the zone below its drift mark, each CPU of the group that
//!    has reported sees so.

use std::sync::Arc;

use super::{Mutant, explore, explore_mutant};
use crate::frame::NodeId;
use crate::zone::delta::{Delta, GROUP_CPUS, sum};
use crate::zone::{GroupDelta, Zone};

/// Pages above which the zone has passed its drift mark, and that mark: 5 CPUs keep a page each,
/// and two groups another; four times that is the mark.
const ABOVE: i64 = 40;
const MARK: i64 = 28;

/// A zone above its mark, of one CPU more than a group has, and one of these CPUs.
struct Ground {
    zone: Zone,
    group: GroupDelta,
    cpu: Delta,
}

impl Ground {
    fn new(delta: i64) -> Arc<Self> {
        let zone = Zone::new("Model", NodeId::new(0), 0, GROUP_CPUS + 1, false);
        zone.add_free(ABOVE);
        assert!(zone.is_above_drift(1) && zone.group_delta_max() == Some(1));
        let ground = Ground { zone, group: GroupDelta::default(), cpu: Delta::default() };
        ground.cpu.add(delta);
        Arc::new(ground)
    }

    fn report(&self) {
        self.cpu.report(|pages| self.group.add(&self.zone, pages));
    }

    fn sum(&self) -> i64 {
        let group = || sum(|| self.group.read(), || self.cpu.read());
        sum(|| self.zone.free_estimate(), group)
    }
}

fn spawn(ground: &Arc<Ground>, act: fn(&Ground)) -> loom::thread::JoinHandle<()> {
    let ground = ground.clone();
    loom::thread::spawn(move || act(&ground))
}

/// A CPU reports `delta` pages by way of its group, and another caller sums meanwhile.
fn sum_beside_a_report(delta: i64) {
    let ground = Ground::new(delta);
    let cpu = spawn(&ground, Ground::report);
    let seen = ground.sum();
    assert!(seen <= ABOVE + delta, "{seen} pages, and there are {}", ABOVE + delta);
    cpu.join().unwrap();
    assert_eq!(ground.sum(), ABOVE + delta);
}

#[test]
fn a_sum_beside_a_report_of_taken_pages() {
    for delta in [-1, -2] {
        explore(move || sum_beside_a_report(delta));
    }
}

#[test]
fn a_sum_beside_a_report_of_freed_pages() {
    for delta in [1, 2] {
        explore(move || sum_beside_a_report(delta));
    }
}

#[test]
#[should_panic = "and there are"]
fn taken_pages_that_are_forgotten_first() {
    explore_mutant(Mutant::ForgetsFirst, || sum_beside_a_report(-2));
}

#[test]
#[should_panic = "and there are"]
fn a_sum_that_reads_each_level_once() {
    explore_mutant(Mutant::SumsOnce, || sum_beside_a_report(2));
}

/// A CPU and a drain of it report at once, while the CPU takes and gives more.
fn reports_at_once(delta: i64) {
    let ground = Ground::new(delta);
    let drain = spawn(&ground, |ground| {
        ground.cpu.add(1);
        ground.report();
    });
    ground.cpu.add(-1);
    ground.report();
    drain.join().unwrap();
    assert_eq!(ground.sum(), ABOVE + delta);
}

#[test]
fn two_report_for_a_cpu() {
    for delta in [-2, 0, 2] {
        explore(move || reports_at_once(delta));
    }
}

/// Two CPUs of a group, which is about to report, when the zone is about to pass its mark.
fn passing_the_mark() {
    let ground = Ground::new(0);
    ground.zone.add_free(MARK - ABOVE + 1);
    ground.group.add(&ground.zone, -1);
    assert!(ground.zone.is_above_drift(1), "the group has kept it to itself");
    let take = |ground: &Ground| {
        ground.group.add(&ground.zone, -1);
        assert!(!ground.zone.is_above_drift(1), "a CPU of the group goes on");
    };
    let other = spawn(&ground, take);
    take(&ground);
    other.join().unwrap();
}

#[test]
fn a_group_sees_that_the_mark_was_passed() {
    explore(passing_the_mark);
}

#[test]
#[should_panic = "goes on"]
fn a_delta_that_is_forgotten_before_the_mark_is_noted() {
    explore_mutant(Mutant::ForgetsFirst, passing_the_mark);
}
