//! Requests that wait for pages are woken by every way in which pages come, miss none, and leave
//! the caches as they were.

use std::future::Future as _;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, LazyLock, Mutex, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{Random, all_back, in_child, mib, order, page_bytes, seed, unit, usable_cpus};
use pagedepot_linux::builder::Watermarks;
use pagedepot_linux::reclaim::{
    Ceiling, CeilingError, PinError, PinnedRange, ReportEnd, Reporting,
};
use pagedepot_linux::{
    AllocError, CpuId, Depot, Flags, MemoryKind, Order, Page, Pfn, Vmalloc, VmallocBuf, ZoneId,
};

/// Longer than any test: a wake-up that is lost ends in a failure, not in patience.
const LONG: Duration = Duration::from_secs(100);

/// Counts how often it was called.
#[derive(Default)]
struct Calls(AtomicU32);

impl Calls {
    fn count(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }
}

impl Wake for Calls {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn calls() -> (Arc<Calls>, Waker) {
    let calls = Arc::<Calls>::default();
    (calls.clone(), Waker::from(calls))
}

/// All pages of a depot, one by one.
fn all_of(depot: &Depot) -> Vec<Page> {
    std::iter::from_fn(|| depot.page(Order::BASE).ok()).collect()
}

fn are_cached(depot: &Depot) -> Vec<bool> {
    let are_enabled = |cpu| depot.cpu_caches().are_enabled(CpuId::new(cpu));
    usable_cpus().into_iter().map(are_enabled).collect()
}

#[test]
fn threads_take_turns_with_the_only_page() {
    let depot = Depot::new(page_bytes()).unwrap();
    let (turns, cached) = (AtomicU64::new(0), are_cached(&depot));
    let start = Barrier::new(4);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                start.wait();
                for _ in 0..300 {
                    let mut page = depot.page_timeout(Order::BASE, LONG).unwrap();
                    // Another thread that had the page would change it meanwhile.
                    let turn = turns.fetch_add(1, Ordering::Relaxed);
                    page[..8].copy_from_slice(&turn.to_ne_bytes());
                    thread::yield_now();
                    assert_eq!(page[..8], turn.to_ne_bytes());
                }
            });
        }
    });
    assert_eq!(turns.into_inner(), 1200);
    assert_eq!(are_cached(&depot), cached, "caches are given back");
    all_back(&depot);
}

/// Threads that free into caches, by numbers and in batches, beside threads that wait.
#[test]
fn no_free_is_missed_beside_other_threads() {
    let mut random = Random::new(seed());
    for locks in [false, true] {
        let depot = Depot::builder(64 * page_bytes()).per_cpu_locks(locks).build().unwrap();
        let end = Instant::now() + Duration::from_millis(700);
        thread::scope(|scope| {
            for _ in 0..6 {
                let mut random = Random::new(random.below(u64::MAX));
                let depot = &depot;
                scope.spawn(move || {
                    while Instant::now() < end {
                        let order = order(random.below(4) as u32);
                        let page = depot.page_timeout(order, LONG).unwrap();
                        let more: Vec<Page> = (0..random.below(12))
                            .map_while(|_| depot.page(Order::BASE).ok())
                            .collect();
                        match random.below(3) {
                            0 => depot.free_pages(more),
                            1 => drop(more),
                            _ => more.into_iter().for_each(|page| {
                                let (pfn, order) = page.into_raw();
                                // SAFETY: given up a line above.
                                unsafe { depot.raw().free(pfn, order) }.unwrap();
                            }),
                        }
                        drop(page);
                    }
                });
            }
        });
        all_back(&depot);
    }
}

