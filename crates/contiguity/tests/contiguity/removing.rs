//! Memory is taken out again.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::backing::Sets;
use crate::common::threads::{Kernel, run_on};
use crate::common::{Anywhere, Single, metadata, open_zone, order, range, single, soak};
use pagedepot::cpus::PinnedCpus;
use pagedepot::{
    AllocError, Allocator, Backing, Class, Classes, Config, ConfigError, CpuId, Flags, FrameRange,
    FreeError, Mobility, Mode, Order, Pfn, Scope, ZoneId,
};
use pagedepot_contiguity::{Contiguity, Obstacle, Pageblocks, RemoveError};

const ZONE: ZoneId = ZoneId::new(0);
const OTHER: ZoneId = ZoneId::new(1);
const SECTION: u32 = 1 << 18;

/// Zones of 2^13 and 1024 frames side by side, and room behind them.
fn with_depot(change: impl FnOnce(&mut Config<'_>), test: impl FnOnce(Single<'_>)) {
    let ranges = [[range(0, 8192)], [range(8192, 1024)]];
    let zones = [open_zone("a", &ranges[0]), open_zone("b", &ranges[1])];
    let mut config = Config { pfn_limit: Some(Pfn::new(2 * SECTION)), ..Config::new(2, &zones) };
    change(&mut config);
    test(single(&config, &mut metadata(&config)));
}

fn all_of(depot: &Single<'_>) -> Vec<(Pfn, Order)> {
    let mut all = Vec::new();
    while let Ok(pfn) = depot.alloc(Order::BASE, Flags::default().at_most_level(2)) {
        all.push((pfn, Order::BASE));
    }
    all
}

fn is_in(range: FrameRange, pfn: Pfn) -> bool {
    (u64::from(range.start.get())..range.end()).contains(&pfn.get().into())
}

#[test]
fn what_is_removed_is_gone_and_can_come_back() {
    for checked in [false, true] {
        with_depot(
            |config| config.checked = checked,
            |mut depot| {
                let removed = range(1024, 2048);
                for _ in 0..3 {
                    depot.remove_memory(ZONE, removed).unwrap();
                    let census = depot.validate().unwrap();
                    assert_eq!((census.managed_pages, census.held_pages()), (7168, 0));
                    assert_eq!(depot.zone_stats(ZONE).unwrap().managed_pages, 6144);
                    assert_eq!(depot.free(Pfn::new(1500), Order::BASE), Err(FreeError::OutOfRange));
                    let at = depot.alloc_at(Pfn::new(1500), 1, Flags::default());
                    assert_eq!(at, Err(AllocError::NotAvailable));
                    let first = removed.start;
                    let gone = RemoveError::Obstacle(Obstacle::NoMemory { first });
                    assert_eq!(depot.remove_memory(ZONE, removed), Err(gone));
                    let all = all_of(&depot);
                    assert_eq!(all.len(), 7168);
                    assert!(!all.iter().any(|&(pfn, _)| is_in(removed, pfn)));
                    depot.free_many(&all).unwrap();

                    assert_eq!(depot.section_bytes(removed), 0);
                    let elsewhere = depot.add_memory(OTHER, removed, &mut []).unwrap_err().why;
                    assert_eq!(elsewhere, ConfigError::WasRemoved { first, zone: 0 });
                    depot.add_memory(ZONE, removed, &mut []).unwrap();
                    let all = all_of(&depot);
                    assert_eq!(all.len(), 9216);
                    depot.free_many(&all).unwrap();
                    assert_eq!(depot.validate().unwrap().held_pages(), 0);
                }
            },
        );
    }
}

#[test]
fn cached_frames_are_taken_from_the_caches() {
    with_depot(
        |_| {},
        |mut depot| {
            // Frames of each pageblock on two CPUs, in fronts and on shelves.
            for cpu in [0, 1] {
                depot.cpus().0.run_on(cpu);
                let blocks: Vec<_> = (0..1000)
                    .map(|i| order([0, 0, 1, 3][i % 4]))
                    .map_while(|order| Some((depot.alloc(order, Flags::default()).ok()?, order)))
                    .collect();
                blocks.iter().for_each(|&(pfn, order)| depot.free(pfn, order).unwrap());
            }
            let cached = |cpu| depot.cpu_stats(CpuId::new(cpu), ZONE).unwrap().cached_pages();
            assert!(cached(0) > 0 && cached(1) > 0);
            let removed = range(0, 8192);
            depot.remove_memory(ZONE, removed).unwrap();
            assert_eq!((cached(0), cached(1)), (0, 0));
            assert_eq!(depot.validate().unwrap().managed_pages, 1024);
        },
    );
}

