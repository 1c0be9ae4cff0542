//! Out of memory while others drain, as in the report on the remote-drain series ("Re: [PATCH 0/2]
//! mm/page_alloc: Remote per-cpu lists drain support", Xiongfeng Wang, 9 Feb 2022): a task uses all
//! memory up, the failing request drains every zone, and the drain meets zones without memory.

use std::mem::MaybeUninit;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::backing::Sets;
use crate::common::rng::{Rng, seed};
use crate::common::threads::{Claimed, run_on};
use crate::common::{open_zone, range, soak};
use pagedepot::cpus::{CpuLock, LockedCpus};
use pagedepot::{
    AllocError, Allocator, Backing, Config, CpuId, Flags, HighPolicy, Mode, NodeId, Order, Pfn,
    Scope, ZoneConfig,
};

type Depot<'m> = Allocator<'m, LockedCpus<'m, Claimed>>;

/// CPUs 3 to 5 never run.
const CPUS: u32 = 6;
const RUNNING: u32 = 3;
const PAGES: u64 = 6000 + 3000 + 512;

/// `is_backed`: a backing keeps the free frames, which must not make requests fail earlier.
fn with_machine(is_backed: bool, test: impl FnOnce(Depot<'_>)) {
    let normal = [range(0, 6000)];
    let remote = [range(8192, 3000)];
    let small = [range(16384, 512)];
    let node = |n, zone| ZoneConfig { node: NodeId::new(n), ..zone };
    let zones = [
        node(0, open_zone("empty first", &[])),
        node(0, open_zone("normal", &normal)),
        node(0, ZoneConfig { level: 3, ..open_zone("empty, movable", &[]) }),
        node(1, open_zone("remote", &remote)),
        node(2, ZoneConfig { level: 1, ..open_zone("small", &small) }),
        node(3, open_zone("empty last", &[])),
    ];
    let config = Config {
        cpu_nodes: &[NodeId::new(0), NodeId::new(1), NodeId::new(3)],
        high: HighPolicy::Fixed(1000),
        ..Config::new(CPUS, &zones)
    };
    let locks: Vec<CpuLock> = (0..CPUS).map(|_| CpuLock::new()).collect();
    let mut memory = vec![MaybeUninit::uninit(); Depot::metadata_bytes(&config).unwrap()];
    let cpus = LockedCpus::new(&locks, Claimed::new());
    let sets = is_backed.then(|| Sets::new(&zones, false));
    let under = sets.as_ref().map(|sets| sets as &dyn Backing);
    test(Depot::builder(&config).backing(under).build(&mut memory, cpus).unwrap());
}

/// Allocates until a request fails.
fn exhaust(depot: &Depot<'_>, held: &mut Vec<Pfn>) {
    loop {
        match depot.alloc(Order::BASE, Flags::default()) {
            Ok(pfn) => held.push(pfn),
            Err(error) => return assert_eq!(error, AllocError::Exhausted),
        }
    }
}

/// Drains as the report's kernel did: everything, and zone by zone.
fn drain_all_ways(depot: &Depot<'_>) {
    for mode in [Mode::Quiet, Mode::Full] {
        depot.drain(Scope::ALL, mode);
        for zone in depot.zone_ids() {
            depot.drain(Scope::zone(zone), mode);
            depot.drain(Scope::cpu(CpuId::new(CPUS - 1)).in_zone(zone), mode);
        }
    }
}

fn check_all_there(depot: &mut Depot<'_>) {
    depot.drain(Scope::ALL, Mode::Full);
    let census = depot.validate().unwrap();
    assert_eq!((census.free_pages, census.managed_pages), (PAGES, PAGES));
    let mut all = Vec::new();
    exhaust(depot, &mut all);
    all.sort();
    all.dedup();
    assert_eq!(all.len() as u64, PAGES);
    let blocks: Vec<_> = all.into_iter().map(|pfn| (pfn, Order::BASE)).collect();
    depot.free_many(&blocks).unwrap();
    assert_eq!(depot.validate().unwrap().held_pages(), 0);
}

#[test]
fn the_error_says_where_the_pages_are() {
    with_machine(false, |mut depot| {
        run_on(Some(0));
        let mut held = Vec::new();
        exhaust(&depot, &mut held);
        assert_eq!(held.len() as u64, PAGES);
        let report = depot.shortage().to_string();
        let lines: Vec<&str> = report.lines().collect();
        assert_eq!(lines.len(), 6, "{report}");
        for (line, (name, managed)) in lines.iter().zip([
            ("empty first", 0),
            ("normal", 6000),
            ("empty, movable", 0),
            ("remote", 3000),
            ("small", 512),
            ("empty last", 0),
        ]) {
            assert!(line.starts_with(&format!("{name}: managed {managed} free 0")), "{line}");
        }
        // The report lists freed pages where they are.
        run_on(Some(1));
        let blocks: Vec<_> = held.drain(..).map(|pfn| (pfn, Order::BASE)).collect();
        depot.free_many(&blocks[..200]).unwrap();
        depot.note_quarantined(blocks[300].0, 7);
        let sum = |of: fn(&pagedepot::ZoneShortage) -> u64| -> u64 {
            depot.shortage().zones().map(|zone| of(&zone)).sum()
        };
        assert_eq!(
            sum(|z| z.free_pages) + sum(|z| z.cached_pages) + sum(|z| z.unreachable_pages),
            200
        );
        assert!(sum(|z| z.unreachable_pages) > 0);
        assert_eq!((sum(|z| z.in_flight_pages), sum(|z| z.quarantined_pages)), (0, 7));
        assert!(depot.shortage().to_string().contains("quarantined 7"));
        depot.note_quarantined(blocks[300].0, -7);
        assert_eq!(sum(|z| z.quarantined_pages), 0);
        depot.free_many(&blocks[200..]).unwrap();
        check_all_there(&mut depot);
    });
}

#[test]
fn all_cpus_run_out_while_all_drain() {
    run_out_and_drain(false);
}

#[test]
fn all_cpus_run_out_of_a_backing() {
    run_out_and_drain(true);
}

fn run_out_and_drain(is_backed: bool) {
    let end = Instant::now() + soak(Duration::from_millis(500));
    with_machine(is_backed, |mut depot| {
        while Instant::now() < end {
            let all = Mutex::new(Vec::new());
            let running = AtomicU32::new(RUNNING);
            std::thread::scope(|scope| {
                for cpu in 0..RUNNING {
                    let (depot, all, running) = (&depot, &all, &running);
                    scope.spawn(move || {
                        run_on(Some(cpu));
                        let mut held = Vec::new();
                        for round in 0..4 {
                            exhaust(depot, &mut held);
                            drain_all_ways(depot);
                            assert!(depot.shortage().to_string().lines().count() == 6);
                            if round < 3 {
                                let kept = held.len() / 2;
                                held.drain(kept..)
                                    .for_each(|pfn| depot.free(pfn, Order::BASE).unwrap());
                            }
                        }
                        all.lock().unwrap().append(&mut held);
                        running.fetch_sub(1, Ordering::Relaxed);
                    });
                }
                while running.load(Ordering::Relaxed) > 0 {
                    drain_all_ways(&depot);
                }
            });
            // Pages that were drained while requests failed can still be allocated.
            let mut all = all.into_inner().unwrap();
            run_on(Some(0));
            exhaust(&depot, &mut all);
            assert_eq!(all.len() as u64, PAGES);
            all.sort();
            all.dedup();
            assert_eq!(all.len() as u64, PAGES);
            let census = depot.validate().unwrap();
            assert_eq!((census.free_pages, census.cached_pages), (0, 0));
            for pfn in all {
                run_on(Some(pfn.get() % RUNNING));
                depot.free(pfn, Order::BASE).unwrap();
            }
            check_all_there(&mut depot);
        }
    });
}

/// There are as many pages as all threads may hold together. So a thread that requests one more can
/// have it, if the request looks where the other threads left it. Requests fail after a few rounds
/// in which other threads kept moving pages, so some requests do: about one in 100_000.
fn share_all_pages(name: &str, is_backed: bool) {
    const THREADS: u64 = 4;
    let seed = seed(name);
    with_machine(is_backed, |mut depot| {
        let stop = AtomicBool::new(false);
        let failed = AtomicU64::new(0);
        let served = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for n in 0..THREADS {
                let (depot, stop, failed, served) = (&depot, &stop, &failed, &served);
                scope.spawn(move || {
                    run_on(Some(n as u32 % RUNNING));
                    let mut rng = Rng::new(seed + n);
                    let mut held: Vec<Pfn> = Vec::new();
                    while !stop.load(Ordering::Relaxed) {
                        while (held.len() as u64) < PAGES / THREADS {
                            match depot.alloc(Order::BASE, Flags::default()) {
                                Ok(pfn) => held.push(pfn),
                                Err(_) => _ = failed.fetch_add(1, Ordering::Relaxed),
                            }
                            served.fetch_add(1, Ordering::Relaxed);
                        }
                        for _ in 0..rng.below(300) {
                            let pfn = held.swap_remove(rng.index(held.len()));
                            depot.free(pfn, Order::BASE).unwrap();
                        }
                    }
                    held.into_iter().for_each(|pfn| depot.free(pfn, Order::BASE).unwrap());
                });
            }
            std::thread::sleep(soak(Duration::from_millis(500)));
            stop.store(true, Ordering::Relaxed);
        });
        check_all_there(&mut depot);
        println!("{failed:?} of {served:?} failed");
        assert!(failed.into_inner() <= served.into_inner() / 1000);
    });
}

#[test]
fn no_request_fails_while_there_is_a_page() {
    share_all_pages("no_request_fails", false);
}

#[test]
fn no_request_fails_while_a_backing_has_a_page() {
    share_all_pages("no_request_fails_over_a_backing", true);
}