#[test]
fn tasks_are_woken_one_by_one_and_in_order() {
    let depot = Depot::new(8 * page_bytes()).unwrap();
    let mut held = all_of(&depot);
    let (calls, wakers): (Vec<_>, Vec<_>) = (0..3).map(|_| calls()).unzip();
    let mut waiting: Vec<_> = (0..3).map(|_| Box::pin(depot.page_async(Order::BASE))).collect();
    let mut poll = |nth: usize| waiting[nth].as_mut().poll(&mut Context::from_waker(&wakers[nth]));
    let counts = || [0, 1, 2].map(|nth: usize| calls[nth].count());
    assert!((0..3).all(|nth| poll(nth).is_pending()));
    assert_eq!(counts(), [0; 3]);
    held.pop();
    assert_eq!(counts(), [1, 0, 0]);
    let Poll::Ready(first) = poll(0) else { panic!("a page was free") };
    held.push(first.unwrap());
    // There may have been more than one.
    assert_eq!(counts(), [1, 1, 0]);
    assert!(poll(1).is_pending());
    // Two at once: the second is told, and passes on.
    held.truncate(held.len() - 2);
    assert_eq!(counts(), [1, 2, 1]);
    for nth in [2, 1] {
        let Poll::Ready(page) = poll(nth) else { panic!("a page was free for {nth}") };
        held.push(page.unwrap());
    }
    assert_eq!(held.len(), 8);
    drop((held, waiting));
    all_back(&depot);
}

#[test]
fn a_task_that_goes_passes_its_tell_on() {
    let depot = Depot::new(4 * page_bytes()).unwrap();
    let cached = are_cached(&depot);
    let mut held = all_of(&depot);
    let ((_, first), (calls, second)) = (calls(), calls());
    let mut gone = Box::pin(depot.page_async(Order::BASE));
    assert!(gone.as_mut().poll(&mut Context::from_waker(&first)).is_pending());
    let mut stays = pin!(depot.page_async(Order::BASE));
    let mut context = Context::from_waker(&second);
    assert!(stays.as_mut().poll(&mut context).is_pending());
    held.pop();
    assert_eq!(calls.count(), 0);
    drop(gone);
    assert_eq!(calls.count(), 1);
    let page = stays.as_mut().poll(&mut context);
    assert!(matches!(page, Poll::Ready(Ok(_))));
    assert_eq!(are_cached(&depot), cached, "caches are given back");
    drop((page, held));
    all_back(&depot);
}

