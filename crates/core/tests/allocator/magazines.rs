//! Magazines that are added to an allocator that runs, where it has no frames to carve them from.
use std::mem::MaybeUninit;

use crate::common::{Anywhere, Single, metadata, open_zone, single};
use pagedepot::cpus::PinnedCpus;
use pagedepot::{
    CacheLimits, Config, ConfigError, CpuId, Flags, FrameRange, HighPolicy, Mode, Order, Pfn,
    Scope, ZoneId,
};

const ZONE: ZoneId = ZoneId::new(0);
const RANGES: [FrameRange; 1] = [FrameRange::new(Pfn::new(0), 1 << 16)];
const MAGAZINE_BYTES: usize = 256;

/// Takes `pages` pages and frees them; returns how many went past the caches.
fn turn(depot: &Single<'_>, pages: usize) -> u64 {
    let direct = |depot: &Single<'_>| {
        let counts = depot.zone_stats(ZONE).unwrap().counts;
        counts.direct_allocs + counts.direct_frees
    };
    let before = direct(depot);
    let held: Vec<Pfn> =
        (0..pages).map(|_| depot.alloc(Order::BASE, Flags::default()).unwrap()).collect();
    held.into_iter().for_each(|pfn| depot.free(pfn, Order::BASE).unwrap());
    direct(depot) - before
}

/// Limits that were raised need magazines that construction did not make.
#[test]
fn limits_that_are_raised_later_get_their_magazines() {
    let zones = [open_zone("Normal", &RANGES)];
    let config = Config { high: HighPolicy::Fixed(63), ..Config::new(2, &zones) };
    let mut first = metadata(&config);
    let pages = 300 * 63;
    // One allocation: what is added lies behind the metadata.
    first.resize(first.len() + 300 * MAGAZINE_BYTES, MaybeUninit::uninit());
    let bytes = Single::metadata_bytes(&config).unwrap();
    let (memory, more) = first.split_at_mut(bytes);
    let mut depot = single(&config, memory);
    let limits = CacheLimits { batch: 63, high_min: 2 * pages, high_max: 2 * pages };
    depot.settings(ZONE).unwrap().set_cache_limits(limits);
    // The magazines there are hold a part of it.
    turn(&depot, pages as usize);
    let cached = |depot: &Single<'_>| depot.cpu_stats(CpuId::new(0), ZONE).unwrap().cached_pages();
    let before = cached(&depot);
    assert!(before < pages / 2, "{before}");
    let bytes = depot.metadata_use().magazines;
    let added = depot.cpu_caches().add_magazines(more).unwrap();
    assert!((299..=300).contains(&added), "{added}");
    assert_eq!(depot.metadata_use().magazines, bytes + added as usize * MAGAZINE_BYTES);
    // They are with all CPUs; this one finds them all the same.
    turn(&depot, pages as usize);
    assert!(cached(&depot) >= pages, "{}", cached(&depot));
    assert_eq!(turn(&depot, pages as usize), 0);
    depot.validate().unwrap();
    depot.drain(Scope::ALL, Mode::Full);
    assert_eq!(depot.validate().unwrap().free_pages, 1 << 16);
}

#[test]
fn memory_that_magazines_cannot_be_made_of_is_refused() {
    let zones = [open_zone("Normal", &RANGES)];
    let config = Config::new(1, &zones);
    let bytes = Single::metadata_bytes(&config).unwrap();
    let mut all = vec![MaybeUninit::uninit(); 4096 + bytes];
    let (below, rest) = all.split_at_mut(4096);
    let (memory, _) = rest.split_at_mut(bytes);
    let mut depot = Single::new(&config, memory, PinnedCpus(Anywhere::new())).unwrap();
    let magazines = depot.metadata_use().magazines;
    let (below, tiny) = below.split_at_mut(4000);
    assert_eq!(depot.cpu_caches().add_magazines(below), Err(ConfigError::OutOfReach));
    // Too small, wherever it lies.
    assert_eq!(depot.cpu_caches().add_magazines(tiny), Ok(0));
    assert_eq!(depot.cpu_caches().add_magazines(&mut []), Ok(0));
    assert_eq!(depot.metadata_use().magazines, magazines);
    depot.validate().unwrap();
}
