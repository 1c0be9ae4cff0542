//! A ceiling holds.
//! 1. At no moment are more pages handed out, or bytes present, than it says; a request above it
//!    reclaims first.
//! 2. It moves up and down while threads allocate and free, and no page is lost.
//! 3. What cannot be is refused.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::time::{Duration, Instant};

use crate::common::skip::skip;
use crate::common::{
    all_back, in_child, mib, order, page_bytes, present_bytes, refuse_with, seed, unit, work,
};
use pagedepot_linux::builder::CpuSet;
use pagedepot_linux::reclaim::{Ceiling, CeilingError, Pressure};
use pagedepot_linux::{
    AllocError, BuildError, Depot, Flags, MemoryKind, Mode, Order, Page, Pfn, Scope, ZoneId,
};

#[test]
fn no_more_is_handed_out_or_present() {
    for kind in [MemoryKind::Anonymous, MemoryKind::Memfd] {
        let builder = Depot::builder(64 * mib()).memory(kind).populate(true);
        let depot = builder.ceiling(6 * mib()).build().unwrap();
        assert_eq!((depot.bytes(), Ceiling::of(&depot).bytes()), (64 * mib(), 6 * mib()));
        assert_eq!(present_bytes(&depot), 6 * mib(), "what was populated above is given back");
        let page = || Some(depot.page(Order::BASE).ok()?).inspect(|page| assert_eq!(page[0], 0));
        let pages: Vec<_> = std::iter::from_fn(page).collect();
        assert_eq!(pages.len() * page_bytes(), 6 * mib());
        assert_eq!(depot.page(Order::BASE).unwrap_err(), AllocError::Exhausted);
        assert_eq!(depot.pages(2000, Flags::default()).unwrap_err(), AllocError::Exhausted);
        assert!(AllocError::Exhausted.to_string().contains("ceiling"));
        assert_eq!(present_bytes(&depot), 6 * mib());
        drop(pages);
        Ceiling::of(&depot).set(64 * mib()).unwrap();
        all_back(&depot);
    }
}

/// A program's cache frees pages for the request, and for a lower ceiling.
#[test]
fn requests_above_reclaim_first() {
    let depot = Depot::builder(64 * mib()).ceiling(8 * mib()).build().unwrap();
    let cache: Arc<Mutex<Vec<Page>>> = Arc::default();
    let given = cache.clone();
    let reclaim = move |pressure: Pressure| {
        let mut cache = given.lock().unwrap();
        let count = cache.len().min(pressure.wanted_pages as usize);
        drop(cache.drain(..count));
        count as u64
    };
    depot.on_pressure(reclaim).unwrap();
    for _ in 0..2048 {
        let page = depot.page_with(Order::BASE, Flags::default().no_reclaim()).unwrap();
        cache.lock().unwrap().push(page);
    }
    let held: Vec<_> = (0..256).map(|_| depot.page(Order::BASE).unwrap()).collect();
    let left = cache.lock().unwrap().len();
    assert!((2048 - 512..=2048 - 256).contains(&left), "{left}");
    assert_eq!(Ceiling::of(&depot).set(4 * mib() + 1), Ok(4 * mib()), "the cache made room");
    assert!(held.len() + cache.lock().unwrap().len() <= 1024);
    assert!(present_bytes(&depot) <= 4 * mib());
    drop(held);
    cache.lock().unwrap().clear();
    assert_eq!(depot.validate().unwrap().managed_pages, 1024);
}

#[test]
fn what_is_held_stays() {
    let depot = Depot::new(16 * mib()).unwrap();
    let held: Vec<_> = (0..8).map(|_| depot.page(order(9)).unwrap()).collect();
    let lower = Ceiling::of(&depot).set(4 * mib());
    assert_eq!(lower, Err(CeilingError::Held { bytes: 4 * mib(), reached: 16 * mib() }));
    drop(held);
    assert_eq!(Ceiling::of(&depot).set(4 * mib()), Ok(4 * mib()));
    assert_eq!(depot.pages(1025, Flags::default()).unwrap_err(), AllocError::Exhausted);
    assert_eq!(Ceiling::of(&depot).set(usize::MAX), Ok(16 * mib()));
    assert_eq!(depot.pages(4096, Flags::default()).unwrap().len(), 16 * mib());
    all_back(&depot);
}