/// A task that never waited, and one that is dropped before it was told.
#[test]
fn tasks_that_go_leave_nothing_behind() {
    let depot = Depot::new(4 * page_bytes()).unwrap();
    drop(depot.page_async(Order::BASE));
    let held = all_of(&depot);
    let (calls, waker) = calls();
    let mut gone = Box::pin(depot.page_async(Order::BASE));
    assert!(gone.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    assert!(!are_cached(&depot).contains(&true), "a free must come to the store");
    drop(gone);
    assert!(!are_cached(&depot).contains(&false));
    drop(held);
    assert_eq!((calls.count(), Arc::strong_count(&calls)), (0, 2), "no waker is kept");
    all_back(&depot);
}

#[test]
fn who_cannot_be_served_lets_smaller_requests_go_first() {
    let depot = Depot::new(16 * page_bytes()).unwrap();
    let mut held = all_of(&depot);
    let ((_, large), (calls, small)) = (calls(), calls());
    let mut block = pin!(depot.page_async(order(3)));
    assert!(block.as_mut().poll(&mut Context::from_waker(&large)).is_pending());
    let mut page = pin!(depot.page_async(Order::BASE));
    assert!(page.as_mut().poll(&mut Context::from_waker(&small)).is_pending());
    held.pop();
    assert_eq!(calls.count(), 0, "the first is told first");
    assert!(block.as_mut().poll(&mut Context::from_waker(&large)).is_pending());
    assert_eq!(calls.count(), 1);
    let page = page.as_mut().poll(&mut Context::from_waker(&small));
    assert!(matches!(page, Poll::Ready(Ok(_))));
    drop(held);
    let block = block.as_mut().poll(&mut Context::from_waker(&large));
    assert!(matches!(block, Poll::Ready(Ok(_))));
    drop((page, block));
    all_back(&depot);
}

/// Waits for a page while `bring` brings some.
fn is_woken_by(depot: &Depot, bring: impl FnOnce() + Send) {
    thread::scope(|scope| {
        let waiting = scope.spawn(|| depot.page_timeout(Order::BASE, LONG).map(drop));
        // Until it waits. (One that came later would find the page at once.)
        while are_cached(depot).contains(&true) {
            thread::yield_now();
        }
        bring();
        waiting.join().unwrap().unwrap();
    });
}

#[test]
fn every_way_in_which_pages_come_wakes() {
    let depot = Depot::builder(8 * mib()).ceiling(4 * mib()).build().unwrap();
    let held = all_of(&depot);
    is_woken_by(&depot, || _ = Ceiling::of(&depot).set(8 * mib()).unwrap());
    drop(held);
    let run = depot.pages(2048, Flags::default()).unwrap();
    is_woken_by(&depot, || drop(run));
    let vector = depot.alloc_pages(Order::BASE, 2048).unwrap();
    is_woken_by(&depot, || drop(vector));
    all_back(&depot);

    let depot = Depot::builder(mib()).grow_to(2 * unit()).build().unwrap();
    let held = all_of(&depot);
    is_woken_by(&depot, || _ = depot.grow(ZoneId::new(0), unit()).unwrap());
    drop(held);
    all_back(&depot);
}

/// Every third page of a depot, movable.
fn scattered(depot: &Depot) -> Vec<impl Sized> {
    let mut nth = 0..;
    let next = || depot.movable(Order::BASE, Flags::default()).ok();
    let mut pages: Vec<_> = std::iter::from_fn(next).collect();
    pages.retain(|_| nth.next().is_some_and(|nth| nth % 3 == 0));
    pages
}

/// Checks that a request for a block of order 8 in scattered memory is woken by another request,
/// which compacts.
fn is_woken_by_compaction<T>(depot: &Depot, name: &str, request: impl FnOnce() -> T) {
    let pages = scattered(depot);
    let (calls, waker) = calls();
    let mut context = Context::from_waker(&waker);
    let mut waiting = pin!(depot.page_async(order(8)));
    assert!(waiting.as_mut().poll(&mut context).is_pending());
    assert_eq!(calls.count(), 0, "{name}: it looks no more");
    let held = request();
    assert_eq!(calls.count(), 1, "{name}");
    let polled = waiting.as_mut().poll(&mut context);
    assert!(matches!(polled, Poll::Ready(Ok(_))), "{name}: {polled:?}");
    drop((polled, held, pages));
    all_back(depot);
}

/// Compaction empties whole pageblocks, of which a request takes a part.
#[test]
fn compaction_for_another_request_wakes() {
    let new = || Depot::builder(16 * mib()).memory(MemoryKind::Memfd).build().unwrap();
    let (depot, compact) = (new(), Flags::default().compact());
    let page = || depot.page_with(order(5), compact).unwrap();
    is_woken_by_compaction(&depot, "a block", page);
    is_woken_by_compaction(&depot, "a range", || depot.pages(33, compact).unwrap());
    is_woken_by_compaction(&depot, "blocks", || {
        depot.alloc_pages_with(order(4), 1, compact).unwrap()
    });
    let depot = new();
    let page = || depot.page_with(Order::BASE, Flags::UNMOVABLE.compact()).unwrap();
    is_woken_by_compaction(&depot, "a block that mixes none", page);
    let depot = new();
    let builder = Vmalloc::builder(&depot).flags(Flags::UNMOVABLE.compact()).warm_bytes(0);
    let space = builder.lazy_bytes(0).build().unwrap();
    let buf = || space.buf(page_bytes()).unwrap();
    is_woken_by_compaction(&depot, "a buffer", buf);
}

#[test]
fn a_request_that_moves_nothing_wakes_none() {
    let depot = Depot::builder(16 * mib()).memory(MemoryKind::Memfd).build().unwrap();
    let (mut held, mut nth) = (all_of(&depot), 0..);
    held.retain(|_| nth.next().is_some_and(|nth| nth % 3 == 0));
    let (calls, waker) = calls();
    let mut waiting = pin!(depot.page_async(Order::PAGEBLOCK));
    assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    let page = |_| depot.page_with(Order::BASE, Flags::default().compact()).unwrap();
    let more: Vec<_> = (0..100).map(page).collect();
    assert_eq!(calls.count(), 0);
    drop((held, more));
}

/// A waker that lifts the ceiling of its depot.
struct Lifting {
    depot: Depot,
    lifted: OnceLock<Result<usize, CeilingError>>,
}

impl Wake for Lifting {
    fn wake(self: Arc<Self>) {
        let _ = self.lifted.set(Ceiling::of(&self.depot).set(usize::MAX));
    }
}

/// A ceiling that sinks compacts under its lock, and wakes when that is free again.
#[test]
fn a_ceiling_that_compacts_wakes_under_no_lock() {
    let depot = Depot::builder(16 * mib()).memory(MemoryKind::Memfd).build().unwrap();
    let pages = scattered(&depot);
    let task = Arc::new(Lifting { depot: depot.clone(), lifted: OnceLock::new() });
    let waker = Waker::from(task.clone());
    let mut waiting = Box::pin(depot.page_async(Order::MAX));
    assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    assert_eq!(Ceiling::of(&depot).set(8 * mib()), Ok(8 * mib()));
    assert_eq!(task.lifted.get(), Some(&Ok(16 * mib())));
    drop((waiting, pages));
    all_back(&depot);
}

/// A callback that frees pages for a ceiling wakes when the ceiling's lock is free again.
#[test]
fn a_callback_for_a_ceiling_wakes_under_no_lock() {
    let depot = Depot::new(16 * mib()).unwrap();
    let blocks = std::iter::from_fn(|| depot.page(Order::PAGEBLOCK).ok());
    let stock = Arc::new(Mutex::new(blocks.collect::<Vec<_>>()));
    let freed = stock.clone();
    depot.on_pressure(move |_| freed.lock().unwrap().pop().map_or(0, |_| 512)).unwrap();
    let task = Arc::new(Lifting { depot: depot.clone(), lifted: OnceLock::new() });
    let waker = Waker::from(task.clone());
    let mut waiting = Box::pin(depot.page_async(Order::MAX));
    let held = std::mem::take(&mut *stock.lock().unwrap());
    assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    *stock.lock().unwrap() = held;
    let lower = Ceiling::of(&depot).set(8 * mib());
    assert!(stock.lock().unwrap().len() < 8, "{lower:?}: pages were asked for");
    assert_eq!(task.lifted.get(), Some(&Ok(16 * mib())));
    drop(waiting);
    stock.lock().unwrap().clear();
    all_back(&depot);
}

/// A callback for a ceiling frees pages and gives up a wait: the next one is woken when the
/// ceiling's lock is free again.
#[test]
fn a_wait_that_ends_under_a_ceiling_wakes_under_no_lock() {
    static DEPOT: LazyLock<Depot> = LazyLock::new(|| Depot::new(16 * mib()).unwrap());
    let stock = std::iter::from_fn(|| DEPOT.page(Order::PAGEBLOCK).ok()).collect::<Vec<_>>();
    let mut older = Box::pin(DEPOT.page_async(Order::MAX));
    assert!(older.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    let task = Arc::new(Lifting { depot: DEPOT.clone(), lifted: OnceLock::new() });
    let waker = Waker::from(task.clone());
    let mut waiting = Box::pin(DEPOT.page_async(Order::MAX));
    assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    let given = Arc::new(Mutex::new((stock, Some(older))));
    let freed = given.clone();
    DEPOT
        .on_pressure(move |_| {
            let (stock, older) = &mut *freed.lock().unwrap();
            let pages = stock.pop().map_or(0, |_| 512);
            drop(older.take());
            pages
        })
        .unwrap();
    let lower = Ceiling::of(&DEPOT).set(8 * mib());
    assert!(given.lock().unwrap().1.is_none(), "{lower:?}: pages were asked for");
    assert_eq!(task.lifted.get(), Some(&Ok(16 * mib())));
    drop(waiting);
    given.lock().unwrap().0.clear();
    all_back(&DEPOT);
}

/// A callback for a ceiling that waits for a block keeps no page from a request behind it.
#[test]
fn a_wait_under_a_ceiling_keeps_no_page_from_others() {
    let depot = Depot::new(1024 * page_bytes()).unwrap();
    let mut held = all_of(&depot);
    let (begins, has_begun) = std::sync::mpsc::channel();
    let weak = depot.downgrade();
    let wait = move |_| {
        let depot = weak.upgrade().unwrap();
        let _ = begins.send(());
        depot.page_timeout(Order::PAGEBLOCK, LONG).map_or(0, |_| 512)
    };
    depot.on_pressure(wait).unwrap();
    thread::scope(|scope| {
        let sets = scope.spawn(|| Ceiling::of(&depot).set(512 * page_bytes()));
        has_begun.recv().unwrap();
        let (calls, waker) = calls();
        let mut context = Context::from_waker(&waker);
        // Waits for the callback at first, until that has had time to wait.
        let mut waiting = pin!(depot.page_async(Order::BASE));
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        held.pop();
        assert_eq!(calls.count(), 1);
        let polled = waiting.as_mut().poll(&mut context);
        assert!(matches!(polled, Poll::Ready(Ok(_))), "{polled:?}");
        drop((polled, held));
        sets.join().unwrap().unwrap();
    });
    Ceiling::of(&depot).set(usize::MAX).unwrap();
    all_back(&depot);
}

/// A task that a callback for a ceiling polls is woken, and waits in the queue afterwards.
#[test]
fn a_task_waits_again_after_a_callback_for_a_ceiling() {
    static DEPOT: LazyLock<Depot> = LazyLock::new(|| Depot::new(1024 * page_bytes()).unwrap());
    let mut held = all_of(&DEPOT);
    let (calls, waker) = calls();
    let task = Mutex::new(Box::pin(DEPOT.page_async(Order::BASE)));
    // `None`: a poll calls the callback.
    let poll = Arc::new(move || {
        let mut task = task.try_lock().ok()?;
        Some(task.as_mut().poll(&mut Context::from_waker(&waker)))
    });
    assert!(poll().unwrap().is_pending());
    let poll_in_callback = poll.clone();
    DEPOT
        .on_pressure(move |_| {
            assert!(poll_in_callback().is_none_or(|polled| polled.is_pending()));
            0
        })
        .unwrap();
    let lower = Ceiling::of(&DEPOT).set(512 * page_bytes());
    assert!(matches!(lower, Err(CeilingError::Held { .. })), "{lower:?}");
    assert!(calls.count() > 0);
    assert!(are_cached(&DEPOT).contains(&true), "none is in the queue");
    assert!(poll().unwrap().is_pending());
    let before = calls.count();
    held.pop();
    assert_eq!(calls.count(), before + 1);
    let page = poll().unwrap();
    assert!(matches!(page, Poll::Ready(Ok(_))), "{page:?}");
    drop((page, held));
    Ceiling::of(&DEPOT).set(usize::MAX).unwrap();
    all_back(&DEPOT);
}

/// A lower watermark makes pages free for requests that wait.
#[test]
fn a_lower_watermark_wakes() {
    let depot = Depot::new(4 * mib()).unwrap();
    let zone = depot.settings(ZoneId::new(0)).unwrap();
    let before = zone.watermarks();
    assert!(zone.set_watermarks(Watermarks { min: 64, low: 80, high: 96 }));
    let held = all_of(&depot);
    let (calls, waker) = calls();
    let mut context = Context::from_waker(&waker);
    let mut waiting = pin!(depot.page_async(Order::BASE));
    assert!(waiting.as_mut().poll(&mut context).is_pending());
    assert_eq!(calls.count(), 0);
    assert!(zone.set_watermarks(before));
    assert_eq!(calls.count(), 1);
    let polled = waiting.as_mut().poll(&mut context);
    assert!(matches!(polled, Poll::Ready(Ok(_))), "{polled:?}");
    drop((polled, held));
    all_back(&depot);
}

/// A waker that notes how many pageblocks were reported when it was called.
struct Noting {
    depot: Depot,
    reported: OnceLock<u64>,
}

impl Wake for Noting {
    fn wake(self: Arc<Self>) {
        let _ = self.reported.set(Reporting::of(&self.depot).counts().reported);
    }
}

/// A pass that gives much memory back keeps none from a request until its end.
#[test]
fn each_chunk_of_a_pass_wakes() {
    let depot = Depot::builder(64 * mib()).caches(false).build().unwrap();
    let mut held: Vec<_> = std::iter::from_fn(|| depot.page(Order::PAGEBLOCK).ok()).collect();
    held.retain(|block| block.pfn().get() / 512 % 2 == 0);
    let task = Arc::new(Noting { depot: depot.clone(), reported: OnceLock::new() });
    let waker = Waker::from(task.clone());
    let mut waiting = pin!(depot.page_async(Order::MAX));
    assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    // The request that ran short keeps passes away for a moment.
    let end = Instant::now() + LONG;
    loop {
        let done = Reporting::of(&depot).pass(u64::MAX).unwrap();
        if done.end != ReportEnd::LowMemory {
            assert_eq!(done.pageblocks, 16);
            break;
        }
        assert!(Instant::now() < end);
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(task.reported.get(), Some(&8));
}

#[test]
fn a_wait_ends_in_time_and_for_what_cannot_come() {
    let depot = Depot::new(4 * page_bytes()).unwrap();
    let started = Instant::now();
    assert_eq!(depot.page_timeout(order(3), LONG).unwrap_err(), AllocError::Exhausted);
    assert!(started.elapsed() < LONG / 2, "no zone has so large a block");
    let held = all_of(&depot);
    for wait in [Duration::ZERO, Duration::from_millis(30)] {
        let started = Instant::now();
        assert_eq!(depot.page_timeout(Order::BASE, wait).unwrap_err(), AllocError::Exhausted);
        assert!(started.elapsed() >= wait);
    }
    drop(held);
    assert!(depot.page_timeout(Order::BASE, Duration::MAX).is_ok());
    all_back(&depot);
}

/// Checks that pages which a callback can free are found before a request waits, and when its time
/// is over.
#[test]
fn callbacks_are_called_first_and_last() {
    let depot = Depot::new(4 * page_bytes()).unwrap();
    let cache: Arc<Mutex<Vec<Page>>> = Arc::default();
    let given = cache.clone();
    depot.on_pressure(move |_| given.lock().unwrap().pop().is_some().into()).unwrap();
    let mut held = all_of(&depot);
    cache.lock().unwrap().push(held.pop().unwrap());
    held.push(depot.page_timeout(Order::BASE, LONG).unwrap());
    let wait = Duration::from_millis(200);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| depot.page_timeout(Order::BASE, wait).map(drop));
        while are_cached(&depot).contains(&true) {
            thread::yield_now();
        }
        // Not freed, so no waiter is woken.
        cache.lock().unwrap().push(held.pop().unwrap());
        waiting.join().unwrap().unwrap();
    });
    drop(held);
    all_back(&depot);
}

