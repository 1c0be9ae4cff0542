//! Configurations that cannot work are refused with an error that says what to do. Unusual ones
//! work.

use std::mem::MaybeUninit;

use crate::common::{Anywhere, Single, metadata, open_zone, range, single};
use pagedepot::cpus::PinnedCpus;
use pagedepot::{
    AllocError, CacheLimits, Config, ConfigError, CpuId, Flags, FrameRange, FreeError,
    FreeManyError, HighPolicy, InitError, Mode, NodeId, Order, PageSize, Pfn, Scope,
    TooManyCallbacks, Watermarks, ZoneConfig, ZoneId,
};
use pagedepot_contiguity::{Obstacle, RemoveError};

/// The error that both ways to ask about a configuration return.
fn refusal(config: &Config<'_>) -> ConfigError {
    let error = Single::metadata_bytes(config).unwrap_err();
    let mut memory = vec![MaybeUninit::uninit(); 1 << 20];
    let made = Single::new(config, &mut memory, PinnedCpus(Anywhere::new()));
    assert_eq!(made.err(), Some(error));
    error
}

/// Makes the allocator, allocates all its memory, and frees it.
fn exercise(config: &Config<'_>) {
    let mut memory = metadata(config);
    let mut depot = single(config, &mut memory);
    let mut held = Vec::new();
    while let Ok(pfn) = depot.alloc(Order::BASE, Flags::default().atomic()) {
        held.push((pfn, Order::BASE));
    }
    let managed: u64 =
        depot.zone_ids().map(|zone| depot.zone_stats(zone).unwrap().managed_pages).sum();
    assert_eq!(held.len() as u64, managed);
    depot.free_many(&held).unwrap();
    depot.drain(Scope::ALL, Mode::Full);
    assert_eq!(depot.validate().unwrap().free_pages, managed);
}

#[test]
fn counts_that_cannot_be() {
    let ranges = [range(0, 1024)];
    let zones = [open_zone("z", &ranges)];
    assert_eq!(refusal(&Config::new(0, &zones)), ConfigError::NoCpus);
    assert_eq!(refusal(&Config::new(1, &[])), ConfigError::ZoneCount { zones: 0 });
    let many: Vec<_> = (0..32).map(|_| open_zone("z", &[])).collect();
    assert_eq!(refusal(&Config::new(1, &many)), ConfigError::ZoneCount { zones: 32 });
    exercise(&Config::new(1, &many[..31]));
    let high = [ZoneConfig { level: 15, ..zones[0] }];
    assert_eq!(refusal(&Config::new(1, &high)), ConfigError::Level { zone: 0, level: 15 });
    exercise(&Config::new(1, &[ZoneConfig { level: 14, ..zones[0] }]));
}

#[test]
fn more_cpus_than_any_machine_has() {
    let ranges = [range(0, 1 << 16)];
    let zones = [open_zone("z", &ranges)];
    // The magazines alone would be more than an index can number.
    assert_eq!(refusal(&Config::new(u32::MAX, &zones)), ConfigError::TooLarge);
    assert_eq!(refusal(&Config::new(1 << 20, &zones)), ConfigError::TooLarge);
    // Without caches only memory is needed.
    let bare = Config { caches: false, ..Config::new(u32::MAX, &zones) };
    assert!(Single::metadata_bytes(&bare).unwrap() > 1 << 40);
    exercise(&Config::new(2000, &zones));
}

#[test]
fn ranges_beyond_what_a_frame_number_can_say() {
    for (start, frames) in [(u32::MAX, 1), (u32::MAX, u32::MAX), (1, u32::MAX)] {
        let ranges = [range(0, 10), range(start, frames)];
        let zones = [open_zone("fine", &[]), open_zone("far", &ranges)];
        let error = refusal(&Config::new(1, &zones));
        assert_eq!(error, ConfigError::RangeTooHigh { zone: 1, range: ranges[1] });
    }
    // The last frames that have numbers, in the last pageblock but one.
    let ranges = [range(u32::MAX - 1200, 1200)];
    exercise(&Config::new(1, &[open_zone("top", &ranges)]));
}

