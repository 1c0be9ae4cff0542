//! Handovers, step by step:
//!
//! 1. An owner that is asked hands over at its next operation, and caches on; before that nothing
//!    of its fronts is taken. It also does when it is told to, and not where its context may not.
//! 2. A CPU that is quiescent is taken at once, or when a drain looks again.
//! 3. After the deadline CPUs are fenced, isolated ones never; a fence that fails leaves the CPU
//!    asked.
//! 4. One handover answers two drains. What no drain collects, others and decay do.
//! 5. Retiring a CPU answers; a CPU without caches is not asked.
//! 6. A request finds what an isolated CPU hands over before it fails.

use std::mem::MaybeUninit;

use crate::common::{Anywhere, open_zone, range};
use pagedepot::cpus::PinnedCpus;
use pagedepot::{
    Allocator, Config, CpuId, DrainResult, Flags, HandoverCounts, HighPolicy, Mode, Order, Pfn,
    Pressure, Reclaim, Scope, ZoneId,
};

const ZONE: ZoneId = ZoneId::new(0);
const OWNER: CpuId = CpuId::new(0);
const DRAINER: u32 = 1;

type Depot<'m> = Allocator<'m, PinnedCpus<Anywhere>>;

/// An allocator of two CPUs, of which the first caches some pages; this runs on the second.
fn with_cached(test: impl FnOnce(&Depot<'_>, &Anywhere, u64)) {
    with_cached_below(1024, test);
}

/// An allocator like that of [`with_cached`], whose CPUs cache at most `high` pages.
fn with_cached_below(high: u64, test: impl FnOnce(&Depot<'_>, &Anywhere, u64)) {
    let ranges = [range(0, 1 << 14)];
    let zones = [open_zone("z", &ranges)];
    let config = Config { high: HighPolicy::Fixed(high), ..Config::new(2, &zones) };
    let mut metadata = vec![MaybeUninit::uninit(); Depot::metadata_bytes(&config).unwrap()];
    let mut depot = Depot::new(&config, &mut metadata, PinnedCpus(Anywhere::new())).unwrap();
    let anywhere = &depot.cpus().0;
    anywhere.run_on(OWNER.get());
    cycle(&depot, 300);
    let in_fronts = depot.cpu_stats(OWNER, ZONE).unwrap().unreachable_pages;
    assert!(in_fronts > 0);
    anywhere.run_on(DRAINER);
    test(&depot, anywhere, in_fronts);
    assert_eq!(depot.validate().unwrap().held_pages(), 0);
}

/// Allocates pages, then frees them.
fn cycle(depot: &Depot<'_>, pages: usize) {
    let held: Vec<Pfn> =
        (0..pages).map(|_| depot.alloc(Order::BASE, Flags::default()).unwrap()).collect();
    held.into_iter().for_each(|pfn| depot.free(pfn, Order::BASE).unwrap());
}

fn counts(depot: &Depot<'_>) -> HandoverCounts {
    depot.cpu_caches().handover_counts(OWNER).unwrap()
}

fn pending(drained: DrainResult) -> (u64, u64, u64) {
    (drained.pending_cpus, drained.fences, drained.isolated_cpus)
}

#[test]
fn an_owner_hands_over_at_its_next_operation() {
    with_cached(|depot, anywhere, in_fronts| {
        let mut handover = depot.drain_handover(Scope::ALL, None);
        assert_eq!(pending(handover.drained()), (1, 0, 0));
        assert!(handover.drained().pending_pages >= in_fronts);
        let at_once = handover.drained().taken_pages;
        assert!(!handover.poll() && handover.drained().taken_pages == at_once);

        anywhere.run_on(OWNER.get());
        let held = depot.alloc(Order::BASE, Flags::default()).unwrap();
        let stats = depot.cpu_stats(OWNER, ZONE).unwrap();
        assert_eq!(stats.handed_pages, in_fronts);
        assert!(stats.unreachable_pages > 0, "it caches on");
        anywhere.run_on(DRAINER);
        assert!(handover.poll() && handover.is_complete());
        assert_eq!(handover.drained().taken_pages, at_once + in_fronts);
        let expected = (1, 1, 0, 0, in_fronts);
        let seen = counts(depot);
        assert_eq!(
            (seen.asked, seen.handed, seen.quiescent, seen.escalated, seen.handed_pages),
            expected
        );
        depot.free(held, Order::BASE).unwrap();
    });
}

#[test]
fn an_owner_hands_over_when_it_frees_a_batch_that_it_does_not_cache() {
    // The two magazines of a front, and no more.
    with_cached_below(126, |depot, anywhere, _| {
        anywhere.run_on(OWNER.get());
        let alloc = |_| depot.alloc(Order::BASE, Flags::default()).unwrap();
        let held: Vec<Pfn> = (0..300).map(alloc).collect();
        let (batch, others) = held.split_at(64);
        others.iter().for_each(|&pfn| depot.free(pfn, Order::BASE).unwrap());
        assert_eq!(depot.cpu_stats(OWNER, ZONE).unwrap().charged_pages, 126);
        anywhere.run_on(DRAINER);
        assert_eq!(depot.drain(Scope::cpu(OWNER), Mode::Handover).pending_cpus, 1);
        anywhere.run_on(OWNER.get());
        depot.free_many_of(Order::BASE, batch).unwrap();
        assert_eq!(counts(depot).handed, 1);
    });
}

#[test]
fn an_owner_hands_over_when_it_frees_or_is_told_to() {
    with_cached(|depot, anywhere, _| {
        anywhere.run_on(OWNER.get());
        let held = depot.alloc(Order::BASE, Flags::default()).unwrap();
        assert!(!depot.cpu_caches().hand_over(), "nothing was asked");
        for n in 1.. {
            anywhere.run_on(DRAINER);
            assert_eq!(depot.drain(Scope::cpu(OWNER), Mode::Handover).pending_cpus, 1);
            anywhere.set_interrupt(true);
            anywhere.run_on(OWNER.get());
            assert!(!depot.cpu_caches().hand_over(), "a task may be in a sequence");
            let from_store = depot.alloc(Order::BASE, Flags::default().atomic()).unwrap();
            depot.free(from_store, Order::BASE).unwrap();
            assert_eq!(counts(depot).handed, n - 1);
            anywhere.set_interrupt(false);
            if n == 2 {
                assert!(depot.cpu_caches().hand_over() && !depot.cpu_caches().hand_over());
                break;
            }
            depot.free(held, Order::BASE).unwrap();
            assert_eq!(counts(depot).handed, n);
        }
    });
}

#[test]
fn a_quiescent_cpu_is_taken() {
    with_cached(|depot, anywhere, in_fronts| {
        anywhere.set_quiescent(1);
        let handover = depot.drain_handover(Scope::ALL, None);
        assert!(handover.is_complete());
        assert!(handover.drained().taken_pages >= in_fronts);
        assert_eq!((counts(depot).quiescent, anywhere.fences()), (1, 0));
        anywhere.set_quiescent(0);
        anywhere.run_on(OWNER.get());
        cycle(depot, 10);
        anywhere.run_on(DRAINER);
        let mut handover = depot.drain_handover(Scope::ALL, None);
        assert!(!handover.poll());
        anywhere.set_quiescent(1);
        assert!(handover.poll());
        assert_eq!((counts(depot).quiescent, anywhere.fences()), (2, 0));
        assert_eq!(depot.cpu_stats(OWNER, ZONE).unwrap().cached_pages(), 0);
    });
}

#[test]
fn after_the_deadline_cpus_are_fenced_but_for_isolated_ones() {
    with_cached(|depot, anywhere, in_fronts| {
        anywhere.set_now_ms(1000);
        anywhere.spare(1);
        let mut handover = depot.drain_handover(Scope::ALL, Some(10));
        anywhere.set_now_ms(1009);
        assert!(!handover.poll());
        assert_eq!(pending(handover.drained()), (1, 0, 0));
        anywhere.set_now_ms(1010);
        assert!(!handover.poll());
        assert_eq!(pending(handover.drained()), (1, 0, 1));
        assert_eq!(anywhere.fences(), 0);

        anywhere.spare(0);
        anywhere.refuse_fences(true);
        let before = handover.drained().taken_pages;
        assert!(!handover.poll());
        // Tried once, and none took place.
        assert_eq!((pending(handover.drained()), anywhere.fences()), ((1, 0, 0), 1));
        assert_eq!((handover.drained().busy_cpus, handover.drained().unfenced_cpus), (1, 1));
        // Still asked: a full drain that fails leaves it so, too.
        assert_eq!(depot.drain(Scope::cpu(OWNER), Mode::Full).busy_cpus, 1);
        anywhere.refuse_fences(false);
        assert!(handover.poll());
        assert_eq!(handover.drained().taken_pages, before + in_fronts);
        assert_eq!((counts(depot).escalated, counts(depot).handed), (1, 0));
    });
}

#[test]
fn one_handover_answers_all_that_asked() {
    with_cached(|depot, anywhere, in_fronts| {
        let mut first = depot.drain_handover(Scope::ALL, None);
        let mut second = depot.drain_handover(Scope::cpu(OWNER), None);
        anywhere.run_on(OWNER.get());
        assert!(depot.cpu_caches().hand_over());
        anywhere.run_on(DRAINER);
        let before = first.drained().taken_pages;
        assert!(second.poll() && first.poll());
        assert_eq!(second.drained().taken_pages, in_fronts);
        assert_eq!(first.drained().taken_pages, before);
        assert_eq!((counts(depot).asked, counts(depot).handed), (2, 1));
    });
}

#[test]
fn what_no_drain_collects_is_found() {
    with_cached(|depot, anywhere, in_fronts| {
        let hand_over = || {
            anywhere.run_on(DRAINER);
            depot.drain(Scope::ALL, Mode::Handover);
            anywhere.run_on(OWNER.get());
            assert!(depot.cpu_caches().hand_over());
            depot.cpu_stats(OWNER, ZONE).unwrap().handed_pages
        };
        assert_eq!(hand_over(), in_fronts);
        assert_eq!(depot.drain(Scope::ALL, Mode::Quiet).taken_pages, in_fronts);
        cycle(depot, 10);
        let pages = hand_over();
        assert!(pages > 0);
        assert_eq!(depot.cpu_caches().decay(), pages);
        cycle(depot, 10);
        let pages = hand_over();
        let zone = depot.zone_stats(ZONE).unwrap();
        assert_eq!(zone.free_pages + pages, zone.managed_pages - zone.carved_pages);
        assert_eq!(depot.drain(Scope::ALL, Mode::Full).taken_pages, pages);
    });
}

#[test]
fn retiring_a_cpu_answers() {
    with_cached(|depot, anywhere, _| {
        let mut handover = depot.drain_handover(Scope::ALL, None);
        assert!(!handover.poll());
        assert_eq!(depot.cpu_caches().retire(OWNER).unreachable_pages, 0);
        assert!(handover.poll() && !depot.cpu_caches().are_enabled(OWNER));
        assert!(depot.drain_handover(Scope::ALL, None).is_complete());
        assert_eq!(counts(depot).asked, 1);
        assert!(depot.cpu_caches().restore(OWNER));
        anywhere.run_on(OWNER.get());
        cycle(depot, 10);
        assert_eq!(depot.drain(Scope::ALL, Mode::Handover).pending_cpus, 0, "its own CPU");
    });
}

#[test]
fn disabled_while_it_is_asked_and_enabled() {
    with_cached(|depot, anywhere, _| {
        let mut handover = depot.drain_handover(Scope::ALL, None);
        depot.cpu_caches().disable();
        assert!(handover.poll());
        depot.cpu_caches().enable();
        anywhere.run_on(OWNER.get());
        cycle(depot, 10);
        assert!(!depot.cpu_caches().hand_over());
        anywhere.run_on(DRAINER);
        let mut handover = depot.drain_handover(Scope::ALL, None);
        depot.cpu_caches().enable();
        assert!(!handover.poll(), "enabling leaves it asked");
    });
}

/// A callback that acts as the isolated CPU: its owner goes on while the request waits.
struct Owner(&'static Depot<'static>);

impl Reclaim for Owner {
    fn reclaim(&self, _: Pressure) -> u64 {
        let anywhere = &self.0.cpus().0;
        anywhere.run_on(OWNER.get());
        self.0.cpu_caches().hand_over();
        anywhere.run_on(DRAINER);
        0
    }
}

#[test]
fn a_request_finds_what_an_isolated_cpu_hands_over() {
    const PAGES: u32 = 256;
    let ranges = [range(0, PAGES)];
    let zones = [open_zone("z", &ranges)];
    let config = Config { high: HighPolicy::Fixed(1024), ..Config::new(2, &zones) };
    let metadata = vec![MaybeUninit::uninit(); Depot::metadata_bytes(&config).unwrap()].leak();
    let depot = Depot::new(&config, metadata, PinnedCpus(Anywhere::new())).unwrap();
    let depot: &'static Depot<'static> = Box::leak(Box::new(depot));
    let anywhere = &depot.cpus().0;
    anywhere.spare(1);
    anywhere.run_on(OWNER.get());
    cycle(depot, 1);
    anywhere.run_on(DRAINER);
    let take_all = || {
        let alloc = || depot.alloc(Order::BASE, Flags::default()).ok();
        std::iter::from_fn(alloc).collect::<Vec<Pfn>>()
    };
    let held = take_all();
    let in_fronts = depot.cpu_stats(OWNER, ZONE).unwrap().unreachable_pages;
    assert!(in_fronts > 0, "its owner did not go on");
    assert_eq!(held.len() as u64 + in_fronts, u64::from(PAGES));
    depot.register_reclaim(Box::leak(Box::new(Owner(depot)))).unwrap();
    let rest = take_all();
    // The drainer's own magazines are handed over by itself, so no CPU is left to be fenced.
    assert_eq!((rest.len() as u64, anywhere.fences()), (in_fronts, 0));
    held.into_iter().chain(rest).for_each(|pfn| depot.free(pfn, Order::BASE).unwrap());
    assert_eq!(depot.validate_at_rest().unwrap().held_pages(), 0);
}