/// Buffers that hold all pages of a depot but those in `rest`.
struct Full {
    depot: Depot,
    space: Vmalloc,
    bufs: Vec<VmallocBuf>,
    rest: Vec<Page>,
}

/// Freed buffers are pooled, or left to a purge.
fn full_of_buffers(is_lazy: bool) -> Full {
    let depot = Depot::builder(16 * mib()).memory(MemoryKind::Memfd).build().unwrap();
    let builder = Vmalloc::builder(&depot).bytes(64 * mib());
    let builder = if is_lazy { builder.warm_bytes(0).large_bytes(0) } else { builder };
    let space = builder.build().unwrap();
    let bufs: Vec<_> = std::iter::from_fn(|| space.buf(16 * page_bytes()).ok()).collect();
    assert!(bufs.len() > 100);
    Full { rest: all_of(&depot), bufs, space, depot }
}

/// Pages that lie free in the pools of an address space are there for a thread that waits.
#[test]
fn buffers_that_are_freed_wake_a_thread() {
    for is_lazy in [false, true] {
        let Full { depot, space, bufs, rest } = full_of_buffers(is_lazy);
        let started = Instant::now();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| depot.page_timeout(Order::BASE, LONG).map(drop));
            while are_cached(&depot).contains(&true) {
                thread::yield_now();
            }
            drop(bufs);
            waiting.join().unwrap().unwrap();
        });
        assert!(started.elapsed() < LONG / 2, "it slept until its time was over");
        drop((rest, space));
        all_back(&depot);
    }
}

