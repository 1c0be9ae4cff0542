//! Options of a depot, and errors.

mod common;

use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::skip::skip;
use common::{all_back, for_all_cpus, hammer, mib, order, page_bytes, pin, unit, usable_cpus};
use pagedepot_linux::builder::{CacheLimits, HighPolicy, Watermarks};
use pagedepot_linux::reclaim::TrimError;
use pagedepot_linux::{
    AllocError, BuildError, CpuId, Depot, Flags, FreeError, MemoryKind, Mode, Order, Page,
    PageSize, Pages, Pfn, Scope, ZoneId,
};

/// Also where the alignment is larger than a huge page, and the depot smaller than 1 GiB.
#[test]
fn aligned_pages_are_aligned_in_memory() {
    for size in [64, 96, 200] {
        let depot = Depot::new(size * mib()).unwrap();
        let aligned = depot.raw().alloc_contiguous(1000, 8192, Flags::default()).unwrap();
        assert_eq!(
            depot.raw().address(aligned).addr().get() % (32 * mib()),
            0,
            "{size} times 256 pages"
        );
        // SAFETY: allocated above, and not used.
        unsafe { depot.raw().free_contiguous(aligned, 1000) }.unwrap();
        all_back(&depot);
    }
}

/// A number of CPUs that no machine has is refused before a list of them is made.
#[test]
fn too_many_cpus_are_refused() {
    common::in_child(|| {
        let little = libc::rlimit { rlim_cur: 8 << 30, rlim_max: 8 << 30 };
        // SAFETY: a limit of this child.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &little) }, 0);
        for numa in [false, true] {
            let builder = Depot::builder(64 * mib()).cpus(u32::MAX).numa(numa);
            let error = builder.build().map(|depot| depot.bytes()).unwrap_err();
            assert!(error.to_string().contains("lower `cpus`"), "{error}");
        }
    });
}

#[test]
fn pages_are_bytes() {
    // So much that each of many CPUs may cache blocks of this order.
    let depot = Depot::new(256 * mib()).unwrap();
    let mut page = depot.page(order(3)).unwrap();
    assert_eq!((page.len(), page.order()), (8 * page_bytes(), order(3)));
    assert_eq!(page.as_ptr().addr() % page.len(), 0, "aligned to its size in memory, too");
    page.fill(0xaa);
    assert_eq!(depot.pfn_of(&raw const page[page_bytes() + 900]), Some(page.pfn().add(1)));
    assert_eq!(depot.raw().address(page.pfn()).as_ptr().cast_const(), page.as_ptr());
    let (pfn, order) = page.into_raw();
    // SAFETY: the page was just taken out of its owner, and is not freed.
    let again = unsafe { Page::from_raw(&depot, pfn, order) };
    assert!(again.iter().all(|&byte| byte == 0xaa));
    drop(again);
    let zeroed = depot.page_with(order, Flags::default().zeroed()).unwrap();
    assert_eq!(zeroed.pfn(), pfn, "the last one freed is the next one given");
    assert!(zeroed.iter().all(|&byte| byte == 0));
    drop(zeroed);
    assert_eq!(depot.pfn_of(std::ptr::null()), None);
    assert_eq!(depot.pfn_of(depot.raw().base().as_ptr().wrapping_add(depot.bytes())), None);
    all_back(&depot);
}

#[test]
fn contiguous_pages() {
    let depot = Depot::new(64 * mib()).unwrap();
    let mut pages = depot.pages(5000, Flags::default()).unwrap();
    assert_eq!((pages.len(), pages.count()), (5000 * page_bytes(), 5000));
    pages.fill(1);
    let (start, count) = pages.into_raw();
    // SAFETY: the page was just taken out of its owner, and is not freed.
    drop(unsafe { Pages::from_raw(&depot, start, count) });
    assert_eq!(depot.pages(0, Flags::default()).unwrap_err(), AllocError::BadSize);
    depot.raw().alloc_at(Pfn::new(100), 7, Flags::default()).unwrap();
    assert_eq!(
        depot.raw().alloc_at(Pfn::new(106), 2, Flags::default()),
        Err(AllocError::NotAvailable)
    );
    // SAFETY: allocated above.
    unsafe { depot.raw().free_contiguous(Pfn::new(100), 7) }.unwrap();
    all_back(&depot);
}

