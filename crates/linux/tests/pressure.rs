//! Several threads run out of pages at once: a request fails only when it must.
//! 1. Beside a slow callback, trims of both kinds of memory, purges and each other's drains, no
//!    request fails that could be served.
//! 2. A signal handler may request pages at any moment, above a callback, a trim or a purge of its
//!    own thread. It neither waits for that thread nor changes that thread's results.

mod common;

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use common::{StopAtEnd, all_back, mib, page_bytes};
use pagedepot_linux::reclaim::Pressure;
use pagedepot_linux::vmalloc::PurgeDepth;
use pagedepot_linux::{Depot, Flags, MemoryKind, Mode, Order, Page, Scope, Vmalloc};

/// Pages that a program can give up when its depot runs short.
type Cache = Arc<Mutex<Vec<(pagedepot_linux::Pfn, Order)>>>;

/// A depot whose pages are all in a cache that gives up `share` of them per call, slowly.
fn cached(bytes: usize, share: usize, pause: Duration) -> (Arc<Depot>, Cache) {
    let depot = Arc::new(Depot::builder(bytes).build().unwrap());
    let cache = Cache::default();
    let (weak, given) = (Arc::downgrade(&depot), cache.clone());
    let reclaim = move |pressure: Pressure| {
        let Some(depot) = weak.upgrade() else { return 0 };
        if !pressure.is_last_resort {
            return 0;
        }
        // Stands for writing the page back.
        std::thread::sleep(pause);
        let mut cache = given.lock().unwrap();
        let pages = cache.len().min(share);
        for (pfn, order) in cache.drain(..pages) {
            // SAFETY: the cache owned the page.
            drop(unsafe { Page::from_raw(&depot, pfn, order) });
        }
        pages as u64
    };
    depot.on_pressure(reclaim).unwrap();
    let take = || depot.page_with(Order::BASE, Flags::default().no_reclaim()).ok();
    cache.lock().unwrap().extend(std::iter::from_fn(take).map(Page::into_raw));
    (depot, cache)
}

#[test]
fn requesters_and_a_slow_callback() {
    for threads in [2, 6] {
        let (depot, cache) = cached(4 * mib(), 100, Duration::from_millis(30));
        let barrier = Barrier::new(threads);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    barrier.wait();
                    let pages: Vec<_> = (0..60).map(|_| depot.page(Order::BASE)).collect();
                    let failed = pages.iter().filter(|page| page.is_err()).count();
                    assert_eq!(failed, 0, "with {threads} threads");
                });
            }
        });
        for (pfn, order) in cache.lock().unwrap().drain(..) {
            // SAFETY: the cache owned the page.
            drop(unsafe { Page::from_raw(&depot, pfn, order) });
        }
        all_back(&depot);
    }
}

/// Threads that together hold at most three quarters of the pages, beside one that trims all the
/// time.
fn beside_trims(kind: MemoryKind, threads: usize) {
    let depot = Depot::builder(16 * mib()).memory(kind).build().unwrap();
    let (stop, trimmed) = (AtomicBool::new(false), AtomicU64::new(0));
    let shared = &depot;
    let end = Instant::now() + Duration::from_millis(1500);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                trimmed.fetch_add(shared.trim().unwrap().bytes, Ordering::Relaxed);
            }
        });
        let _stop = StopAtEnd(&stop);
        let requesters: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| {
                    for round in 1.. {
                        let mut held = Vec::new();
                        for _ in 0..4096 / (threads + 1) {
                            let page = shared.page(Order::BASE);
                            let mut page =
                                page.unwrap_or_else(|error| panic!("round {round}: {error}"));
                            page[0] = 1;
                            held.push(page);
                        }
                        drop(held);
                        // Now and then a pause, in which trims can run again.
                        if round % 8 == 0 {
                            std::thread::sleep(Duration::from_millis(25));
                        }
                        if Instant::now() >= end && trimmed.load(Ordering::Relaxed) > 0 {
                            break;
                        }
                    }
                })
            })
            .collect();
        requesters.into_iter().for_each(|requester| requester.join().unwrap());
    });
    all_back(&depot);
}

#[test]
fn one_requester_beside_trims() {
    beside_trims(MemoryKind::Anonymous, 1);
}

#[test]
fn three_requesters_beside_trims() {
    beside_trims(MemoryKind::Anonymous, 3);
}

#[test]
fn three_requesters_beside_trims_of_a_file() {
    beside_trims(MemoryKind::Memfd, 3);
}

