//! Several threads add the same memory at the same moment.

mod common;

use std::mem::MaybeUninit;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use common::threads::Claimed;
use common::{open_zone, range, soak};
use pagedepot::cpus::{CpuLock, Locked};
use pagedepot::{Allocator, Config, ConfigError, FrameRange, Pfn, ZoneId};

const SECTION: u32 = 1 << 18;
const ZONE: ZoneId = ZoneId::new(0);

/// Some frames of every section from `first` to `last`.
fn sections(first: u32, last: u32) -> FrameRange {
    range((first + 1) * SECTION - 512, (last - first) * SECTION + 512)
}

/// In every interleaving each section is added once or not at all, and a section that was not can
/// be added afterwards.
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
    let bytes = Allocator::<Locked<'_, Claimed>>::metadata_bytes(&config).unwrap();
    let mut metadata = vec![MaybeUninit::uninit(); bytes];
    let mut more = [(); 9].map(|()| vec![MaybeUninit::uninit(); 1 << 18]);
    let (at_once, afterwards) = more.split_at_mut(wanted.len());
    let mut depot =
        Allocator::new(&config, &mut metadata, Locked::new(&locks, Claimed::new())).unwrap();
    let (together, shared) = (Barrier::new(wanted.len()), &depot);
    let mut added: Vec<FrameRange> = std::thread::scope(|scope| {
        let adders: Vec<_> = std::iter::zip(wanted, at_once)
            .map(|(range, metadata)| {
                let together = &together;
                scope.spawn(move || {
                    together.wait();
                    (shared.add_memory(ZONE, range, metadata), range)
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
