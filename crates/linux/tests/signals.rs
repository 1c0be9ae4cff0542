//! Signal handlers that allocate and free while the thread that they interrupted does the same, and
//! threads that are stopped in the middle of it while other threads drain.

mod common;
#[path = "../../rseq/tests/interrupts/mod.rs"]
mod interrupts;

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use common::skip::skip;
use common::{
    StopAtEnd, all_back, check, for_all_cpus, mark, mib, order, page_bytes, pin, seed, usable_cpus,
    work,
};
use interrupts::{Interrupts, install};
use pagedepot_linux::reclaim::Compaction;
use pagedepot_linux::stats::Fronts;
use pagedepot_linux::{AllocError, CpuId, Depot, Flags, Mode, Order, Page, Pfn, Scope};

/// The depot of the handler, while its test runs.
static DEPOT: AtomicPtr<Depot> = AtomicPtr::new(std::ptr::null_mut());
static HANDLED: AtomicU64 = AtomicU64::new(0);

/// Pages that handlers keep from one signal to the next: pfn + 1 and order.
static KEPT: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];
const HANDLER: u64 = 99;

/// Swaps a new page for one that an earlier signal left, on any thread.
extern "C" fn allocate_and_free(_: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: the test removes the pointer only after its threads, and their signals, have ended.
    let Some(depot) = (unsafe { DEPOT.load(Ordering::Acquire).as_ref() }) else { return };
    let turn = HANDLED.fetch_add(1, Ordering::Relaxed);
    let order = order([0, 0, 0, 3, 1, 4, 9, 2][turn as usize % 8]);
    // The interrupted thread may be anywhere in the allocator, so this may not wait.
    let new = depot.page_with(order, Flags::default().atomic()).ok().map_or(0, |mut page| {
        mark(&mut page, HANDLER);
        let (pfn, order) = page.into_raw();
        u64::from(order.get()) << 32 | u64::from(pfn.get() + 1)
    });
    let old = KEPT[turn as usize % KEPT.len()].swap(new, Ordering::AcqRel);
    free_kept(depot, old);
}

fn free_kept(depot: &Depot, kept: u64) {
    if kept != 0 {
        let (pfn, order) = (Pfn::new(kept as u32 - 1), order((kept >> 32) as u32));
        // SAFETY: swapped out of KEPT, so no other thread has it.
        let page = unsafe { Page::from_raw(depot, pfn, order) };
        check(&page, HANDLER);
    }
}

fn handlers_allocate(depot: &Depot) {
    // SAFETY: the handler allocates and frees without waiting, which depots allow.
    unsafe { install(libc::SIGUSR1, allocate_and_free) };
    DEPOT.store((&raw const *depot).cast_mut(), Ordering::Release);
    let before = HANDLED.load(Ordering::Relaxed);
    let handled = || HANDLED.load(Ordering::Relaxed) - before;
    let (seed, end) = (seed(), Instant::now() + Duration::from_millis(700));
    let stop = AtomicBool::new(false);
    let shared = depot;
    std::thread::scope(|scope| {
        let workers: Vec<_> = (1..=4)
            .map(|owner| {
                scope.spawn(move || {
                    let _interrupts = Interrupts::every(libc::SIGUSR1, Duration::from_micros(60));
                    let mut turns = work(shared, owner, seed, 50, end);
                    // Signals are rare where this process seldom runs.
                    while handled() <= 100 && end.elapsed() < Duration::from_secs(60) {
                        let end = Instant::now() + Duration::from_millis(100);
                        turns += work(shared, owner, seed, 50, end);
                    }
                    turns
                })
            })
            .collect();
        scope.spawn(|| common::drain(shared, seed, &stop));
        let _stop = StopAtEnd(&stop);
        workers.into_iter().for_each(|worker| assert!(worker.join().unwrap() > 0));
    });
    DEPOT.store(std::ptr::null_mut(), Ordering::Release);
    KEPT.iter().for_each(|kept| free_kept(depot, kept.swap(0, Ordering::AcqRel)));
    assert!(handled() > 100);
    all_back(depot);
}

