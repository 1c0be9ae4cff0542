//! Free pageblocks that are reported, beside all that needs them again.
//!
//! 1. A frame is handed out only when the device knows that its pageblock is needed, and to one
//!    caller. Not so if a pageblock is woken in two steps, or given up before it was reported.
//! 2. No request fails while a pass looks at what is free, or while another request wakes it.
//! 3. What the device refuses stays free, and is there for the next request. A request asks twice
//!    for it at most.

use std::sync::Arc;

use pagedepot::loom_tests::cpus::{Rseq, run_on};
use pagedepot::loom_tests::depot::{Depot, Setup};
use pagedepot::loom_tests::{Mutant, explore, explore_large, explore_mutant, spawn};
use pagedepot::seam::PAGEBLOCK_FRAMES;
use pagedepot::sync::prim::{AtomicBool, AtomicU32, Ordering};
use pagedepot::{Flags, FrameRange, Order, Pfn, ZoneId};

use super::remove;
use crate::{ReportPass, Reporting, ReportingDevice};

const ZONE: ZoneId = ZoneId::new(0);
const FIRST: FrameRange = FrameRange::new(Pfn::new(0), PAGEBLOCK_FRAMES);
/// An order that is not cached.
const PAIR: Order = match Order::new(1) {
    Some(order) => order,
    None => unreachable!(),
};

/// Takes what is free, by pageblock.
struct Taken {
    taken: [AtomicBool; 2],
    /// Number of refusals of `needed` that are still to come.
    refusals: AtomicU32,
}

impl Taken {
    fn of(&self, pfn: Pfn) -> &AtomicBool {
        &self.taken[(pfn.get() / PAGEBLOCK_FRAMES) as usize]
    }
}

impl ReportingDevice for Taken {
    fn report(&self, ranges: &[FrameRange]) -> bool {
        for range in ranges {
            (0..range.frames).step_by(PAGEBLOCK_FRAMES as usize).for_each(|at| {
                let taken = self.of(range.start.add(at)).swap(true, Ordering::Relaxed);
                assert!(!taken, "reported twice");
            });
        }
        true
    }

    fn needed(&self, pageblock: FrameRange) -> bool {
        if self.refusals.load(Ordering::Relaxed) > 0 {
            self.refusals.fetch_sub(1, Ordering::Relaxed);
            return false;
        }
        let is_taken = self.of(pageblock.start).swap(false, Ordering::Relaxed);
        assert!(is_taken, "needed, and not reported");
        true
    }
}

/// A zone of so many free pageblocks, and its device.
fn depot(pageblocks: u32) -> (Arc<Depot<Rseq>>, &'static Taken) {
    let setup = Setup { frames: pageblocks * PAGEBLOCK_FRAMES, ..Setup::default() };
    let depot = Depot::new(&setup, Rseq::new(2));
    run_on(0);
    // Small, and leaked once per execution: the allocator refers to it for good.
    let device = Box::leak(Box::new(Taken {
        taken: [AtomicBool::new(false), AtomicBool::new(false)],
        refusals: AtomicU32::new(0),
    }));
    Reporting::of(&depot.allocator).register(device).unwrap();
    (depot, device)
}

fn pass(depot: &Depot<Rseq>) -> ReportPass {
    Reporting::of(&depot.allocator).pass(ZONE, u64::MAX).unwrap()
}

fn must_alloc(depot: &Depot<Rseq>, device: &Taken) -> Pfn {
    let pfn = depot.alloc_block(PAIR, Flags::default().atomic()).expect("frames are free");
    // Relaxed: what the device wrote must come with the frame.
    assert!(!device.of(pfn).load(Ordering::Relaxed), "handed out before it was made usable");
    pfn
}

fn two_need_one() {
    let (depot, device) = depot(1);
    assert_eq!(pass(&depot).pageblocks, 1);
    let other = spawn(1, &depot, |depot| {
        must_alloc(depot, device);
    });
    must_alloc(&depot, device);
    other.join().unwrap();
    depot.finish();
}

#[test]
fn a_pageblock_that_two_need() {
    explore_large(two_need_one);
}

