//! Contiguous ranges and frames at given addresses fail only when they must.

use std::mem::MaybeUninit;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::common::threads::{Claimed, run_on};
use crate::common::{Single, metadata, open_zone, order, range, single, soak};
use pagedepot::cpus::{CpuLock, LockedCpus};
use pagedepot::seam::ZoneAccess;
use pagedepot::{
    AllocError, Allocator, Config, Flags, FreeError, Mode, Order, Pfn, Pressure, Reclaim, Scope,
    Watermarks, ZoneConfig, ZoneId,
};
use pagedepot_contiguity::Contiguity;

const HUGES: u32 = 8;
const HUGE: u32 = 512;
const FRAMES: u32 = HUGES * HUGE;
const ZONE: ZoneId = ZoneId::new(0);

/// A cache of blocks that gives some up when it is asked, the newest first.
#[derive(Default)]
struct Cache {
    depot: AtomicPtr<Single<'static>>,
    blocks: Mutex<Vec<(Pfn, Order)>>,
    calls: AtomicU32,
    /// Pages it gives per call; 0: as many as wanted.
    pages_max: u64,
}

impl Cache {
    /// Makes a cache that lives as long as the metadata, as callbacks must.
    fn new(pages_max: u64) -> &'static Cache {
        Box::leak(Box::new(Cache { pages_max, ..Cache::default() }))
    }

    /// Gives the cache the allocator, which must not move, and blocks of it.
    fn hold(&self, depot: &Single<'_>, blocks: impl IntoIterator<Item = (Pfn, Order)>) {
        self.depot.store((&raw const *depot).cast_mut().cast(), Ordering::Relaxed);
        self.blocks.lock().unwrap().extend(blocks);
    }

    fn calls(&self) -> u32 {
        self.calls.swap(0, Ordering::Relaxed)
    }
}

impl Reclaim for Cache {
    fn reclaim(&self, pressure: Pressure) -> u64 {
        self.calls.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the allocator that `hold` was given calls the callbacks, while it lives.
        let depot = unsafe { self.depot.load(Ordering::Relaxed).as_ref() };
        let (Some(depot), mut blocks) = (depot, self.blocks.lock().unwrap()) else { return 0 };
        let wanted = if self.pages_max > 0 { self.pages_max } else { pressure.wanted_pages };
        let mut freed = 0;
        while freed < wanted
            && let Some((pfn, order)) = blocks.pop()
        {
            depot.free(pfn, order).unwrap();
            freed += u64::from(order.frames());
        }
        freed
    }
}