#[test]
fn one_fence_per_cpu_at_most_four_times_and_none_for_idle_memory() {
    with_depot(
        |_| {},
        |depot| {
            depot.remove_memory(ZONE, range(4096, 512)).unwrap();
            assert_eq!(depot.cpus().0.fences(), 0, "nothing was cached");
            let pfn = depot.alloc(Order::BASE, Flags::default()).unwrap();
            let around = range(pfn.get() / 512 * 512, 512);
            assert!(depot.remove_memory(ZONE, around).is_err());
            let fences = depot.cpus().0.fences();
            assert!((1..=6).contains(&fences), "{fences} fences of 2 CPUs");
        },
    );
}

#[test]
fn held_frames_are_named_and_nothing_changes() {
    with_depot(
        |_| {},
        |mut depot| {
            let flags = Flags::default();
            depot.alloc_at(Pfn::new(1600), 3, flags).unwrap();
            depot.alloc_at(Pfn::new(2000), 1, flags).unwrap();
            let busy = RemoveError::Busy { first: Pfn::new(1600), pages: 4, skipped_cpus: 0 };
            assert_eq!(depot.remove_memory(ZONE, range(1024, 1024)), Err(busy));
            assert_eq!(depot.validate().unwrap().managed_pages, 9216);
            // Isolated no more: every frame can be had, from its mobility's pageblocks.
            let all = all_of(&depot);
            assert_eq!(all.len(), 9216 - 4);
            depot.free_many(&all).unwrap();
            depot.free_contiguous(Pfn::new(1601), 1).unwrap();
            let busy = RemoveError::Busy { first: Pfn::new(1600), pages: 3, skipped_cpus: 0 };
            assert_eq!(depot.remove_memory(ZONE, range(1024, 1024)), Err(busy));
            // The pageblock before has no held frame.
            depot.remove_memory(ZONE, range(1024, 512)).unwrap();
            for frame in [1600, 1602, 2000] {
                depot.free(Pfn::new(frame), Order::BASE).unwrap();
            }
            depot.remove_memory(ZONE, range(1536, 512)).unwrap();
            assert_eq!(depot.validate().unwrap().managed_pages, 8192);
        },
    );
}

#[test]
fn mobilities_are_as_before_after_a_refusal() {
    with_depot(
        |_| {},
        |depot| {
            let unmovable = depot.alloc(Order::BASE, Flags::UNMOVABLE).unwrap();
            let around = range(unmovable.get() / 512 * 512, 512);
            assert!(depot.remove_memory(ZONE, around).is_err());
            depot.drain(Scope::ALL, Mode::Full);
            // A search for unmovable frames still finds this pageblock first.
            let next = depot.alloc(Order::BASE, Flags::new(Mobility::Unmovable)).unwrap();
            assert!(is_in(around, next), "{next}");
        },
    );
}

#[test]
fn ranges_that_cannot_be_removed() {
    with_depot(
        |_| {},
        |mut depot| {
            let zone = ZoneId::new(2);
            assert_eq!(
                depot.remove_memory(zone, range(0, 512)),
                Err(RemoveError::NoSuchZone { zone: 2 })
            );
            for bad in [
                range(0, 0),
                range(0, 1),
                range(1, 512),
                range(512, 513),
                range(511, 1),
                range(u32::MAX - 511, 512),
                range(512, u32::MAX),
                range(u32::MAX, u32::MAX),
            ] {
                let refused = depot.remove_memory(ZONE, bad);
                assert_eq!(refused, Err(RemoveError::NotRemovable { range: bad }), "{bad:?}");
            }
            for (bad, obstacle) in [
                (range(9216, 512), Obstacle::NoMemory { first: Pfn::new(9216) }),
                (range(2 * SECTION, 512), Obstacle::NoMemory { first: Pfn::new(2 * SECTION) }),
                (range(1 << 30, 1 << 31), Obstacle::NoMemory { first: Pfn::new(1 << 30) }),
                (range(7680, 1024), Obstacle::OtherZone { first: Pfn::new(8192), zone: OTHER }),
                (range(8192, 512), Obstacle::OtherZone { first: Pfn::new(8192), zone: OTHER }),
            ] {
                let refused = depot.remove_memory(ZONE, bad);
                assert_eq!(refused, Err(RemoveError::Obstacle(obstacle)), "{bad:?}");
            }
            let past_the_end = Obstacle::NoMemory { first: Pfn::new(9216) };
            assert_eq!(
                depot.remove_memory(OTHER, range(8704, 1024)),
                Err(RemoveError::Obstacle(past_the_end))
            );
            let census = depot.validate().unwrap();
            assert_eq!((census.managed_pages, census.free_pages), (9216, 9216));
            assert_eq!(all_of(&depot).len(), 9216);
        },
    );
}

