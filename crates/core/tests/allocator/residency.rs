//! Memory that is present, and memory that is not:
//! 1. what was in use is handed out again before what was never touched, for each caller, order and
//!    mobility, wherever the search begins;
//! 2. what went back to the system is handed out after that, and all of it is found;
//! 3. first touches and refaults are counted by the pageblock.

use std::collections::BTreeSet;

use crate::common::{Single, metadata, open_zone, order, range, single};
use pagedepot::{
    AllocError, Config, Evacuation, Flags, FrameRange, FreeError, Mobility, Mode, Order, Pfn,
    Residency, Scope, ZoneId,
};
use pagedepot_contiguity::{Contiguity, Reporting, ReportingDevice};

const ZONE: ZoneId = ZoneId::new(0);
const PAGEBLOCK: u32 = 512;
/// Four sections and a part of one.
const PAGEBLOCKS: u32 = 4 * 512 + 64;
/// Pageblocks that a CPU's magazines of large blocks come from.
const CACHED: usize = 32;

fn with_depot(test: impl FnOnce(&mut Single<'_>)) {
    let ranges = [range(0, PAGEBLOCKS * PAGEBLOCK)];
    let zones = [open_zone("normal", &ranges)];
    let config = Config::new(4, &zones);
    let mut memory = metadata(&config);
    let mut depot = single(&config, &mut memory);
    test(&mut depot);
    depot.drain(Scope::ALL, Mode::Full);
    let census = depot.validate().unwrap();
    assert_eq!(census.free_pages + census.held_pages(), census.managed_pages);
}

fn counts(depot: &Single<'_>) -> (u64, u64) {
    let counts = Residency::of(depot).counts();
    (counts.first_touches, counts.refaults)
}

/// Takes so many blocks.
fn take(depot: &Single<'_>, size: Order, mobility: Mobility, blocks: u32) -> Vec<Pfn> {
    (0..blocks).map(|_| depot.alloc(size, Flags::new(mobility)).unwrap()).collect()
}

fn give(depot: &Single<'_>, size: Order, blocks: Vec<Pfn>) {
    blocks.into_iter().for_each(|pfn| depot.free(pfn, size).unwrap());
    depot.drain(Scope::ALL, Mode::Full);
}

fn pageblocks(blocks: &[Pfn], size: Order) -> BTreeSet<u32> {
    let frames = |pfn: &Pfn| pfn.get()..pfn.get() + size.frames();
    blocks.iter().flat_map(frames).map(|frame| frame / PAGEBLOCK).collect()
}

/// A program that grows, shrinks, and grows again as far has the footprint of its peak.
#[test]
fn what_was_freed_is_taken_again() {
    for size in [0, 3, 6, 9, 10].map(order) {
        for mobility in Mobility::ALL {
            for evacuation in [Evacuation::Off, Evacuation::Adaptive] {
                with_depot(|depot| {
                    depot.settings(ZONE).unwrap().set_evacuation(evacuation);
                    // More than a section, less than half of all.
                    let blocks = 700 * PAGEBLOCK / size.frames();
                    let first = take(depot, size, mobility, blocks);
                    let touched = pageblocks(&first, size);
                    let seen = counts(depot);
                    give(depot, size, first);
                    for round in 0..3 {
                        let again = take(depot, size, mobility, blocks);
                        let others = pageblocks(&again, size).difference(&touched).count();
                        assert!(others <= CACHED, "{size} {mobility:?} {round}: {others} more");
                        give(depot, size, again);
                    }
                    let now = counts(depot);
                    assert!(
                        now.0 <= seen.0 + CACHED as u64,
                        "{size} {mobility:?}: {seen:?} {now:?}"
                    );
                    assert_eq!(now.1, 0);
                });
            }
        }
    }
}

/// Another CPU, whose search begins elsewhere, takes what was freed here, too.
#[test]
fn other_cpus_take_what_was_freed() {
    for size in [0, 9].map(order) {
        with_depot(|depot| {
            let blocks = 600 * PAGEBLOCK / size.frames();
            let first = take(depot, size, Mobility::Movable, blocks);
            let touched = pageblocks(&first, size);
            give(depot, size, first);
            for cpu in 1..4 {
                depot.cpus().0.run_on(cpu);
                let again = take(depot, size, Mobility::Movable, blocks);
                let others = pageblocks(&again, size).difference(&touched).count();
                assert!(others <= CACHED, "{size} on CPU {cpu}: {others} more");
                give(depot, size, again);
            }
        });
    }
}

#[test]
fn what_went_back_is_taken_last_and_counted() {
    with_depot(|depot| {
        let residency = Residency::of(depot);
        let run = depot.alloc_contiguous(100 * PAGEBLOCK, PAGEBLOCK, Flags::default()).unwrap();
        assert_eq!(counts(depot), (100, 0));
        // Half of it went back to the system: 20 pageblocks, and parts of two.
        let absent = run.add(9 * PAGEBLOCK + 100);
        let rest = absent.add(21 * PAGEBLOCK);
        residency.free_absent(absent, 21 * PAGEBLOCK).unwrap();
        depot.free_contiguous(run, 9 * PAGEBLOCK + 100).unwrap();
        depot.free_contiguous(rest, 100 * PAGEBLOCK - (rest.get() - run.get())).unwrap();
        let blocks = take(depot, Order::PAGEBLOCK, Mobility::Movable, 80);
        let first = run.get() / PAGEBLOCK;
        let expected: BTreeSet<u32> =
            (first..first + 100).filter(|at| !(first + 10..first + 30).contains(at)).collect();
        assert_eq!(pageblocks(&blocks, Order::PAGEBLOCK), expected);
        assert_eq!(counts(depot), (100, 0));
        // All that is left is found: what went back, and what was never touched.
        let left = take(depot, Order::PAGEBLOCK, Mobility::Movable, PAGEBLOCKS - 80);
        assert_eq!(depot.alloc(Order::PAGEBLOCK, Flags::MOVABLE), Err(AllocError::Exhausted));
        assert_eq!(counts(depot), (u64::from(PAGEBLOCKS), 20));
        assert_eq!(residency.counts_of(ZONE), residency.counts());
        assert_eq!(residency.counts_of(ZoneId::new(1)), Default::default());
        give(depot, Order::PAGEBLOCK, blocks);
        give(depot, Order::PAGEBLOCK, left);
    });
}

/// A block that a scan gives back as it was goes to the store, where the next scan finds it.
#[test]
fn what_is_still_present_goes_past_the_caches() {
    with_depot(|depot| {
        for size in [0, 3, 9, 10].map(order) {
            let start = Pfn::new(2 * PAGEBLOCK);
            depot.alloc_at(start, size.frames(), Flags::default()).unwrap();
            Residency::of(depot).free_present(start, size.frames()).unwrap();
            assert!((0..size.frames()).all(|at| depot.is_free(start.add(at))), "{size}");
        }
        let nowhere = Residency::of(depot).free_present(Pfn::new(u32::MAX), 1);
        assert_eq!(nowhere, Err(FreeError::OutOfRange));
    });
}

/// Frames that are freed past the caches twice are found, with and without checks.
#[test]
fn what_is_still_present_is_freed_once() {
    for checked in [false, true] {
        let ranges = [range(0, 4 * PAGEBLOCK)];
        let zones = [open_zone("normal", &ranges)];
        let config = Config { checked, on_misuse: Some(|_| ()), ..Config::new(1, &zones) };
        let mut memory = metadata(&config);
        let mut depot = single(&config, &mut memory);
        let start = Pfn::new(PAGEBLOCK);
        for frames in [1, 8, 300, PAGEBLOCK] {
            depot.alloc_at(start, frames, Flags::default()).unwrap();
            let free = || Residency::of(&depot).free_present(start, frames);
            assert_eq!((free(), free()), (Ok(()), Err(FreeError::NotAllocated)), "{frames}");
        }
        assert_eq!(depot.validate().unwrap().held_pages(), 0);
    }
}

/// A claim of several sections that fails leaves memory that was never touched as it was.
#[test]
fn a_claim_that_fails_touches_nothing() {
    with_depot(|depot| {
        let section = 512 * PAGEBLOCK;
        let held = Pfn::new(section + 1);
        depot.alloc_at(held, 1, Flags::default()).unwrap();
        assert_eq!(counts(depot), (1, 0));
        let start = Pfn::new(PAGEBLOCK);
        let claim = |depot: &Single<'_>| depot.try_alloc_at(start, section, Flags::default());
        assert_eq!(claim(depot), Err(AllocError::NotAvailable));
        assert_eq!(counts(depot), (1, 0));
        depot.free_contiguous(held, 1).unwrap();
        depot.drain(Scope::ALL, Mode::Full);
        assert_eq!(claim(depot), Ok(()));
        assert_eq!(counts(depot), (512, 0));
        depot.free_contiguous(start, section).unwrap();
    });
}

/// A claim of several sections leaves them as they were where the device refuses a pageblock.
#[test]
fn a_claim_that_the_device_refuses_touches_nothing() {
    struct Refuses;
    impl ReportingDevice for Refuses {
        fn report(&self, _: &[FrameRange]) -> bool {
            true
        }
        fn needed(&self, _: FrameRange) -> bool {
            false
        }
    }
    with_depot(|depot| {
        Reporting::of(depot).register(&Refuses).unwrap();
        assert_eq!(Reporting::of(depot).pass(ZONE, 1).unwrap().pageblocks, 1);
        // In two sections, up to the end of the zone, where a pass begins.
        let start = Pfn::new((PAGEBLOCKS - 512) * PAGEBLOCK);
        let seen = counts(depot);
        let claim = depot.try_alloc_at(start, 512 * PAGEBLOCK, Flags::default());
        assert_eq!(claim, Err(AllocError::NotAvailable));
        assert_eq!(counts(depot), seen);
    });
}

/// Memory that is given to other requests is no more present than before.
#[test]
fn reassigned_memory_is_not_touched() {
    with_depot(|depot| {
        depot.reassign(ZONE, range(0, 4 * PAGEBLOCK), Flags::UNMOVABLE).unwrap();
        assert_eq!(counts(depot), (0, 0));
    });
}

/// Memory that was removed, as by a ceiling, has gone back when it is added again.
#[test]
fn removed_memory_comes_back_absent() {
    with_depot(|depot| {
        let blocks = take(depot, Order::PAGEBLOCK, Mobility::Movable, 40);
        let touched = pageblocks(&blocks, Order::PAGEBLOCK);
        give(depot, Order::PAGEBLOCK, blocks);
        let removed = *touched.iter().nth(5).unwrap();
        depot.remove_memory(ZONE, range(removed * PAGEBLOCK, PAGEBLOCK)).unwrap();
        depot.add_memory(ZONE, range(removed * PAGEBLOCK, PAGEBLOCK), &mut []).unwrap();
        let seen = counts(depot);
        let again = take(depot, Order::PAGEBLOCK, Mobility::Movable, 39);
        assert!(!pageblocks(&again, Order::PAGEBLOCK).contains(&removed));
        assert_eq!(counts(depot), seen);
        give(depot, Order::PAGEBLOCK, again);
        depot.alloc_at(Pfn::new(removed * PAGEBLOCK), 1, Flags::default()).unwrap();
        assert_eq!(counts(depot), (seen.0, 1));
    });
}
