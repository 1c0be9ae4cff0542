//! Depots that grow while they are used.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::skip::skip;
use crate::common::{self, StopAtEnd, UNIT_PAGES, all_back, in_child, mib, page_bytes, unit, work};
use pagedepot_linux::builder::{ConfigError, Limit};
use pagedepot_linux::{AllocError, BuildError, Depot, Flags, MemoryKind, Order, Page, Pfn, ZoneId};

const ZONE: ZoneId = ZoneId::new(0);

/// Allocates all pages, in the largest blocks.
fn all_blocks(depot: &Depot) -> Vec<Page> {
    std::iter::from_fn(|| depot.page(Order::MAX).ok()).collect()
}

#[test]
fn what_is_added_can_be_had_and_used() {
    for kind in [MemoryKind::Anonymous, MemoryKind::Memfd] {
        let depot =
            Depot::builder(unit()).grow_to(3 * unit()).memory(kind).caches(false).build().unwrap();
        assert_eq!(depot.bytes(), unit());
        let before = all_blocks(&depot);
        assert_eq!(before.len(), 256);
        assert_eq!(depot.page(Order::MAX).unwrap_err(), AllocError::Exhausted);
        assert_eq!(depot.grow(ZONE, 1), Ok(Pfn::new(UNIT_PAGES)), "the page behind the last");
        assert_eq!(depot.bytes(), 2 * unit());
        let mut added = all_blocks(&depot);
        assert_eq!(added.len(), 256);
        assert!(added.iter().all(|page| page.pfn().get() >= UNIT_PAGES));
        let last = added.iter_mut().max_by_key(|page| page.pfn()).unwrap();
        let end = last.len() - 6;
        assert!(last[end..].iter().all(|&byte| byte == 0));
        last[end..].copy_from_slice(b"shared");
        assert_eq!(depot.pfn_of(&raw const last[end]), Some(Pfn::new(2 * UNIT_PAGES - 1)));
        // SAFETY: only read from, below.
        if let Some(fd) = unsafe { depot.raw().fd() } {
            let mut read = [0u8; 6];
            // SAFETY: reads into a buffer of that size.
            let got = unsafe {
                libc::pread(
                    fd.as_raw_fd(),
                    read.as_mut_ptr().cast(),
                    read.len(),
                    2 * unit() as libc::off_t - 6,
                )
            };
            assert_eq!((got, &read), (6, b"shared"));
        }
        assert_eq!(
            depot.pfn_of(depot.raw().base().as_ptr().wrapping_add(2 * unit())),
            None,
            "not there yet"
        );
        drop((before, added));
        depot.grow(ZONE, unit()).unwrap();
        let whole = depot.pages(UNIT_PAGES, Flags::default()).unwrap();
        assert_eq!(whole.len(), unit());
        drop(whole);
        all_back(&depot);
    }
}

#[test]
fn memory_is_ready_before_it_is_there() {
    let depot = Depot::builder(unit()).grow_to(2 * unit()).build().unwrap();
    let mut ready = None;
    let first = depot.raw().grow_with(ZONE, 1, |start, bytes| {
        assert_eq!(depot.pfn_of(start.as_ptr()), None);
        ready = Some((start, bytes));
    });
    assert_eq!(ready, Some((depot.raw().address(first.unwrap()), unit())));
    depot.raw().grow_with(ZONE, 1, |_, _| panic!("there is no room")).unwrap_err();
}

/// Growing ends a shortage: callbacks are called before it, and not after it.
#[test]
fn callbacks_are_called_until_it_grows() {
    let depot = Depot::builder(4 * mib()).grow_to(2 * unit()).build().unwrap();
    let calls = Arc::new(AtomicU64::new(0));
    let counted = calls.clone();
    let callback = move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        0
    };
    depot.on_pressure(callback).unwrap();
    let mut held: Vec<Page> = std::iter::from_fn(|| depot.page(Order::BASE).ok()).collect();
    let before = calls.load(Ordering::Relaxed);
    assert!(before > 0);
    depot.grow(ZONE, 1).unwrap();
    held.extend((0..2000).map(|_| depot.page(Order::BASE).unwrap()));
    assert_eq!(calls.load(Ordering::Relaxed), before);
    drop(held);
    all_back(&depot);
}