/// A range that ends inside of a pageblock: the frames behind it count as held.
#[test]
fn a_pageblock_with_a_hole_stays() {
    with_depot(
        |_| {},
        |mut depot| {
            depot.add_memory(ZONE, range(10000, 1000), &mut []).unwrap();
            let busy = RemoveError::Busy { first: Pfn::new(9728), pages: 272, skipped_cpus: 0 };
            assert_eq!(depot.remove_memory(ZONE, range(9728, 1024)), Err(busy));
            depot.remove_memory(ZONE, range(10240, 512)).unwrap();
            assert_eq!(depot.validate().unwrap().managed_pages, 9216 + 488);
        },
    );
}

#[test]
fn removed_across_sections_and_zones_of_their_own() {
    with_depot(
        |_| {},
        |mut depot| {
            let added = range(SECTION - 1024, 2048);
            let mut more = vec![MaybeUninit::uninit(); depot.section_bytes(added)];
            // The section below has metadata already.
            assert_eq!(more.len(), 34_048 + 255);
            let more: &mut [MaybeUninit<u8>] = Box::leak(std::mem::take(&mut more).into());
            depot.add_memory_held(OTHER, added, more).unwrap();
            let busy = RemoveError::Busy { first: added.start, pages: 2048, skipped_cpus: 0 };
            assert_eq!(depot.remove_memory(OTHER, added), Err(busy));
            // Piece by piece, as blocks and as ranges.
            depot.free(added.start, order(10)).unwrap();
            depot.free_contiguous(Pfn::new(SECTION), 700).unwrap();
            depot.free_contiguous(Pfn::new(SECTION + 701), 323).unwrap();
            let held = Pfn::new(SECTION + 700);
            let busy = RemoveError::Busy { first: held, pages: 1, skipped_cpus: 0 };
            assert_eq!(depot.remove_memory(OTHER, added), Err(busy));
            assert_eq!(depot.validate().unwrap().held_pages(), 1);
            depot.free(held, Order::BASE).unwrap();
            depot.remove_memory(OTHER, added).unwrap();
            assert_eq!(depot.validate().unwrap().managed_pages, 9216);
        },
    );
}

#[test]
fn isolated_and_silent_cpus_are_counted() {
    with_depot(
        |_| {},
        |depot| {
            let pfn = depot.alloc(Order::BASE, Flags::default()).unwrap();
            depot.free(pfn, Order::BASE).unwrap();
            let around = range(pfn.get() / 512 * 512, 512);
            depot.cpus().0.spare(0b1);
            let Err(RemoveError::Busy { pages, skipped_cpus: 1, .. }) =
                depot.remove_memory(ZONE, around)
            else {
                panic!("CPU 0 is isolated, and caches frames");
            };
            assert!(pages > 0);
            let Some(Obstacle::InUse { cached_by, .. }) = depot.obstacle(around) else {
                panic!("the frames are cached");
            };
            assert_eq!(cached_by, Some(CpuId::new(0)));
            depot.cpus().0.spare(0);
            depot.cpus().0.refuse_fences(true);
            let refused = depot.remove_memory(ZONE, around);
            assert!(matches!(refused, Err(RemoveError::Busy { skipped_cpus: 1.., .. })));
            depot.cpus().0.refuse_fences(false);
            depot.remove_memory(ZONE, around).unwrap();
        },
    );
}

