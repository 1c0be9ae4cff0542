//! Settings that can be changed while a depot is in use.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::{all_back, mib, order, page_bytes, pin, usable_cpus};
use pagedepot_linux::builder::{CacheLimits, Evacuation, HighPolicy, Misuse, Watermarks};
use pagedepot_linux::{
    AllocError, CpuId, Depot, Flags, FreeError, Mode, Order, Pfn, Scope, ZoneId,
};

const ZONE: ZoneId = ZoneId::new(0);

/// Allocates many pages and frees them on one CPU. Returns that CPU.
fn fill_caches(depot: &Depot) -> CpuId {
    let cpu = usable_cpus()[0];
    assert!(pin(cpu));
    let mut blocks = vec![Pfn::new(0); 10_000];
    assert_eq!(
        depot.raw().alloc_many(Order::BASE, Flags::default(), &mut blocks),
        Ok(blocks.len())
    );
    for &pfn in &blocks {
        // SAFETY: allocated above; no code uses it.
        unsafe { depot.raw().free(pfn, Order::BASE) }.unwrap();
    }
    CpuId::new(cpu)
}

fn cached(depot: &Depot) -> u64 {
    depot.zone_stats(ZONE).unwrap().cached_pages
}

#[test]
fn misuse_found_late_is_told() {
    static FRAMES: AtomicU64 = AtomicU64::new(0);
    let tell = |misuse| match misuse {
        Misuse::DoubleFree { frames, .. } => {
            FRAMES.fetch_add(u64::from(frames), Ordering::Relaxed);
        }
        _ => unreachable!("{misuse:?}"),
    };
    let depot = Depot::builder(16 * mib()).on_misuse(tell).build().unwrap();
    let block = depot.raw().alloc(order(7), Flags::default()).unwrap();
    // SAFETY: the second free is wrong, which is what is tested; no code uses the pages.
    let results = [(), ()].map(|()| unsafe { depot.raw().free(block, order(7)) });
    assert_eq!(results, [Ok(()), Err(FreeError::NotAllocated)]);
    assert_eq!(FRAMES.load(Ordering::Relaxed), 128);
    all_back(&depot);
}

#[test]
fn a_retired_cpu_caches_nothing_until_it_is_restored() {
    for locks in [false, true] {
        let depot = Depot::builder(256 * mib())
            .high(HighPolicy::Fixed(1000))
            .per_cpu_locks(locks)
            .build()
            .unwrap();
        let cpu = fill_caches(&depot);
        let before = cached(&depot);
        let caches = depot.cpu_caches();
        assert!(before > 0 && caches.are_enabled(cpu) && !caches.restore(cpu));
        let drained = caches.retire(cpu);
        assert_eq!(
            (drained.taken_pages, drained.unreachable_pages, drained.busy_cpus),
            (before, 0, 0)
        );
        assert!(!caches.are_enabled(cpu));
        fill_caches(&depot);
        assert_eq!(cached(&depot), 0, "all went to the store");
        assert!(caches.restore(cpu) && caches.are_enabled(cpu));
        fill_caches(&depot);
        assert!(cached(&depot) > 0);
        let beyond = CpuId::new(u32::MAX);
        assert_eq!(caches.retire(beyond).taken_pages, 0);
        assert!(!caches.restore(beyond) && !caches.are_enabled(beyond));
        all_back(&depot);
    }
}