#[test]
fn split_blocks_are_freed_in_parts() {
    let depot = Depot::builder(16 * mib()).checked(true).build().unwrap();
    let pfn = depot.raw().alloc(order(4), Flags::default()).unwrap();
    // SAFETY: allocated above.
    unsafe { depot.raw().split(pfn, order(4), order(1)) }.unwrap();
    // SAFETY: allocated above, and no code uses it; the call is refused, as is checked.
    assert_eq!(unsafe { depot.raw().free(pfn, order(4)) }, Err(FreeError::NotAllocated));
    for part in (0..16).step_by(2) {
        // SAFETY: parts of the block above.
        unsafe { depot.raw().free(pfn.add(part), order(1)) }.unwrap();
    }
    all_back(&depot);
}

#[test]
fn a_split_page_becomes_pages_that_free_themselves() {
    for checked in [false, true] {
        let depot = Depot::builder(16 * mib()).checked(checked).build().unwrap();
        let mut page = depot.page(order(4)).unwrap();
        (0u8..16).for_each(|i| page[usize::from(i) * page_bytes()] = i);
        let (page, error) = page.split(order(5)).unwrap_err();
        assert_eq!(error, FreeError::Misaligned);
        let mut parts = page.split(order(1)).unwrap();
        assert_eq!(parts.len(), 8);
        for (i, part) in (0..).zip(parts.by_ref().take(3)) {
            assert_eq!((part[0], part[page_bytes()], part.order()), (2 * i, 2 * i + 1, order(1)));
            // Each part splits in two again.
            let pages: Vec<_> = part.split(Order::BASE).unwrap().collect();
            assert_eq!((pages.len(), pages[1][0]), (2, 2 * i + 1));
        }
        assert_eq!(parts.len(), 5);
        drop(parts);
        // A split into one part.
        assert_eq!(depot.page(order(10)).unwrap().split(order(10)).unwrap().len(), 1);
        all_back(&depot);
    }
}

#[test]
fn a_memory_file_has_the_same_bytes() {
    let depot = Depot::builder(8 * mib()).memory(MemoryKind::Memfd).build().unwrap();
    let mut page = depot.page(Order::BASE).unwrap();
    page[..6].copy_from_slice(b"shared");
    let mut read = [0u8; 6];
    let offset = depot.raw().offset(page.pfn()) as libc::off_t;
    // SAFETY: only read from, below.
    let fd = unsafe { depot.raw().fd() }.unwrap().as_raw_fd();
    // SAFETY: reads into a buffer of that size.
    let got = unsafe { libc::pread(fd, read.as_mut_ptr().cast(), read.len(), offset) };
    assert_eq!((got, &read), (6, b"shared"));
    let anonymous = Depot::new(8 * mib()).unwrap();
    // SAFETY: there is no file.
    assert!(unsafe { anonymous.raw().fd() }.is_none());
}

/// The kernel refuses what would end in SIGBUS, or change pages without the depot.
#[test]
fn a_memory_file_keeps_its_size() {
    use rustix::fs::{SealFlags, fcntl_add_seals, fcntl_get_seals, ftruncate};
    let file = |depot: &Depot| {
        // SAFETY: nothing is changed through it: every attempt is refused, as is checked.
        unsafe { depot.raw().fd() }.unwrap().try_clone_to_owned().unwrap()
    };
    let fixed = Depot::builder(8 * mib()).memory(MemoryKind::Memfd).build().unwrap();
    let grows =
        Depot::builder(unit()).grow_to(2 * unit()).memory(MemoryKind::Memfd).build().unwrap();
    let (fixed_file, growing) = (file(&fixed), file(&grows));
    for bytes in [0, (unit() - page_bytes()) as u64] {
        assert_eq!(ftruncate(&growing, bytes), Err(rustix::io::Errno::PERM));
    }
    assert_eq!(fcntl_get_seals(&growing).unwrap(), SealFlags::SHRINK);
    grows.grow(ZoneId::new(0), unit()).unwrap();
    for (file, bytes) in [(&fixed_file, 8 * mib() as u64), (&growing, 2 * unit() as u64)] {
        for bytes in [0, bytes - page_bytes() as u64, bytes + page_bytes() as u64] {
            assert_eq!(ftruncate(file, bytes), Err(rustix::io::Errno::PERM), "{bytes}");
        }
        assert_eq!(fcntl_add_seals(file, SealFlags::FUTURE_WRITE), Err(rustix::io::Errno::PERM));
    }
    fixed.page(Order::BASE).unwrap().fill(1);
}

