//! 1. Batches of up to 64 in a steady rhythm stay within the two magazines of a front: no slow
//!    path, and an operation counted for each block.
//! 2. A batch has distinct blocks of the order asked for, and frees all of them, in every order and
//!    for every mobility.
//! 3. Bad blocks of a batch are counted with the first one's place; all others are freed.
//! 4. A batch that is larger than what the CPU may cache leaves the rest to the store.
//! 5. A rhythm of short batches exchanges a front's magazines as seldom as one of single blocks.
//! 6. What batches free beyond the limit of a CPU's cache goes to the store as it is, without a
//!    magazine that is spilled for it.
//! 7. What the CPU has not cached comes from the store as it is, without a magazine that is filled
//!    for it; and lets the CPU cache as much, as a refill does.
//! 8. `free_many_fast` frees blocks up to the first that is bad or finds no room, and no other.

use crate::common::{Single, metadata, open_zone, order, range, single};
use pagedepot::{Config, CpuId, Flags, FreeError, FreeManyError, Mobility, Order, Pfn, ZoneId};

const FRAMES: u32 = 1 << 15;
const ZONE: ZoneId = ZoneId::new(0);

fn with_depot(check: impl FnOnce(&mut Single<'_>)) {
    let ranges = [range(0, FRAMES)];
    let zones = [open_zone("Normal", &ranges)];
    let config = Config::new(2, &zones);
    let mut memory = metadata(&config);
    let mut depot = single(&config, &mut memory);
    check(&mut depot);
    let census = depot.validate().unwrap();
    assert_eq!(census.held_pages(), 0, "all that was allocated is free again");
}

/// Allocates a whole batch.
fn take(depot: &Single<'_>, order: Order, flags: Flags, blocks: &mut [Pfn]) {
    let mut got = 0;
    while got < blocks.len() {
        got += depot.alloc_many(order, flags, &mut blocks[got..]).unwrap();
    }
}

#[test]
fn a_rhythm_of_batches_takes_no_slow_path() {
    for size in [1, 2, 3, 8, 32, 63, 64] {
        with_depot(|depot| {
            let mut blocks = vec![Pfn::new(0); size];
            let mut rhythm = |times| {
                for _ in 0..times {
                    take(depot, Order::BASE, Flags::default(), &mut blocks);
                    depot.free_many_of(Order::BASE, &blocks).unwrap();
                }
            };
            rhythm(4);
            let before = depot.zone_stats(ZONE).unwrap().counts;
            rhythm(100);
            let after = depot.zone_stats(ZONE).unwrap().counts;
            let slow = |counts: pagedepot::Counts| {
                counts.refills + counts.spills + counts.shelf_hits + counts.direct_allocs
            };
            assert_eq!(slow(after), slow(before), "batches of {size}");
            let operations = after.hits - before.hits;
            assert_eq!(operations, 200 * size as u64, "batches of {size}");
        });
    }
}

#[test]
fn a_rhythm_of_short_batches_exchanges_magazines_seldom() {
    const BATCHES: u64 = 500;
    for (size, held) in (2..=8).flat_map(|size| (0..64).step_by(7).map(move |held| (size, held))) {
        with_depot(|depot| {
            // The rhythm begins at another place of the magazine.
            let mut kept = vec![Pfn::new(0); held];
            take(depot, Order::BASE, Flags::default(), &mut kept);
            let mut blocks = vec![Pfn::new(0); size];
            let before = depot.zone_stats(ZONE).unwrap().counts;
            for _ in 0..BATCHES {
                take(depot, Order::BASE, Flags::default(), &mut blocks);
                depot.free_many_of(Order::BASE, &blocks).unwrap();
            }
            let after = depot.zone_stats(ZONE).unwrap().counts;
            let exchanges = after.exchanges - before.exchanges;
            let magazines = 2 * BATCHES * size as u64 / 63 + 1;
            assert!(exchanges <= 4 * magazines, "{exchanges} in {BATCHES} batches of {size}");
            depot.free_many_of(Order::BASE, &kept).unwrap();
        });
    }
}

#[test]
fn batches_that_the_cpu_does_not_cache_go_past_its_magazines() {
    with_depot(|depot| {
        // A quarter of the zone, so that whole pageblocks are not short.
        let mut blocks = vec![Pfn::new(0); FRAMES as usize / 4];
        take(depot, Order::BASE, Flags::default(), &mut blocks);
        let (cached, others) = blocks.split_at(blocks.len() / 2);
        let free = |blocks: &[Pfn]| {
            blocks.chunks(64).for_each(|batch| depot.free_many_of(Order::BASE, batch).unwrap());
            depot.zone_stats(ZONE).unwrap().counts
        };
        let before = free(cached);
        assert!(before.direct_frees > 0, "half of them are more than the CPU caches: {before:?}");
        let after = free(others);
        assert_eq!(after.spills, before.spills);
        assert_eq!(after.direct_frees - before.direct_frees, others.len() as u64);
        assert_eq!(after.hits, before.hits, "what the CPU caches stays as it is");
    });
}

#[test]
fn batches_that_the_cpu_has_not_cached_come_past_its_magazines() {
    with_depot(|depot| {
        let stats = |depot: &Single<'_>| depot.cpu_stats(CpuId::new(0), ZONE).unwrap();
        let before = stats(depot);
        let mut blocks = vec![Pfn::new(0); FRAMES as usize / 4];
        for batch in blocks.chunks_mut(64) {
            assert_eq!(depot.alloc_many(Order::BASE, Flags::default(), batch).unwrap(), 64);
            assert!(batch.is_sorted(), "programs like them ascending");
        }
        let after = stats(depot);
        assert_eq!((after.counts.refills, after.charged_pages), (0, before.charged_pages));
        assert_eq!(after.counts.direct_allocs, blocks.len() as u64);
        assert!(after.high_pages > before.high_pages, "{} pages", after.high_pages);
        // What it has is taken first, unless it has just freed much more.
        let (few, others) = blocks.split_at_mut(512);
        depot.free_many_of(Order::BASE, few).unwrap();
        let cached = stats(depot).cached_pages() as usize;
        assert!(cached >= 126);
        depot.alloc_many(Order::BASE, Flags::default(), &mut few[..cached]).unwrap();
        assert_eq!(stats(depot).counts.direct_allocs, after.counts.direct_allocs);
        depot.free_many_of(Order::BASE, others).unwrap();
        depot.free_many_of(Order::BASE, &few[..cached]).unwrap();
    });
}

#[test]
fn the_fast_free_of_a_batch_ends_at_the_first_block_that_it_refuses() {
    with_depot(|depot| {
        let mut blocks = vec![Pfn::new(0); 60];
        take(depot, order(1), Flags::default(), &mut blocks);
        for bad in [40, 3] {
            let mut batch = blocks[..bad + 5].to_vec();
            batch[bad] = batch[bad].add(1);
            assert_eq!(depot.free_many_fast(order(1), &batch), bad, "it is misaligned");
            blocks.drain(..bad);
        }
        assert_eq!(depot.free_many_fast(order(1), &[Pfn::new(FRAMES)]), 0, "it is no memory");
        assert_eq!(depot.validate().unwrap().held_pages(), 2 * blocks.len() as u64);
        // Of more than a CPU caches some are refused, and still held.
        let mut all = vec![Pfn::new(0); FRAMES as usize / 2];
        let got = depot.alloc_many(Order::BASE, Flags::default(), &mut all).unwrap();
        // From the first one that the CPU frees on its front has a magazine.
        assert_eq!(depot.free_many_fast(Order::BASE, &all[..got]), 0);
        depot.free(all[0], Order::BASE).unwrap();
        let freed = 1 + depot.free_many_fast(Order::BASE, &all[1..got]);
        assert!((2..got).contains(&freed), "{freed} of {got}");
        depot.free_many_of(Order::BASE, &all[freed..got]).unwrap();
        depot.free_many_of(order(1), &blocks).unwrap();
    });
}

#[test]
fn batches_of_every_order_and_mobility_come_and_go() {
    with_depot(|depot| {
        for order in Order::all() {
            for mobility in Mobility::ALL {
                let mut blocks = vec![Pfn::new(0); (3000 >> order.get()).max(2) as usize];
                take(depot, order, Flags::new(mobility), &mut blocks);
                let mut sorted = blocks.clone();
                sorted.sort_unstable();
                assert!(sorted.iter().all(|pfn| pfn.is_aligned(order)));
                let apart =
                    sorted.windows(2).all(|pair| pair[1].get() - pair[0].get() >= order.frames());
                assert!(apart, "{order:?}: blocks overlap");
                depot.free_many_of(order, &blocks).unwrap();
                assert_eq!(depot.validate().unwrap().held_pages(), 0);
            }
        }
    });
}

#[test]
fn bad_blocks_are_skipped_and_counted() {
    with_depot(|depot| {
        let mut blocks = vec![Pfn::new(0); 200];
        take(depot, order(2), Flags::default(), &mut blocks);
        let held = [blocks[70], blocks[199]];
        blocks[70] = held[0].add(1);
        blocks[199] = Pfn::new(FRAMES);
        let error = depot.free_many_of(order(2), &blocks).unwrap_err();
        let expected = FreeManyError { first: 70, error: FreeError::Misaligned, failed: 2 };
        assert_eq!(error, expected);
        assert_eq!(depot.validate().unwrap().held_pages(), 8);
        depot.free_many_of(order(2), &held).unwrap();
    });
}

#[test]
fn a_batch_beyond_the_caches_comes_from_the_store() {
    with_depot(|depot| {
        let mut blocks = vec![Pfn::new(0); FRAMES as usize];
        take(depot, Order::BASE, Flags::default(), &mut blocks);
        blocks.sort_unstable();
        assert!(blocks.iter().copied().eq((0..FRAMES).map(Pfn::new)));
        depot.alloc_many(Order::BASE, Flags::default(), &mut [Pfn::new(0)]).unwrap_err();
        depot.free_many_of(Order::BASE, &blocks).unwrap();
        let cached = depot.zone_stats(ZONE).unwrap().cached_pages;
        assert!(cached < u64::from(FRAMES) / 2, "{cached} pages are cached");
    });
}