#[test]
fn cache_limits_change_while_in_use() {
    let depot = Depot::builder(256 * mib()).high(HighPolicy::Fixed(5000)).build().unwrap();
    let cpu = fill_caches(&depot);
    let before = cached(&depot);
    assert!((1000..=5000).contains(&before), "{before}");
    let less = CacheLimits { batch: 16, high_min: 200, high_max: 200 };
    let zone = depot.settings(ZONE).unwrap();
    zone.set_cache_limits(less);
    assert_eq!((zone.cache_limits(), zone.high(cpu)), (less, Some(200)));
    let decayed: u64 = (0..10).map(|_| depot.cpu_caches().decay()).sum();
    assert!(decayed >= before - 200 && cached(&depot) == before - decayed, "{before} {decayed}");
    fill_caches(&depot);
    let after = cached(&depot);
    assert!((1..=200).contains(&after), "{after}");
    // Limits that contradict each other are corrected.
    zone.set_cache_limits(CacheLimits { batch: 0, high_min: 300, high_max: 0 });
    let fixed = CacheLimits { batch: 1, high_min: 300, high_max: 300 };
    assert_eq!((zone.cache_limits(), zone.high(cpu)), (fixed, Some(300)));
    assert_eq!(zone.high(CpuId::new(u32::MAX)), None);
    assert!(depot.settings(ZoneId::new(1)).is_none());
    all_back(&depot);
}

#[test]
fn watermarks_change_while_in_use() {
    let depot = Depot::builder(16 * mib()).caches(false).build().unwrap();
    let pages = std::iter::from_fn(|| depot.page(Order::BASE).ok()).collect::<Vec<_>>();
    assert_eq!(pages.len(), 4096, "nothing is held back");
    drop(pages);
    let reserve = Watermarks { min: 500, low: 600, high: 700 };
    let zone = depot.settings(ZONE).unwrap();
    assert!(zone.set_watermarks(reserve));
    assert_eq!(depot.zone_stats(ZONE).unwrap().watermarks, reserve);
    let pages = std::iter::from_fn(|| depot.page(Order::BASE).ok()).collect::<Vec<_>>();
    assert_eq!(depot.page(Order::BASE).unwrap_err(), AllocError::Exhausted);
    assert!(pages.len() <= 4096 - 500, "{}", pages.len());
    assert!(!zone.set_watermarks(Watermarks { min: 601, ..reserve }), "not ascending");
    assert_eq!(depot.zone_stats(ZONE).unwrap().watermarks, reserve);
    drop(pages);
    depot.drain(Scope::ALL, Mode::Full);
    all_back(&depot);
}

/// The workload of `pagedepot`'s tests: what is freed at random becomes whole again.
#[test]
fn sparsely_used_pageblocks_become_whole() {
    assert!(pin(usable_cpus()[0]));
    for (policy, is_expected) in [
        (Evacuation::Goal { percent: 100 }, true),
        (Evacuation::Adaptive, true),
        (Evacuation::Off, false),
    ] {
        let depot = Depot::builder(64 * mib()).cpus(4).evacuation(policy).build().unwrap();
        let zone = depot.settings(ZONE).unwrap();
        assert_eq!(zone.evacuation(), policy);
        let mut held = Vec::new();
        while let Ok(pfn) = depot.raw().alloc(Order::BASE, Flags::default()) {
            held.push(pfn);
        }
        assert_eq!(held.len(), 64 * mib() / page_bytes());
        let mut random = 1_u64;
        let mut next = |below: usize| {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (random >> 33) as usize % below
        };
        // SAFETY: allocated above, and removed from what is held; no code uses it.
        let free = |pfn| unsafe { depot.raw().free(pfn, Order::BASE) }.unwrap();
        for _ in 0..held.len() / 2 {
            free(held.swap_remove(next(held.len())));
        }
        for _ in 0..200_000 {
            let at = next(held.len());
            free(held[at]);
            held[at] = depot.raw().alloc(Order::BASE, Flags::default()).unwrap();
        }
        let stats = depot.pageblock_stats(ZONE).unwrap();
        assert_eq!((stats.all, stats.tainted), (32, 0));
        assert_eq!(stats.whole + stats.evacuating > 0, is_expected, "{policy:?}: {stats:?}");
        assert_eq!(zone.set_evacuation(Evacuation::Adaptive), policy != Evacuation::Off);
        held.into_iter().for_each(free);
        all_back(&depot);
    }
}