#[test]
fn what_was_added_is_trimmed_too() {
    for kind in [MemoryKind::Anonymous, MemoryKind::Memfd] {
        let depot =
            Depot::builder(1).grow_to(2 * unit()).memory(kind).caches(false).build().unwrap();
        let first = depot.grow(ZONE, unit()).unwrap();
        depot.raw().alloc_at(first.add(5), 3, Flags::default()).unwrap();
        // SAFETY: allocated just now, freed once, and not used any more.
        unsafe {
            depot.raw().address(first.add(5)).write_bytes(1, 3 * page_bytes());
            depot.raw().free_contiguous(first.add(5), 3).unwrap();
        }
        // Or a whole huge page, where the system has them.
        assert!(
            (3 * page_bytes() as u64..=2 * mib() as u64).contains(&depot.trim().unwrap().bytes)
        );
        all_back(&depot);
    }
}

#[test]
fn growing_is_refused_with_advice() {
    let depot = Depot::builder(1).grow_to(unit() + 1).build().unwrap();
    assert_eq!(depot.bytes(), unit(), "rounded up");
    let wrong = ZoneId::new(1);
    assert_eq!(depot.grow(wrong, unit()), Err(ConfigError::NoSuchZone { zone: 1 }.into()));
    for bytes in [unit() + 1, usize::MAX] {
        let error = depot.grow(ZONE, bytes).unwrap_err();
        assert!(
            matches!(error, BuildError::CannotGrow { room, .. } if room == unit()),
            "{error:?}"
        );
        assert!(error.to_string().contains("Builder::grow_to"), "{error}");
    }
    assert_eq!(depot.grow(ZONE, 0), Err(BuildError::ZeroGrowth));
    assert_eq!(depot.bytes(), unit());
    in_child(|| assert_eq!(depot.grow(ZONE, unit()), Err(BuildError::Forked)));
    depot.grow(ZONE, unit()).unwrap();
    assert_eq!(depot.grow(ZONE, 1), Err(BuildError::CannotGrow { bytes: unit(), room: 0 }));
    let fixed = Depot::new(mib()).unwrap();
    assert_eq!(fixed.grow(ZONE, 1), Err(BuildError::CannotGrow { bytes: unit(), room: 0 }));
    assert!(matches!(
        Depot::builder(1).grow_to(usize::MAX).build(),
        Err(BuildError::TooLarge { .. })
    ));
}

/// One rule for the size, whether a depot is built that large or grows to it.
#[test]
fn a_depot_never_has_more_than_the_system_could_back() {
    let mode = std::fs::read_to_string("/proc/sys/vm/overcommit_memory").unwrap_or_default();
    if mode.trim() != "0" {
        return skip(format_args!("vm.overcommit_memory={}", mode.trim()));
    }
    let system = rustix::system::sysinfo();
    let all = (system.totalram + system.totalswap) as usize * system.mem_unit as usize;
    let (there, limit) = (all & !(unit() - 1), Limit::System(all as u64));
    for kind in [MemoryKind::Anonymous, MemoryKind::Memfd] {
        let at_once =
            Depot::builder(there + unit()).memory(kind).build().map(|depot| depot.bytes());
        assert_eq!(at_once, Err(BuildError::Limit { bytes: there + unit(), limit }));
        let depot =
            Depot::builder(unit()).grow_to(there + 2 * unit()).memory(kind).build().unwrap();
        let refused =
            std::iter::repeat_with(|| depot.grow(ZONE, unit())).find_map(Result::err).unwrap();
        assert_eq!(refused, BuildError::Limit { bytes: there + unit(), limit });
        assert!(refused.to_string().contains("vm.overcommit_memory"), "{refused}");
        assert_eq!(depot.bytes(), there);
    }
}