/// A depot of which every other CPU that this process may use is isolated.
fn some_locked(bytes: usize) -> Depot {
    let isolated = usable_cpus().into_iter().skip(1).step_by(2).map(CpuId::new).collect();
    Depot::builder(bytes).isolated_cpus(isolated).build().unwrap()
}

/// One test, because the handler's depot is one for the process.
#[test]
fn handlers_that_allocate() {
    handlers_allocate(&Depot::builder(64 * mib()).checked(true).build().unwrap());
    handlers_allocate(&Depot::builder(64 * mib()).per_cpu_locks(true).build().unwrap());
    handlers_allocate(&some_locked(64 * mib()));
    // So little memory that requests fail everywhere.
    handlers_allocate(&Depot::builder(4 * mib()).build().unwrap());
}

/// The number of threads that the handler has stopped, and whether they may go on.
static STOPPED: AtomicU32 = AtomicU32::new(0);
static GO_ON: AtomicU32 = AtomicU32::new(0);

extern "C" fn stop_here(_: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {
    let round = GO_ON.load(Ordering::Acquire);
    STOPPED.fetch_add(1, Ordering::AcqRel);
    while GO_ON.load(Ordering::Acquire) == round {
        // SAFETY: sleeps until the word changes; allowed in a handler.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                GO_ON.as_ptr(),
                libc::FUTEX_WAIT,
                round,
                std::ptr::null::<u8>(),
            );
        }
    }
    STOPPED.fetch_sub(1, Ordering::AcqRel);
}