#[test]
fn over_a_backing() {
    for has_ranges in [false, true] {
        let ranges = [range(0, 4096)];
        let zones = [open_zone("a", &ranges)];
        let config = Config::new(1, &zones);
        let sets = Sets::new(&zones, has_ranges);
        let builder = Single::builder(&config).backing(Some(&sets));
        let mut memory = vec![MaybeUninit::uninit(); builder.metadata_bytes().unwrap()];
        let mut depot = builder.build(&mut memory, PinnedCpus(Anywhere::new())).unwrap();
        let pfn = depot.alloc(Order::BASE, Flags::default()).unwrap();
        depot.free(pfn, Order::BASE).unwrap();
        let removed = range(0, 1024);
        if !has_ranges {
            assert_eq!(depot.remove_memory(ZONE, removed), Err(RemoveError::Unsupported));
            continue;
        }
        depot.remove_memory(ZONE, removed).unwrap();
        assert_eq!(sets.free_pages(ZONE), 3072);
        assert_eq!(depot.validate().unwrap().managed_pages, 3072);
        depot.add_memory(ZONE, removed, &mut []).unwrap();
        sets.add(ZONE, removed);
        assert_eq!(depot.validate().unwrap().free_pages, 4096);
    }
}

#[test]
fn what_is_in_the_way_of_a_reservation() {
    with_depot(
        |_| {},
        |depot| {
            let flags = Flags::default();
            // Memory that has just been added.
            let added = range(16384, 4096);
            depot.add_memory(ZONE, added, &mut []).unwrap();
            depot.alloc_at(Pfn::new(17000), 100, flags).unwrap();
            assert_eq!(depot.obstacle(range(16384, 616)), None);
            let held = Obstacle::InUse { first: Pfn::new(17000), pages: 60, cached_by: None };
            assert_eq!(depot.obstacle(range(16384, 676)), Some(held));
            assert_eq!(depot.alloc_at(Pfn::new(16384), 676, flags), Err(AllocError::NotAvailable));
            for (range, obstacle) in [
                (range(9216, 1), Obstacle::NoMemory { first: Pfn::new(9216) }),
                (range(9000, 1000), Obstacle::NoMemory { first: Pfn::new(9216) }),
                (range(0, 0), Obstacle::NoMemory { first: Pfn::new(0) }),
                (range(u32::MAX, 2), Obstacle::NoMemory { first: Pfn::new(u32::MAX) }),
                (range(8191, 2), Obstacle::OtherZone { first: Pfn::new(8192), zone: OTHER }),
            ] {
                assert_eq!(depot.obstacle(range), Some(obstacle), "{range:?}");
            }
        },
    );
}

/// A range that begins with memory, and ends beyond the last number of a frame.
#[test]
fn frames_without_a_number_are_no_memory() {
    // The last pageblock, but for the last frame.
    let last = range(u32::MAX - 511, 511);
    let ranges = [last];
    let zones = [open_zone("a", &ranges)];
    let config = Config::new(1, &zones);
    let memory = &mut metadata(&config);
    let depot = single(&config, memory);
    assert_eq!(depot.obstacle(last), None);
    let beyond = FrameRange::new(last.start, 1024);
    assert_eq!(depot.obstacle(beyond), Some(Obstacle::NoMemory { first: last.start }));
}

