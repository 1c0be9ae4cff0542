//! Blocks of all orders are cached, large ones by what their CPU uses.
use crate::common::{Single, metadata, open_zone, single};
use pagedepot::seam::ZoneAccess;
use pagedepot::{
    Config, CpuId, Flags, FrameRange, HighPolicy, Mode, Order, Pfn, Scope, ZoneId, ZoneStats,
};

const RANGES: [FrameRange; 1] = [FrameRange::new(Pfn::new(0), 1 << 20)];

/// A zone of 4 GiB that keeps nothing back, and a CPU that may cache `high` pages of it.
fn with_depot(high: HighPolicy, test: impl FnOnce(&mut Single<'_>)) {
    let zones = [open_zone("Normal", &RANGES)];
    let config = Config { high, ..Config::new(1, &zones) };
    let mut memory = metadata(&config);
    let mut depot = single(&config, &mut memory);
    test(&mut depot);
    depot.drain(Scope::ALL, Mode::Full);
    assert_eq!(depot.validate().unwrap().free_pages, 1 << 20);
}

fn cached(depot: &Single<'_>) -> u64 {
    depot.cpu_stats(CpuId::new(0), ZoneId::new(0)).unwrap().cached_pages()
}

fn stats(depot: &Single<'_>) -> ZoneStats {
    depot.zone_stats(ZoneId::new(0)).unwrap()
}

/// Allocates so many blocks, and frees them.
fn turn(depot: &Single<'_>, order: Order, blocks: u32) {
    let held: Vec<Pfn> =
        (0..blocks).map(|_| depot.alloc(order, Flags::default()).unwrap()).collect();
    held.into_iter().for_each(|pfn| depot.free(pfn, order).unwrap());
}

#[test]
fn what_a_cpu_uses_again_and_again_it_caches_whatever_the_order() {
    for order in Order::all() {
        with_depot(HighPolicy::default(), |depot| {
            (0..40).for_each(|_| turn(depot, order, 40));
            let before = stats(depot).counts;
            turn(depot, order, 40);
            let after = stats(depot).counts;
            assert_eq!(after.refilled_pages, before.refilled_pages, "order {order}");
            assert_eq!(after.direct_allocs, before.direct_allocs, "order {order}");
            assert!(cached(depot) >= u64::from(40 * order.frames()));
        });
    }
}

/// A caller that removes memory finds the block in the store.
#[test]
fn a_block_half_of_which_is_isolated_goes_past_the_caches() {
    with_depot(HighPolicy::Fixed(1 << 14), |depot| {
        let size = Order::MAX;
        let block = depot.alloc(size, Flags::default()).unwrap();
        for (half, as_range) in [(0, false), (512, false), (0, true), (512, true)] {
            let access = ZoneAccess::of(depot, ZoneId::new(0)).unwrap();
            let isolation = access.isolate(FrameRange::new(block.add(half), 512)).unwrap();
            let (free, cached_pages) = (depot.free_pages(ZoneId::new(0)), cached(depot));
            match as_range {
                true => depot.free_contiguous(block, size.frames()).unwrap(),
                false => depot.free(block, size).unwrap(),
            }
            assert_eq!(depot.free_pages(ZoneId::new(0)), free + u64::from(size.frames()));
            assert_eq!(cached(depot), cached_pages);
            drop(isolation);
            depot.alloc_at(block, size.frames(), Flags::default()).unwrap();
        }
        depot.free(block, size).unwrap();
    });
}

/// One large block does not bring many others along: at most a quarter of `high` comes with it.
#[test]
fn one_large_block_brings_few_along() {
    for order in (6..=10).filter_map(Order::new) {
        with_depot(HighPolicy::Fixed(1 << 14), |depot| {
            let pfn = depot.alloc(order, Flags::default()).unwrap();
            assert!(cached(depot) <= 1 << 12, "{} pages of order {order}", cached(depot));
            depot.free(pfn, order).unwrap();
        });
    }
}

/// One search serves 61 blocks of orders 4 to 6, where `high` has room; a quiet drain reaches those
/// that no request has come to.
#[test]
fn one_refill_fills_several_magazines() {
    for order in (4..=6).filter_map(Order::new) {
        with_depot(HighPolicy::Fixed(1 << 14), |depot| {
            let block = u64::from(order.frames());
            let held: Vec<Pfn> =
                (0..2).map(|_| depot.alloc(order, Flags::default()).unwrap()).collect();
            let counts = stats(depot).counts;
            assert_eq!((counts.refills, counts.refilled_blocks), (1, 61), "order {order}");
            let drained = depot.drain(Scope::ALL, Mode::Quiet).taken_pages;
            assert_eq!(drained, 45 * block, "order {order}");
            held.into_iter().for_each(|pfn| depot.free(pfn, order).unwrap());

            let held: Vec<Pfn> =
                (0..76).map(|_| depot.alloc(order, Flags::default()).unwrap()).collect();
            let counts = stats(depot).counts;
            assert_eq!((counts.refills, counts.refilled_blocks), (2, 122), "order {order}");
            held.into_iter().for_each(|pfn| depot.free(pfn, order).unwrap());
        });
    }
}

/// A CPU with a small `high` gets one magazine, and what is shelved beside the front is handed out
/// before a request fails.
#[test]
fn a_refill_stays_within_its_bounds() {
    for order in (4..=6).filter_map(Order::new) {
        with_depot(HighPolicy::Fixed(7 * 15 * u64::from(order.frames())), |depot| {
            let pfn = depot.alloc(order, Flags::default()).unwrap();
            assert!(stats(depot).counts.refilled_blocks <= 16, "order {order}");
            depot.free(pfn, order).unwrap();
        });
        with_depot(HighPolicy::Fixed(1 << 14), |depot| {
            let blocks = std::iter::from_fn(|| depot.alloc(order, Flags::default()).ok());
            let held: Vec<Pfn> = blocks.collect();
            assert_eq!(held.len() as u32, (1 << 20) / order.frames(), "order {order}");
            held.into_iter().for_each(|pfn| depot.free(pfn, order).unwrap());
        });
    }
}

/// Shelves that no request comes to any more give way to the order in use now.
#[test]
fn what_was_used_before_makes_room_for_what_is_used_now() {
    with_depot(HighPolicy::Fixed(10_000), |depot| {
        let before = Order::new(3).unwrap();
        turn(depot, before, 2000);
        assert!(cached(depot) > 9000);
        let now = Order::new(6).unwrap();
        (0..40).for_each(|_| turn(depot, now, 100));
        let spilled = stats(depot).counts.spilled_pages;
        turn(depot, now, 100);
        assert_eq!(stats(depot).counts.spilled_pages, spilled);
    });
}