fn let_go_on() {
    GO_ON.fetch_add(1, Ordering::AcqRel);
    // SAFETY: wakes the sleepers.
    unsafe { libc::syscall(libc::SYS_futex, GO_ON.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
    while STOPPED.load(Ordering::Acquire) > 0 {
        std::thread::yield_now();
    }
}

/// Lets the stopped threads end when the test fails.
struct LetGoOnAtEnd;

impl Drop for LetGoOnAtEnd {
    fn drop(&mut self) {
        let_go_on();
    }
}

/// Allocates and frees with as little other code as possible, so that a signal stops it inside.
fn busy(depot: &Depot, stop: &AtomicBool, batch: usize) {
    let mut blocks = vec![Pfn::new(0); batch];
    while !stop.load(Ordering::Relaxed) {
        let got = blocks.iter_mut().map_while(|block| {
            *block = depot.raw().alloc(Order::BASE, Flags::default()).ok()?;
            Some(())
        });
        let got = got.count();
        for &block in &blocks[..got] {
            // SAFETY: allocated above.
            unsafe { depot.raw().free(block, Order::BASE) }.unwrap();
        }
    }
}

/// Blocks that each of the threads holds at a time.
const BATCHES: [usize; 2] = [1, 400];
/// Pages that the stopped threads may hold: their batches, and four magazines each in a slow path.
const HELD_MAX: u64 = 401 + 2 * 4 * 63;

fn owners_stopped(depot: &Depot) {
    // SAFETY: the handler uses atomics and a futex.
    unsafe { install(libc::SIGUSR2, stop_here) };
    let stop = AtomicBool::new(false);
    let shared = depot;
    let mut random = common::Random::new(seed());
    let cpus = usable_cpus();
    let ids: Vec<OnceLock<libc::pthread_t>> = (0..2).map(|_| OnceLock::new()).collect();
    std::thread::scope(|scope| {
        for (thread, id) in ids.iter().enumerate() {
            let (stop, cpu) = (&stop, cpus[thread % cpus.len()]);
            scope.spawn(move || {
                pin(cpu);
                // SAFETY: the calling thread's own id.
                id.set(unsafe { libc::pthread_self() }).unwrap();
                busy(shared, stop, BATCHES[thread]);
            });
        }
        let ids: Vec<_> = ids.iter().map(|id| *id.wait()).collect();
        let _stop = (StopAtEnd(&stop), LetGoOnAtEnd);
        for _ in 0..100 {
            std::thread::sleep(Duration::from_micros(random.below(300)));
            for &id in &ids {
                // SAFETY: the threads run until `stop`.
                assert_eq!(unsafe { libc::pthread_kill(id, libc::SIGUSR2) }, 0);
            }
            while STOPPED.load(Ordering::Acquire) < ids.len() as u32 {
                std::thread::yield_now();
            }
            while_stopped(shared, &mut random);
            let_go_on();
        }
    });
    all_back(depot);
}

fn has_no_locks(depot: &Depot) -> bool {
    depot.fronts() == Fronts::Sequences
}

/// All calls work while threads are stopped; only the pages that these hold are missing.
fn while_stopped(depot: &Depot, random: &mut common::Random) {
    let drained = depot.drain(Scope::ALL, Mode::Full);
    if has_no_locks(depot) {
        assert_eq!(drained.busy_cpus, 0, "{drained:?}");
        assert_eq!(drained.unreachable_pages, 0, "{drained:?}");
    }
    if random.below(8) == 0 {
        let pages = (depot.bytes() / page_bytes()) as u64;
        let mut blocks = Vec::new();
        let error = loop {
            match depot.raw().alloc(Order::BASE, Flags::default()) {
                Ok(pfn) => blocks.push((pfn, Order::BASE)),
                Err(error) => break error,
            }
        };
        assert_eq!(error, AllocError::Exhausted);
        let missing = pages - blocks.len() as u64;
        // A lock whose holder is stopped keeps its two magazines, too.
        let bound = if has_no_locks(depot) { HELD_MAX } else { HELD_MAX + 2 * 126 };
        let shortage = depot.shortage();
        assert!(missing <= bound, "{missing} of {pages} pages are missing: {shortage}");
        // SAFETY: allocated above.
        unsafe { depot.raw().free_mixed(&blocks) }.unwrap();
    }
}

/// Last resorts of the request that runs, and the one at which the holder of a lock goes on: later
/// than a request would wait for an isolated CPU that was asked, sooner than it gives up.
static RESORTS: AtomicU32 = AtomicU32::new(0);
const GOES_ON_AT: u32 = 12;

/// A request waits for pages behind a lock whose holder does not run.
fn waits_for_the_holder_of_a_lock(depot: &Depot) {
    let cpus = usable_cpus();
    let cpu = CpuId::new(cpus[cpus.len() - 1]);
    let is_behind_lock = depot.fronts() != Fronts::Sequences;
    if cpus.len() < 2 || !is_behind_lock {
        return skip("needs two CPUs, and locks");
    }
    // SAFETY: the handler uses atomics and a futex.
    unsafe { install(libc::SIGUSR2, stop_here) };
    let registered = depot.on_pressure(|pressure| {
        if pressure.is_last_resort && RESORTS.fetch_add(1, Ordering::AcqRel) == GOES_ON_AT {
            let_go_on();
        }
        0
    });
    registered.unwrap();
    let (stop, id) = (AtomicBool::new(false), OnceLock::new());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert!(pin(cpu.get()));
            // SAFETY: the calling thread's own id.
            id.set(unsafe { libc::pthread_self() }).unwrap();
            busy(depot, &stop, 1);
        });
        let _stop = (StopAtEnd(&stop), LetGoOnAtEnd);
        let is_held = (0..100_000).any(|_| {
            // SAFETY: the thread runs until `stop`.
            assert_eq!(unsafe { libc::pthread_kill(*id.wait(), libc::SIGUSR2) }, 0);
            while STOPPED.load(Ordering::Acquire) == 0 {
                std::thread::yield_now();
            }
            let is_held = depot.drain(Scope::cpu(cpu), Mode::Handover).pending_cpus == 1
                && depot.drain(Scope::cpu(cpu), Mode::Full).busy_cpus == 1;
            if !is_held {
                let_go_on();
            }
            is_held
        });
        assert!(is_held, "no signal came while the thread had its lock");
        stop.store(true, Ordering::Relaxed);
        let all = std::iter::from_fn(|| {
            RESORTS.store(0, Ordering::Release);
            depot.page(Order::BASE).ok()
        });
        let (all, pages) = (all.collect::<Vec<_>>(), depot.bytes() / page_bytes());
        // The holder may have been about to free one.
        assert!(all.len() + 1 >= pages, "{} of {pages}: {}", all.len(), depot.shortage());
    });
    all_back(depot);
}