#[test]
fn a_buffer_that_is_freed_wakes_a_task() {
    for is_lazy in [false, true] {
        let Full { depot, space, mut bufs, rest } = full_of_buffers(is_lazy);
        let (calls, waker) = calls();
        let mut context = Context::from_waker(&waker);
        let mut waiting = pin!(depot.page_async(Order::BASE));
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        assert_eq!(calls.count(), 0);
        let buf = bufs.pop().unwrap();
        let (start, _) = buf.into_raw().unwrap();
        // SAFETY: the buffer's memory, which nothing uses.
        unsafe { space.vfree_atomic(start) }.unwrap();
        assert_eq!(calls.count(), 1);
        let polled = waiting.as_mut().poll(&mut context);
        assert!(matches!(polled, Poll::Ready(Ok(_))), "{polled:?}");
        drop((polled, bufs, rest, space));
        all_back(&depot);
    }
}

/// A waker that uses address spaces, as an executor does that keeps its queue in one.
struct Tenant {
    space: Vmalloc,
    other: Mutex<Vmalloc>,
    is_active: AtomicBool,
    /// Calls while active.
    calls: AtomicU32,
}

impl Wake for Tenant {
    fn wake(self: Arc<Self>) {
        if self.is_active.load(Ordering::SeqCst) {
            self.space.shrink();
            // Takes the list of the depot's address spaces.
            self.other.lock().unwrap().validate().unwrap();
            self.calls.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// Frees the pages of a lazy buffer in one of several ways, and expects that a waker runs, under no
/// lock of the address space.
fn frees_pages(way: u32) {
    let Full { depot, space, mut bufs, rest } = full_of_buffers(true);
    let tenant = Arc::new(Tenant {
        space: space.clone(),
        other: Mutex::new(Vmalloc::builder(&depot).bytes(mib()).build().unwrap()),
        is_active: AtomicBool::new(false),
        calls: AtomicU32::new(0),
    });
    let waker = Waker::from(tenant.clone());
    let mut context = Context::from_waker(&waker);
    // The freed buffer tells the first, and its purge the second.
    let mut waiting = [0, 1].map(|_| Box::pin(depot.page_async(Order::MAX)));
    assert!(waiting.iter_mut().all(|one| one.as_mut().poll(&mut context).is_pending()));
    let mut buf = bufs.pop().unwrap();
    if way > 0 {
        drop(std::mem::replace(&mut buf, space.empty()));
    }
    tenant.is_active.store(true, Ordering::SeqCst);
    match way {
        0 => buf.resize(page_bytes()).unwrap(),
        1 => _ = space.shrink(),
        2 => assert_eq!(depot.page(Order::MAX).unwrap_err(), AllocError::Exhausted),
        3 => drop(space.buf(15 * page_bytes()).unwrap()),
        4 => space.reserve(16 * mib()).unwrap().grow(page_bytes()).unwrap(),
        _ => assert!(waiting[0].as_mut().poll(&mut context).is_pending()),
    }
    assert!(tenant.calls.load(Ordering::SeqCst) > 0, "way {way} woke none");
    tenant.is_active.store(false, Ordering::SeqCst);
    drop((waiting, waker, buf, bufs, rest, tenant, space));
    all_back(&depot);
}

/// Wakers run when the purge that woke them has given up its locks.
#[test]
fn wakers_use_the_address_spaces_whose_pages_they_wait_for() {
    for way in 0..6 {
        let (done, ended) = std::sync::mpsc::channel();
        // Not joined: it would not end.
        thread::spawn(move || {
            frees_pages(way);
            done.send(()).unwrap();
        });
        ended.recv_timeout(LONG).unwrap_or_else(|error| panic!("way {way}: {error}"));
    }
}

/// A waker that ends a pin and makes another, as an executor does that drops the task.
struct Pinning {
    depot: Depot,
    pinned: Mutex<Option<PinnedRange>>,
    repinned: OnceLock<Result<(), PinError>>,
}

impl Wake for Pinning {
    fn wake(self: Arc<Self>) {
        drop(self.pinned.lock().unwrap().take());
        let _ = self.repinned.set(self.depot.pin_range(Pfn::new(0), 1).map(drop));
    }
}

/// A trim wakes requests when it has given up the lock of the pins.
#[test]
fn a_waker_that_a_trim_calls_ends_pins() {
    let depot = Depot::builder(16 * mib()).caches(false).populate(true).build().unwrap();
    let mut held = all_of(&depot);
    let mut pages = 0..;
    held.retain(|_| pages.next().is_some_and(|page| page % 512 == 0));
    let pinned = Mutex::new(Some(depot.pin_range(held[0].pfn(), 1).unwrap()));
    let repinned = OnceLock::new();
    let task = Arc::new(Pinning { depot: depot.clone(), pinned, repinned });
    let waker = Waker::from(task.clone());
    let mut waiting = pin!(depot.page_async(Order::MAX));
    assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    // The request that ran short keeps trims away for a moment.
    let end = Instant::now() + LONG;
    while depot.trim().unwrap().cut_short {
        assert!(Instant::now() < end);
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(task.repinned.get(), Some(&Ok(())));
    assert_eq!(depot.pinned_pages(), Ok(0));
}

#[test]
fn a_forked_child_waits_for_nothing() {
    let depot = Depot::new(4 * page_bytes()).unwrap();
    let held = all_of(&depot);
    let (calls, waker) = calls();
    let mut waiting = Box::pin(depot.page_async(Order::BASE));
    assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    let waiting = std::cell::Cell::new(Some((waiting, held)));
    in_child(|| {
        let (mut waiting, held) = waiting.take().unwrap();
        drop(held);
        let polled = waiting.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(matches!(polled, Poll::Ready(Err(AllocError::Forked))));
        assert_eq!(depot.page_timeout(Order::BASE, LONG).unwrap_err(), AllocError::Forked);
        drop(waiting);
    });
    assert_eq!(calls.count(), 0);
    let (waiting, held) = waiting.take().unwrap();
    drop(held);
    assert_eq!(calls.count(), 1);
    drop(waiting);
    all_back(&depot);
}