/// A machine with one zone of eight pageblocks, and two CPUs.
fn machine(marks: Watermarks, callbacks: &[&'static dyn Reclaim]) -> Box<Single<'static>> {
    let ranges = [range(0, FRAMES)];
    let zones = [ZoneConfig { watermarks: Some(marks), ..open_zone("z", &ranges) }];
    let config = Config::new(2, &zones);
    let depot = Box::new(single(&config, Box::leak(metadata(&config).into_boxed_slice())));
    callbacks.iter().for_each(|&callback| depot.register_reclaim(callback).unwrap());
    depot
}

/// All of the memory, by pageblocks.
fn all_pageblocks(depot: &Single<'_>) -> Vec<(Pfn, Order)> {
    let pageblocks = (0..HUGES).map(|i| Pfn::new(i * HUGE));
    pageblocks
        .map(|start| {
            depot.alloc_at(start, HUGE, Flags::default()).unwrap();
            (start, Order::PAGEBLOCK)
        })
        .collect()
}

fn failures(depot: &Single<'_>) -> u64 {
    depot.zone_stats(ZONE).unwrap().counts.failures
}

#[test]
fn what_a_cache_gives_up_serves_ranges_too() {
    for (frames, align) in [(1, 1), (3, 1), (257, 1), (512, 512), (1000, 1), (4096, 1)] {
        for here in [0, 1] {
            let cache = Cache::new(0);
            let mut depot = machine(Watermarks::default(), &[cache]);
            cache.hold(&depot, all_pageblocks(&depot));
            depot.cpus().0.run_on(here);
            cache.calls();
            let start = depot.alloc_contiguous(frames, align, Flags::default()).unwrap();
            assert_eq!((cache.calls(), failures(&depot)), (1, 0), "{frames} frames");
            depot.free_contiguous(start, frames).unwrap();
            depot.drain(Scope::ALL, Mode::Full);
            depot.validate().unwrap();
        }
    }
}

#[test]
fn and_frames_at_an_address() {
    let cache = Cache::new(0);
    let depot = machine(Watermarks::default(), &[cache]);
    cache.hold(&depot, all_pageblocks(&depot));
    let last = Pfn::new(FRAMES - 5);
    for refused in [Flags::default().no_reclaim(), Flags::default().atomic()] {
        assert_eq!(depot.alloc_at(last, 5, refused), Err(AllocError::NotAvailable));
        assert_eq!(depot.alloc_contiguous(5, 1, refused), Err(AllocError::Exhausted));
    }
    assert_eq!((cache.calls(), failures(&depot), depot.cpus().0.fences()), (0, 4, 0));
    depot.alloc_at(last, 5, Flags::default()).unwrap();
    assert_eq!((cache.calls(), failures(&depot)), (1, 4));
}

/// No callback is called for frames that another caller removes or empties: they are that caller's.
#[test]
fn no_cache_is_asked_for_frames_that_are_isolated() {
    let cache = Cache::new(0);
    let depot = machine(Watermarks::default(), &[cache]);
    let access = ZoneAccess::of(&depot, ZONE).unwrap();
    let moving = access.announce(HUGE.into());
    let isolation = access.isolate(range(HUGE, HUGE)).ok().unwrap();
    let alloc = || depot.alloc_at(Pfn::new(HUGE), 1, Flags::default());
    assert_eq!((alloc(), cache.calls()), (Err(AllocError::NotAvailable), 0));
    drop(isolation);
    drop(moving);
    assert_eq!((alloc(), cache.calls()), (Ok(()), 0));
    depot.free(Pfn::new(HUGE), Order::BASE).unwrap();
}

/// Other callbacks may have nothing of a range that one has given up and removed.
#[test]
fn no_cache_is_asked_again_for_frames_that_are_removed() {
    struct Remover {
        depot: AtomicPtr<Single<'static>>,
        calls: AtomicU32,
    }
    impl Reclaim for Remover {
        fn reclaim(&self, _: Pressure) -> u64 {
            // SAFETY: as in `Cache`.
            let depot = unsafe { &*self.depot.load(Ordering::Relaxed) };
            if self.calls.fetch_add(1, Ordering::Relaxed) == 0 {
                depot.free(Pfn::new(HUGE), Order::BASE).unwrap();
                depot.remove_memory(ZONE, range(HUGE, HUGE)).unwrap();
            }
            0
        }
    }
    let remover =
        Box::leak(Box::new(Remover { depot: AtomicPtr::default(), calls: AtomicU32::new(0) }));
    let remover: &'static Remover = remover;
    let mut depot = machine(Watermarks::default(), &[remover]);
    remover.depot.store((&raw mut *depot).cast(), Ordering::Relaxed);
    depot.alloc_at(Pfn::new(HUGE), 1, Flags::default()).unwrap();
    let again = depot.alloc_at(Pfn::new(HUGE), 1, Flags::default());
    assert_eq!((again, remover.calls.load(Ordering::Relaxed)), (Err(AllocError::NotAvailable), 1));
    assert_eq!(depot.validate().unwrap().managed_pages, u64::from(FRAMES - HUGE));
}

/// No cache is emptied for a request that all of them together could not serve.
#[test]
fn no_cache_is_asked_for_more_than_there_is() {
    let cache = Cache::new(0);
    let depot = machine(Watermarks::default(), &[cache]);
    cache.hold(&depot, all_pageblocks(&depot));
    assert_eq!(depot.alloc_contiguous(FRAMES + 1, 1, Flags::default()), Err(AllocError::Exhausted));
    assert_eq!((cache.calls(), failures(&depot)), (0, 1));
    depot.alloc_contiguous(FRAMES, 1, Flags::default()).unwrap();
}

/// Callbacks learn how many pages are wanted. The first one that gives as many need not have
/// contiguous ones.
#[test]
fn others_are_asked_when_what_came_back_is_of_no_use() {
    let (pageblocks, singles) = (Cache::new(512), Cache::new(512));
    let depot = machine(Watermarks::default(), &[singles, pageblocks]);
    let mut blocks = all_pageblocks(&depot);
    let scattered = blocks.split_off(4);
    pageblocks.hold(&depot, blocks);
    let mut even = Vec::new();
    for (start, order) in scattered {
        depot.split(start, order, Order::BASE).unwrap();
        even.extend((0..HUGE).step_by(2).map(|at| (start.add(at), Order::BASE)));
    }
    singles.hold(&depot, even);
    let start = depot.alloc_contiguous(512, 512, Flags::default()).unwrap();
    assert!(start.get() < 4 * HUGE);
    assert_eq!((singles.calls(), pageblocks.calls()), (2, 1));
}

#[test]
fn failures_are_counted() {
    let depot = machine(Watermarks::default(), &[]);
    let all = all_pageblocks(&depot);
    for (i, flags) in [Flags::default(), Flags::default().no_reclaim(), Flags::default().atomic()]
        .into_iter()
        .enumerate()
    {
        let before = 3 * i as u64;
        assert_eq!(depot.alloc_contiguous(1, 1, flags), Err(AllocError::Exhausted));
        assert_eq!(failures(&depot), before + 1);
        assert_eq!(depot.alloc_contiguous(3000, 4, flags), Err(AllocError::Exhausted));
        assert_eq!(depot.alloc_at(Pfn::new(100), 1, flags), Err(AllocError::NotAvailable));
        assert_eq!(failures(&depot), before + 3);
    }
    // Requests that no amount of memory could serve do not count as a lack of it.
    assert_eq!(
        depot.alloc_at(Pfn::new(FRAMES), 1, Flags::default()),
        Err(AllocError::NotAvailable)
    );
    assert_eq!(depot.alloc_contiguous(0, 1, Flags::default()), Err(AllocError::BadSize));
    assert_eq!(failures(&depot), 9);
    all.into_iter().for_each(|(pfn, order)| depot.free(pfn, order).unwrap());
}

#[test]
fn runs_need_no_alignment_of_their_own() {
    let mut depot = machine(Watermarks::default(), &[]);
    // The first frame of each pageblock is held.
    (0..HUGES).for_each(|i| depot.alloc_at(Pfn::new(i * HUGE), 1, Flags::default()).unwrap());
    assert_eq!(depot.alloc_contiguous(512, 1, Flags::default()), Err(AllocError::Exhausted));
    for (frames, align, expected) in [
        // The smallest block that contains 200 frames begins at a multiple of 256.
        (200, 1, Some(256)),
        (257, 1, Some(513)),
        (257, 2, Some(1026)),
        (300, 256, None),
        (511, 1, Some(1537)),
    ] {
        let found = depot.alloc_contiguous(frames, align, Flags::default());
        assert_eq!(found.ok().map(Pfn::get), expected, "{frames} frames at a multiple of {align}");
    }
    depot.validate().unwrap();
}

#[test]
fn runs_across_pageblocks() {
    let mut depot = machine(Watermarks::default(), &[]);
    // All but the first frame and the last: six whole pageblocks, and 1022 frames around them.
    for at in [0, FRAMES - 1] {
        depot.alloc_at(Pfn::new(at), 1, Flags::default()).unwrap();
    }
    for (frames, align, expected) in [
        (4095, 1, None),
        (4094, 2, None),
        (4094, 1, Some(1)),
        (3584, 1, Some(1)),
        (3584, 256, Some(256)),
    ] {
        let found = depot.alloc_contiguous(frames, align, Flags::default());
        assert_eq!(found.ok().map(Pfn::get), expected, "{frames} frames at a multiple of {align}");
        if let Ok(start) = found {
            depot.free_contiguous(start, frames).unwrap();
        }
        depot.validate().unwrap();
    }
}

#[test]
fn a_run_ends_where_its_zone_does() {
    let ranges = [[range(0, 1024)], [range(1024, 1024)]];
    let zones = [open_zone("a", &ranges[0]), open_zone("b", &ranges[1])];
    let config = Config::new(1, &zones);
    let mut memory = metadata(&config);
    let depot = single(&config, &mut memory);
    for at in [0, 2047] {
        depot.alloc_at(Pfn::new(at), 1, Flags::default()).unwrap();
    }
    assert_eq!(depot.alloc_contiguous(1024, 1, Flags::default()), Err(AllocError::Exhausted));
    let found = [1023, 1023]
        .map(|frames| depot.alloc_contiguous(frames, 1, Flags::default()).unwrap().get());
    assert!(found == [1, 1024] || found == [1024, 1], "{found:?}");
}

/// Caches of zones and CPUs that may not serve the request are left alone.
#[test]
fn only_zones_that_may_serve_are_drained() {
    let ranges = [[range(0, 1024)], [range(1024, 1024)]];
    let zones = [open_zone("low", &ranges[0]), open_zone("high", &ranges[1])]
        .into_iter()
        .zip([0, 1])
        .map(|(zone, level)| ZoneConfig { level, ..zone })
        .collect::<Vec<_>>();
    let config = Config::new(2, &zones);
    let mut memory = metadata(&config);
    let depot = single(&config, &mut memory);
    let cached =
        |zone| depot.cpu_stats(pagedepot::CpuId::new(0), ZoneId::new(zone)).unwrap().cached_pages();
    for flags in [Flags::default(), Flags::default().at_most_level(0)] {
        let pfn = depot.alloc(Order::BASE, flags).unwrap();
        depot.free(pfn, Order::BASE).unwrap();
    }
    let before = cached(1);
    assert!(before > 0 && cached(0) > 0);
    let low = Flags::default().at_most_level(0);
    depot.alloc_at(Pfn::new(1000), 1, low).unwrap();
    assert_eq!(depot.alloc_contiguous(1024, 1, low), Err(AllocError::Exhausted));
    assert_eq!((cached(0), cached(1)), (0, before));
    depot.alloc_at(Pfn::new(0), 1000, Flags::default()).unwrap();
    assert_eq!(depot.alloc_at(Pfn::new(7), 1, Flags::default()), Err(AllocError::NotAvailable));
    assert_eq!(cached(1), before);
}

/// Watermarks hold for ranges as they do for blocks, but not for frames at an address, which have
/// no substitute.
#[test]
fn watermarks() {
    let marks = Watermarks { min: 500, low: 1000, high: 2000 };
    let witness = Cache::new(0);
    let depot = machine(marks, &[witness]);
    let first = depot.alloc_contiguous(FRAMES - 1000, 1, Flags::default()).unwrap();
    assert_eq!(witness.calls(), 0);
    // Below `low` the callbacks are called once.
    depot.alloc_contiguous(100, 1, Flags::default()).unwrap();
    depot.alloc_contiguous(400, 1, Flags::default()).unwrap();
    assert_eq!((witness.calls(), failures(&depot)), (1, 0));
    assert_eq!(depot.alloc_contiguous(1, 1, Flags::default()), Err(AllocError::Exhausted));
    assert_eq!((witness.calls(), failures(&depot)), (1, 1));
    depot.alloc_contiguous(64, 1, Flags::default().atomic()).unwrap();
    let left = (0..FRAMES).rev().find(|&frame| depot.is_free(Pfn::new(frame))).unwrap();
    depot.alloc_at(Pfn::new(left), 1, Flags::default()).unwrap();
    depot.free_contiguous(first, FRAMES - 1000).unwrap();
    assert!(depot.alloc(order(3), Flags::default()).is_ok());
}

/// Eight frames in use leave a run of 453 among 4096, wherever they are. A request can have it,
/// although other threads allocate, free, cache and drain meanwhile. Requests fail after a few
/// rounds in which other threads kept moving pages, so a few requests do.
#[test]
fn a_run_that_must_be_there_is_found() {
    const THREADS: usize = 2;
    const HELD: usize = 4;
    const RUN: u32 = (FRAMES - (THREADS * HELD) as u32) / (THREADS * HELD + 1) as u32;
    let ranges = [range(0, FRAMES)];
    let zones = [open_zone("z", &ranges)];
    let config = Config::new(THREADS as u32 + 1, &zones);
    let locks: Vec<CpuLock> = (0..config.cpus).map(|_| CpuLock::new()).collect();
    let mut memory = vec![
        MaybeUninit::uninit();
        Allocator::<LockedCpus<'_, Claimed>>::metadata_bytes(&config).unwrap()
    ];
    let mut depot =
        Allocator::new(&config, &mut memory, LockedCpus::new(&locks, Claimed::new())).unwrap();
    let (served, failed) = {
        let (stop, depot) = (AtomicBool::new(false), &depot);
        std::thread::scope(|scope| {
            for cpu in 0..THREADS {
                let stop = &stop;
                scope.spawn(move || {
                    run_on(Some(cpu as u32));
                    let mut held = std::collections::VecDeque::new();
                    let mut at = cpu as u32;
                    while !stop.load(Ordering::Relaxed) {
                        // Single frames at scattered addresses, and frames from caches.
                        at = at.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                        let scattered = Pfn::new(at >> 20);
                        let pfn = match depot.alloc_at(scattered, 1, Flags::default().no_reclaim())
                        {
                            Ok(()) => scattered,
                            Err(_) => {
                                depot.alloc(Order::BASE, Flags::default()).expect("4096 frames")
                            }
                        };
                        held.push_back(pfn);
                        if held.len() == HELD {
                            depot
                                .free(held.pop_front().expect("four are held"), Order::BASE)
                                .unwrap();
                        }
                    }
                    held.into_iter().for_each(|pfn| depot.free(pfn, Order::BASE).unwrap());
                });
            }
            run_on(Some(THREADS as u32));
            let end = Instant::now() + soak(Duration::from_millis(500));
            let (mut served, mut failed) = (0u64, 0u64);
            while Instant::now() < end {
                match depot.alloc_contiguous(RUN, 1, Flags::default()) {
                    Ok(start) => {
                        served += 1;
                        depot.free_contiguous(start, RUN).unwrap();
                    }
                    Err(_) => failed += 1,
                }
            }
            stop.store(true, Ordering::Relaxed);
            (served, failed)
        })
    };
    println!("{served} served, {failed} failed");
    assert!(served > 0 && failed * 1000 <= served, "{served} served, {failed} failed");
    run_on(Some(0));
    depot.drain(Scope::ALL, Mode::Full);
    assert_eq!(depot.validate().unwrap().free_pages, u64::from(FRAMES));
}

/// Counts and alignments that are no block's: exactly so many frames are taken, and any part of
/// them goes back.
#[test]
fn sizes_that_are_no_power_of_two() {
    for checked in [false, true] {
        let ranges = [range(0, 8192)];
        let zones = [open_zone("a", &ranges)];
        let config = Config { checked, ..Config::new(1, &zones) };
        let memory = &mut metadata(&config);
        let mut depot = single(&config, memory);
        let flags = Flags::default();
        for frames in (1..=70).chain([127, 129, 500, 511, 512, 513, 700, 1000, 1023, 1025, 3000]) {
            for align in [1, 2, 8, 64, 512, 1024] {
                let start = depot.alloc_contiguous(frames, align, flags).unwrap();
                assert!(start.get().is_multiple_of(align), "{frames} frames at {start}");
                let census = depot.validate().unwrap();
                assert_eq!(census.held_pages(), u64::from(frames), "aligned to {align}");
                // The middle third, the last, the first.
                let third = frames / 3;
                let parts = [(third, third), (2 * third, frames - 2 * third), (0, third)];
                for (at, part) in parts.into_iter().filter(|&(_, part)| part > 0) {
                    depot.free_contiguous(start.add(at), part).unwrap();
                    if checked {
                        let again = depot.free_contiguous(start.add(at), part);
                        assert_eq!(again, Err(FreeError::NotAllocated));
                    }
                }
                assert_eq!(depot.validate().unwrap().held_pages(), 0);
            }
        }
        for align in [0, 3, 6, 12, 513, u32::MAX] {
            let refused = depot.alloc_contiguous(5, align, flags);
            assert_eq!(refused, Err(AllocError::BadAlignment), "{align}");
        }
    }
}

/// A range that is a block costs no search: it comes from the caches, and goes there. So much
/// memory that a CPU may cache seven blocks of the highest order.
#[test]
fn ranges_that_are_blocks_use_the_caches() {
    let ranges = [range(0, 1 << 18)];
    let zones = [open_zone("a", &ranges)];
    let config = Config::new(1, &zones);
    let memory = &mut metadata(&config);
    let depot = single(&config, memory);
    let flags = Flags::default();
    for frames in [1, 2, 4, 8, 128, 512, 1024] {
        let start = depot.alloc_contiguous(frames, 1, flags).unwrap();
        depot.free_contiguous(start, frames).unwrap();
        let counts = depot.zone_stats(ZoneId::new(0)).unwrap().counts;
        for _ in 0..1000 {
            let start = depot.alloc_contiguous(frames, frames, flags).unwrap();
            depot.free_contiguous(start, frames).unwrap();
        }
        let after = depot.zone_stats(ZoneId::new(0)).unwrap().counts;
        assert_eq!(after.hits - counts.hits, 2000, "{frames} frames");
        assert_eq!(after.direct_alloc_pages, counts.direct_alloc_pages, "{frames} frames");
    }
}
