//! Memory is added: in pieces, free or held, and by several threads at the same moment.

mod common;

use std::mem::MaybeUninit;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use common::threads::Claimed;
use common::{metadata, open_zone, order, range, single, soak};
use pagedepot::cpus::{CpuLock, LockedCpus};
use pagedepot::{
    AllocError, Allocator, Config, ConfigError, Flags, FrameRange, FreeError, Order, Pfn, ZoneId,
};
use pagedepot_contiguity::{Contiguity, Obstacle};

const SECTION: u32 = 1 << 18;
const ZONE: ZoneId = ZoneId::new(0);

/// Some frames of every section from `first` to `last`.
fn sections(first: u32, last: u32) -> FrameRange {
    range((first + 1) * SECTION - 512, (last - first) * SECTION + 512)
}

/// Checks that each section is added once or not at all, in every interleaving, and that a section
/// which was not can be added afterwards.
#[test]
fn each_section_is_added_once_or_not_at_all() {
    let end = Instant::now() + soak(Duration::from_millis(500));
    let (mut rounds, mut lost) = (0, 0);
    while rounds == 0 || Instant::now() < end {
        rounds += 1;
        lost += add_at_once([sections(0, 3), sections(2, 5), sections(1, 2)]);
    }
    println!("{rounds} rounds, {lost} sections left over by all");
}

/// Adds all of them at the same moment, then section by section what no thread added. Returns the
/// number of the latter.
fn add_at_once(wanted: [FrameRange; 3]) -> usize {
    let zones = [open_zone("a", &[])];
    let config = Config { pfn_limit: Some(Pfn::new(6 * SECTION - 1)), ..Config::new(1, &zones) };
    let locks = [CpuLock::new()];
    let bytes = Allocator::<LockedCpus<'_, Claimed>>::metadata_bytes(&config).unwrap();
    let mut metadata = vec![MaybeUninit::uninit(); bytes];
    let mut more = [(); 9].map(|()| vec![MaybeUninit::uninit(); 1 << 18]);
    let (at_once, afterwards) = more.split_at_mut(wanted.len());
    let mut depot =
        Allocator::new(&config, &mut metadata, LockedCpus::new(&locks, Claimed::new())).unwrap();
    let (together, shared) = (Barrier::new(wanted.len()), &depot);
    let mut added: Vec<FrameRange> = std::thread::scope(|scope| {
        let adders: Vec<_> = std::iter::zip(wanted, at_once)
            .map(|(range, metadata)| {
                let together = &together;
                scope.spawn(move || {
                    together.wait();
                    (shared.add_memory(ZONE, range, metadata).map_err(ConfigError::from), range)
                })
            })
            .collect();
        let ended = adders.into_iter().map(|adder| adder.join().unwrap());
        let check = |(result, range)| match result {
            Ok(()) => Some(range),
            refused => {
                assert!(matches!(refused, Err(ConfigError::HasMemory { .. })), "{refused:?}");
                None
            }
        };
        ended.filter_map(check).collect()
    });
    assert!(!added.is_empty(), "one of them got furthest");
    let covers = |range: &FrameRange, number: u32| {
        let last = range.start.get() + range.frames - 1;
        (range.start.get() / SECTION..=last / SECTION).contains(&number)
    };
    let left: Vec<u32> =
        (0..6).filter(|&number| !added.iter().any(|range| covers(range, number))).collect();
    for (&number, metadata) in left.iter().zip(afterwards) {
        depot.add_memory(ZONE, sections(number, number), metadata).unwrap();
        added.push(sections(number, number));
    }
    assert!((0..6).all(|number| added.iter().filter(|range| covers(range, number)).count() == 1));
    let census = depot.validate().unwrap();
    let frames: u64 = added.iter().map(|range| u64::from(range.frames)).sum();
    assert_eq!((census.free_pages, census.managed_pages), (frames, frames));
    left.len()
}

