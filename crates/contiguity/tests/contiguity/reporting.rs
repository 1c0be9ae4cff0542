//! Free page reporting:
//! 1. a pass reports whole free pageblocks, each once, within its budget, and above `low`;
//! 2. what is reported is free: counted, found by every kind of request, removed, validated;
//! 3. the device makes it usable before a frame of it is handed out, and may refuse;
//! 4. other memory goes first;
//! 5. refusals, panics and double frees lose nothing.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::backing::Sets;
use crate::common::{Single, metadata, open_zone, order, range, single};
use pagedepot::{
    AllocError, Allocator, Config, Flags, FrameRange, Misuse, Mobility, Mode, Order, Pfn, Scope,
    Watermarks, ZoneConfig, ZoneId,
};
use pagedepot_contiguity::{
    Compaction, Contiguity, DeviceRegistered, Move, Mover, Obstacle, Occupant, RemoveError,
    ReportEnd, ReportError, Reporting, ReportingDevice,
};

const ZONE: ZoneId = ZoneId::new(0);
/// Pageblocks of the zone.
const PAGEBLOCKS: u32 = 48;

/// The calls to the device, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Told {
    Report(Vec<FrameRange>),
    Needed(FrameRange),
}

#[derive(Default)]
struct Device {
    told: Mutex<Vec<Told>>,
    refuses_report: AtomicBool,
    refuses_need: AtomicBool,
    /// Pageblocks with an even number.
    refuses_even: AtomicBool,
    panics: AtomicBool,
}

impl Device {
    /// The calls since the last look.
    fn told(&self) -> Vec<Told> {
        std::mem::take(&mut *self.told.lock().unwrap())
    }

    /// Pageblocks that were needed since the last look.
    fn needed(&self) -> Vec<u32> {
        let needed = |told| match told {
            Told::Needed(range) => Some(range.start.get() / 512),
            Told::Report(_) => None,
        };
        self.told().into_iter().filter_map(needed).collect()
    }
}

impl ReportingDevice for Device {
    fn report(&self, ranges: &[FrameRange]) -> bool {
        assert!(!self.panics.load(Ordering::Relaxed), "the device panics");
        self.told.lock().unwrap().push(Told::Report(ranges.to_vec()));
        !self.refuses_report.load(Ordering::Relaxed)
    }

    fn needed(&self, pageblock: FrameRange) -> bool {
        self.told.lock().unwrap().push(Told::Needed(pageblock));
        let is_even = (pageblock.start.get() / 512).is_multiple_of(2);
        let refuses = self.refuses_need.load(Ordering::Relaxed)
            || is_even && self.refuses_even.load(Ordering::Relaxed);
        !refuses
    }
}

thread_local! {
    static DOUBLED: Cell<u32> = const { Cell::new(0) };
}

fn count_doubled(misuse: Misuse) {
    if let Misuse::DoubleFree { frames, .. } = misuse {
        DOUBLED.set(DOUBLED.get() + frames);
    }
}