/// One test after the other: the stopped threads are counted for the process.
#[test]
fn owners_stopped_in_mid_operation() {
    owners_stopped(&Depot::builder(16 * mib()).build().unwrap());
    owners_stopped(&Depot::builder(16 * mib()).per_cpu_locks(true).build().unwrap());
    owners_stopped(&some_locked(16 * mib()));
    for _ in 0..3 {
        waits_for_the_holder_of_a_lock(&some_locked(for_all_cpus(4 * mib())));
    }
}

/// Calls of the next handler that have ended, and those that found a range.
static RANGES: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// Asks for ranges that are not there without moving pages.
extern "C" fn compact(_: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: the test removes the pointer only after its threads, and their signals, have ended.
    let Some(depot) = (unsafe { DEPOT_TO_COMPACT.load(Ordering::Acquire).as_ref() }) else {
        return;
    };
    // A request takes longer than the time between two signals: the thread gets on in between.
    let steps = STEPS.load(Ordering::Relaxed);
    if STEPS_SEEN.swap(steps, Ordering::Relaxed) == steps {
        return;
    }
    // Few, which can be had; and nearly all that are free, for which it compacts each time.
    let pages = [7 * 512, 12 * 512][(steps % 2) as usize];
    if let Ok(start) = depot.raw().alloc_contiguous(pages, 512, Flags::default().compact()) {
        // SAFETY: just allocated.
        unsafe { depot.raw().free_contiguous(start, pages) }.unwrap();
        RANGES[1].fetch_add(1, Ordering::Relaxed);
    }
    RANGES[0].fetch_add(1, Ordering::Relaxed);
}

/// Steps of the test's threads, now and when the handler ran last.
static STEPS: AtomicU64 = AtomicU64::new(0);
static STEPS_SEEN: AtomicU64 = AtomicU64::new(0);

/// The depot of that handler, while its test runs.
static DEPOT_TO_COMPACT: AtomicPtr<Depot> = AtomicPtr::new(std::ptr::null_mut());

/// A handler's request compacts whatever its thread was doing: making, using, pinning and dropping
/// movable pages, which takes memory of the heap, or compacting.
#[test]
fn handlers_that_compact() {
    // SAFETY: the handler takes no lock of the program's.
    unsafe { install(libc::SIGALRM, compact) };
    let depot = Depot::builder(32 * mib()).build().unwrap();
    let mut kept: Vec<_> =
        std::iter::from_fn(|| depot.movable(Order::BASE, Flags::default()).ok()).collect();
    let mut nth = 0;
    kept.retain(|_| {
        nth += 1;
        nth % 4 == 0
    });
    DEPOT_TO_COMPACT.store((&raw const depot).cast_mut(), Ordering::Release);
    let (end, shared) = (Instant::now() + Duration::from_secs(2), &depot);
    let (ended, alive) = mpsc::channel();
    std::thread::scope(|scope| {
        for work in 0..2 {
            let ended = ended.clone();
            scope.spawn(move || {
                let interrupts = Interrupts::every(libc::SIGALRM, Duration::from_micros(100));
                for round in 0.. {
                    if Instant::now() >= end {
                        break;
                    }
                    let new = || {
                        STEPS.fetch_add(1, Ordering::Relaxed);
                        shared.movable(Order::BASE, Flags::default()).ok()
                    };
                    let mut pages: Vec<_> = (0..20).filter_map(|_| new()).collect();
                    for page in &mut pages {
                        STEPS.fetch_add(1, Ordering::Relaxed);
                        page.write()[0] = work as u8;
                        drop(shared.pin_range(page.pfn(), 1).unwrap());
                    }
                    if work == 1 && round % 16 == 0 {
                        _ = shared.compact(Compaction::pageblocks(1));
                    }
                    assert!(pages.iter().all(|page| page.read()[0] == work as u8));
                }
                drop(interrupts);
                ended.send(()).unwrap();
            });
        }
        drop(ended);
        for _ in 0..2 {
            // A thread that hangs cannot be joined.
            if alive.recv_timeout(Duration::from_secs(120)) == Err(RecvTimeoutError::Timeout) {
                eprintln!("a handler waits for its own thread");
                std::process::abort();
            }
        }
    });
    DEPOT_TO_COMPACT.store(std::ptr::null_mut(), Ordering::Release);
    let [calls, found] = RANGES.each_ref().map(|count| count.load(Ordering::Relaxed));
    assert!(calls > 10 && found > 0, "{found} of {calls} found a range");
    drop(kept);
    all_back(&depot);
}

