//! The scenario of the bug report to "Remote per-cpu lists drain support" (2022): memory runs out,
//! and requests drain all CPUs of all zones, on a machine with a zone without memory and CPUs that
//! never ran. There, a drain without a zone dereferenced the zone. Here, a request must return an
//! error, no design may crash, and all memory freed afterwards must be available.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::common::{Entry, allowed_cpus, over_all_designs, pin, task, three_zones};
use pagedepot::{CpuId, Mobility, Mode, Order, Pfn, ZoneId};
use pagedepot_designs::{PageCache, Scope, Setup};

const PAGES: u64 = 700 + 1500 + 1024;
/// CPUs 2 and 3 never run.
const CPUS: u32 = 4;

/// All scopes, zones and CPUs that do not exist included.
fn scopes() -> impl Iterator<Item = Scope> {
    let cpus = || std::iter::once(None).chain((0..CPUS + 1).map(|cpu| Some(CpuId::new(cpu))));
    let zones = || std::iter::once(None).chain((0..4).map(|zone| Some(ZoneId::new(zone))));
    cpus().flat_map(move |cpu| zones().map(move |zone| Scope { cpu, zone }))
}

/// Drains all that can be drained, with operations of owners in between.
fn drain_all(design: &impl PageCache) {
    for _ in 0..3 {
        for scope in scopes() {
            design.drain(scope, Mode::Full);
        }
        (0..CPUS).for_each(|cpu| design.idle(task(cpu)));
    }
}

fn exhausted_on_one_thread<D: PageCache>(name: &str, make: fn(&Setup, Entry) -> D) {
    let mut design = make(&three_zones(CPUS), Entry::Pretend);
    // Drains before any CPU ran find nothing to do.
    scopes().for_each(|scope| assert_eq!(design.drain(scope, Mode::Full).taken_pages, 0));
    let mut held = Vec::new();
    for cpu in [0, 1] {
        while let Some(pfn) = design.alloc(task(cpu), Order::BASE, Mobility::ALL[held.len() % 3]) {
            held.push(pfn);
        }
        assert!(design.alloc(task(cpu), Order::MAX, Mobility::Movable).is_none());
        for scope in scopes() {
            design.drain(scope, Mode::Full);
        }
        design.idle(task(cpu));
    }
    assert_eq!(design.free_pages() + design.cached_pages_total() + held.len() as u64, PAGES);
    // Owners that operated or went idle left nothing: every page was allocated.
    assert_eq!(held.len() as u64, PAGES, "{name}");
    assert!(design.counts().failures >= 4);
    for (at, pfn) in held.drain(..).enumerate() {
        design.free(task(at as u32 % 2), pfn, Order::BASE);
    }
    drain_all(&design);
    let census = design.validate().unwrap();
    assert_eq!((census.free_pages, census.held_pages()), (PAGES, 0));
    // Memory is merged again: a block of the largest order can be allocated.
    assert!(design.alloc(task(3), Order::MAX, Mobility::Unmovable).is_some());
}

over_all_designs!(exhausted_on_one_thread);

/// Owners exhaust memory again and again while others drain globally and by zone.
fn exhausted_while_others_drain<D: PageCache + Send>(name: &str, make: fn(&Setup, Entry) -> D) {
    let cpus = allowed_cpus();
    let most = cpus.iter().max().unwrap() + 1;
    let mut design = make(&three_zones(most.max(CPUS)), Entry::OnCpu);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let (shared, stop) = (&design, &done);
        let drainer = scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                for scope in scopes() {
                    shared.drain(scope, Mode::Full);
                }
                thread::yield_now();
            }
        });
        let owners: Vec<_> =
            cpus.iter().map(|&cpu| scope.spawn(move || exhaust(shared, cpu))).collect();
        let owners: Vec<_> = owners.into_iter().map(|owner| owner.join()).collect();
        done.store(true, Ordering::Relaxed);
        drainer.join().unwrap();
        owners.into_iter().for_each(|owner| owner.unwrap());
    });
    assert!(design.counts().failures > 0, "{name}");
    thread::scope(|scope| {
        let settle = || {
            for &cpu in &cpus {
                pin(cpu);
                design.idle(task(cpu));
                design.drain(Scope::ALL, Mode::Full);
            }
            design.drain(Scope::ALL, Mode::Full);
        };
        scope.spawn(settle).join().unwrap();
    });
    let census = design.validate().unwrap();
    assert_eq!((census.free_pages, census.held_pages()), (PAGES, 0));
}

fn exhaust(design: &impl PageCache, cpu: u32) {
    pin(cpu);
    for round in 0..20u32 {
        let order = Order::new(round % 4).unwrap();
        let mut held: Vec<(Pfn, Order)> = Vec::new();
        let mut failures = 0;
        while failures < 5 {
            match design.alloc(task(cpu), order, Mobility::Movable) {
                Some(pfn) => held.push((pfn, order)),
                None => failures += 1,
            }
        }
        design.free_many(task(cpu), &held);
    }
    design.idle(task(cpu));
}

over_all_designs!(exhausted_while_others_drain);