#[test]
fn page_sizes() {
    let sizes = [PageSize::Kib16, PageSize::Kib64];
    for size in sizes.into_iter().filter(|size| size.bytes() >= page_bytes()) {
        let depot = Depot::builder(512 * mib() + 1).page_size(size).checked(true).build().unwrap();
        assert_eq!(depot.bytes(), 512 * mib() + size.bytes(), "rounded up to whole pages");
        let page = depot.page(order(2)).unwrap();
        assert_eq!(page.len(), 4 * size.bytes());
        drop(page);
        hammer(&depot, Duration::from_millis(100));
    }
}

#[test]
fn populated_and_bound_to_nodes() {
    // Where mbind is forbidden (containers without CAP_SYS_NICE), the error says so.
    match Depot::builder(64 * mib()).numa(true).populate(true).build() {
        Ok(depot) => hammer(&depot, Duration::from_millis(100)),
        Err(error) => {
            assert!(matches!(error, BuildError::Numa { .. }) && error.to_string().contains("mbind"))
        }
    }
}

#[test]
fn every_page_can_be_had() {
    let depot = Depot::new(16 * mib()).unwrap();
    let pages = std::iter::from_fn(|| depot.page(Order::BASE).ok()).collect::<Vec<_>>();
    assert_eq!(pages.len(), 4096);
    assert_eq!(depot.page(Order::BASE).unwrap_err(), AllocError::Exhausted);
    let shortage = depot.shortage().zones().next().unwrap();
    assert_eq!((shortage.managed_pages, shortage.free_pages, shortage.cached_pages), (4096, 0, 0));
    drop(pages);
    all_back(&depot);
}

#[test]
fn reserves_are_for_requests_that_may_not_wait() {
    let watermarks = Watermarks { min: 100, low: 120, high: 140 };
    let depot = Depot::builder(16 * mib()).watermarks(watermarks).caches(false).build().unwrap();
    let pages = std::iter::from_fn(|| depot.page(Order::BASE).ok()).collect::<Vec<_>>();
    assert!(pages.len() <= 4096 - 100, "{}", pages.len());
    depot.page_with(Order::BASE, Flags::default().atomic()).unwrap();
    drop(pages);
    all_back(&depot);
}

/// All of the memory is in a cache, as blocks of 2 MiB, so every request calls the cache.
#[test]
fn callbacks_serve_contiguous_pages_too() {
    for count in [1, 2, 257, 512, 600] {
        let depot = Arc::new(Depot::new(16 * mib()).unwrap());
        let (cache, calls) =
            (Arc::new(std::sync::Mutex::new(Vec::new())), Arc::new(AtomicU64::new(0)));
        let callback = {
            let (depot, cache, calls) = (Arc::downgrade(&depot), cache.clone(), calls.clone());
            move |pressure: pagedepot_linux::reclaim::Pressure| {
                calls.fetch_add(1, Ordering::Relaxed);
                let depot = depot.upgrade().unwrap();
                let mut freed = 0;
                while freed < pressure.wanted_pages
                    && let Some(pfn) = cache.lock().unwrap().pop()
                {
                    // SAFETY: allocated below; no code uses it.
                    unsafe { depot.raw().free(pfn, Order::PAGEBLOCK) }.unwrap();
                    freed += 512;
                }
                freed
            }
        };
        depot.on_pressure(callback).unwrap();
        let huges: Vec<Pfn> = std::iter::from_fn(|| {
            depot.raw().alloc(Order::PAGEBLOCK, Flags::default().no_reclaim()).ok()
        })
        .collect();
        assert_eq!(huges.len(), 8);
        *cache.lock().unwrap() = huges;
        let pages = depot.pages(count, Flags::default()).unwrap();
        assert_eq!(pages.count(), count);
        // Below `low` the cache is asked for the pages that the zone lacks, which need not be all
        // that the request needs.
        assert!((1..=2).contains(&calls.load(Ordering::Relaxed)), "{count} pages: {calls:?}");
        drop(pages);
        depot.raw().alloc_at(Pfn::new(0), 4096, Flags::default()).unwrap();
        assert!(cache.lock().unwrap().is_empty());
        // Only the request that ended the filling failed.
        assert_eq!(depot.zone_stats(ZoneId::new(0)).unwrap().counts.failures, 1);
        // SAFETY: allocated above, and no code uses it.
        unsafe { depot.raw().free_contiguous(Pfn::new(0), 4096) }.unwrap();
        all_back(&depot);
    }
}

