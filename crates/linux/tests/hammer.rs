//! Threads hammer a depot, with an owner's mark in every page, while other threads drain it quietly
//! and fully and disable its caches. At the end every page is back.

mod common;

use std::time::Duration;

use common::{all_back, hammer, mib, order, pin, usable_cpus};
use pagedepot_linux::builder::{CpuSet, Topology};
use pagedepot_linux::stats::Fronts;
use pagedepot_linux::{CpuId, Depot, Flags, MemoryKind, Mode, Order, Scope};

const WHILE: Duration = Duration::from_millis(700);

#[test]
fn sequences() {
    hammer(&Depot::builder(64 * mib()).checked(true).build().unwrap(), WHILE);
}

#[test]
fn locks() {
    let depot = Depot::builder(64 * mib()).per_cpu_locks(true).build().unwrap();
    assert_eq!(depot.fronts(), Fronts::Locks);
    hammer(&depot, WHILE);
}

#[test]
fn without_caches() {
    let depot = Depot::builder(64 * mib()).caches(false).build().unwrap();
    hammer_without_drains(&depot);
}

/// Drains find nothing, and must do no harm.
fn hammer_without_drains(depot: &Depot) {
    let end = std::time::Instant::now() + WHILE;
    let seed = common::seed();
    let shared = depot;
    std::thread::scope(|scope| {
        for owner in 1..=3 {
            scope.spawn(move || common::work(shared, owner, seed, 200, end));
        }
    });
    assert_eq!(depot.drain(Scope::ALL, Mode::Full).taken_pages, 0);
    all_back(depot);
}

#[test]
fn memory_file() {
    hammer(&Depot::builder(64 * mib()).memory(MemoryKind::Memfd).build().unwrap(), WHILE);
}

/// Requests fail all the time, and take back what other CPUs cache.
#[test]
fn too_little_memory() {
    hammer(&Depot::builder(4 * mib()).checked(true).build().unwrap(), WHILE);
}

/// Threads on CPUs that have no caches work through the store.
#[test]
fn more_cpus_than_configured() {
    let depot = Depot::builder(64 * mib()).cpus(1).build().unwrap();
    hammer(&depot, WHILE);
    if let Some(&last) = usable_cpus().last().filter(|&&cpu| cpu > 0) {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert!(pin(last));
                let zone = depot.zone_ids().next().unwrap();
                let before = depot.zone_stats(zone).unwrap().counts;
                drop(depot.page(Order::BASE).unwrap());
                let after = depot.zone_stats(zone).unwrap().counts;
                assert_eq!(after.direct_allocs, before.direct_allocs + 1);
                assert_eq!(after.direct_frees, before.direct_frees + 1);
            });
        });
    }
    all_back(&depot);
}

/// A thread that changes CPUs leaves pages in the caches of each; a drain finds them all.
#[test]
fn changing_affinity() {
    let depot = Depot::new(64 * mib()).unwrap();
    let cpus = usable_cpus();
    let shared = &depot;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for round in 0..200 {
                assert!(pin(cpus[round % cpus.len()]));
                let pages: Vec<_> = (0..50).map(|_| shared.page(Order::BASE).unwrap()).collect();
                assert!(pin(cpus[(round + 1) % cpus.len()]));
                drop(pages);
            }
        });
    });
    let drained = depot.drain(Scope::ALL, Mode::Full);
    assert!(drained.taken_pages > 0);
    assert_eq!((drained.left_pages, drained.busy_cpus), (0, 0), "{drained:?}");
    assert_eq!(drained.unreachable_pages, 0);
    all_back(&depot);
}

/// Full drains do not touch the fronts of isolated CPUs without locks, and report them.
#[test]
fn isolated_cpus() {
    let isolated: CpuSet = usable_cpus().into_iter().map(CpuId::new).collect();
    let depot = Depot::builder(64 * mib())
        .isolated_cpus(isolated.clone())
        .locked_cpus(CpuSet::new())
        .build()
        .unwrap();
    drop(depot.page(Order::BASE).unwrap());
    let drained = depot.drain(Scope::ALL, Mode::Full);
    // Every CPU that may ever come online is fenced, whatever this process may use now.
    assert_eq!(drained.fences, u64::from(Topology::read().cpu_count()) - isolated.len() as u64);
    assert_eq!(drained.isolated_cpus, isolated.len() as u64);
    assert!(drained.unreachable_pages > 0, "{drained:?}");
    // Disabling caches takes those of isolated CPUs, too.
    let disabled = depot.cpu_caches().disable();
    assert_eq!((disabled.unreachable_pages, disabled.busy_cpus), (0, 0), "{disabled:?}");
    let page = depot.page(Order::BASE).unwrap();
    let pfn = page.pfn();
    drop(page);
    assert!(depot.raw().is_free(pfn));
    depot.cpu_caches().enable();
    all_back(&depot);
}

#[test]
fn batches() {
    let depot = Depot::builder(64 * mib()).checked(true).build().unwrap();
    let mut blocks = vec![pagedepot_linux::Pfn::new(0); 5000];
    let got = depot.raw().alloc_many(Order::BASE, Flags::default(), &mut blocks).unwrap();
    assert_eq!(got, blocks.len());
    let mut batch: Vec<_> = blocks.into_iter().map(|pfn| (pfn, Order::BASE)).collect();
    let large = depot.raw().alloc(order(9), Flags::default()).unwrap();
    batch.insert(77, (large, order(9)));
    // SAFETY: allocated above; no code uses it.
    unsafe { depot.raw().free_mixed(&batch) }.unwrap();
    // SAFETY: a double free of memory that no code uses: `checked` refuses it.
    let error = unsafe { depot.raw().free_mixed(&batch[70..80]) }.unwrap_err();
    assert_eq!((error.first, error.failed), (0, 10));
    all_back(&depot);
}