/// Free pageblocks with a pin stay, and keep no other from being taken.
#[test]
fn pinned_pageblocks_are_passed_by() {
    let block = page_bytes() << Order::PAGEBLOCK.get();
    let depot = Depot::new(32 * block).unwrap();
    let mut pages = depot.pages(32 * 512, Flags::default()).unwrap();
    pages.fill(1);
    drop(pages);
    depot.drain(Scope::ALL, Mode::Full);
    let _pinned = depot.pin_range(Pfn::new(16 * 512), 16 * 512).unwrap();
    // What is present is handed out first: the pinned half.
    assert_eq!(depot.trim().unwrap().whole_pageblocks, 16);
    let ceiling = Ceiling::of(&depot);
    assert_eq!(ceiling.set(24 * block), Ok(24 * block));
    let held = CeilingError::Held { bytes: 8 * block, reached: 16 * block };
    assert_eq!(ceiling.set(8 * block), Err(held));
    assert_eq!(ceiling.set(usize::MAX), Ok(32 * block));
    all_back(&depot);
}

/// A pageblock without a pin is reclaimed although one with a pin is free.
#[test]
fn pinned_pageblocks_do_not_serve_instead_of_others() {
    let block = page_bytes() << Order::PAGEBLOCK.get();
    let depot = Depot::new(8 * block).unwrap();
    let mut pages: Vec<_> = std::iter::from_fn(|| depot.page(Order::BASE).ok()).collect();
    let _pins = [3, 7].map(|at| depot.pin_range(Pfn::new(at * 512 + 5), 1).unwrap());
    pages.retain(|page| page.pfn().get() % 512 == 9 && ![3, 7].contains(&(page.pfn().get() / 512)));
    assert_eq!(pages.len(), 6);
    depot.drain(Scope::ALL, Mode::Full);
    let cache = Mutex::new(pages);
    depot.on_pressure(move |_| cache.lock().unwrap().drain(..).count() as u64).unwrap();
    assert_eq!(Ceiling::of(&depot).set(3 * block), Ok(3 * block));
    assert_eq!(Ceiling::of(&depot).set(usize::MAX), Ok(8 * block));
    all_back(&depot);
}

/// A pageblock that a callback freed can be taken although no front can be fenced.
#[test]
fn sinks_where_no_front_can_be_fenced() {
    in_child(|| {
        if let Err(error) = refuse_with(libc::SYS_membarrier, libc::EPERM) {
            return skip(format_args!("the system takes no filters (seccomp): {error}"));
        }
        let block = page_bytes() << Order::PAGEBLOCK.get();
        // So large that a CPU caches blocks of half a pageblock.
        let depot = Depot::builder(512 * block).locked_cpus(CpuSet::new()).build().unwrap();
        let page = || depot.page(Order::PAGEBLOCK).ok();
        let held: Vec<_> = std::iter::from_fn(page).collect();
        let bytes = (held.len() - 1) * block;
        let cache = Mutex::new(held);
        depot.on_pressure(move |_| cache.lock().unwrap().pop().map_or(0, |_| 512)).unwrap();
        assert_eq!(Ceiling::of(&depot).set(bytes), Ok(bytes));
    });
}

#[test]
fn moves_beside_threads() {
    let depot = Depot::builder(64 * mib()).checked(true).build().unwrap();
    let (seed, shared, mut reached_all) = (seed(), &depot, 0);
    let end = Instant::now() + Duration::from_millis(600);
    std::thread::scope(|scope| {
        for owner in 0..3 {
            scope.spawn(move || work(shared, owner, seed, 100, end));
        }
        for bytes in [8, 64, 24, 40].into_iter().cycle().map(|size| size * mib()) {
            match Ceiling::of(shared).set(bytes) {
                Ok(now) => {
                    assert_eq!(now, bytes);
                    reached_all += 1;
                }
                Err(CeilingError::Held { reached, .. }) => assert!(reached > bytes),
                Err(other) => panic!("{other}"),
            }
            if Instant::now() >= end {
                break;
            }
        }
    });
    assert!(reached_all > 0);
    Ceiling::of(&depot).set(64 * mib()).unwrap();
    all_back(&depot);
}