/// The depot of the next handler, while its test runs, and its calls.
static DEPOT_FOR_RANGES: AtomicPtr<Depot> = AtomicPtr::new(std::ptr::null_mut());
static RANGE_CALLS: AtomicU64 = AtomicU64::new(0);

/// Asks for a range of nearly all pages, which may wait and compact.
extern "C" fn ask_for_range(_: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: the test removes the pointer only after its thread, and its signals, have ended.
    let Some(depot) = (unsafe { DEPOT_FOR_RANGES.load(Ordering::Acquire).as_ref() }) else {
        return;
    };
    let pages = 3 * 512;
    if let Ok(start) = depot.raw().alloc_contiguous(pages, 512, Flags::default().compact()) {
        // SAFETY: just allocated.
        unsafe { depot.raw().free_contiguous(start, pages) }.unwrap();
    }
    RANGE_CALLS.fetch_add(1, Ordering::Relaxed);
}

/// Signals come every 3 ms. If a handler slept for pages that the code below it moves, or has
/// behind a lock, the next signal would be there before that code could go on, for ever.
fn thread_goes_on_below_handlers(depot: &Depot) {
    // SAFETY: the handler takes no lock of the program's.
    unsafe { install(libc::SIGPROF, ask_for_range) };
    let mut kept: Vec<_> =
        (0..1000).map(|_| depot.movable(Order::BASE, Flags::default()).unwrap()).collect();
    let mut nth = 0;
    kept.retain(|_| {
        nth += 1;
        nth % 4 == 0
    });
    DEPOT_FOR_RANGES.store((&raw const *depot).cast_mut(), Ordering::Release);
    let before = RANGE_CALLS.load(Ordering::Relaxed);
    let (ended, alive) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let interrupts = Interrupts::every(libc::SIGPROF, Duration::from_millis(3));
            while RANGE_CALLS.load(Ordering::Relaxed) < before + 150 {
                let new = || depot.movable(Order::BASE, Flags::default()).ok();
                let pages: Vec<_> = (0..100).filter_map(|_| new()).collect();
                drop(pages);
                busy_once(depot);
            }
            drop(interrupts);
            ended.send(()).unwrap();
        });
        // A thread that hangs cannot be joined.
        if alive.recv_timeout(Duration::from_secs(60)) == Err(RecvTimeoutError::Timeout) {
            eprintln!("handlers sleep for the thread below them");
            std::process::abort();
        }
    });
    DEPOT_FOR_RANGES.store(std::ptr::null_mut(), Ordering::Release);
    drop(kept);
    all_back(depot);
}

/// Blocks of several orders, one at a time and all at once: by fronts, refills, spills and past
/// them.
fn busy_once(depot: &Depot) {
    // Most of this thread's time, and much of it with a lock, where there are locks.
    for _ in 0..20_000 {
        if let Ok(pfn) = depot.raw().alloc(Order::BASE, Flags::default()) {
            // SAFETY: just allocated.
            unsafe { depot.raw().free(pfn, Order::BASE) }.unwrap();
        }
    }
    for each in [0, 3, 5, 9].map(order) {
        for count in [1, 100 >> each.get() | 1] {
            let blocks: Vec<_> = (0..count).filter_map(|_| depot.page(each).ok()).collect();
            drop(blocks);
        }
    }
}

/// One test, because the handler's depot is one for the process.
#[test]
fn a_thread_goes_on_below_handlers_that_may_wait() {
    thread_goes_on_below_handlers(&Depot::builder(8 * mib()).build().unwrap());
    thread_goes_on_below_handlers(&Depot::builder(8 * mib()).per_cpu_locks(true).build().unwrap());
    thread_goes_on_below_handlers(&some_locked(8 * mib()));
}
