//! Tests of the cache of a CPU that frees high orders and allocates few. Counters show the rule.

use crate::common::{Single, metadata, open_zone, order, range, single};
use pagedepot::{
    CacheLimits, Config, CpuId, Flags, FreeHigh, HighPolicy, Mode, Order, Pfn, Scope, ZoneId,
};

const FRAMES: u32 = 1 << 16;
const ZONE: ZoneId = ZoneId::new(0);
const LIMITS: CacheLimits = CacheLimits { batch: 63, high_min: 252, high_max: 4000 };
/// `batch + high_min / 2`.
const THRESHOLD: u64 = 189;
/// The largest `high` of a CPU that only frees: 33 batches.
const FREED_HIGH: u64 = 33 * 63;
const SENDER: u32 = 0;
const RECEIVER: u32 = 1;

/// A machine of two CPUs with this policy.
fn machine(free_high: FreeHigh, limits: CacheLimits) -> Single<'static> {
    let ranges = [range(0, FRAMES)];
    let zones = [open_zone("z", &ranges)];
    let high = HighPolicy::Fixed(4000);
    let config = Config { free_high, high, ..Config::new(2, &zones) };
    let depot = single(&config, Box::leak(metadata(&config).into_boxed_slice()));
    // `high` begins at `high_min`.
    let settings = depot.settings(ZONE).unwrap();
    settings.set_cache_limits(CacheLimits { high_max: limits.high_min, ..limits });
    settings.set_cache_limits(limits);
    depot
}

fn alloc(depot: &Single<'_>, cpu: u32, blocks: u32, of: Order) -> Vec<Pfn> {
    depot.cpus().0.run_on(cpu);
    (0..blocks).map(|_| depot.alloc(of, Flags::default()).unwrap()).collect()
}

fn free(depot: &Single<'_>, cpu: u32, blocks: Vec<Pfn>, of: Order) {
    depot.cpus().0.run_on(cpu);
    blocks.into_iter().for_each(|pfn| depot.free(pfn, of).unwrap());
}

fn cached(depot: &Single<'_>, cpu: u32) -> u64 {
    depot.cpu_stats(CpuId::new(cpu), ZONE).unwrap().cached_pages()
}

/// Streams `rounds` times 20 blocks from CPU to CPU. Returns the most pages that the receiver
/// cached after the first `warm_up` rounds.
fn most_cached_by_receiver(depot: &Single<'_>, of: Order, warm_up: u32, rounds: u32) -> u64 {
    let stream = || {
        let sent = alloc(depot, SENDER, 20, of);
        free(depot, RECEIVER, sent, of);
        cached(depot, RECEIVER)
    };
    (0..warm_up).for_each(|_| _ = stream());
    (0..rounds).map(|_| stream()).max().unwrap()
}

fn check_all_free(mut depot: Single<'_>) {
    depot.drain(Scope::ALL, Mode::Full);
    assert_eq!(depot.validate().unwrap().free_pages, u64::from(FRAMES));
}

/// Pages in a full magazine of order 1, 2 or 3.
fn magazine_pages(of: Order) -> u64 {
    [62, 60, 120][of.get() as usize - 1]
}

#[test]
fn a_cpu_that_only_frees_keeps_its_front_and_what_the_limit_says() {
    for of in [1, 2, 3].map(order) {
        let front = 2 * magazine_pages(of);
        for batches in [0, 1, 4] {
            let pages = 63 * u64::from(batches);
            let depot = machine(FreeHigh::batches(batches), LIMITS);
            // Before the rule applies the receiver caches as much as the threshold, and at most a
            // magazine more.
            let first = most_cached_by_receiver(&depot, of, 0, 40);
            assert!(
                first <= front + THRESHOLD.max(pages) + magazine_pages(of),
                "{of:?} {batches}: {first}"
            );
            let later = most_cached_by_receiver(&depot, of, 0, 200);
            assert!(later <= front + pages, "{of:?} {batches}: {later}");
            assert!(later > pages / 2, "{of:?} {batches}: {later}");
            check_all_free(depot);
        }
    }
}

#[test]
fn switched_off_it_keeps_high_which_frees_alone_raise_to_33_batches() {
    for of in [0, 1, 2, 3].map(order) {
        let depot = machine(FreeHigh::OFF, LIMITS);
        let most = most_cached_by_receiver(&depot, of, 0, 4000 / of.frames());
        assert!((FREED_HIGH - 256..=FREED_HIGH).contains(&most), "{of:?}: {most}");
        check_all_free(depot);
    }
}

#[test]
fn high_grows_with_what_a_cpu_allocates() {
    for of in [Order::BASE, order(3), Order::PAGEBLOCK] {
        let depot = machine(FreeHigh::default(), LIMITS);
        let blocks = 3500 / of.frames();
        let held = alloc(&depot, SENDER, blocks, of);
        let high = depot.settings(ZONE).unwrap().high(CpuId::new(SENDER)).unwrap();
        assert!(
            (u64::from(blocks * of.frames())..=LIMITS.high_max).contains(&high),
            "{of:?}: {high}"
        );
        free(&depot, SENDER, held, of);
        assert!(cached(&depot, SENDER) >= u64::from((blocks - 1) * of.frames()) - 256, "{of:?}");
        check_all_free(depot);
    }
}