/// Threads allocate, free and drain while memory is removed and added.
#[test]
fn removed_beside_everything() {
    const CPUS: u32 = 3;
    const PAGEBLOCKS: u32 = 16;
    let ranges = [range(0, PAGEBLOCKS * 512)];
    let zones = [open_zone("a", &ranges)];
    let config = Config::new(CPUS, &zones);
    let bytes = Allocator::<PinnedCpus<Kernel>>::metadata_bytes(&config).unwrap();
    let mut memory = vec![MaybeUninit::uninit(); bytes];
    let mut depot = Allocator::new(&config, &mut memory, PinnedCpus(Kernel::new(CPUS))).unwrap();
    // By frame: whether a thread holds it, and whether it is out of the allocator.
    let held: Vec<AtomicBool> = (0..PAGEBLOCKS * 512).map(|_| AtomicBool::new(false)).collect();
    let own = |start: Pfn, frames: u32, before: bool| {
        for frame in &held[start.index()..][..frames as usize] {
            assert_eq!(frame.swap(!before, Ordering::AcqRel), before, "{start} + {frames}");
        }
    };
    let (removals, refusals) = (AtomicU64::new(0), AtomicU64::new(0));
    let end = Instant::now() + soak(Duration::from_secs(1));
    let depot_ref = &depot;
    std::thread::scope(|scope| {
        for cpu in 0..CPUS {
            let own = &own;
            scope.spawn(move || {
                run_on(Some(cpu));
                let mut rng = crate::common::rng::Rng::new(
                    crate::common::rng::seed("removing") + u64::from(cpu),
                );
                let mut mine: Vec<(Pfn, u32)> = Vec::new();
                while Instant::now() < end {
                    let mobility = Mobility::ALL[rng.below(3) as usize];
                    let flags = Flags::new(mobility).no_reclaim();
                    if mine.len() < 100 && rng.below(2) == 0 {
                        let frames = [1, 1, 2, 5, 8, 64, 512][rng.below(7) as usize];
                        if let Ok(start) = depot_ref.alloc_contiguous(frames, 1, flags) {
                            own(start, frames, false);
                            mine.push((start, frames));
                        }
                    } else if !mine.is_empty() {
                        let at = rng.below(mine.len() as u64) as usize;
                        let (start, frames) = mine.swap_remove(at);
                        own(start, frames, true);
                        depot_ref.free_contiguous(start, frames).unwrap();
                    }
                    if rng.below(200) == 0 {
                        depot_ref.drain(Scope::ALL, Mode::Full);
                    }
                }
                for (start, frames) in mine {
                    own(start, frames, true);
                    depot_ref.free_contiguous(start, frames).unwrap();
                }
            });
        }
        let (removals, refusals) = (&removals, &refusals);
        for remover in 0..2 {
            let own = &own;
            scope.spawn(move || {
                run_on(None);
                let mut rng =
                    crate::common::rng::Rng::new(crate::common::rng::seed("removers") + remover);
                while Instant::now() < end {
                    let first = rng.below(u64::from(PAGEBLOCKS)) as u32;
                    let count = 1 + rng.below(u64::from((PAGEBLOCKS - first).min(3))) as u32;
                    let removed = range(first * 512, count * 512);
                    match depot_ref.remove_memory(ZONE, removed) {
                        Ok(()) => {
                            removals.fetch_add(1, Ordering::Relaxed);
                            own(removed.start, removed.frames, false);
                            own(removed.start, removed.frames, true);
                            if rng.below(2) == 0 {
                                depot_ref.add_memory(ZONE, removed, &mut []).unwrap();
                            } else {
                                depot_ref.add_memory_held(ZONE, removed, &mut []).unwrap();
                                own(removed.start, removed.frames, false);
                                own(removed.start, removed.frames, true);
                                depot_ref.free_contiguous(removed.start, removed.frames).unwrap();
                            }
                        }
                        Err(RemoveError::Busy { first, pages, .. }) => {
                            refusals.fetch_add(1, Ordering::Relaxed);
                            assert!(is_in(removed, first) && pages <= removed.frames.into());
                            assert!(pages > 0 || first == removed.start);
                        }
                        Err(RemoveError::Obstacle(
                            Obstacle::Isolated { first } | Obstacle::NoMemory { first },
                        )) => assert!(is_in(removed, first)),
                        Err(error) => panic!("{error:?}"),
                    }
                }
            });
        }
    });
    let census = depot.validate().unwrap();
    assert_eq!((census.managed_pages, census.held_pages()), (u64::from(PAGEBLOCKS) * 512, 0));
    // With the threads gone all of it can be removed.
    depot.remove_memory(ZONE, ranges[0]).unwrap();
    assert_eq!(depot.validate().unwrap().managed_pages, 0);
    println!("{removals:?} removals, {refusals:?} refusals");
    assert!(removals.into_inner() > 0);
}

/// Looks at the pageblock of a frame: its zone, mobility, and whether its class is kept apart.
fn serves(depot: &Single<'_>, frame: u32) -> (ZoneId, Option<Mobility>, bool) {
    let (zone, pageblock) = Pageblocks::at(depot, Pfn::new(frame)).unwrap();
    assert_eq!(pageblock.first.get(), frame / 512 * 512);
    (zone, pageblock.mobility, pageblock.is_apart)
}

