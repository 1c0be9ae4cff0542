//! Behaviour that only one design has.

use crate::common::{self, Entry, task, three_zones};
use pagedepot::{CacheLimits, CpuId, Mobility, Mode, Order, ZoneId};
use pagedepot_designs::*;

const NORMAL: ZoneId = ZoneId::new(2);

fn order(n: u32) -> Order {
    Order::new(n).unwrap()
}

/// Allocates one block on a CPU and frees it there, so that the CPU caches a refill.
fn warm(design: &impl PageCache, cpu: u32) {
    let pfn = design.alloc(task(cpu), Order::BASE, Mobility::Movable).unwrap();
    design.free(task(cpu), pfn, Order::BASE);
}

#[test]
fn spin_continues_where_a_recorded_machine_was() {
    let mut spin = common::spin_trylock(&three_zones(2), Entry::Pretend);
    let cpu = CpuId::new(1);
    assert_eq!(spin.high(cpu, NORMAL), Some(28));
    assert!(spin.set_high(cpu, NORMAL, 150));
    assert!(!spin.set_high(CpuId::new(2), NORMAL, 150));
    assert_eq!(spin.preload(cpu, NORMAL, order(3), Mobility::Unmovable, 5), 5);
    assert_eq!(spin.preload(cpu, NORMAL, order(0), Mobility::Movable, 3), 3);
    assert_eq!(spin.preload(cpu, NORMAL, order(5), Mobility::Movable, 3), 0);
    assert_eq!(spin.preload(cpu, ZoneId::new(1), order(0), Mobility::Movable, 3), 0);
    assert_eq!((spin.cached_in(cpu, NORMAL), spin.cached_pages(cpu)), (43, 43));
    assert_eq!(spin.high(cpu, NORMAL), Some(150));
    let refills = spin.counts().refills;
    for _ in 0..5 {
        spin.alloc(task(1), order(3), Mobility::Unmovable).unwrap();
    }
    assert_eq!((spin.counts().refills, spin.cached_pages(cpu)), (refills, 3));
    assert_eq!(spin.validate().unwrap().held_pages(), 40);
}

#[test]
fn spin_without_caches_keeps_nothing() {
    let spin = common::spin_trylock(&three_zones(1), Entry::Pretend);
    warm(&spin, 0);
    let limits = spin.disable_caches(NORMAL);
    assert_eq!(limits, CacheLimits { batch: 7, high_min: 28, high_max: 200 });
    assert_eq!(spin.cached_pages_total(), 0);
    for size in [0, 1, 3] {
        let pfn = spin.alloc(task(0), order(size), Mobility::Movable).unwrap();
        assert_eq!(spin.cached_pages_total(), 0);
        spin.free(task(0), pfn, order(size));
        assert_eq!(spin.cached_pages_total(), 0);
    }
    spin.enable_caches(NORMAL, limits);
    warm(&spin, 0);
    assert_eq!(spin.cached_pages_total(), 7);
}

#[test]
fn spin_decays_what_lies_idle() {
    let mut setup = three_zones(1);
    setup.zones[2].limits = Some(CacheLimits { batch: 7, high_min: 28, high_max: 400 });
    let spin = Spin::new(
        Buddy::new(&setup).unwrap(),
        LockMode::TryLock,
        Policy { batch_scale: 1, ..Policy::default() },
    );
    let cpu = CpuId::new(0);
    spin.set_high(cpu, NORMAL, 400);
    assert_eq!(spin.preload(cpu, NORMAL, Order::BASE, Mobility::Movable, 300), 300);
    // `high` falls by an eighth at a time, but not below the pages held less 14; then the excess is
    // spilled.
    let expected = [(350, 300), (307, 300), (286, 286), (272, 272), (258, 258)];
    for (high, held) in expected {
        spin.tick(task(0));
        assert_eq!(
            (u64::from(spin.high(cpu, NORMAL).unwrap()), spin.cached_pages(cpu)),
            (high, held)
        );
    }
    assert_eq!(spin.counts().spilled.pages, 42);
}