#[test]
fn what_a_receiver_frees_the_sender_gets_next() {
    // Memory touched with 20 blocks of 8 frames under way, and two fronts of 30 blocks.
    let touched = |free_high| {
        let depot = machine(free_high, LIMITS);
        let mut touched = vec![false; FRAMES as usize];
        for _ in 0..500 {
            let sent = alloc(&depot, SENDER, 20, order(3));
            sent.iter().for_each(|pfn| touched[pfn.index()] = true);
            free(&depot, RECEIVER, sent, order(3));
        }
        check_all_free(depot);
        8 * touched.into_iter().filter(|&touched| touched).count() as u64
    };
    let with = touched(FreeHigh::default());
    assert!(with <= 8 * (20 + 2 * 31) + THRESHOLD + 2 * magazine_pages(order(3)), "{with}");
    assert!(touched(FreeHigh::OFF) >= FREED_HIGH);
}

/// Runs rounds on one CPU, each of `blocks(round)` blocks allocated and freed in a burst. Returns
/// the counters.
fn bursts(free_high: FreeHigh, of: Order, blocks: impl Fn(u32) -> u32) -> pagedepot::Counts {
    let depot = machine(free_high, LIMITS);
    for round in 0..60 {
        let held = alloc(&depot, SENDER, blocks(round), of);
        free(&depot, SENDER, held, of);
    }
    let counts = depot.zone_stats(ZONE).unwrap().counts;
    check_all_free(depot);
    counts
}

#[test]
fn a_cpu_that_frees_what_it_allocated_keeps_its_cache() {
    for of in [1, 2, 3].map(order) {
        // Pages of a burst: a block, what the cache holds, many times that, and all sizes.
        let sizes: [fn(u32) -> u32; 4] = [|_| 1, |_| 3000, |_| 48000, |round| round * 7919 % 6000];
        for pages in sizes {
            let blocks = |round| (pages(round) / of.frames()).max(1);
            let counts =
                [FreeHigh::default(), FreeHigh::OFF].map(|free_high| bursts(free_high, of, blocks));
            assert_eq!(counts[0], counts[1], "{of:?}");
        }
    }
}

#[test]
fn a_cpu_that_only_freed_keeps_the_cache_of_its_bursts() {
    let of = Order::new(3).unwrap();
    let depot = machine(FreeHigh::MAINLINE, LIMITS);
    let sent = alloc(&depot, SENDER, 400, of);
    free(&depot, RECEIVER, sent, of);
    let spills = || depot.cpu_stats(CpuId::new(RECEIVER), ZONE).unwrap().counts.spills;
    let burst = || {
        let blocks = alloc(&depot, RECEIVER, 64, of);
        free(&depot, RECEIVER, blocks, of);
    };
    burst();
    let before = spills();
    (0..20).for_each(|_| burst());
    assert_eq!(spills(), before);
    check_all_free(depot);
}

#[test]
fn orders_0_and_9_are_not_regarded() {
    for of in [Order::BASE, Order::PAGEBLOCK] {
        let counts = [FreeHigh::default(), FreeHigh::OFF].map(|free_high| {
            let depot = machine(free_high, LIMITS);
            most_cached_by_receiver(&depot, of, 0, 200);
            let counts = depot.zone_stats(ZONE).unwrap().counts;
            check_all_free(depot);
            counts
        });
        assert_eq!(counts[0], counts[1], "{of:?}");
    }
}

#[test]
fn a_receiver_that_begins_to_allocate_keeps_what_it_allocates() {
    let depot = machine(FreeHigh::default(), LIMITS);
    most_cached_by_receiver(&depot, order(3), 0, 100);
    for _ in 0..10 {
        let held = alloc(&depot, RECEIVER, 200, order(3));
        free(&depot, RECEIVER, held, order(3));
    }
    let before = depot.cpu_stats(CpuId::new(RECEIVER), ZONE).unwrap().counts;
    let held = alloc(&depot, RECEIVER, 200, order(3));
    free(&depot, RECEIVER, held, order(3));
    let after = depot.cpu_stats(CpuId::new(RECEIVER), ZONE).unwrap().counts;
    assert!(after.shelf_hits >= before.shelf_hits + 11, "{before:?} {after:?}");
    assert!(after.refills <= before.refills + 1, "{before:?} {after:?}");
    check_all_free(depot);
}

#[test]
fn a_sender_that_becomes_a_receiver_is_seen_as_one_after_seconds() {
    let depot = machine(FreeHigh::default(), LIMITS);
    let of = order(3);
    for _ in 0..200 {
        let sent = alloc(&depot, RECEIVER, 20, of);
        free(&depot, SENDER, sent, of);
    }
    // The CPU has allocated 32000 pages more than it freed, and frees 160 per second from now on.
    for second in 1..=40 {
        depot.cpus().0.set_now_ms(second * 1000);
        most_cached_by_receiver(&depot, of, 0, 1);
    }
    assert!(cached(&depot, RECEIVER) <= 2 * magazine_pages(of));
    check_all_free(depot);
}
