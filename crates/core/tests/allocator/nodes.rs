//! Tests of the zone that serves a request: that of the nearest node and, there, the one that
//! fewest requests need.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::{Single, metadata, open_zone, order, range, single};
use pagedepot::cpus::{CpuLock, Environment, LockedCpus, Unusable, WhichCpu};
use pagedepot::{
    AllocError, Allocator, Config, CpuId, Flags, FrameRange, NodeId, Order, Pfn, Watermarks,
    ZoneConfig, ZoneId,
};

/// Zones by place: three nodes with memory, of which node 1 has three zones.
const RANGES: [FrameRange; 5] =
    [range(0, 512), range(512, 512), range(1024, 512), range(1536, 512), range(2048, 512)];
const NODES: [(u32, u8); 5] = [(0, 2), (1, 1), (1, 3), (1, 2), (3, 2)];

/// Node 2 has no memory; it is near node 3. Node 0 is far from all others.
fn distance(a: NodeId, b: NodeId) -> u32 {
    match (a.get().min(b.get()), a.get().max(b.get())) {
        (a, b) if a == b => 10,
        (2, 3) => 12,
        (1, 2) => 15,
        (1, 3) => 16,
        (0, 1) => 40,
        _ => 30,
    }
}

/// The zones in the order in which a CPU on `node` uses them up.
fn order_seen_from(node: u32, flags: Flags, size: Order) -> Vec<usize> {
    let zones: Vec<ZoneConfig<'_>> = RANGES
        .iter()
        .zip(NODES)
        .map(|(ranges, (node, level))| ZoneConfig {
            node: NodeId::new(node),
            level,
            ..open_zone("z", std::slice::from_ref(ranges))
        })
        .collect();
    let cpu_nodes = [0, 1, 2, 3].map(NodeId::new);
    let config =
        Config { cpu_nodes: &cpu_nodes, distance: Some(distance), ..Config::new(4, &zones) };
    let mut memory = metadata(&config);
    let depot = single(&config, &mut memory);
    depot.cpus().0.run_on(node);
    let mut seen = Vec::new();
    loop {
        match depot.alloc(size, flags) {
            Ok(pfn) => {
                let zone = RANGES
                    .iter()
                    .position(|range| range.start <= pfn && u64::from(pfn.get()) < range.end());
                let zone = zone.unwrap();
                if seen.last() != Some(&zone) {
                    assert!(!seen.contains(&zone), "back to zone {zone} after {seen:?}");
                    seen.push(zone);
                }
            }
            Err(AllocError::NoZone) => return vec![],
            Err(error) => {
                assert_eq!(error, AllocError::Exhausted);
                return seen;
            }
        }
    }
}

#[test]
fn the_nearest_zones_first() {
    for size in [Order::BASE, order(3), order(4)] {
        let seen = |node| order_seen_from(node, Flags::default(), size);
        assert_eq!(seen(0), [0, 4, 2, 3, 1]);
        assert_eq!(seen(1), [2, 3, 1, 4, 0]);
        assert_eq!(seen(3), [4, 2, 3, 1, 0]);
    }
}

#[test]
fn a_node_without_memory_uses_the_nearest() {
    let seen = |flags| order_seen_from(2, flags, Order::BASE);
    assert_eq!(seen(Flags::default()), [4, 2, 3, 1, 0]);
    assert_eq!(seen(Flags::default().this_node()), []);
}

#[test]
fn levels_and_nodes_leave_zones_out() {
    let seen = |node, flags| order_seen_from(node, flags, Order::BASE);
    assert_eq!(seen(1, Flags::default().at_most_level(2)), [3, 1, 4, 0]);
    assert_eq!(seen(1, Flags::default().at_most_level(1)), [1]);
    assert_eq!(seen(1, Flags::default().at_most_level(0)), []);
    assert_eq!(seen(1, Flags::default().this_node()), [2, 3, 1]);
    assert_eq!(seen(1, Flags::default().this_node().at_most_level(2)), [3, 1]);
    assert_eq!(seen(3, Flags::default().this_node().at_most_level(1)), []);
}

#[test]
fn a_zone_near_its_watermark_is_passed_over() {
    let ranges = [range(0, 2048), range(2048, 2048)];
    let marks = Watermarks { min: 200, low: 400, high: 600 };
    let zone =
        |level, ranges| ZoneConfig { level, watermarks: Some(marks), ..open_zone("z", ranges) };
    let zones = [zone(1, &ranges[..1]), zone(2, &ranges[1..])];
    let config = Config { caches: false, ..Config::new(1, &zones) };
    let mut memory = metadata(&config);
    let depot = single(&config, &mut memory);
    let free = || [0, 1].map(|zone| depot.free_pages(ZoneId::new(zone)));
    let take = |pages: u32| {
        (0..pages).for_each(|_| _ = depot.alloc(Order::BASE, Flags::default()).unwrap())
    };
    // The second zone is used to its low, then the first to its low, then both to their min.
    take(2048 - 400);
    assert_eq!(free(), [2048, 400]);
    take(2048 - 400);
    assert_eq!(free(), [400, 400]);
    take(400);
    assert_eq!(free(), [200, 200]);
    assert_eq!(depot.alloc(Order::BASE, Flags::default()), Err(AllocError::Exhausted));
    // The reserve of a zone that the request may use is enough.
    assert!(depot.alloc(Order::BASE, Flags::default().at_most_level(1).atomic()).is_ok());
}