#[test]
fn callbacks_give_up_what_they_can_do_without() {
    let depot = Arc::new(Depot::new(16 * mib()).unwrap());
    let hoard: Arc<std::sync::Mutex<Vec<Pfn>>> = Arc::default();
    let calls = Arc::new(AtomicU64::new(0));
    let callback = {
        let (depot, hoard, calls) = (Arc::downgrade(&depot), hoard.clone(), calls.clone());
        move |pressure: pagedepot_linux::reclaim::Pressure| {
            calls.fetch_add(1, Ordering::Relaxed);
            let Some(depot) = depot.upgrade() else { return 0 };
            let mut hoard = hoard.lock().unwrap();
            let wanted = (pressure.wanted_pages.max(1) as usize).min(hoard.len());
            for pfn in hoard.drain(..wanted) {
                // SAFETY: the hoard holds the page, and uses it no more.
                unsafe { depot.raw().free(pfn, Order::BASE) }.unwrap();
            }
            wanted as u64
        }
    };
    depot.on_pressure(callback).unwrap();
    let mut blocks = vec![Pfn::new(0); 1000];
    assert_eq!(depot.raw().alloc_many(Order::BASE, Flags::default(), &mut blocks), Ok(1000));
    *hoard.lock().unwrap() = blocks;
    let pages = std::iter::from_fn(|| depot.page(Order::BASE).ok()).collect::<Vec<_>>();
    assert_eq!(pages.len(), 4096);
    assert!(calls.load(Ordering::Relaxed) > 0 && hoard.lock().unwrap().is_empty());
    drop(pages);
    let refused = (0..8).find_map(|_| depot.on_pressure(|_| 0).err()).unwrap();
    assert!(refused.to_string().contains("combine"), "{refused}");
    all_back(&depot);
}

#[test]
fn a_fixed_high_bounds_what_a_cpu_caches() {
    let cpu = usable_cpus()[0];
    assert!(pin(cpu));
    let depot = Depot::builder(256 * mib()).percpu_pagelist_high_fraction(64).build().unwrap();
    let zone = depot.zone_ids().next().unwrap();
    let limits = depot.zone_stats(zone).unwrap().limits;
    assert_eq!(limits.high_min, limits.high_max);
    drop((0..20_000).map(|_| depot.page(Order::BASE).unwrap()).collect::<Vec<_>>());
    let stats = depot.cpu_stats(CpuId::new(cpu), zone).unwrap();
    assert!((1..=limits.high_max).contains(&stats.cached_pages()), "{stats:?} {limits:?}");
    all_back(&depot);
    let fixed = Depot::builder(256 * mib()).high(HighPolicy::Fixed(0)).build().unwrap();
    drop((0..1000).map(|_| fixed.page(Order::BASE).unwrap()).collect::<Vec<_>>());
    let left = fixed.drain(Scope::ALL, Mode::Quiet);
    assert!(left.taken_pages <= 126, "{left:?}");
}