/// Ranges in sections that have memory already, wherever they begin and end.
#[test]
fn any_number_of_ranges_in_one_section() {
    let ranges = [range(10, 100)];
    let zones = [open_zone("a", &ranges), open_zone("b", &[])];
    let config = Config { pfn_limit: Some(Pfn::new(2 * SECTION)), ..Config::new(1, &zones) };
    let memory = &mut metadata(&config);
    let mut more = vec![MaybeUninit::uninit(); 34_048 + 255];
    let mut depot = single(&config, memory);
    let mut pages = 100;
    // Every second pageblock, in turn for either zone.
    for (i, first) in (512..20_000).step_by(1024).enumerate() {
        let added = range(first + i as u32, 512 - 2 * i as u32);
        assert_eq!(depot.section_bytes(added), 0, "the section has metadata");
        depot.add_memory(ZoneId::new(i as u32 % 2), added, &mut []).unwrap();
        pages += u64::from(added.frames);
    }
    let across = range(SECTION - 1, 2);
    assert_eq!(depot.section_bytes(across), more.len());
    depot.add_memory(ZONE, across, &mut more).unwrap();
    let census = depot.validate().unwrap();
    assert_eq!((census.managed_pages, census.free_pages), (pages + 2, pages + 2));
    let mut all = Vec::new();
    while let Ok(pfn) = depot.alloc(Order::BASE, Flags::default()) {
        all.push((pfn, Order::BASE));
    }
    assert_eq!(all.len() as u64, pages + 2);
    depot.free_many(&all).unwrap();
    // Nothing was handed out that was not given.
    assert_eq!(depot.validate().unwrap().held_pages(), 0);
}

/// Frees held memory as an early allocator does: blocks, ranges and frames.
#[test]
fn held_memory_is_freed_piece_by_piece() {
    for checked in [false, true] {
        let zones = [open_zone("a", &[])];
        let config =
            Config { checked, pfn_limit: Some(Pfn::new(SECTION)), ..Config::new(1, &zones) };
        let memory = &mut metadata(&config);
        let mut more = vec![MaybeUninit::uninit(); 1 << 19];
        let mut depot = single(&config, memory);
        let added = range(1000, 4000);
        depot.add_memory_held(ZONE, added, &mut more).unwrap();
        assert_eq!(depot.alloc(Order::BASE, Flags::default()), Err(AllocError::Exhausted));
        assert_eq!(depot.obstacle(range(1000, 10)), Some(in_use(1000, 10)));
        let census = depot.validate().unwrap();
        assert_eq!((census.managed_pages, census.held_pages()), (4000, 4000));
        let mut held = 4000;
        for (start, frames) in [(1000, 24), (1500, 1), (1502, 700), (3000, 2000)] {
            depot.free_contiguous(Pfn::new(start), frames).unwrap();
            held -= u64::from(frames);
            assert_eq!(depot.validate().unwrap().held_pages(), held);
        }
        depot.free(Pfn::new(1501), Order::BASE).unwrap();
        if checked {
            let twice = depot.free_contiguous(Pfn::new(1400), 102);
            assert_eq!(twice, Err(FreeError::NotAllocated));
            depot.free_contiguous(Pfn::new(1024), 256).unwrap();
        } else {
            depot.free(Pfn::new(1024), order(8)).unwrap();
        }
        held -= 1 + 256;
        assert_eq!(depot.validate().unwrap().held_pages(), held);
        // What is never freed stays out of use.
        let mut got = 0;
        while let Ok(pfn) = depot.alloc(Order::BASE, Flags::default()) {
            assert!(depot.obstacle(range(pfn.get(), 1)).is_some());
            got += 1;
        }
        assert_eq!(got + held, 4000);
    }
}

fn in_use(first: u32, pages: u64) -> Obstacle {
    Obstacle::InUse { first: Pfn::new(first), pages, cached_by: None }
}