/// A trim that loses a page to a request does not count as a failed request.
#[test]
fn trims_count_no_failures() {
    let depot = Depot::builder(16 * mib()).build().unwrap();
    let (stop, shared) = (AtomicBool::new(false), &depot);
    let trims = std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let pages: Vec<_> =
                        (0..300).map(|_| shared.page(Order::BASE).unwrap()).collect();
                    pages.into_iter().for_each(|mut page| page[0] = 1);
                }
            });
        }
        let _stop = StopAtEnd(&stop);
        let end = Instant::now() + Duration::from_millis(700);
        std::iter::repeat_with(|| shared.trim().unwrap())
            .take_while(|_| Instant::now() < end)
            .count()
    });
    assert!(trims > 0);
    let failures: u64 =
        depot.zone_ids().map(|zone| depot.zone_stats(zone).unwrap().counts.failures).sum();
    assert_eq!(failures, 0);
    all_back(&depot);
}

/// Requests of which one in ten thousand may fail, at least.
const ASKED_MIN: u64 = 100_000;

/// Threads that together never hold all pages; no other code holds pages, either.
fn slack(threads: usize, pages: usize, spare: usize, locks: bool) {
    let depot = Depot::builder(pages * page_bytes()).per_cpu_locks(locks).build().unwrap();
    let (failed, served) = (AtomicU64::new(0), AtomicU64::new(0));
    let share = (pages - spare) / threads;
    let shared = &depot;
    let end = Instant::now() + Duration::from_secs(1);
    let asked = || failed.load(Ordering::Relaxed) + served.load(Ordering::Relaxed);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while Instant::now() < end || asked() < ASKED_MIN {
                    let held: Vec<_> =
                        (0..share).filter_map(|_| shared.page(Order::BASE).ok()).collect();
                    served.fetch_add(held.len() as u64, Ordering::Relaxed);
                    failed.fetch_add((share - held.len()) as u64, Ordering::Relaxed);
                }
            });
        }
    });
    let (failed, served) = (failed.into_inner(), served.into_inner());
    assert!(failed <= served / 10_000, "{failed} of {served} failed");
    all_back(&depot);
}

#[test]
fn two_who_never_hold_all_pages() {
    slack(2, 1024, 16, false);
}

#[test]
fn four_who_never_hold_all_pages() {
    slack(4, 1024, 16, false);
}

#[test]
fn four_who_never_hold_all_pages_behind_locks() {
    slack(4, 1024, 16, true);
}

#[test]
fn many_who_never_hold_all_pages() {
    slack(16, 4096, 256, false);
}

/// All pages are in areas that are lazy or pooled; some threads request them.
#[test]
fn requesters_beside_purges() {
    const THREADS: usize = 4;
    let depot = Arc::new(Depot::builder(16 * mib()).memory(MemoryKind::Memfd).build().unwrap());
    let space = Vmalloc::builder(&depot).lazy_bytes(64 * mib()).build().unwrap();
    for round in 0..20 {
        let bufs: Vec<_> =
            std::iter::from_fn(|| space.buf((1 + round % 7) * page_bytes()).ok()).collect();
        assert!(!bufs.is_empty());
        drop(bufs);
        let barrier = Barrier::new(THREADS);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    barrier.wait();
                    // Not all pages: each CPU's magazines may be refilled meanwhile.
                    let pages: Vec<_> =
                        (0..4096 / THREADS - 16).map(|_| depot.page(Order::BASE)).collect();
                    let failed = pages.iter().filter(|page| page.is_err()).count();
                    assert_eq!(failed, 0, "round {round}");
                    barrier.wait();
                });
            }
        });
    }
    drop(space);
    all_back(&depot);
}

/// The depot of the handlers, while a test runs, and the pages that they allocated.
static DEPOT: AtomicPtr<Depot> = AtomicPtr::new(std::ptr::null_mut());
static HANDLED: AtomicU64 = AtomicU64::new(0);
static SERVED: AtomicU64 = AtomicU64::new(0);
/// The tests that use them take turns.
static HANDLERS: Mutex<()> = Mutex::new(());

extern "C" fn request(_: libc::c_int) {
    // SAFETY: the test removes the pointer only after the last signal.
    let Some(depot) = (unsafe { DEPOT.load(Ordering::Acquire).as_ref() }) else { return };
    if depot.page(Order::BASE).is_ok() {
        SERVED.fetch_add(1, Ordering::Relaxed);
    }
    HANDLED.fetch_add(1, Ordering::Release);
}