#[test]
fn bad_options_are_refused_with_advice() {
    let refuse =
        |builder: pagedepot_linux::Builder, kind: fn(&BuildError) -> bool, advice: &str| {
            let error = builder.build().map(|depot| depot.bytes()).unwrap_err();
            assert!(kind(&error), "{error:?}");
            assert!(error.to_string().contains(advice), "{error}");
        };
    refuse(Depot::builder(0), |e| matches!(e, BuildError::ZeroSize), "at least one page");
    refuse(
        Depot::builder(usize::MAX),
        |e| matches!(e, BuildError::TooLarge { .. }),
        "ask for less",
    );
    refuse(
        Depot::builder(page_bytes() << 33),
        |e| matches!(e, BuildError::TooLarge { .. }),
        "larger page size",
    );
    let mode = std::fs::read_to_string("/proc/sys/vm/overcommit_memory").unwrap_or_default();
    if mode.trim() == "0" {
        refuse(
            Depot::builder(page_bytes() << 31),
            |e| matches!(e, BuildError::Limit { .. }),
            "vm.overcommit",
        );
    }
    refuse(Depot::builder(page_bytes()).cpus(0), |e| matches!(e, BuildError::Config(_)), "CPUs");
    refuse(
        Depot::builder(1 << 40).hugetlb(true),
        |e| matches!(e, BuildError::HugePages { .. }),
        "vm.nr_hugepages",
    );
}

#[test]
fn huge_pages_that_were_set_aside() {
    let Ok(depot) = Depot::builder(5 * mib()).hugetlb(true).build() else {
        return skip("there are no huge pages in the system's pool");
    };
    assert_eq!(depot.bytes(), 6 * mib());
    hammer(&depot, Duration::from_millis(100));
}

/// A part of a huge page that was set aside cannot go back: the system would take all of it, with
/// others' pages, or nothing.
#[test]
fn huge_pages_that_were_set_aside_are_discarded_whole_or_not() {
    for kind in [MemoryKind::Anonymous, MemoryKind::Memfd] {
        let builder = Depot::builder(4 * mib()).memory(kind).hugetlb(true);
        let Ok(depot) = builder.build() else {
            return skip("there are no huge pages in the system's pool");
        };
        let huge = Order::new((2 * mib() / page_bytes()).ilog2()).unwrap();
        let mut parts = depot.page(huge).unwrap().split(Order::BASE).unwrap();
        let (mut first, mut second) = (parts.next().unwrap(), parts.next().unwrap());
        (first[0], second[0]) = (1, 2);
        assert!(matches!(first.discard(), Err(TrimError::Refused { .. })));
        assert!(matches!(second.discard(), Err(TrimError::Refused { .. })));
        assert_eq!((first[0], second[0]), (1, 2));
        let mut whole = depot.page(huge).unwrap();
        whole.fill(3);
        assert_eq!(whole.discard().unwrap(), 2 * mib() as u64);
        assert!(whole.iter().all(|&byte| byte == 0));
    }
}

#[test]
fn one_page_is_a_depot() {
    let depot = Depot::new(1).unwrap();
    let page = depot.page(Order::BASE).unwrap();
    assert_eq!(page.len(), page_bytes());
    assert!(depot.page(Order::BASE).is_err());
    drop(page);
    all_back(&depot);
}

#[test]
fn a_depot_can_be_shared() {
    fn shared<T: Send + Sync>() {}
    shared::<Depot>();
    shared::<Page>();
    shared::<Pages>();
}

/// A depot whose caches have had more pages than the magazines in its metadata hold.
fn with_large_caches(memory: MemoryKind) -> Depot {
    let (depot, zone) =
        (Depot::builder(256 * mib()).memory(memory).build().unwrap(), ZoneId::new(0));
    // The metadata has as many as the limits need that a depot begins with.
    let limits = CacheLimits { batch: 63, high_min: 60_000, high_max: 60_000 };
    depot.settings(zone).unwrap().set_cache_limits(limits);
    for _ in 0..4 {
        let pages: Vec<_> = (0..(2000 * depot_cpus()).clamp(20_000, 60_000))
            .map(|_| depot.raw().alloc(Order::BASE, Flags::default()).unwrap())
            .collect();
        // SAFETY: allocated above, freed once, never used.
        pages.into_iter().for_each(|pfn| unsafe { depot.raw().free(pfn, Order::BASE).unwrap() });
    }
    assert_eq!(depot.validate().unwrap().held_pages(), 0);
    depot
}

