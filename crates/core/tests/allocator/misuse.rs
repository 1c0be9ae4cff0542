//! Wrong use is refused with an error and changes nothing, or is found when it reaches the store.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use crate::common::{Single, metadata, open_zone, order, range, single};
use pagedepot::seam::{PageblockIndex, ReportingDevice, ZoneAccess, reports};
use pagedepot::{
    AllocError, CacheLimits, Census, Config, CpuId, DrainResult, Flags, FrameRange, FreeError,
    FreeManyError, HighPolicy, Misuse, Mobility, Mode, NodeId, Order, Pfn, Scope, ZoneConfig,
    ZoneId,
};

/// Two neighbouring zones, nothing behind the second, and one with holes.
fn with_machine(checked: bool, on_misuse: Option<fn(Misuse)>, test: impl FnOnce(Single<'_>)) {
    let first = [range(1024, 1536)];
    let second = [range(2560, 512)];
    let third = [range(4100, 20), range(4160, 300)];
    let zones = [
        open_zone("first", &first),
        open_zone("second", &second),
        ZoneConfig { level: 1, ..open_zone("holes", &third) },
    ];
    // High enough that small zones are cached at all.
    let config =
        Config { checked, on_misuse, high: HighPolicy::Fixed(4096), ..Config::new(2, &zones) };
    test(single(&config, &mut metadata(&config)));
}

fn pfn(n: u32) -> Pfn {
    Pfn::new(n)
}

/// Checks that every page is free, and the metadata in order.
fn check_all_free(depot: &mut Single<'_>) -> Census {
    depot.drain(Scope::ALL, Mode::Full);
    let census = depot.validate().unwrap();
    assert_eq!(census.free_pages, census.managed_pages);
    census
}

#[test]
fn frames_of_no_zone_are_out_of_range() {
    for checked in [false, true] {
        with_machine(checked, None, |mut depot| {
            for nowhere in [0, 1, 1023, 3072, 3583, 4608, 1 << 18, 1 << 31, u32::MAX] {
                assert_eq!(
                    depot.free(pfn(nowhere), Order::BASE),
                    Err(FreeError::OutOfRange),
                    "{nowhere}"
                );
                let many = depot.free_many(&[(pfn(nowhere), Order::BASE)]);
                assert_eq!(
                    many,
                    Err(FreeManyError { first: 0, error: FreeError::OutOfRange, failed: 1 })
                );
                assert_eq!(depot.free_contiguous(pfn(nowhere), 1), Err(FreeError::OutOfRange));
                assert_eq!(
                    depot.split(pfn(nowhere), Order::BASE, Order::BASE),
                    Err(FreeError::OutOfRange)
                );
                assert!(!depot.is_free(pfn(nowhere)) && !depot.note_quarantined(pfn(nowhere), 1));
            }
            check_all_free(&mut depot);
        });
    }
}

#[test]
fn blocks_that_reach_into_another_zone_or_beyond_are_out_of_range() {
    for checked in [false, true] {
        with_machine(checked, None, |mut depot| {
            let depot_ref = &depot;
            // 2048..3072 is half of the first zone, half of the second.
            let whole = || {
                depot_ref.alloc_at(pfn(2048), 512, Flags::default()).unwrap();
                depot_ref.alloc_at(pfn(2560), 512, Flags::default()).unwrap();
            };
            whole();
            assert_eq!(depot.free(pfn(2048), Order::MAX), Err(FreeError::OutOfRange));
            let many = depot.free_many(&[(pfn(2048), Order::MAX)]);
            assert_eq!(many.map_err(|many| many.error), Err(FreeError::OutOfRange));
            assert_eq!(depot.split(pfn(2048), Order::MAX, Order::BASE), Err(FreeError::OutOfRange));
            assert_eq!(depot.free_contiguous(pfn(2048), 1024), Err(FreeError::OutOfRange));
            // Behind the second zone there is nothing.
            assert_eq!(depot.free_contiguous(pfn(2560), 513), Err(FreeError::OutOfRange));
            assert_eq!(depot.free_contiguous(pfn(2560), u32::MAX), Err(FreeError::OutOfRange));
            assert_eq!(depot.free_contiguous(pfn(2560), 0), Err(FreeError::OutOfRange));
            assert_eq!(depot.validate().unwrap().held_pages(), 1024);
            depot.free_contiguous(pfn(2048), 512).unwrap();
            depot.free_contiguous(pfn(2560), 512).unwrap();
            check_all_free(&mut depot);
        });
    }
}

/// Blocks whose first half ends a zone, while this CPU's front takes blocks of that size.
#[test]
fn a_front_takes_no_block_that_reaches_beyond_its_zone() {
    const EDGE: u32 = 201 * 512;
    for has_neighbour in [true, false] {
        let (first, second) = ([range(0, EDGE)], [range(EDGE, 1536)]);
        let zones = [open_zone("first", &first), open_zone("second", &second)];
        let zones = if has_neighbour { &zones[..] } else { &zones[..1] };
        let config = Config { high: HighPolicy::Fixed(1 << 14), ..Config::new(1, zones) };
        let memory = &mut metadata(&config);
        let mut depot = single(&config, memory);
        let bad = pfn(EDGE - 512);
        let halves = if has_neighbour { &[bad, pfn(EDGE)][..] } else { &[bad] };
        halves.iter().for_each(|&half| depot.alloc_at(half, 512, Flags::default()).unwrap());
        let held: Vec<Pfn> =
            (0..20).map(|_| depot.alloc(Order::MAX, Flags::default()).unwrap()).collect();
        // Beside an empty front, a half full one, and a shelf.
        for block in held {
            assert!(!depot.free_fast(bad, Order::MAX) && !depot.free_to_front(bad, Order::MAX));
            assert_eq!(depot.free(bad, Order::MAX), Err(FreeError::OutOfRange));
            assert_eq!(depot.free_many_fast(Order::MAX, &[bad]), 0);
            let as_movable = depot.free_as(bad, Order::MAX, Mobility::Movable);
            assert_eq!(as_movable, Err(FreeError::OutOfRange));
            depot.free(block, Order::MAX).unwrap();
        }
        for size in [3, 20] {
            let mut batch = vec![bad; size];
            let got = depot.alloc_many(Order::MAX, Flags::default(), &mut batch[1..]).unwrap();
            assert_eq!(got, size - 1);
            batch.swap(0, size / 2);
            let error = FreeError::OutOfRange;
            let failed = Err(FreeManyError { first: size / 2, error, failed: 1 });
            assert_eq!(depot.free_many_of(Order::MAX, &batch), failed);
        }
        halves.iter().for_each(|&half| depot.free_contiguous(half, 512).unwrap());
        check_all_free(&mut depot);
    }
}

#[test]
fn blocks_begin_at_multiples_of_their_size() {
    with_machine(false, None, |mut depot| {
        for at in Order::all().skip(1) {
            let misaligned = pfn(1024 + at.frames() / 2);
            assert_eq!(depot.free(misaligned, at), Err(FreeError::Misaligned));
            assert_eq!(depot.split(misaligned, at, Order::BASE), Err(FreeError::Misaligned));
            assert_eq!(
                depot.free_many(&[(misaligned, at)]).map_err(|many| many.error),
                Err(FreeError::Misaligned)
            );
        }
        assert_eq!(depot.split(pfn(1024), order(3), order(4)), Err(FreeError::Misaligned));
        check_all_free(&mut depot);
    });
}

#[test]
fn checked_refuses_every_wrong_free_at_once() {
    with_machine(true, None, |mut depot| {
        for size in Order::all() {
            let block = depot.alloc(size, Flags::default()).unwrap();
            for wrong in Order::all().filter(|&wrong| wrong != size && block.is_aligned(wrong)) {
                let error = depot.free(block, wrong).unwrap_err();
                assert!(
                    matches!(error, FreeError::NotAllocated | FreeError::OutOfRange),
                    "{size} as {wrong}"
                );
                assert!(wrong < Order::BASE || depot.split(block, wrong, Order::BASE).is_err());
            }
            for inside in 1..size.frames() {
                let error = depot.free(block.add(inside), Order::BASE);
                assert_eq!(error, Err(FreeError::NotAllocated));
            }
            depot.free(block, size).unwrap();
            assert_eq!(depot.free(block, size), Err(FreeError::NotAllocated));
            assert_eq!(depot.split(block, size, Order::BASE), Err(FreeError::NotAllocated));
        }
        // Holes: in a run of 512 frames that has memory, but in no zone's range.
        for hole in [4096, 4099, 4120, 4159, 4460, 4607] {
            assert_eq!(depot.free(pfn(hole), Order::BASE), Err(FreeError::NotAllocated));
        }
        check_all_free(&mut depot);
    });
}

#[test]
fn parts_are_freed_as_parts() {
    with_machine(true, None, |mut depot| {
        let block = depot.alloc(order(4), Flags::default()).unwrap();
        depot.split(block, order(4), order(2)).unwrap();
        assert_eq!(depot.free(block, order(4)), Err(FreeError::NotAllocated));
        assert_eq!(depot.split(block, order(4), order(2)), Err(FreeError::NotAllocated));
        depot.split(block.add(4), order(2), order(0)).unwrap();
        for (at, size) in [(0, 2), (4, 0), (5, 0), (6, 0), (7, 0), (8, 2), (12, 2)] {
            depot.free(block.add(at), order(size)).unwrap();
            assert_eq!(depot.free(block.add(at), order(size)), Err(FreeError::NotAllocated));
        }
        // Splitting into one part changes nothing.
        let block = depot.alloc(order(5), Flags::default()).unwrap();
        depot.split(block, order(5), order(5)).unwrap();
        depot.free(block, order(5)).unwrap();
        check_all_free(&mut depot);
    });
}

#[test]
fn a_range_is_freed_as_one_or_in_parts_but_once() {
    with_machine(true, None, |mut depot| {
        let start = depot.alloc_contiguous(100, 1, Flags::default()).unwrap();
        assert_eq!(depot.free(start, order(2)), Err(FreeError::NotAllocated));
        assert_eq!(depot.free_contiguous(start, 101), Err(FreeError::NotAllocated));
        depot.free(start, Order::BASE).unwrap();
        assert_eq!(depot.free_contiguous(start, 100), Err(FreeError::NotAllocated));
        depot.free_contiguous(start.add(50), 50).unwrap();
        assert_eq!(depot.free_contiguous(start.add(1), 50), Err(FreeError::NotAllocated));
        depot.free_contiguous(start.add(1), 49).unwrap();
        check_all_free(&mut depot);
    });
}

/// Frames reported so far.
static REPORTED: AtomicU32 = AtomicU32::new(0);

fn report(misuse: Misuse) {
    match misuse {
        Misuse::DoubleFree { frames, .. } => REPORTED.fetch_add(frames, Ordering::Relaxed),
        other => panic!("an unknown misuse: {other:?}"),
    };
}

fn reported() -> u32 {
    REPORTED.swap(0, Ordering::Relaxed)
}

/// One test, because the count of reported frames is shared.
#[test]
fn without_checked_a_double_free_is_found_when_it_reaches_the_store() {
    with_machine(false, Some(report), |mut depot| {
        // Cached ones: when the front is drained.
        for size in (0..=9).map(order) {
            let block = depot.alloc(size, Flags::default()).unwrap();
            depot.free(block, size).unwrap();
            depot.free(block, size).unwrap();
            assert_eq!(reported(), 0);
            depot.drain(Scope::ALL, Mode::Full);
            assert_eq!(reported(), size.frames());
            check_all_free(&mut depot);
        }
        // Those of which a magazine is more than a CPU may cache: at once.
        let block = depot.alloc(Order::MAX, Flags::default()).unwrap();
        depot.free(block, Order::MAX).unwrap();
        assert_eq!(depot.free(block, Order::MAX), Err(FreeError::NotAllocated));
        assert_eq!(reported(), Order::MAX.frames());
        check_all_free(&mut depot);
        // A part that is free already.
        let block = depot.alloc(Order::MAX, Flags::default()).unwrap();
        depot.split(block, Order::MAX, order(2)).unwrap();
        depot.free(block.add(8), order(2)).unwrap();
        depot.drain(Scope::ALL, Mode::Full);
        assert_eq!(depot.free(block, Order::MAX), Err(FreeError::NotAllocated));
        assert_eq!(reported(), 4);
        check_all_free(&mut depot);

        let start = depot.alloc_contiguous(600, 1, Flags::default()).unwrap();
        depot.free_contiguous(start.add(100), 10).unwrap();
        assert_eq!(depot.free_contiguous(start, 600), Err(FreeError::NotAllocated));
        assert_eq!(reported(), 10);
        check_all_free(&mut depot);

        // Twice in one batch that goes straight to the store.
        let block = (depot.alloc(Order::MAX, Flags::default()).unwrap(), Order::MAX);
        depot.free_many(&[block, block]).unwrap();
        assert_eq!(reported(), Order::MAX.frames());
        check_all_free(&mut depot);
    });
}

#[test]
fn without_a_handler_misuse_found_late_panics_and_blocks_no_caller() {
    with_machine(false, None, |depot| {
        let block = depot.alloc(Order::BASE, Flags::default()).unwrap();
        depot.free(block, Order::BASE).unwrap();
        depot.free(block, Order::BASE).unwrap();
        let drained = catch_unwind(AssertUnwindSafe(|| depot.drain(Scope::ALL, Mode::Full)));
        let message = *drained.unwrap_err().downcast::<String>().unwrap();
        assert!(message.contains(&format!("{block} came back that was free already")), "{message}");
        assert!(message.contains("`Config::checked`"), "{message}");
        let block = depot.alloc(order(2), Flags::default()).unwrap();
        depot.free(block, order(2)).unwrap();
        let drained = depot.drain(Scope::ALL, Mode::Full);
        assert_eq!((drained.busy_cpus, drained.unreachable_pages), (0, 0));
    });
}

/// Fills caches of CPU 0 with pages, one of them twice. Returns that page.
fn free_one_twice(depot: &Single<'_>) -> Pfn {
    let mut pages = [pfn(0); 400];
    assert_eq!(depot.alloc_many(Order::BASE, Flags::default(), &mut pages), Ok(400));
    for (at, &page) in pages.iter().enumerate() {
        depot.free(page, Order::BASE).unwrap();
        if at == 240 {
            depot.free(pages[130], Order::BASE).unwrap();
        }
    }
    pages[130]
}

/// A way in which cached pages come to the store. It keeps what it allocates, even if it panics.
type Way = fn(&Single<'_>, &mut Vec<(Pfn, Order)>);

const WAYS: [(&str, Way); 9] = [
    ("quiet drain", |depot, _| _ = depot.drain(Scope::ALL, Mode::Quiet)),
    ("full drain", |depot, _| _ = depot.drain(Scope::ALL, Mode::Full)),
    ("retired CPU", |depot, _| _ = depot.cpu_caches().retire(CpuId::new(0))),
    ("no caches", |depot, _| _ = depot.cpu_caches().disable()),
    ("decay", |depot, _| {
        shrink_caches(depot);
        depot.cpu_caches().decay();
    }),
    ("free", |depot, _| {
        shrink_caches(depot);
        let mut pages = [pfn(0); 400];
        depot.alloc_many(Order::BASE, Flags::UNMOVABLE, &mut pages).unwrap();
        let mut left: &[Pfn] = &pages;
        // The block whose free panics has been freed.
        while let [first, rest @ ..] = left {
            left = rest;
            let freed = catch_unwind(AssertUnwindSafe(|| depot.free(*first, Order::BASE).unwrap()));
            if let Err(panic) = freed {
                left.iter().for_each(|&page| depot.free(page, Order::BASE).unwrap());
                std::panic::resume_unwind(panic);
            }
        }
    }),
    ("free of many", |depot, _| {
        shrink_caches(depot);
        let mut pages = [pfn(0); 400];
        depot.alloc_many(Order::BASE, Flags::UNMOVABLE, &mut pages).unwrap();
        depot.free_many(&pages.map(|page| (page, Order::BASE))).unwrap();
    }),
    ("alloc", |depot, held| {
        shrink_caches(depot);
        while let Ok(block) = depot.alloc(order(1), Flags::default().at_most_level(2)) {
            held.push((block, order(1)));
        }
    }),
    ("alloc of many", |depot, held| {
        shrink_caches(depot);
        // Fewer pages than go past the caches.
        let mut pages = [pfn(0); 60];
        while let Ok(got) =
            depot.alloc_many(order(1), Flags::default().at_most_level(2), &mut pages)
        {
            held.extend(pages[..got].iter().map(|&page| (page, order(1))));
        }
    }),
];

fn shrink_caches(depot: &Single<'_>) {
    let limits = CacheLimits { batch: 1, high_min: 0, high_max: 64 };
    depot.zone_ids().for_each(|zone| depot.settings(zone).unwrap().set_cache_limits(limits));
}

#[test]
fn what_is_on_its_way_with_a_page_freed_twice_is_not_lost() {
    for (name, way) in WAYS {
        with_machine(false, None, |mut depot| {
            let twice = free_one_twice(&depot);
            let mut held = Vec::new();
            let panic = catch_unwind(AssertUnwindSafe(|| way(&depot, &mut held)));
            // A way that does not bring both pages at once brings the second one here.
            let rest = catch_unwind(AssertUnwindSafe(|| {
                depot.drain(Scope::ALL, Mode::Full);
                depot.free_many(&held).unwrap();
            }));
            assert!(panic.is_err() != rest.is_err(), "{name}: told once");
            let panic = panic.and(rest);
            let message = *panic.expect_err(name).downcast::<String>().unwrap();
            assert!(message.contains(&twice.to_string()), "{name}: {message}");
            depot.drain(Scope::ALL, Mode::Full);
            let census = depot.validate().unwrap_or_else(|fault| panic!("{name}: {fault}"));
            assert_eq!((census.held_pages(), census.cached_pages), (0, 0), "{name}");
        });
    }
}

/// Frames told of to [`count_told`].
static TOLD: AtomicU32 = AtomicU32::new(0);

fn count_told(misuse: Misuse) {
    match misuse {
        Misuse::DoubleFree { frames, .. } => TOLD.fetch_add(frames, Ordering::Relaxed),
        other => panic!("an unknown misuse: {other:?}"),
    };
}

/// Makes CPU 0 hand over a page that was freed twice: the next decay of its caches finds it.
fn hand_over_one_twice(depot: &Single<'_>) {
    depot.cpus().0.set_now_ms(1);
    let twice = depot.alloc(Order::BASE, Flags::default()).unwrap();
    (0..2).for_each(|_| depot.free(twice, Order::BASE).unwrap());
    depot.cpus().0.run_on(1);
    assert!(!depot.drain_handover(Scope::ALL, None).is_complete());
    depot.cpus().0.run_on(0);
    assert!(depot.cpu_caches().hand_over());
}

/// Holds every page but five neighbours, which a front has, one of them twice.
fn hold_all_but_one_twice(depot: &Single<'_>, held: &mut Vec<(Pfn, Order)>) -> Pfn {
    while let Ok(page) = depot.alloc(Order::BASE, Flags::default()) {
        held.push((page, Order::BASE));
    }
    held.sort();
    let five: Vec<_> = held.drain(100..105).collect();
    assert_eq!(five[4].0, five[0].0.add(4));
    five.iter().chain(&five[..1]).for_each(|&(page, size)| depot.free(page, size).unwrap());
    five[0].0
}

/// Calls that find a page which was freed twice, and do not fail for it.
const FINDERS: [(&str, Way); 6] = [
    ("batch of chunks", |depot, held| {
        hand_over_one_twice(depot);
        depot.cpus().0.set_now_ms(5000);
        let mut pages = [pfn(0); 128];
        depot.alloc_many(Order::BASE, Flags::UNMOVABLE, &mut pages).unwrap();
        held.extend(pages.map(|page| (page, Order::BASE)));
    }),
    ("batch of fronts", |depot, held| {
        free_to_full_front(depot, held, |depot, page| {
            assert_eq!(depot.free_many_of(Order::BASE, &[page]), Ok(()));
        })
    }),
    ("free", |depot, held| {
        free_to_full_front(depot, held, |depot, page| {
            depot.free(page, Order::BASE).unwrap();
        })
    }),
    ("range", |depot, held| {
        hold_all_but_one_twice(depot, held);
        let start = depot.alloc_contiguous(3, 1, Flags::UNMOVABLE.no_reclaim()).unwrap();
        held.extend((0..3).map(|at| (start.add(at), Order::BASE)));
    }),
    ("frames at an address", |depot, held| {
        let twice = hold_all_but_one_twice(depot, held);
        depot.alloc_at(twice, 2, Flags::UNMOVABLE.atomic()).unwrap();
        held.extend([(twice, Order::BASE), (twice.add(1), Order::BASE)]);
    }),
    ("block", |depot, held| {
        hold_all_but_one_twice(depot, held);
        let block = depot.alloc(order(1), Flags::UNMOVABLE.no_reclaim()).unwrap();
        held.push((block, order(1)));
    }),
];

/// Fills the front's two magazines, and frees one page more, which needs an empty one.
fn free_to_full_front(
    depot: &Single<'_>,
    held: &mut Vec<(Pfn, Order)>,
    free: fn(&Single<'_>, Pfn),
) {
    let mut pages: Vec<Pfn> =
        (0..200).map(|_| depot.alloc(Order::BASE, Flags::default()).unwrap()).collect();
    depot.drain(Scope::ALL, Mode::Full);
    hand_over_one_twice(depot);
    pages.drain(..126).for_each(|page| depot.free(page, Order::BASE).unwrap());
    depot.cpus().0.set_now_ms(5000);
    let last = pages.pop().unwrap();
    held.extend(pages.iter().map(|&page| (page, Order::BASE)));
    free(depot, last);
}

#[test]
fn each_call_tells_of_what_it_found() {
    for (name, find) in FINDERS {
        with_machine(false, Some(count_told), |mut depot| {
            TOLD.store(0, Ordering::Relaxed);
            let mut held = Vec::new();
            find(&depot, &mut held);
            assert_eq!(TOLD.load(Ordering::Relaxed), 1, "{name}");
            depot.free_many(&held).unwrap();
            check_all_free(&mut depot);
        });
    }
}

#[test]
fn a_call_that_panics_for_what_it_found_has_lost_nothing() {
    for (name, find) in FINDERS {
        with_machine(false, None, |mut depot| {
            let mut held = Vec::new();
            let found = catch_unwind(AssertUnwindSafe(|| find(&depot, &mut held)));
            assert!(found.is_err(), "{name}");
            depot.free_many(&held).unwrap_or_else(|error| panic!("{name}: {error}"));
            check_all_free(&mut depot);
        });
    }
}

#[test]
fn a_range_with_a_page_freed_before_is_freed_before_it_panics() {
    with_machine(false, None, |mut depot| {
        let start = depot.alloc_contiguous(600, 1, Flags::default()).unwrap();
        depot.free_contiguous(start.add(100), 10).unwrap();
        let freed = catch_unwind(AssertUnwindSafe(|| depot.free_contiguous(start, 600)));
        let message = *freed.unwrap_err().downcast::<String>().unwrap();
        let expected =
            format!("10 frames came back that were free already, {} first", start.add(100));
        assert!(message.contains(&expected), "{message}");
        check_all_free(&mut depot);
    });
}

/// The second free comes while a search owns the frame that it is about to give back.
#[test]
fn a_frame_freed_twice_beside_a_search_for_a_range_counts_once() {
    struct FreesTwice(AtomicPtr<Single<'static>>);
    impl ReportingDevice for FreesTwice {
        fn report(&self, _: &[FrameRange]) -> bool {
            true
        }

        fn needed(&self, pageblock: FrameRange) -> bool {
            // SAFETY: the depot lives while it calls.
            let depot = unsafe { &*self.0.load(Ordering::Relaxed) };
            depot.free(pageblock.start.add(6), Order::BASE).unwrap();
            true
        }
    }
    let (ranges, zone) = ([range(0, 512)], ZoneId::new(0));
    let zones = [open_zone("z", &ranges)];
    let config = Config { caches: false, on_misuse: Some(report), ..Config::new(1, &zones) };
    let memory = Box::leak(metadata(&config).into_boxed_slice());
    let device: &FreesTwice = Box::leak(Box::new(FreesTwice(AtomicPtr::default())));
    let mut depot = single(&config, memory);
    device.0.store((&raw mut depot).cast(), Ordering::Relaxed);
    reports(&depot).register(device).unwrap();
    let access = ZoneAccess::of(&depot, zone).unwrap();
    assert!(access.take_whole(PageblockIndex(0)));
    access.put_whole(PageblockIndex(0), true);
    reported();
    let start = depot.alloc_contiguous(5, 1, Flags::default()).unwrap();
    assert_eq!((start, reported()), (pfn(0), 1));
    assert_eq!(depot.free_pages(zone), 512 - 5);
    depot.validate().unwrap();
    depot.free_contiguous(start, 5).unwrap();
    check_all_free(&mut depot);
}

/// The second free comes while a caller owns the pageblock that it is about to report.
#[test]
fn frames_freed_twice_beside_a_report_count_once() {
    static FOUND: AtomicU32 = AtomicU32::new(0);
    fn count(misuse: Misuse) {
        let Misuse::DoubleFree { frames, .. } = misuse else { panic!("{misuse:?}") };
        FOUND.fetch_add(frames, Ordering::Relaxed);
    }
    let (ranges, zone) = ([range(0, 512)], ZoneId::new(0));
    let zones = [open_zone("z", &ranges)];
    let config = Config { on_misuse: Some(count), ..Config::new(1, &zones) };
    let memory = &mut metadata(&config);
    let mut depot = single(&config, memory);
    let access = ZoneAccess::of(&depot, zone).unwrap();
    assert!(access.take_whole(PageblockIndex(0)));
    depot.free_contiguous(pfn(10), 3).unwrap();
    access.put_whole(PageblockIndex(0), true);
    access.end_call();
    assert_eq!((FOUND.load(Ordering::Relaxed), depot.free_pages(zone)), (3, 512));
    assert!(access.is_reported(PageblockIndex(0)));
    depot.validate().unwrap();
}

#[test]
fn bad_blocks_of_a_batch_are_counted_and_the_others_freed() {
    with_machine(true, None, |mut depot| {
        let mut batch: Vec<(Pfn, Order)> = (0..300)
            .map(|i| (depot.alloc(order(i % 3), Flags::default()).unwrap(), order(i % 3)))
            .collect();
        batch.insert(200, (pfn(0), Order::BASE));
        batch.insert(130, (pfn(1024 + 1), order(1)));
        batch.push(batch[10]);
        let error = depot.free_many(&batch).unwrap_err();
        assert_eq!(error, FreeManyError { first: 130, error: FreeError::Misaligned, failed: 3 });
        check_all_free(&mut depot);
    });
}

#[test]
fn flags_that_leave_no_zone() {
    let ranges = [range(0, 1024)];
    let zones = [ZoneConfig { node: NodeId::new(1), ..open_zone("far", &ranges) }];
    let config = Config::new(1, &zones);
    let depot_metadata = &mut metadata(&config);
    let depot = single(&config, depot_metadata);
    let low = Flags::default().at_most_level(1);
    let mut out = [pfn(0); 100];
    // The second time, the front has something.
    for _ in 0..2 {
        for flags in [low, Flags::default().this_node(), low.atomic(), low.no_reclaim().this_node()]
        {
            for size in Order::all() {
                assert_eq!(depot.alloc(size, flags), Err(AllocError::NoZone), "{flags:?}");
                assert_eq!(
                    depot.alloc_many(size, flags, &mut out),
                    Err(AllocError::NoZone),
                    "{flags:?}"
                );
            }
            assert_eq!(depot.alloc_contiguous(10, 1, flags), Err(AllocError::NoZone));
        }
        depot.alloc(Order::BASE, Flags::default()).unwrap();
    }
}

#[test]
fn sizes_that_no_range_can_have() {
    with_machine(false, None, |mut depot| {
        let flags = Flags::default();
        for (frames, align) in [
            (0, 1),
            ((1 << 18) + 1, 1),
            (u32::MAX, 1),
            (1, 0),
            (1, 3),
            (1, 1 << 19),
            (1, u32::MAX),
            (7, 6),
        ] {
            let refused = depot.alloc_contiguous(frames, align, flags).unwrap_err();
            let is_size = frames == 0 || frames > 1 << 18;
            let error = if is_size { AllocError::BadSize } else { AllocError::BadAlignment };
            assert_eq!(refused, error);
        }
        assert_eq!(depot.alloc_contiguous(1 << 18, 1 << 18, flags), Err(AllocError::Exhausted));
        for frames in [0, (1 << 18) + 1, u32::MAX] {
            assert_eq!(depot.alloc_at(pfn(1024), frames, flags), Err(AllocError::BadSize));
        }
        for (start, frames) in
            [(0, 1), (1023, 2), (2048, 1024), (3071, 2), (u32::MAX, 1), (u32::MAX, 2), (4100, 21)]
        {
            assert_eq!(depot.alloc_at(pfn(start), frames, flags), Err(AllocError::NotAvailable));
        }
        assert_eq!(depot.alloc_many(Order::BASE, flags, &mut []), Ok(0));
        check_all_free(&mut depot);
    });
}

#[test]
fn cpus_and_zones_that_do_not_exist_have_nothing() {
    with_machine(false, None, |depot| {
        depot.alloc(Order::BASE, Flags::default()).unwrap();
        for n in [2, 3, 31, 1 << 31, u32::MAX] {
            let cpu = CpuId::new(n);
            for mode in [Mode::Quiet, Mode::Full] {
                assert_eq!(depot.drain(Scope::cpu(cpu), mode), DrainResult::default());
                let zone = ZoneId::new(n.max(3));
                assert_eq!(depot.drain(Scope::zone(zone), mode), DrainResult::default());
                assert_eq!(
                    depot.drain(Scope::cpu(cpu).in_zone(zone), mode),
                    DrainResult::default()
                );
            }
            assert_eq!(depot.cpu_caches().retire(cpu), DrainResult::default());
            assert!(!depot.cpu_caches().restore(cpu) && !depot.cpu_caches().are_enabled(cpu));
            assert!(depot.cpu_stats(cpu, ZoneId::new(0)).is_none());
            assert!(depot.zone_stats(ZoneId::new(n.max(3))).is_none());
            assert_eq!(depot.settings(ZoneId::new(0)).unwrap().high(cpu), None);
            assert!(depot.settings(ZoneId::new(n.max(3))).is_none());
        }
        assert_eq!(depot.zone_stats(ZoneId::new(0)).unwrap().cached_pages, 63);
    });
}