/// A depot of huge pages reserves no addresses to grow into: the kernel would grant them before it
/// finds that it has too few huge pages. A number of huge pages that no system has is refused at
/// once.
#[test]
fn a_depot_of_huge_pages_does_not_grow() {
    match Depot::builder(2 * mib()).hugetlb(true).grow_to(1 << 46).build() {
        Ok(depot) => {
            assert_eq!(depot.grow(ZONE, 1), Err(BuildError::CannotGrow { bytes: unit(), room: 0 }));
            assert_eq!(depot.bytes() % (2 << 20), 0);
        }
        // The administrator has set no huge pages aside.
        Err(error) => assert!(matches!(error, BuildError::HugePages { .. }), "{error:?}"),
    }
}

/// A growth that the system refuses leaves the depot as it was, and can be tried again.
#[test]
fn a_system_that_refuses_changes_nothing() {
    for (kind, resource, named) in [
        (MemoryKind::Memfd, libc::RLIMIT_FSIZE, "ulimit -f"),
        (MemoryKind::Anonymous, libc::RLIMIT_DATA, "ulimit -d"),
    ] {
        in_child(|| {
            let depot = Depot::builder(unit()).grow_to(2 * unit()).memory(kind).build().unwrap();
            // Without a handler for SIGXFSZ: a file that would become larger ends the process.
            let limit = |bytes| {
                let limit = libc::rlimit { rlim_cur: bytes, rlim_max: libc::RLIM_INFINITY };
                // SAFETY: a limit of this child, which ends after the test.
                assert_eq!(unsafe { libc::setrlimit(resource, &limit) }, 0);
            };
            let used = match kind {
                MemoryKind::Memfd => unit() as u64,
                MemoryKind::Anonymous => data_bytes(),
            };
            limit(used + unit() as u64 / 2);
            let refused = depot.grow(ZONE, unit()).unwrap_err();
            assert!(refused.to_string().contains(named), "{refused}");
            assert_eq!(depot.bytes(), unit());
            all_back(&depot);
            limit(libc::RLIM_INFINITY);
            depot.grow(ZONE, unit()).unwrap();
            all_back(&depot);
        });
    }
}

/// Bytes of private memory that this process can write to.
fn data_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let kib = status.lines().find_map(|line| line.strip_prefix("VmData:")).unwrap();
    kib.trim_end_matches("kB").trim().parse::<u64>().unwrap() * 1024
}

/// Several threads grow a depot while others use it: each unit is added once.
#[test]
fn a_depot_grows_while_it_is_used() {
    let seed = common::seed();
    let depot = Depot::builder(unit()).grow_to(6 * unit()).build().unwrap();
    let (end, stop) = (Instant::now() + Duration::from_millis(400), AtomicBool::new(false));
    let shared = &depot;
    std::thread::scope(|scope| {
        let workers: Vec<_> =
            (1..=2).map(|owner| scope.spawn(move || work(shared, owner, seed, 200, end))).collect();
        scope.spawn(|| common::drain(shared, seed, &stop));
        let _stop = StopAtEnd(&stop);
        let growers: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    std::iter::from_fn(|| shared.grow(ZONE, unit()).ok()).collect::<Vec<_>>()
                })
            })
            .collect();
        let mut added: Vec<_> =
            growers.into_iter().flat_map(|grower| grower.join().unwrap()).collect();
        added.sort();
        assert_eq!(added, [1, 2, 3, 4, 5].map(|unit| Pfn::new(unit * UNIT_PAGES)));
        workers.into_iter().for_each(|worker| assert!(worker.join().unwrap() > 0));
        stop.store(true, Ordering::Relaxed);
    });
    depot.cpu_caches().enable();
    assert_eq!(depot.bytes(), 6 * unit());
    all_back(&depot);
}