/// Caches grow beyond the magazines in the metadata: further ones are carved from pages.
#[test]
fn caches_grow_by_carved_magazines() {
    let depot = with_large_caches(MemoryKind::Anonymous);
    assert!(depot.zone_stats(ZoneId::new(0)).unwrap().carved_pages > 0);
}

/// No magazine lies in a page of a memory file: a child that a signal handler forks above an
/// exchange of magazines goes on with it, and would store the numbers of pages, or a link to the
/// magazine below, in what its parent uses.
#[test]
fn a_memory_file_has_no_magazines() {
    let depot = with_large_caches(MemoryKind::Memfd);
    assert_eq!(depot.zone_stats(ZoneId::new(0)).unwrap().carved_pages, 0);
    let large = Depot::builder(2 << 30).memory(MemoryKind::Memfd).build().unwrap();
    drop(large.page(Order::BASE).unwrap());
    assert_eq!(large.zone_stats(ZoneId::new(0)).unwrap().carved_pages, 0);
}

/// Checks that a depot without `checked` finds a double free when the pages reach the store, and
/// goes on.
#[test]
fn a_double_free_panics_and_blocks_nobody() {
    let depot = Depot::new(16 * mib()).unwrap();
    let block = depot.raw().alloc(order(7), Flags::default()).unwrap();
    let free = || {
        // SAFETY: the second free is wrong, which is what is tested; no code uses the pages.
        unsafe { depot.raw().free(block, order(7)) }
    };
    assert_eq!(free(), Ok(()));
    let panic = catch_unwind(AssertUnwindSafe(free)).unwrap_err();
    let message = panic.downcast::<String>().unwrap();
    assert!(message.contains("double free") && message.contains("Builder::checked"), "{message}");
    drop(depot.page(order(7)).unwrap());
    all_back(&depot);
}

/// The cached pages of a CPU without threads age, and `decay_caches` returns them bit by bit.
#[test]
fn idle_caches_age_and_decay() {
    let depot = Depot::new(for_all_cpus(64 * mib())).unwrap();
    let cached = |depot: &Depot| depot.zone_stats(ZoneId::new(0)).unwrap().cached_pages;
    let idle_ms = |depot: &Depot| {
        let stats =
            (0..depot_cpus()).filter_map(|cpu| depot.cpu_stats(CpuId::new(cpu), ZoneId::new(0)));
        stats.filter(|stats| stats.cached_pages() > 0).map(|stats| stats.idle_ms).max().unwrap()
    };
    assert!(pin(usable_cpus()[0]));
    let start = Instant::now();
    drop((0..4000).map(|_| depot.page(Order::BASE).unwrap()).collect::<Vec<_>>());
    let full = cached(&depot);
    std::thread::sleep(Duration::from_millis(3100));
    let idle_ms = idle_ms(&depot);
    // The clock is coarse.
    assert!((3000..=start.elapsed().as_millis() as u64 + 1000).contains(&idle_ms), "{idle_ms}");
    assert_eq!(cached(&depot), full, "nothing decays by itself");
    let back = depot.cpu_caches().decay();
    assert!(back > 0);
    assert_eq!(cached(&depot), full - back);
    assert_eq!(depot.drain(Scope::ALL, Mode::Quiet).taken_pages, 0, "only fronts are left");
    all_back(&depot);
}

fn depot_cpus() -> u32 {
    pagedepot_linux::builder::Topology::read().cpu_count()
}

/// Checks the sizes that the documentation names for copies and kept values: update it with these.
#[test]
#[cfg(target_pointer_width = "64")]
fn values_have_the_sizes_that_the_documentation_names() {
    assert!((680..700).contains(&size_of::<Depot>()), "{}", size_of::<Depot>());
    assert_eq!((size_of::<Page>(), size_of::<Pfn>()), (16, 4));
}