/// A callback panics as a ceiling sinks: watermarks follow the size that the zones have then.
#[test]
fn a_panic_in_a_callback_leaves_watermarks_that_fit() {
    let block = page_bytes() << Order::PAGEBLOCK.get();
    let marks = [false, true].map(|panics| {
        let depot = Depot::builder(1024 * block).memory(MemoryKind::Anonymous).build().unwrap();
        let panics = Arc::new(AtomicBool::new(panics));
        let does = panics.clone();
        depot
            .on_pressure(move |_| {
                assert!(!does.load(Ordering::Relaxed), "a bug in a callback");
                0
            })
            .unwrap();
        let held: Vec<_> = (0..8).map(|_| depot.page(order(8)).unwrap()).collect();
        let set = || Ceiling::of(&depot).set(block);
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(set));
        panics.store(false, Ordering::Relaxed);
        drop(held);
        depot.drain(Scope::ALL, Mode::Full);
        Ceiling::of(&depot).set(block).unwrap();
        depot.zone_stats(ZoneId::new(0)).unwrap().watermarks
    });
    assert_eq!(marks[0], marks[1]);
}

#[test]
fn what_cannot_be_is_refused() {
    let ceiling = |builder: pagedepot_linux::Builder| builder.build().map(drop).unwrap_err();
    let refused = |builder, why| {
        let error = ceiling(builder);
        assert_eq!(error, BuildError::Ceiling(why));
        assert!(!error.to_string().is_empty());
    };
    let least = 2 * mib();
    for bytes in [0, 1, least - 1] {
        let builder = Depot::builder(16 * mib()).ceiling(bytes);
        refused(builder, CeilingError::TooLow { bytes, least });
    }
    refused(Depot::builder(mib()).grow_to(2 * unit()).ceiling(4 * mib()), CeilingError::CanGrow);
    let pinned = Depot::builder(16 * mib()).pinned(true).ceiling(4 * mib());
    refused(pinned.clone().populate(true), CeilingError::Pinned);
    let depot = pinned.build().unwrap();
    assert_eq!(Ceiling::of(&depot).set(8 * mib()), Err(CeilingError::Pinned));
    // None of these is ever in the way.
    for bytes in [16 * mib(), 17 * mib(), usize::MAX] {
        let depot = Depot::builder(16 * mib()).ceiling(bytes).build().unwrap();
        assert_eq!(Ceiling::of(&depot).bytes(), 16 * mib());
    }
}

/// Two threads, each of which sets in a callback for one ceiling that of the other's depot, do not
/// wait for each other without end.
#[test]
fn ceilings_that_callbacks_set_crosswise_are_refused() {
    let depots = [(); 2].map(|()| Depot::new(16 * mib()).unwrap());
    let (both, (told, results)) = (Arc::new(Barrier::new(2)), mpsc::channel());
    for (own, other) in [(0, 1), (1, 0)] {
        let (both, told, other) = (both.clone(), told.clone(), depots[other].downgrade());
        let is_first = AtomicBool::new(true);
        let set_other = move |_| {
            if is_first.swap(false, Ordering::Relaxed) {
                let other = other.upgrade().unwrap();
                both.wait();
                told.send(Ceiling::of(&other).set(8 * mib())).unwrap();
                both.wait();
            }
            0
        };
        depots[own].on_pressure(set_other).unwrap();
    }
    let sets = depots.clone().map(|depot| {
        // Not joined where a test fails: it would not end.
        std::thread::spawn(move || {
            let _held: Vec<_> = (0..4).map(|_| depot.page(order(9)).unwrap()).collect();
            Ceiling::of(&depot).set(2 * mib())
        })
    });
    for _ in 0..2 {
        let result = results.recv_timeout(Duration::from_secs(60)).expect("they wait crosswise");
        assert_eq!(result, Err(CeilingError::Reentrant));
    }
    for set in sets {
        let lower = set.join().unwrap();
        assert!(matches!(lower, Err(CeilingError::Held { .. })), "{lower:?}");
    }
}