#[test]
fn drains_of_a_depot_with_free_locks_interrupt_no_cpu() {
    let depot = common::depot(&three_zones(2), Entry::Pretend);
    let held: Vec<_> = (0..300)
        .map(|_| (depot.alloc(task(0), Order::BASE, Mobility::Movable).unwrap(), Order::BASE))
        .collect();
    held.iter().for_each(|&(pfn, order)| depot.free(task(0), pfn, order));
    let quiet = depot.drain(Scope::ALL, Mode::Quiet);
    assert_eq!((quiet.interruptions, quiet.left_pages), (0, 0));
    // The pages left are in fronts, and reported by their bound.
    assert!(
        quiet.unreachable_pages >= depot.cached_pages_total() && depot.cached_pages_total() > 0
    );
    let full = depot.drain(Scope::ALL, Mode::Full);
    // Neither does a full one here: the depot has a lock per CPU, and both are free.
    assert_eq!((full.unreachable_pages, full.interruptions), (0, 0));
    assert_eq!(depot.counts().interruptions, 0);
}

#[test]
fn full_drains_of_a_depot_fence_just_the_cpus_whose_locks_are_held() {
    let cpus = common::Watched::new(3).report_held(0b101);
    let depot = Depot::owned(&three_zones(3), cpus, ByThread, FreeHigh::OFF).unwrap();
    (0..3).for_each(|cpu| warm(&depot, cpu));
    let quiet = depot.drain(Scope::ALL, Mode::Quiet);
    assert_eq!(quiet.interruptions, 0);
    let full = depot.drain(Scope::ALL, Mode::Full);
    assert_eq!((full.fences, full.unreachable_pages), (2, 0));
    // One that has nothing cached is left out.
    assert_eq!(depot.drain(Scope::cpu(CpuId::new(2)), Mode::Full).fences, 0);
    (1..3).for_each(|cpu| warm(&depot, cpu));
    assert_eq!(depot.drain(Scope::cpu(CpuId::new(1)), Mode::Full).fences, 0);
    assert_eq!(depot.drain(Scope::cpu(CpuId::new(2)), Mode::Full).fences, 1);
    assert_eq!(depot.counts().interruptions, 3);
}

#[test]
fn a_depot_counts_the_pages_of_blocks_past_its_caches() {
    let depot = common::depot(&three_zones(1), Entry::Pretend);
    let pfn = depot.alloc(task(0), order(10), Mobility::Movable).unwrap();
    depot.free(task(0), pfn, order(10));
    let (counts, moved) = (depot.counts(), Volume { blocks: 1, pages: 1024 });
    assert_eq!((counts.direct_allocated, counts.direct_freed), (moved, moved));
}

/// A receiver: frees blocks of order 3 that another CPU allocates.
fn cached_by_receiver(design: &impl PageCache) -> u64 {
    let mut most = 0;
    for _ in 0..40 {
        let alloc = |_| design.alloc(task(0), order(3), Mobility::Unmovable).unwrap();
        let blocks: Vec<_> = (0..20).map(alloc).collect();
        blocks.into_iter().for_each(|pfn| design.free(task(1), pfn, order(3)));
        most = most.max(design.cached_pages(CpuId::new(1)));
    }
    most
}

#[test]
fn limits_for_receivers_hold_for_spin_and_depot() {
    let mut setup = Setup::single(2, 1 << 14);
    setup.zones[0].limits = Some(CacheLimits { batch: 63, high_min: 252, high_max: 4000 });
    let spin = |limit| {
        let free_high = FreeHighPolicy { limit, ..FreeHighPolicy::default() };
        let policy = Policy { free_high, ..Policy::default() };
        cached_by_receiver(&Spin::new(Buddy::new(&setup).unwrap(), LockMode::TryLock, policy))
    };
    assert!(spin(FreeHighLimit::Zero) <= 160);
    let four = spin(FreeHighLimit::FourBatches);
    assert!(spin(FreeHighLimit::Zero) < four && four < spin(FreeHighLimit::High));
    let depot = |limit: FreeHighLimit| {
        let cpus = common::Watched::new(2);
        cached_by_receiver(&Depot::owned(&setup, cpus, ByThread, limit.into()).unwrap())
    };
    assert!(depot(FreeHighLimit::Zero) < depot(FreeHighLimit::High));
}
