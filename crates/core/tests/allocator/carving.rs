//! Magazines beyond those in the metadata are carved from the zones' own frames, where these are
//! mapped.

#[path = "../model/arena.rs"]
mod arena;

use std::collections::HashSet;

use crate::common::backing::Sets;
use crate::common::rng::Rng;
use crate::common::{Anywhere, Single, open_zone, range};
use arena::Arena;
use pagedepot::cpus::PinnedCpus;
use pagedepot::{
    CacheLimits, Config, CpuId, Evacuation, Flags, FreeError, Mobility, Mode, Order, Pfn, Scope,
    Watermarks, ZoneId,
};
use pagedepot_contiguity::{Contiguity, Obstacle, Pageblocks, RemoveError};

const FRAMES: u32 = 8192;
const ZONE: ZoneId = ZoneId::new(0);

/// A machine of 4 CPUs whose metadata lies `skew` bytes off any alignment, and has few magazines.
fn with_machine(skew: usize, checked: bool, test: impl FnOnce(Single<'_>, &Arena)) {
    with_machine_of(FRAMES, skew, checked, test);
}

fn with_machine_of(frames: u32, skew: usize, checked: bool, test: impl FnOnce(Single<'_>, &Arena)) {
    let ranges = [range(0, frames)];
    let zones = [open_zone("z", &ranges)];
    let config = Config { checked, ..Config::new(4, &zones) };
    let bytes = Single::metadata_bytes(&config).unwrap();
    let arena = Arena::new(bytes, skew, frames as usize);
    let config = Config { linear_map: Some(arena.linear_map()), ..config };
    let depot = Single::new(&config, arena.metadata(), PinnedCpus(Anywhere::new())).unwrap();
    // The CPU may cache any number of full magazines.
    depot.settings(ZONE).unwrap().set_cache_limits(CacheLimits {
        batch: 63,
        high_min: 1 << 16,
        high_max: 1 << 16,
    });
    test(depot, &arena);
}

fn carved(depot: &Single<'_>) -> u64 {
    depot.zone_stats(ZONE).unwrap().carved_pages
}

/// Frees everything into fronts and shelves, on every CPU in turn, so that all magazines are used;
/// then allocates everything again.
fn cache_all(depot: &Single<'_>, arena: &Arena) -> Vec<Pfn> {
    let mut held: Vec<Pfn> = Vec::new();
    for cpu in 0..4 {
        depot.cpus().0.run_on(cpu);
        while let Ok(pfn) = depot.alloc(Order::BASE, Flags::default().atomic()) {
            arena.mark(pfn.get());
            held.push(pfn);
        }
        for pfn in held.drain(..) {
            arena.check_marks(pfn.get());
            depot.free(pfn, Order::BASE).unwrap();
        }
    }
    while let Ok(pfn) = depot.alloc(Order::BASE, Flags::default()) {
        arena.mark(pfn.get());
        held.push(pfn);
    }
    held
}

#[test]
fn carved_magazines_stay_in_their_pages() {
    for skew in [0, 1, 64, 127, 128, 129, 255] {
        for checked in [false, true] {
            with_machine(skew, checked, |mut depot, arena| {
                let held = cache_all(&depot, arena);
                assert!(carved(&depot) > 0, "there was no need to carve");
                assert_eq!(held.len() as u64 + carved(&depot), u64::from(FRAMES));
                assert_eq!(depot.metadata_use().carved as u64, carved(&depot) * 4096);
                held.iter().for_each(|pfn| arena.check_marks(pfn.get()));
                for &pfn in &held {
                    depot.cpus().0.run_on(pfn.get() % 4);
                    depot.free(pfn, Order::BASE).unwrap();
                }
                depot.drain(Scope::ALL, Mode::Full);
                let census = depot.validate().unwrap();
                assert_eq!((census.held_pages(), census.cached_pages), (0, 0));
                assert_eq!(census.free_pages + census.carved_pages, census.managed_pages);
            });
        }
    }
}

/// Handlers have fronts of their own, and carve for them above the code that they interrupt.
#[test]
fn handlers_carve_too() {
    for checked in [false, true] {
        with_machine(0, checked, |mut depot, _| {
            let alloc = || depot.alloc(Order::BASE, Flags::default().atomic()).ok();
            let held: Vec<Pfn> = std::iter::from_fn(alloc).collect();
            let mut by_handlers = 0;
            for pfn in held {
                let is_handler = pfn.get() / 64 % 2 == 1;
                depot.cpus().0.set_interrupt(is_handler);
                let before = carved(&depot);
                depot.free(pfn, Order::BASE).unwrap();
                by_handlers += if is_handler { carved(&depot) - before } else { 0 };
            }
            depot.cpus().0.set_interrupt(false);
            assert!(by_handlers > 0, "no handler needed to carve");
            depot.drain(Scope::ALL, Mode::Full);
            let census = depot.validate().unwrap();
            assert_eq!((census.held_pages(), census.cached_pages), (0, 0));
            assert_eq!(census.free_pages + census.carved_pages, census.managed_pages);
        });
    }
}

/// Whole pageblocks beyond the 512 MiB that indices reach are no reason to carve nothing, nor to
/// search for a frame in vain each time that a CPU caches more.
#[test]
fn frames_within_reach_are_carved_while_whole_pageblocks_lie_beyond() {
    with_machine_of(160 << 10, 0, false, |mut depot, _| {
        let alloc = |_| depot.alloc(Order::BASE, Flags::default()).unwrap();
        let held: Vec<_> = (0..140 << 10).map(alloc).collect();
        assert_eq!(held[held.len() - 1], Pfn::new((140 << 10) - 1), "taken in order of address");
        for &pfn in held.iter().step_by(2) {
            depot.free(pfn, Order::BASE).unwrap();
        }
        let pages_carved = carved(&depot);
        assert!(pages_carved > 50, "{pages_carved}");
        for &pfn in held.iter().skip(1).step_by(2) {
            depot.free(pfn, Order::BASE).unwrap();
        }
        assert_eq!(depot.validate().unwrap().held_pages(), 0);
    });
}

/// Fills three quarters of a gibibyte and a half, frees all of it in no order, and drains. A CPU
/// that caches more and more meanwhile carves a frame when little is free in each pageblock; all
/// of them come from one pageblock all the same.
#[test]
fn carved_frames_break_up_one_pageblock() {
    let frames: u32 = 384 << 10;
    let ranges = [range(0, frames)];
    let zones = [open_zone("z", &ranges)];
    // Caches are small while pageblocks evacuate.
    let config = Config { evacuation: Evacuation::Off, ..Config::new(2, &zones) };
    let bytes = Single::metadata_bytes(&config).unwrap();
    let arena = Arena::new(bytes, 0, frames as usize);
    let config = Config { linear_map: Some(arena.linear_map()), ..config };
    let depot = Single::new(&config, arena.metadata(), PinnedCpus(Anywhere::new())).unwrap();
    let alloc = |n| {
        depot.cpus().0.run_on(n % 2);
        depot.alloc(Order::BASE, Flags::default()).unwrap()
    };
    let mut held: Vec<_> = (0..frames / 4 * 3).map(alloc).collect();
    let mut rng = Rng::new(1);
    for last in (1..held.len()).rev() {
        held.swap(last, rng.index(last + 1));
    }
    for (n, &pfn) in held.iter().enumerate() {
        depot.cpus().0.run_on(n as u32 % 2);
        depot.free(pfn, Order::BASE).unwrap();
    }
    depot.drain(Scope::ALL, Mode::Full);
    let broken = Pageblocks::of(&depot, ZONE).unwrap().filter(|pageblock| !pageblock.is_whole());
    let (frames, broken) = (carved(&depot), broken.count());
    assert!(frames > 8, "there was little need to carve: {frames} frames");
    assert_eq!(broken, 1, "{frames} frames are carved");
}

/// The pages that are not held when everything is held.
fn carved_pages(held: &[Pfn]) -> Vec<Pfn> {
    let held: HashSet<_> = held.iter().collect();
    (0..FRAMES).map(Pfn::new).filter(|pfn| !held.contains(pfn)).collect()
}

/// Checks that no method frees the pages, alone or in a larger block.
fn check_refused(depot: &Single<'_>, pages: &[Pfn]) {
    let refused = Err(FreeError::NotAllocated);
    for &pfn in pages {
        for order in Order::all() {
            let block = Pfn::new(pfn.get() & !(order.frames() - 1));
            assert_eq!(depot.free(block, order), refused, "{pfn} {order:?}");
            assert_eq!(depot.split(block, order, Order::BASE), refused);
            let many = depot.free_many(&[(block, order)]).unwrap_err();
            assert_eq!((many.failed, many.error), (1, FreeError::NotAllocated));
        }
        assert_eq!(depot.free_contiguous(pfn, 1), refused);
        assert_eq!(depot.free_contiguous(Pfn::new(pfn.get() & !511), 1024), refused);
        assert!(depot.alloc_at(pfn, 1, Flags::default()).is_err());
    }
}

#[test]
fn carved_pages_are_never_handed_out_nor_taken_back() {
    for checked in [false, true] {
        with_machine(128, checked, |mut depot, arena| {
            let held = cache_all(&depot, arena);
            let pages = carved_pages(&held);
            assert!(!pages.is_empty() && pages.len() as u64 == carved(&depot));
            check_refused(&depot, &pages);
            held.into_iter().for_each(|pfn| depot.free(pfn, Order::BASE).unwrap());
            check_refused(&depot, &pages[..2]);
            // Requests for zeroed pages get other pages, each once.
            let mut seen: HashSet<Pfn> = pages.into_iter().collect();
            while let Ok(pfn) = depot.alloc(Order::BASE, Flags::default().zeroed()) {
                assert!(seen.insert(pfn), "{pfn} was handed out twice, or is the allocator's own");
            }
            assert_eq!(seen.len() as u32, FRAMES);
            depot.validate().unwrap();
        });
    }
}

#[test]
fn nothing_is_carved_below_the_low_watermark() {
    with_machine(0, false, |mut depot, arena| {
        let low = u64::from(FRAMES) + 1;
        assert!(depot.settings(ZONE).unwrap().set_watermarks(Watermarks {
            min: 0,
            low,
            high: low
        }));
        let held = cache_all(&depot, arena);
        assert_eq!((held.len() as u32, carved(&depot)), (FRAMES, 0));
        held.into_iter().for_each(|pfn| depot.free(pfn, Order::BASE).unwrap());
        assert_eq!(depot.validate().unwrap().held_pages(), 0);
    });
}

#[test]
fn a_backing_keeps_the_mark_of_carved_pages() {
    let ranges = [range(0, FRAMES)];
    let zones = [open_zone("z", &ranges)];
    let config = Config::new(4, &zones);
    let sets = Sets::new(&zones, true);
    let bytes = Single::builder(&config).backing(Some(&sets)).metadata_bytes().unwrap();
    let arena = Arena::new(bytes, 0, FRAMES as usize);
    let config = Config { linear_map: Some(arena.linear_map()), ..config };
    let builder = Single::builder(&config).backing(Some(&sets));
    let mut depot = builder.build(arena.metadata(), PinnedCpus(Anywhere::new())).unwrap();
    depot.settings(ZONE).unwrap().set_cache_limits(CacheLimits {
        batch: 63,
        high_min: 1 << 16,
        high_max: 1 << 16,
    });
    let held = cache_all(&depot, &arena);
    let pages = carved_pages(&held);
    assert!(!pages.is_empty());
    // Each refill sets the mobility of its pageblocks anew.
    for mobility in Mobility::ALL {
        held.iter().for_each(|&pfn| depot.free(pfn, Order::BASE).unwrap());
        depot.drain(Scope::ALL, Mode::Full);
        while depot.alloc(Order::BASE, Flags::new(mobility)).is_ok() {}
    }
    check_refused(&depot, &pages);
    depot.validate().unwrap();
}

#[test]
fn without_a_mapping_the_cpus_share_what_magazines_there_are() {
    let ranges = [range(0, FRAMES)];
    let zones = [open_zone("z", &ranges)];
    let config = Config::new(4, &zones);
    let mut memory = crate::common::metadata(&config);
    let mut depot = crate::common::single(&config, &mut memory);
    depot.settings(ZONE).unwrap().set_cache_limits(CacheLimits {
        batch: 63,
        high_min: 1 << 16,
        high_max: 1 << 16,
    });
    for round in 0..3 {
        for (at, mobility) in Mobility::ALL.into_iter().enumerate() {
            depot.cpus().0.run_on((round + at as u32) % 4);
            let mut held = Vec::new();
            while let Ok(pfn) = depot.alloc(Order::BASE, Flags::new(mobility)) {
                held.push(pfn);
            }
            assert_eq!(held.len() as u32, FRAMES);
            held.into_iter().for_each(|pfn| depot.free(pfn, Order::BASE).unwrap());
            assert_eq!(depot.validate().unwrap().held_pages(), 0);
        }
    }
    assert_eq!(carved(&depot), 0);
    let used = depot.metadata_use();
    assert_eq!(used.carved, 0);
    assert!(used.total() <= depot.metadata().1);
    assert!(depot.cpu_stats(CpuId::new(0), ZONE).is_some());
}

#[test]
fn zeroed_pages_are_zero() {
    with_machine(0, false, |depot, arena| {
        let held = cache_all(&depot, arena);
        held.into_iter().for_each(|pfn| depot.free(pfn, Order::BASE).unwrap());
        let zeroed = Flags::default().zeroed();
        for order in Order::all() {
            let pfn = depot.alloc(order, zeroed).unwrap();
            (0..order.frames()).for_each(|i| arena.check_zeroes(pfn.get() + i));
            depot.free(pfn, order).unwrap();
        }
        let mut many = [Pfn::new(0); 200];
        assert_eq!(depot.alloc_many(Order::BASE, zeroed, &mut many), Ok(200));
        many.iter().for_each(|pfn| arena.check_zeroes(pfn.get()));
        let start = depot.alloc_contiguous(700, 1, zeroed).unwrap();
        (0..700).for_each(|i| arena.check_zeroes(start.get() + i));
        depot.free_contiguous(start, 700).unwrap();
        depot.alloc_at(start, 700, Flags::default()).unwrap();
        (0..700).for_each(|i| arena.mark(start.get() + i));
        depot.free_contiguous(start, 700).unwrap();
        depot.alloc_at(start, 700, zeroed).unwrap();
        (0..700).for_each(|i| arena.check_zeroes(start.get() + i));
    });
}

/// Magazines cannot move: the memory around them stays. All other pageblocks can be removed.
#[test]
fn memory_with_carved_pages_is_not_removed() {
    with_machine(0, false, |mut depot, arena| {
        let held = cache_all(&depot, arena);
        let carved = carved_pages(&held);
        assert!(!carved.is_empty(), "there was no need to carve");
        held.iter().for_each(|&pfn| depot.free(pfn, Order::BASE).unwrap());
        let mut managed = FRAMES;
        for first in (0..FRAMES).step_by(512) {
            let around = range(first, 512);
            let in_it = |pfn: &&Pfn| (first..first + 512).contains(&pfn.get());
            let first_carved = carved.iter().find(in_it);
            let pages = carved.iter().filter(in_it).count() as u64;
            match first_carved {
                Some(&first) => {
                    let obstacle = Obstacle::Carved { first, pages };
                    assert_eq!(depot.obstacle(around), Some(obstacle));
                    let refused = depot.remove_memory(ZONE, around);
                    assert_eq!(refused, Err(RemoveError::Obstacle(obstacle)));
                }
                None => {
                    depot.remove_memory(ZONE, around).unwrap();
                    managed -= 512;
                }
            }
        }
        assert!(managed > 0);
        let census = depot.validate().unwrap();
        assert_eq!((census.managed_pages, census.held_pages()), (u64::from(managed), 0));
    });
}