/// A range serves other requests after one call, with all its frames, cached ones included; the
/// requests go there.
#[test]
fn a_range_is_reassigned_in_one_step() {
    let cache = Flags::MOVABLE.class(Class::PAGE_CACHE);
    for checked in [false, true] {
        with_depot(
            |config| {
                config.checked = checked;
                config.classes = Classes::ALIKE.apart(Mobility::Movable, Class::PAGE_CACHE);
            },
            |mut depot| {
                let all = all_of(&depot);
                depot.free_many(&all).unwrap();
                let range = range(1024, 2048);
                for (flags, mobility, is_apart) in [
                    (Flags::UNMOVABLE, Mobility::Unmovable, false),
                    (cache, Mobility::Movable, true),
                    (Flags::MOVABLE, Mobility::Movable, false),
                    (Flags::RECLAIMABLE.class(Class::PAGE_CACHE), Mobility::Reclaimable, false),
                ] {
                    depot.reassign(ZONE, range, flags).unwrap();
                    for frame in [1024, 1500, 3071] {
                        assert_eq!(serves(&depot, frame), (ZONE, Some(mobility), is_apart));
                    }
                    for frame in [1023, 3072] {
                        assert_eq!(serves(&depot, frame), (ZONE, Some(Mobility::Movable), false));
                    }
                    let census = depot.validate().unwrap();
                    assert_eq!((census.managed_pages, census.held_pages()), (9216, 0));
                }
                // One frame held in each: those of others are where requests go.
                depot.reassign(ZONE, range, cache).unwrap();
                for pageblock in 0..16 {
                    let flags = if (2..6).contains(&pageblock) { cache } else { Flags::MOVABLE };
                    depot.alloc_at(Pfn::new(pageblock * 512), 1, flags).unwrap();
                }
                let pfn = depot.alloc(Order::BASE, cache).unwrap();
                assert!(is_in(range, pfn), "{pfn}");
                depot.free(pfn, Order::BASE).unwrap();
                let other = depot.alloc(Order::BASE, Flags::MOVABLE).unwrap();
                assert!(!is_in(range, other), "{other}");
                assert_eq!(depot.validate().unwrap().held_pages(), 17);
            },
        );
    }
    assert!(Pageblocks::at(&single_of_nothing(), Pfn::new(0)).is_none());
}

/// An allocator of one frame far from the first.
fn single_of_nothing() -> Single<'static> {
    let ranges = [range(512, 1)];
    let zones = [open_zone("a", &ranges)];
    let config = Config::new(1, &zones);
    single(&config, Box::leak(metadata(&config).into_boxed_slice()))
}

/// Memory that cannot be removed cannot be reassigned, and stays as it was.
#[test]
fn what_is_held_is_not_reassigned() {
    with_depot(
        |_| (),
        |mut depot| {
            depot.alloc_at(Pfn::new(1100), 1, Flags::default()).unwrap();
            let busy = depot.reassign(ZONE, range(1024, 512), Flags::UNMOVABLE);
            let first = Pfn::new(1100);
            assert_eq!(busy, Err(RemoveError::Busy { first, pages: 1, skipped_cpus: 0 }));
            assert_eq!(serves(&depot, 1024), (ZONE, Some(Mobility::Movable), false));
            let part = range(1024, 100);
            let refused = depot.reassign(ZONE, part, Flags::UNMOVABLE);
            assert_eq!(refused, Err(RemoveError::NotRemovable { range: part }));
            let zone = depot.reassign(ZoneId::new(7), range(0, 512), Flags::UNMOVABLE);
            assert_eq!(zone, Err(RemoveError::NoSuchZone { zone: 7 }));
            let of_other = depot.reassign(OTHER, range(0, 512), Flags::UNMOVABLE);
            let first = Pfn::new(0);
            let obstacle = Obstacle::OtherZone { first, zone: ZONE };
            assert_eq!(of_other, Err(RemoveError::Obstacle(obstacle)));
            depot.free_contiguous(Pfn::new(1100), 1).unwrap();
            depot.reassign(ZONE, range(1024, 512), Flags::UNMOVABLE).unwrap();
            assert_eq!(serves(&depot, 1024), (ZONE, Some(Mobility::Unmovable), false));
            assert_eq!(depot.validate().unwrap().held_pages(), 0);
        },
    );
}