/// A system of one CPU that counts slow calls.
#[derive(Default)]
struct SlowCalls(AtomicU64);

impl WhichCpu for &SlowCalls {
    fn cpu(&self) -> Option<CpuId> {
        Some(CpuId::new(0))
    }
}

impl Environment for &SlowCalls {
    fn check_usable(&self) -> Result<(), Unusable> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// Slow calls of 1000 pairs with these flags where the zone that comes first has so many frames.
fn slow_calls(first: u32, flags: Flags) -> u64 {
    let ranges = [range(0, 1 << 14), range(1 << 14, first)];
    let zone = |level, ranges| ZoneConfig { level, ..open_zone("z", ranges) };
    let zones = [zone(1, &ranges[..1]), zone(2, &ranges[1..])];
    let config = Config::new(1, &zones);
    let (calls, locks) = (SlowCalls::default(), [CpuLock::new()]);
    let mut memory = metadata(&config);
    let cpus = LockedCpus::new(&locks, &calls);
    let mut depot = Allocator::new(&config, &mut memory, cpus).unwrap();
    for _ in 0..1000 {
        let pfn = depot.alloc(Order::BASE, flags).unwrap();
        depot.free(pfn, Order::BASE).unwrap();
    }
    let slow = calls.0.load(Ordering::Relaxed);
    depot.validate().unwrap();
    slow
}

#[test]
fn a_zone_without_memory_costs_nothing() {
    for flags in [Flags::default(), Flags::default().this_node()] {
        assert!((1..20).contains(&slow_calls(1 << 14, flags)));
        assert!((1..20).contains(&slow_calls(0, flags)));
    }
}

#[test]
fn batches_for_this_node_come_from_the_caches() {
    let ranges = [range(0, 1 << 14)];
    let zones = [open_zone("z", &ranges)];
    let config = Config::new(1, &zones);
    let mut memory = metadata(&config);
    let depot = single(&config, &mut memory);
    let flags = Flags::default().this_node();
    let mut list = [Pfn::new(0); 500];
    assert_eq!(depot.alloc_many(Order::BASE, flags, &mut list), Ok(500));
    list.iter().for_each(|&pfn| depot.free(pfn, Order::BASE).unwrap());
    let direct = || {
        let stats = depot.cpu_stats(CpuId::new(0), ZoneId::new(0)).unwrap();
        stats.counts.direct_allocs
    };
    let before = direct();
    assert_eq!(depot.alloc_many(Order::BASE, flags, &mut list[..64]), Ok(64));
    assert_eq!(direct(), before);
}

#[test]
fn each_cpus_metadata_fills_pages_of_its_own() {
    const PAGE: usize = 4096;
    let ranges = [range(0, 2048)];
    let zones = [open_zone("z", &ranges)];
    let mut parts = Vec::new();
    for cpu_pages in [false, true] {
        let config = Config { cpu_pages, ..Config::new(5, &zones) };
        // The memory begins 64 bytes into a page: what is packed fills no page of its own.
        let bytes = Single::metadata_bytes(&config).unwrap();
        let mut memory = vec![MaybeUninit::uninit(); bytes + PAGE];
        let before = (PAGE + 64 - memory.as_ptr().addr() % PAGE) % PAGE;
        let depot = single(&config, &mut memory[before..][..bytes]);
        let (start, bytes) = depot.metadata();
        let caches = depot.cpu_caches();
        let part = |cpu| caches.metadata(CpuId::new(cpu));
        let found: Vec<_> = (0..5).map(|cpu| part(cpu).unwrap()).collect();
        for pair in found.windows(2) {
            assert!(pair[0].0.addr().get() + pair[0].1 <= pair[1].0.addr().get(), "apart");
        }
        assert!(
            found[0].0 >= start
                && found[4].0.addr().get() + found[4].1 <= start.addr().get() + bytes
        );
        assert_eq!(part(5), None);
        parts.extend(found.iter().map(|(at, bytes)| at.addr().get() % PAGE + bytes % PAGE));
        let pfn = depot.alloc(Order::BASE, Flags::default()).unwrap();
        depot.free(pfn, Order::BASE).unwrap();
        assert!(depot.validate_at_rest().is_ok());
    }
    assert!(parts[..5].iter().any(|&odd| odd > 0), "packed");
    assert_eq!(parts[5..], [0; 5], "whole pages");
}