#[test]
fn ranges_that_overlap() {
    type Ranges = &'static [FrameRange];
    const OVERLAPS: [(Ranges, Ranges, u32); 8] = [
        (&[range(0, 10), range(9, 1)], &[], 9),
        (&[range(9, 5), range(0, 10)], &[], 9),
        (&[range(0, 1000), range(10, 10)], &[], 10),
        (&[range(5, 5), range(5, 5)], &[], 5),
        (&[range(0, 1024)], &[range(1000, 1000)], 1000),
        // The zones share no frame, but an aligned run of 512.
        (&[range(0, 100)], &[range(200, 10)], 200),
        (&[range(1000, 100)], &[range(1100, 500)], 1100),
        (&[range(5000, 1)], &[range(0, 1), range(4608, 1)], 5000),
    ];
    for (a, b, at) in OVERLAPS {
        let zones = [open_zone("a", a), open_zone("b", b)];
        match refusal(&Config::new(1, &zones)) {
            ConfigError::Overlap { at: found, .. } => {
                assert_eq!(found, Pfn::new(at), "{a:?} {b:?}")
            }
            other => panic!("{a:?} {b:?}: {other}"),
        }
    }
    // Neighbours do not overlap; nor do empty ranges, wherever they lie.
    let a = [range(512, 10), range(522, 502), range(600, 0), range(u32::MAX, 0)];
    let b = [range(1024, 512), range(0, 512), range(700, 0)];
    exercise(&Config::new(1, &[open_zone("a", &a), open_zone("b", &b)]));
}

#[test]
fn the_metadata_bound_is_exact() {
    let ranges = [range(0, 5000), range((1 << 18) - 7, 100)];
    let zones = [open_zone("a", &ranges), open_zone("b", &[])];
    for (checked, cpus) in [(false, 1), (true, 3), (false, 2), (true, 7)] {
        let config = Config { checked, ..Config::new(cpus, &zones) };
        let needed = Single::metadata_bytes(&config).unwrap();
        let mut memory = vec![MaybeUninit::<u8>::uninit(); needed + 512];
        let boundary = memory.as_ptr().addr().next_multiple_of(256) - memory.as_ptr().addr();
        let mut refused = 0;
        for skew in 0..256 {
            let place = &mut memory[boundary..][skew..];
            let made = Single::new(&config, &mut place[..needed - 1], PinnedCpus(Anywhere::new()));
            if let Err(error) = made {
                assert_eq!(error, ConfigError::TooLittleMetadata { needed, given: needed - 1 });
                refused += 1;
            }
            let depot =
                Single::new(&config, &mut place[..needed], PinnedCpus(Anywhere::new())).unwrap();
            depot.alloc(Order::BASE, Flags::default()).unwrap();
            let (start, bytes) = depot.metadata();
            let (blocks, blocks_bytes) = depot.cpu_blocks();
            assert!(
                start <= blocks && blocks.addr().get() + blocks_bytes <= start.addr().get() + bytes
            );
        }
        // One byte less is too little at the worst alignment, and only there.
        assert_eq!(refused, 1);
        for given in [0, 1, 255, needed / 2] {
            let made = Single::new(&config, &mut memory[..given], PinnedCpus(Anywhere::new()));
            assert_eq!(made.err(), Some(ConfigError::TooLittleMetadata { needed, given }));
        }
    }
}

#[test]
fn limits_and_watermarks_beyond_all_memory() {
    let ranges = [range(0, 8192)];
    for high in [HighPolicy::Fixed(1 << 20), HighPolicy::Fixed(u64::MAX), HighPolicy::Fixed(0)] {
        let zones = [open_zone("z", &ranges)];
        exercise(&Config { high, ..Config::new(2, &zones) });
    }
    for fraction in [0, 1, 8, u32::MAX] {
        let zones = [open_zone("z", &ranges)];
        exercise(&Config { high: HighPolicy::Fraction(fraction), ..Config::new(2, &zones) });
    }
    let zones = [open_zone("z", &ranges)];
    let config = Config::new(2, &zones);
    let depot_metadata = &mut metadata(&config);
    let mut depot = single(&config, depot_metadata);
    let zone = ZoneId::new(0);
    let largest = CacheLimits { batch: u64::MAX, high_min: u64::MAX, high_max: u64::MAX };
    for limits in [
        largest,
        CacheLimits { high_min: 0, ..largest },
        CacheLimits { high_min: 0, high_max: 0, ..largest },
        CacheLimits { batch: 0, high_min: 5, high_max: 0 },
    ] {
        depot.settings(zone).unwrap().set_cache_limits(limits);
        let held: Vec<_> = (0..4000)
            .map(|_| (depot.alloc(Order::BASE, Flags::default()).unwrap(), Order::BASE))
            .collect();
        held.iter().for_each(|&(pfn, order)| depot.free(pfn, order).unwrap());
        let settings = depot.settings(zone).unwrap();
        let (set, high) = (settings.cache_limits(), settings.high(CpuId::new(0)).unwrap());
        assert!(
            set.batch >= 1 && set.high_min <= set.high_max && high >= set.high_min,
            "{set:?} {high}"
        );
        depot.cpu_caches().decay();
        depot.validate().unwrap();
    }
    // A zone that holds back more than it has serves only requests that may use reserves.
    let all = Watermarks { min: u64::MAX, low: u64::MAX, high: u64::MAX };
    assert!(depot.settings(zone).unwrap().set_watermarks(all));
    depot.drain(Scope::ALL, Mode::Full);
    assert_eq!(depot.alloc(Order::BASE, Flags::default()), Err(AllocError::Exhausted));
    assert_eq!(depot.alloc_contiguous(5, 1, Flags::default()), Err(AllocError::Exhausted));
    let pfn = depot.alloc(Order::BASE, Flags::default().atomic()).unwrap();
    depot.free(pfn, Order::BASE).unwrap();
    depot.drain(Scope::ALL, Mode::Full);
    assert_eq!(depot.validate().unwrap().free_pages, 8192);
}

