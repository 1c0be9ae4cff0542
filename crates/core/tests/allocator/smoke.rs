//! One short path through allocation, free and drain, on one thread.

use crate::common::{metadata, single};
use pagedepot::{Config, Flags, FrameRange, Mode, NodeId, Order, Pfn, Scope, ZoneConfig};

const FRAMES: u32 = 1 << 16;

fn zone(ranges: &[FrameRange]) -> ZoneConfig<'_> {
    ZoneConfig {
        name: "Normal",
        node: NodeId::new(0),
        level: 2,
        ranges,
        watermarks: Some(Default::default()),
    }
}

#[test]
fn everything_comes_back() {
    let ranges = [FrameRange::new(Pfn::new(0), FRAMES)];
    let zones = [zone(&ranges)];
    let config = Config { checked: true, ..Config::new(2, &zones) };
    let mut memory = metadata(&config);
    let mut depot = single(&config, &mut memory);
    let mut held = Vec::new();
    for round in 0..3u32 {
        for order in Order::all() {
            for _ in 0..(200 >> order.get()).max(2) {
                held.push((depot.alloc(order, Flags::default()).unwrap(), order));
            }
        }
        let pages: u64 = held.iter().map(|(_, order)| u64::from(order.frames())).sum();
        let census = depot.validate().unwrap();
        assert_eq!(census.held_pages(), pages);
        depot.cpus().0.run_on(round % 2);
        for (pfn, order) in held.drain(..) {
            depot.free(pfn, order).unwrap();
        }
        assert_eq!(depot.validate().unwrap().held_pages(), 0);
        depot.drain(Scope::ALL, Mode::Quiet);
        assert_eq!(depot.validate().unwrap().held_pages(), 0);
    }
    let drained = depot.drain(Scope::ALL, Mode::Full);
    assert_eq!(drained.unreachable_pages, 0);
    let census = depot.validate().unwrap();
    assert_eq!(census.free_pages, u64::from(FRAMES));
}

#[test]
fn exhaustion_is_an_error_and_all_pages_can_be_had() {
    let ranges = [FrameRange::new(Pfn::new(512), 2048)];
    let zones = [zone(&ranges)];
    let config = Config::new(2, &zones);
    let mut memory = metadata(&config);
    let mut depot = single(&config, &mut memory);
    let mut held = Vec::new();
    while let Ok(pfn) = depot.alloc(Order::BASE, Flags::default()) {
        depot.cpus().0.run_on(held.len() as u32 % 2);
        held.push(pfn);
    }
    assert_eq!(held.len(), 2048);
    held.sort();
    held.dedup();
    assert_eq!(held.len(), 2048);
    println!("{}", depot.shortage());
    depot.free_many(&held.iter().map(|&pfn| (pfn, Order::BASE)).collect::<Vec<_>>()).unwrap();
    assert_eq!(depot.validate().unwrap().held_pages(), 0);
}