/// Has handlers request pages of `depot` above `work`, which is called again and again until the
/// handlers have run often enough. Ends the process if a call does not return for a minute.
fn interrupted(depot: &Depot, mut work: impl FnMut()) {
    // SAFETY: a handler that is safe at any moment, which is what this tests.
    unsafe { libc::signal(libc::SIGUSR1, request as *const () as libc::sighandler_t) };
    HANDLED.store(0, Ordering::Relaxed);
    DEPOT.store((&raw const *depot).cast_mut(), Ordering::Release);
    // SAFETY: this thread.
    let target = unsafe { libc::pthread_self() };
    let turns = &AtomicU64::new(0);
    std::thread::scope(|scope| {
        let sender = scope.spawn(move || {
            let end = Instant::now() + Duration::from_secs(1);
            let handled = || HANDLED.load(Ordering::Acquire);
            while Instant::now() < end || handled() < 30 || turns.load(Ordering::Relaxed) < 3 {
                let (before, last) = (handled(), Instant::now());
                // SAFETY: the thread lives until this one is joined.
                unsafe { libc::pthread_kill(target, libc::SIGUSR1) };
                while handled() == before {
                    std::thread::sleep(Duration::from_micros(50));
                    if last.elapsed() > Duration::from_secs(60) {
                        eprintln!("a handler waits for its own thread");
                        std::process::abort();
                    }
                }
                // The thread must make progress between signals.
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        while !sender.is_finished() {
            work();
            turns.fetch_add(1, Ordering::Relaxed);
        }
    });
    DEPOT.store(std::ptr::null_mut(), Ordering::Release);
}

#[test]
fn handlers_request_on_top_of_a_purge() {
    let _handlers = HANDLERS.lock().unwrap();
    let depot = Arc::new(Depot::builder(4 * mib()).memory(MemoryKind::Memfd).build().unwrap());
    let space = Vmalloc::builder(&depot).build().unwrap();
    let mut held: Vec<_> = std::iter::from_fn(|| depot.page(Order::BASE).ok()).collect();
    held.truncate(1024 - 100);
    interrupted(&depot, || {
        // The other pages are in the space, pooled or lazy, or the handler has them.
        let bufs: Vec<_> =
            (1..12).filter_map(|pages| space.buf(pages * page_bytes()).ok()).collect();
        drop(bufs);
        space.purge(PurgeDepth::Decay);
    });
    drop(held);
    drop(space);
    all_back(&depot);
}

#[test]
fn handlers_request_on_top_of_a_trim() {
    let _handlers = HANDLERS.lock().unwrap();
    for kind in [MemoryKind::Anonymous, MemoryKind::Memfd] {
        let depot = Depot::builder(4 * mib()).memory(kind).build().unwrap();
        let mut held: Vec<_> = std::iter::from_fn(|| depot.page(Order::BASE).ok()).collect();
        held.truncate(1024 - 100);
        interrupted(&depot, || {
            let pages: Vec<_> = (0..50).filter_map(|_| depot.page(Order::BASE).ok()).collect();
            pages.into_iter().for_each(|mut page| page[0] = 1);
            depot.drain(Scope::ALL, Mode::Full);
            depot.trim().unwrap();
        });
        drop(held);
        all_back(&depot);
    }
}

/// The number of times that this thread has slept.
fn times_asleep() -> u64 {
    // SAFETY: numbers, of which all zeroes are some, that the call writes.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, &mut usage), 0);
        usage
    };
    usage.ru_nvcsw as u64
}

/// A handler that interrupts its thread in a callback, and requests pages that this callback would
/// free.
#[test]
fn a_handler_on_top_of_a_callback_does_not_wait_for_it() {
    let _handlers = HANDLERS.lock().unwrap();
    let depot = Arc::new(Depot::builder(4 * mib()).build().unwrap());
    let held: Vec<_> = std::iter::from_fn(|| depot.page(Order::BASE).ok()).collect();
    // SAFETY: as in `interrupted`.
    unsafe { libc::signal(libc::SIGUSR1, request as *const () as libc::sighandler_t) };
    let sleeps = Arc::new(AtomicU64::new(u64::MAX));
    let (fewest, weak) = (sleeps.clone(), Arc::downgrade(&depot));
    depot
        .on_pressure(move |_| {
            let Some(depot) = weak.upgrade() else { return 0 };
            DEPOT.store(Arc::as_ptr(&depot).cast_mut(), Ordering::Release);
            let (before, served) = (times_asleep(), SERVED.load(Ordering::Relaxed));
            // SAFETY: runs the handler above this code.
            unsafe { libc::raise(libc::SIGUSR1) };
            assert_eq!(SERVED.load(Ordering::Relaxed), served);
            fewest.fetch_min(times_asleep() - before, Ordering::Relaxed);
            DEPOT.store(std::ptr::null_mut(), Ordering::Release);
            0
        })
        .unwrap();
    // A handler may find a lock of the kernel taken, but not each time.
    (0..5).for_each(|_| assert!(depot.page(Order::BASE).is_err()));
    assert_eq!(sleeps.load(Ordering::Relaxed), 0, "each waits for another caller's turn");
    drop(held);
    all_back(&depot);
}