#[test]
#[should_panic = "not reported"]
fn a_pageblock_that_is_woken_twice() {
    explore_mutant(Mutant::WakesTwice, two_need_one);
}

fn a_pass_beside_a_request() {
    let (depot, device) = depot(1);
    let other = spawn(1, &depot, |depot| {
        let pfn = must_alloc(depot, device);
        depot.free_block(pfn, PAIR);
    });
    pass(&depot);
    other.join().unwrap();
    depot.finish();
}

#[test]
fn a_request_beside_a_pass() {
    explore_large(a_pass_beside_a_request);
}

#[test]
#[should_panic = "not reported"]
fn a_pass_that_reports_what_it_has_given_up() {
    explore_mutant(Mutant::ReportsLate, a_pass_beside_a_request);
}

#[test]
fn two_passes() {
    explore_large(|| {
        let (depot, _) = depot(2);
        let other = spawn(1, &depot, |depot| {
            pass(depot);
        });
        let done = pass(&depot);
        other.join().unwrap();
        let counts = Reporting::of(&depot.allocator).counts();
        assert!(done.pageblocks <= 2 && counts.reports == 2 && counts.reported == 2);
        depot.finish();
    });
}

/// Given frames are claimed while another request wakes their pageblock.
#[test]
fn a_claim_beside_a_request() {
    explore(|| {
        let (depot, device) = depot(2);
        assert_eq!(pass(&depot).pageblocks, 2);
        let other = spawn(1, &depot, |depot| {
            must_alloc(depot, device);
        });
        // Both are free, and the request takes two frames of one of them.
        let last = FrameRange::new(Pfn::new(2 * PAGEBLOCK_FRAMES - 1), 1);
        if depot.allocator.alloc_at(last.start, 1, Flags::default()).is_ok() {
            depot.note_frames(last, true);
            assert!(!device.of(last.start).load(Ordering::Relaxed), "not usable");
        }
        other.join().unwrap();
        depot.finish();
    });
}

/// A reported pageblock is removed while a request needs memory.
#[test]
fn a_removal_beside_a_request() {
    explore_large(|| {
        let (depot, device) = depot(2);
        assert_eq!(pass(&depot).pageblocks, 2);
        let other = spawn(1, &depot, |depot| {
            must_alloc(depot, device);
        });
        let removed = remove(&depot, FIRST).is_ok();
        assert!(!removed || !device.taken[0].load(Ordering::Relaxed), "not usable");
        other.join().unwrap();
        depot.finish();
    });
}

#[test]
fn a_refusal_beside_a_request() {
    explore_large(|| {
        let (depot, device) = depot(1);
        assert_eq!(pass(&depot).pageblocks, 1);
        device.refusals.store(1, Ordering::Relaxed);
        let other = spawn(1, &depot, |depot| {
            depot.alloc_block(PAIR, Flags::default().atomic()).ok();
        });
        depot.alloc_block(PAIR, Flags::default().atomic()).ok();
        other.join().unwrap();
        device.refusals.store(0, Ordering::Relaxed);
        must_alloc(&depot, device);
        depot.finish();
    });
}

/// One request beside a device that has no memory.
fn refused_throughout() {
    let (depot, device) = depot(2);
    assert_eq!(pass(&depot).pageblocks, 2);
    device.refusals.store(100, Ordering::Relaxed);
    depot.alloc_block(PAIR, Flags::default()).expect_err("the device refuses");
    let asked = 100 - device.refusals.load(Ordering::Relaxed);
    assert!(asked <= 2 * 2, "the device was asked {asked} times for two pageblocks");
    device.refusals.store(0, Ordering::Relaxed);
    must_alloc(&depot, device);
    depot.finish();
}

#[test]
fn a_device_that_refuses_throughout() {
    // One thread: there is one interleaving.
    explore::explore_named("a device that refuses", 0, refused_throughout);
}

#[test]
#[should_panic = "the device was asked"]
fn a_device_that_is_asked_by_each_search() {
    explore_mutant(Mutant::ForgetsRefusals, refused_throughout);
}