/// A zone of [`PAGEBLOCKS`] free pageblocks with a device.
fn with_device(marks: Watermarks, test: impl FnOnce(&mut Single<'_>, &Device)) {
    let ranges = [range(0, PAGEBLOCKS * 512)];
    let zones = [ZoneConfig { watermarks: Some(marks), ..open_zone("normal", &ranges) }];
    let config = Config { on_misuse: Some(count_doubled), ..Config::new(2, &zones) };
    let device = Device::default();
    let mut memory = metadata(&config);
    let mut depot = single(&config, &mut memory);
    Reporting::of(&depot).register(&device).unwrap();
    test(&mut depot, &device);
    depot.drain(Scope::ALL, Mode::Full);
    let census = depot.validate().unwrap();
    assert_eq!(census.free_pages + census.held_pages(), census.managed_pages);
}

fn pass(depot: &Single<'_>, pageblocks_max: u64) -> (u64, ReportEnd) {
    let done = Reporting::of(depot).pass(ZONE, pageblocks_max).unwrap();
    (done.pageblocks, done.end)
}

fn stats(depot: &Single<'_>) -> (u64, u64) {
    let stats = depot.pageblock_stats(ZONE).unwrap();
    (stats.whole, stats.reported)
}

#[test]
fn a_pass_reports_each_pageblock_once() {
    with_device(Watermarks::default(), |depot, device| {
        let held = depot.alloc_at(Pfn::new(40 * 512 + 7), 1, Flags::default());
        assert_eq!(held, Ok(()));
        assert_eq!(pass(depot, 5), (5, ReportEnd::Budget));
        assert_eq!(device.told(), [Told::Report(vec![range(43 * 512, 5 * 512)])]);
        assert_eq!(pass(depot, 0), (0, ReportEnd::Budget));
        let done = Reporting::of(depot).pass(ZONE, u64::MAX).unwrap();
        assert_eq!((done.pageblocks, done.calls, done.end), (42, 2, ReportEnd::NothingLeft));
        // 32 at most by one call: all but the one of which a frame is held.
        let upper = vec![range(10 * 512, 30 * 512), range(41 * 512, 2 * 512)];
        assert_eq!(device.told(), [Told::Report(upper), Told::Report(vec![range(0, 10 * 512)])]);
        assert_eq!(pass(depot, u64::MAX), (0, ReportEnd::NothingLeft));
        assert!(device.told().is_empty());
        assert_eq!(stats(depot), (47, 47));
        assert!(Reporting::of(depot).is_reported(Pfn::new(0)));
        assert!(!Reporting::of(depot).is_reported(Pfn::new(40 * 512)));
        let free = depot.validate().unwrap().free_pages;
        assert_eq!(free, u64::from(PAGEBLOCKS * 512 - 1));
    });
}

#[test]
fn a_pass_keeps_the_watermark() {
    // Two pageblocks above `low`.
    let low = u64::from((PAGEBLOCKS - 2) * 512);
    with_device(Watermarks { min: 0, low, high: low }, |depot, _| {
        assert_eq!(pass(depot, u64::MAX), (2, ReportEnd::LowMemory));
        // They are free again, so that two more can be taken.
        assert_eq!(pass(depot, u64::MAX), (2, ReportEnd::LowMemory));
    });
}

/// Memory that compaction has isolated, or needs elsewhere, serves no request: a pass counts it as
/// missing.
#[test]
fn a_pass_leaves_what_compaction_hides() {
    struct PassingMover<'d, 'm>(&'d Single<'m>);
    impl Mover for PassingMover<'_, '_> {
        fn occupant(&self, frame: Pfn) -> Occupant {
            Occupant::Movable { first: frame, order: Order::BASE }
        }
        fn move_blocks(&self, moves: &mut [Move]) {
            assert_eq!(pass(self.0, u64::MAX), (1, ReportEnd::LowMemory));
            moves.iter_mut().for_each(Move::moved);
        }
    }
    // A pageblock for compaction, one for the pass, a page for the holder and one to move to.
    let low = u64::from((PAGEBLOCKS - 2) * 512 - 2);
    with_device(Watermarks { min: 0, low, high: low }, |depot, _| {
        depot.alloc_at(Pfn::new(7), 1, Flags::default()).unwrap();
        let rules = Compaction::range(512, PAGEBLOCKS.next_power_of_two() * 512);
        let done = depot.compact(ZONE, rules, &PassingMover(depot)).unwrap();
        assert_eq!(done.moved_blocks, 1, "{done:?}");
    });
}

/// Every kind of request gets reported frames, and the device has heard of it before.
#[test]
fn every_request_finds_what_is_reported() {
    for n in 0..=Order::MAX.get() {
        for mobility in Mobility::ALL {
            with_device(Watermarks::default(), |depot, device| {
                assert_eq!(pass(depot, u64::MAX).0, u64::from(PAGEBLOCKS));
                device.told();
                let pfn = depot.alloc(order(n), Flags::new(mobility)).unwrap();
                let needed = device.needed();
                let frames = order(n).frames().div_ceil(512);
                assert_eq!(needed.len(), frames as usize, "order {n}");
                assert!(needed.contains(&(pfn.get() / 512)));
                assert!(!Reporting::of(depot).is_reported(pfn));
                depot.free(pfn, order(n)).unwrap();
            });
        }
    }
}

#[test]
fn all_that_is_reported_can_be_had() {
    with_device(Watermarks::default(), |depot, device| {
        pass(depot, u64::MAX);
        device.told();
        let frames: Vec<_> =
            std::iter::from_fn(|| depot.alloc(Order::BASE, Flags::default()).ok()).collect();
        assert_eq!(frames.len(), (PAGEBLOCKS * 512) as usize);
        let mut needed = device.needed();
        needed.sort_unstable();
        assert_eq!(needed, (0..PAGEBLOCKS).collect::<Vec<_>>(), "each once");
        let counts = Reporting::of(depot).counts();
        assert_eq!((counts.reported, counts.needed), (0, u64::from(PAGEBLOCKS)));
        frames.into_iter().for_each(|pfn| depot.free(pfn, Order::BASE).unwrap());
    });
}

#[test]
fn ranges_and_given_frames_wake_what_they_touch() {
    with_device(Watermarks::default(), |depot, device| {
        pass(depot, u64::MAX);
        device.told();
        depot.alloc_at(Pfn::new(3 * 512 - 5), 10, Flags::default()).unwrap();
        assert_eq!(device.needed(), [3, 2]);
        // A frame of it is held: nothing else is woken.
        let held = depot.alloc_at(Pfn::new(3 * 512), 4 * 512, Flags::default());
        assert_eq!(held, Err(AllocError::NotAvailable));
        assert!(device.needed().is_empty());
        let start = depot.alloc_contiguous(5 * 512, 512, Flags::default()).unwrap();
        assert_eq!(device.needed().len(), 5);
        let odd = depot.alloc_contiguous(7 * 512 + 9, 1, Flags::default()).unwrap();
        assert!(device.needed().len() >= 8);
        depot.free_contiguous(start, 5 * 512).unwrap();
        depot.free_contiguous(odd, 7 * 512 + 9).unwrap();
        depot.free_contiguous(Pfn::new(3 * 512 - 5), 10).unwrap();
    });
}

#[test]
fn memory_that_is_removed_is_usable() {
    with_device(Watermarks::default(), |depot, device| {
        pass(depot, u64::MAX);
        device.told();
        let removed = range(8 * 512, 4 * 512);
        depot.remove_memory(ZONE, removed).unwrap();
        assert_eq!(device.needed(), [11, 10, 9, 8]);
        assert!(!Reporting::of(depot).is_reported(removed.start));
        depot.add_memory(ZONE, removed, &mut []).unwrap();
        assert_eq!(pass(depot, u64::MAX).0, 4);
    });
}

#[test]
fn other_memory_goes_first() {
    with_device(Watermarks::default(), |depot, device| {
        // All but the first 4 pageblocks.
        pass(depot, u64::from(PAGEBLOCKS - 4));
        device.told();
        let block = |n| depot.alloc(order(n), Flags::default()).unwrap();
        let held: Vec<_> = [(9, 1), (0, 900), (10, 0)]
            .into_iter()
            .flat_map(|(n, count)| (0..count).map(move |_| (block(n), order(n))))
            .collect();
        assert!(device.needed().is_empty());
        held.into_iter().for_each(|(pfn, order)| depot.free(pfn, order).unwrap());
    });
}

#[test]
fn what_the_device_refuses_is_left_alone() {
    with_device(Watermarks::default(), |depot, device| {
        pass(depot, u64::from(PAGEBLOCKS - 1));
        device.refuses_need.store(true, Ordering::Relaxed);
        let held: Vec<_> =
            std::iter::from_fn(|| depot.alloc(Order::BASE, Flags::default()).ok()).collect();
        assert_eq!(held.len(), 512, "all of the pageblock that is not reported");
        assert_eq!(depot.alloc(order(9), Flags::default()), Err(AllocError::Exhausted));
        let refusal = depot.look(Order::BASE, Flags::default()).unwrap_err();
        assert!(!refusal.is_proven, "no free tells when the device has memory again");
        assert_eq!(
            depot.alloc_at(Pfn::new(600), 1, Flags::default()),
            Err(AllocError::NotAvailable)
        );
        let counts = Reporting::of(depot).counts();
        assert_eq!((counts.reported, counts.needed), (u64::from(PAGEBLOCKS - 1), 0));
        assert!(counts.refused >= 3);
        device.refuses_need.store(false, Ordering::Relaxed);
        let pfn = depot.alloc(order(9), Flags::default()).unwrap();
        depot.free(pfn, order(9)).unwrap();
        held.into_iter().for_each(|pfn| depot.free(pfn, Order::BASE).unwrap());
    });
}

/// Memory that the device does not give back cannot be removed, and the error says why, after one
/// question and no drain.
#[test]
fn a_refusal_is_named_where_given_frames_are_wanted() {
    with_device(Watermarks::default(), |depot, device| {
        pass(depot, u64::MAX);
        let wanted = range(8 * 512, 4 * 512);
        assert_eq!(depot.obstacle(wanted), None, "no refusal is known yet");
        device.refuses_need.store(true, Ordering::Relaxed);
        device.told();
        let refused = Obstacle::Refused { first: Pfn::new(11 * 512) };
        assert_eq!(depot.remove_memory(ZONE, wanted), Err(RemoveError::Obstacle(refused)));
        assert_eq!(device.needed(), [11]);
        // What is reassigned need not be usable, and stays reported.
        depot.reassign(ZONE, wanted, Flags::UNMOVABLE).unwrap();
        assert!(device.needed().is_empty());
        assert_eq!(stats(depot), (u64::from(PAGEBLOCKS), u64::from(PAGEBLOCKS)));
        assert_eq!(depot.cpus().0.fences(), 0);
        // The range begins in the refused pageblock, too.
        let at = Pfn::new(11 * 512 + 100);
        assert!(depot.alloc_at(at, 10, Flags::default()).is_err());
        assert_eq!(depot.obstacle(range(at.get(), 10)), Some(Obstacle::Refused { first: at }));
        device.refuses_need.store(false, Ordering::Relaxed);
        depot.remove_memory(ZONE, wanted).unwrap();
    });
}

#[test]
fn a_report_that_is_refused_changes_nothing() {
    with_device(Watermarks::default(), |depot, device| {
        device.refuses_report.store(true, Ordering::Relaxed);
        assert_eq!(pass(depot, u64::MAX), (0, ReportEnd::Refused));
        assert_eq!(device.told().len(), 1);
        assert_eq!(stats(depot), (u64::from(PAGEBLOCKS), 0));
        device.refuses_report.store(false, Ordering::Relaxed);
        device.panics.store(true, Ordering::Relaxed);
        assert!(catch_unwind(AssertUnwindSafe(|| pass(depot, u64::MAX))).is_err());
        device.panics.store(false, Ordering::Relaxed);
        assert_eq!(stats(depot), (u64::from(PAGEBLOCKS), 0));
        assert_eq!(depot.validate().unwrap().free_pages, u64::from(PAGEBLOCKS * 512));
        assert_eq!(pass(depot, u64::MAX).0, u64::from(PAGEBLOCKS));
    });
}

/// However a request searches, and however often: a device that has no memory is asked for each
/// pageblock once by its first search and once by its last resort.
#[test]
fn a_device_that_refuses_is_asked_twice_for_a_pageblock_at_most() {
    let pageblocks = 512;
    let ranges = [range(0, pageblocks * 512)];
    let zones = [open_zone("normal", &ranges)];
    let config = Config::new(2, &zones);
    let device = Device::default();
    let mut memory = metadata(&config);
    let depot = single(&config, &mut memory);
    let reporting = Reporting::of(&depot);
    reporting.register(&device).unwrap();
    assert_eq!(reporting.pass(ZONE, u64::MAX).unwrap().pageblocks, u64::from(pageblocks));
    device.refuses_need.store(true, Ordering::Relaxed);
    let flags = Flags::default();
    let requests: [(&str, &dyn Fn() -> bool); 9] = [
        ("alloc", &|| depot.alloc(Order::BASE, flags).is_ok()),
        ("alloc of order 10", &|| depot.alloc(order(10), flags).is_ok()),
        ("try_alloc", &|| depot.try_alloc(Order::BASE, flags).is_some()),
        ("100", &|| depot.alloc_contiguous(100, 1, flags).is_ok()),
        ("1000", &|| depot.alloc_contiguous(1000, 1, flags).is_ok()),
        ("1500 at 1024", &|| depot.alloc_contiguous(1500, 1024, flags).is_ok()),
        ("100,000", &|| depot.alloc_contiguous(100_000, 1, flags).is_ok()),
        ("alloc_at", &|| depot.alloc_at(Pfn::new(200_000), 2000, flags).is_ok()),
        ("remove_memory", &|| depot.remove_memory(ZONE, range(468 * 512, 4096)).is_ok()),
    ];
    for (name, request) in requests {
        let before = reporting.counts().refused;
        assert!(!request(), "{name}");
        let asked = reporting.counts().refused - before;
        assert!((1..=2 * u64::from(pageblocks)).contains(&asked), "{name}: asked {asked} times");
    }
    device.refuses_need.store(false, Ordering::Relaxed);
    for (name, request) in requests {
        assert!(request(), "{name}, once the device has memory");
    }
}

/// Checks that a range is found between pageblocks that the device refuses, which has memory for
/// one in two.
#[test]
fn a_range_beside_what_a_device_refuses() {
    with_device(Watermarks::default(), |depot, device| {
        pass(depot, u64::MAX);
        device.refuses_even.store(true, Ordering::Relaxed);
        for frames in [512, 300] {
            let start = depot.alloc_contiguous(frames, 1, Flags::default()).unwrap();
            assert_eq!(start.get() / 512 % 2, 1, "{frames} frames");
        }
        let none = depot.alloc_contiguous(513, 1, Flags::default());
        assert_eq!(none, Err(AllocError::Exhausted));
    });
}

/// A frame that is freed twice after it was reported stays free once.
#[test]
fn a_double_free_is_noticed() {
    for n in [0, 4, 8, 10] {
        with_device(Watermarks::default(), |depot, _| {
            let pfn = depot.alloc(order(n), Flags::default()).unwrap();
            depot.free(pfn, order(n)).unwrap();
            depot.drain(Scope::ALL, Mode::Full);
            assert_eq!(pass(depot, u64::MAX).0, u64::from(PAGEBLOCKS));
            DOUBLED.set(0);
            depot.free(pfn, order(n)).ok();
            depot.drain(Scope::ALL, Mode::Full);
            assert_eq!(DOUBLED.get(), order(n).frames(), "order {n}");
            let census = depot.validate().unwrap();
            assert_eq!(census.free_pages, census.managed_pages);
        });
    }
}

#[test]
fn errors_say_what_to_do() {
    let ranges = [range(0, 1024)];
    let zones = [open_zone("normal", &ranges)];
    let config = Config::new(2, &zones);
    let devices = [Device::default(), Device::default()];
    let mut memory = metadata(&config);
    let depot = single(&config, &mut memory);
    let reporting = Reporting::of(&depot);
    assert_eq!(reporting.pass(ZONE, 1), Err(ReportError::NoDevice));
    assert_eq!(reporting.register(&devices[0]), Ok(()));
    assert_eq!(reporting.register(&devices[1]), Err(DeviceRegistered));
    let zone = ZoneId::new(1);
    assert_eq!(reporting.pass(zone, 1), Err(ReportError::NoSuchZone { zone: 1 }));
    assert!(!reporting.is_reported(Pfn::new(u32::MAX)));
    assert_eq!(reporting.pass(ZONE, 1).unwrap().pageblocks, 1);
    assert!(ReportError::NoDevice.to_string().contains("register"));

    let sets = Sets::new(&zones, true);
    let mut memory = metadata(&config);
    let cpus = pagedepot::cpus::PinnedCpus(crate::common::Anywhere::new());
    let backed = Allocator::builder(&config).backing(Some(&sets)).build(&mut memory, cpus).unwrap();
    assert_eq!(Reporting::of(&backed).pass(ZONE, 1), Err(ReportError::Unsupported));
}