#[test]
fn watermarks_that_do_not_ascend() {
    let ranges = [range(0, 8192)];
    for (min, low, high) in [(2, 1, 3), (1, 3, 2), (3, 2, 1)] {
        let watermarks = Some(Watermarks { min, low, high });
        let zones = [open_zone("fine", &[]), ZoneConfig { watermarks, ..open_zone("z", &ranges) }];
        assert_eq!(refusal(&Config::new(1, &zones)), ConfigError::Watermarks { zone: 1 });
    }
}

#[test]
fn names_are_kept_as_far_as_they_fit() {
    for (name, kept) in [
        ("", ""),
        ("Normal", "Normal"),
        ("fifteen letters", "fifteen letters"),
        ("more than fifteen letters", "more than fifte"),
        ("αβγδεζηθικ", "αβγδεζη"),
        ("12345678901234é", "12345678901234"),
    ] {
        let zones = [open_zone(name, &[])];
        let config = Config::new(1, &zones);
        let depot_metadata = &mut metadata(&config);
        let depot = single(&config, depot_metadata);
        assert_eq!(depot.zone_stats(ZoneId::new(0)).unwrap().name.as_str(), kept);
    }
}

#[test]
fn memory_that_cannot_be_added() {
    const SECTION: u32 = 1 << 18;
    let ranges = [range(100, 1000)];
    let zones = [open_zone("a", &ranges), open_zone("b", &[])];
    let config = Config { pfn_limit: Some(Pfn::new(4 * SECTION)), ..Config::new(1, &zones) };
    let depot_metadata = &mut metadata(&config);
    let mut more = vec![MaybeUninit::uninit(); 1 << 18];
    let mut last = vec![MaybeUninit::uninit(); 1 << 18];
    let mut depot = single(&config, depot_metadata);
    let b = ZoneId::new(1);
    for (overlapping, first) in [
        (range(1100, 10), 1024),
        (range(0, 1), 0),
        (range(1023, SECTION), 512),
        (range(1024, 512), 1024),
        (range(0, 4 * SECTION), 0),
    ] {
        let refused = depot.add_memory(b, overlapping, &mut []).unwrap_err().why;
        let first = Pfn::new(first);
        assert_eq!(refused, ConfigError::HasMemory { first }, "{overlapping:?}");
        assert_eq!(depot.add_memory_held(b, overlapping, &mut []).unwrap_err().why, refused);
    }
    for bad in [
        range(SECTION, 0),
        range(4 * SECTION, 1),
        range(4 * SECTION - 1, 2),
        range(2 * SECTION, 3 * SECTION),
        range(u32::MAX, 1),
        range(u32::MAX, u32::MAX),
    ] {
        let refused = depot.add_memory(b, bad, &mut []).unwrap_err().why;
        assert_eq!(refused, ConfigError::NotAddable { range: bad }, "{bad:?}");
    }
    let good = range(2 * SECTION - 10, 20);
    let zone = ZoneId::new(2);
    let (good_metadata, end_metadata) = more.split_at_mut(depot.section_bytes(good));
    let refused = depot.add_memory(zone, good, good_metadata).unwrap_err();
    assert_eq!(refused.why, ConfigError::NoSuchZone { zone: 2 });
    // The bytes come back with the error, and serve the next attempt.
    let good_metadata = refused.memory;
    let needed = depot.section_bytes(good);
    let refused = depot.add_memory(b, good, &mut last[..needed / 2]).unwrap_err();
    assert_eq!(refused.why, ConfigError::TooLittleMetadata { needed, given: needed / 2 });
    assert_eq!(refused.memory.len(), needed / 2);
    assert!(refused.to_string().contains("bytes") && format!("{refused:?}").contains("bytes"));
    assert_eq!(depot.validate().unwrap().managed_pages, 1000);

    depot.add_memory(b, good, good_metadata).unwrap();
    let first = Pfn::new(2 * SECTION - 512);
    let refused = depot.add_memory(b, good, &mut []).unwrap_err().why;
    assert_eq!(refused, ConfigError::HasMemory { first });
    assert_eq!(depot.section_bytes(good), 0);
    // Up to the limit itself.
    let end = range(4 * SECTION - 10, 10);
    depot.add_memory(b, end, end_metadata).unwrap();
    assert_eq!(depot.validate().unwrap().free_pages, 1030);
    let mut all = Vec::new();
    while let Ok(pfn) = depot.alloc(Order::BASE, Flags::default()) {
        all.push((pfn, Order::BASE));
    }
    assert_eq!(all.len(), 1030);
    depot.free_many(&all).unwrap();
    assert_eq!(depot.validate().unwrap().held_pages(), 0);
}

#[test]
fn every_error_is_one_sentence_that_helps() {
    let range = range(1, 2);
    let free =
        [FreeError::OutOfRange, FreeError::Misaligned, FreeError::NotAllocated, FreeError::Forked];
    let first = Pfn::new(5);
    let zone = ZoneId::new(3);
    let obstacle = [
        Obstacle::NoMemory { first },
        Obstacle::OtherZone { first, zone },
        Obstacle::Isolated { first },
        Obstacle::Refused { first },
        Obstacle::Carved { first, pages: 6 },
        Obstacle::InUse { first, pages: 6, cached_by: None },
        Obstacle::InUse { first, pages: 6, cached_by: Some(CpuId::new(4)) },
    ];
    let remove = [
        RemoveError::NotRemovable { range },
        RemoveError::Busy { first, pages: 0, skipped_cpus: 0 },
        RemoveError::Busy { first, pages: 6, skipped_cpus: 0 },
        RemoveError::Busy { first, pages: 6, skipped_cpus: 7 },
        RemoveError::Unsupported,
    ];
    let init = [InitError::AlreadyInitialized, InitError::InProgress];
    let alloc = [
        AllocError::Exhausted,
        AllocError::NoZone,
        AllocError::NotAvailable,
        AllocError::BadSize,
        AllocError::BadAlignment,
        AllocError::NotInitialized,
        AllocError::Forked,
    ];
    let config = [
        ConfigError::NoCpus,
        ConfigError::ZoneCount { zones: 99 },
        ConfigError::Level { zone: 3, level: 77 },
        ConfigError::RangeTooHigh { zone: 3, range },
        ConfigError::Overlap { zone: 3, other: 4, at: Pfn::new(5) },
        ConfigError::Watermarks { zone: 3 },
        ConfigError::TooLittleMetadata { needed: 7, given: 6 },
        ConfigError::TooLarge,
        ConfigError::NoSuchZone { zone: 3 },
        ConfigError::NotAddable { range },
        ConfigError::HasMemory { first },
        ConfigError::WasRemoved { first, zone: 3 },
    ];
    let many = FreeManyError { first: 3, error: FreeError::Misaligned, failed: 4 };
    let sentences: Vec<String> = free
        .iter()
        .map(ToString::to_string)
        .chain(alloc.iter().map(ToString::to_string))
        .chain(config.iter().map(ToString::to_string))
        .chain(obstacle.iter().map(ToString::to_string))
        .chain(remove.iter().map(ToString::to_string))
        .chain(init.iter().map(ToString::to_string))
        .chain([many.to_string(), TooManyCallbacks.to_string()])
        .collect();
    for sentence in &sentences {
        assert!((20..220).contains(&sentence.len()), "{sentence}");
        assert!(!sentence.contains(['\n', '{', '}']) && !sentence.ends_with('.'), "{sentence}");
        assert!(!sentence.starts_with(char::is_uppercase), "{sentence}");
        assert_eq!(sentences.iter().filter(|other| *other == sentence).count(), 1, "{sentence}");
    }
    // Errors contain the numbers that were given.
    for (error, numbers) in [
        (ConfigError::ZoneCount { zones: 99 }, &["99", "31"][..]),
        (ConfigError::Level { zone: 3, level: 77 }, &["3", "77", "14"]),
        (ConfigError::TooLittleMetadata { needed: 123, given: 45 }, &["123", "45"]),
        (ConfigError::NotAddable { range }, &["2 frames", "0x1"]),
        (ConfigError::HasMemory { first }, &["0x5"]),
        (ConfigError::WasRemoved { first, zone: 3 }, &["0x5", "zone 3"]),
    ] {
        let sentence = error.to_string();
        assert!(numbers.iter().all(|number| sentence.contains(number)), "{sentence}");
    }
}

#[test]
fn page_sizes() {
    for (page_size, bytes) in
        [(PageSize::Kib4, 4096), (PageSize::Kib16, 16384), (PageSize::Kib64, 65536)]
    {
        assert_eq!((page_size.bytes(), 1 << page_size.shift()), (bytes, bytes));
        let ranges = [range(3, 5000)];
        let zones =
            [ZoneConfig { watermarks: None, node: NodeId::new(0), ..open_zone("z", &ranges) }];
        exercise(&Config { page_size, ..Config::new(2, &zones) });
    }
}
