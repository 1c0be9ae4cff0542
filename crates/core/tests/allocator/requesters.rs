//! Several requesters at the last resort: a request fails only when it must.
//! 1. While one request runs a callback that is slow, preempted or unwinding, other requests sleep
//!    until it ends, and are served.
//! 2. A request that is stopped in a callback does not keep other requests from the other
//!    callbacks, or from failing in bounded time.
//! 3. A request that may not wait does not wait, and no request waits for its own thread.
//! 4. Requests wait for a drainer that was preempted with pages behind a closed gate, but not those
//!    of a signal handler above it; and so with pages in flight.
//! 5. Requests wait for pages that a compaction has isolated, but not those of its own mover.
//! 6. `try_alloc_at` calls no callbacks and counts no failure.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

use crate::common::threads::{Parked, run_on};
use crate::common::{open_zone, order, range};
use pagedepot::cpus::{Event, PinnedCpus};
use pagedepot::{
    AllocError, Allocator, Config, CpuId, Flags, HighPolicy, Mode, Order, Pfn, Pressure, Reclaim,
    Scope, ZoneId,
};
use pagedepot_contiguity::{Compaction, Contiguity, Move, Mover, Occupant};

type Depot = Allocator<'static, PinnedCpus<Parked>>;

const FRAMES: u32 = 4096;
const CPUS: u32 = 4;
const ZONE: ZoneId = ZoneId::new(0);

/// The work of a cache before it gives up pages; it gets the number of earlier calls.
type First = Box<dyn Fn(&Depot, u32) + Send + Sync>;

/// A cache that does something else first, and then gives up pages.
struct Cache {
    depot: AtomicPtr<Depot>,
    pages: Mutex<Vec<Pfn>>,
    /// Pages given up per call.
    share: usize,
    calls: AtomicU32,
    first: First,
}

impl Cache {
    /// Makes a cache that lives as long as the metadata: both are leaked.
    fn new(share: usize, first: impl Fn(&Depot, u32) + Send + Sync + 'static) -> &'static Self {
        Box::leak(Box::new(Cache {
            depot: AtomicPtr::default(),
            pages: Mutex::default(),
            share,
            calls: AtomicU32::new(0),
            first: Box::new(first),
        }))
    }

    /// Moves pages to the cache, from the end of what a test holds.
    fn fill(&self, held: &mut Vec<Pfn>, pages: u32) {
        self.pages.lock().unwrap().extend(held.split_off(held.len() - pages as usize));
    }

    fn calls(&self) -> u32 {
        self.calls.load(Ordering::Relaxed)
    }
}

impl Reclaim for Cache {
    fn reclaim(&self, pressure: Pressure) -> u64 {
        assert!(pressure.is_last_resort, "nothing is held back");
        // SAFETY: the allocator that calls this; `with_exhausted` keeps it in its place.
        let depot = unsafe { &*self.depot.load(Ordering::Relaxed) };
        (self.first)(depot, self.calls.fetch_add(1, Ordering::Relaxed));
        let mut pages = self.pages.lock().unwrap();
        let kept = pages.len() - self.share.min(pages.len());
        let given = pages.split_off(kept);
        drop(pages);
        for &pfn in &given {
            depot.free(pfn, Order::BASE).unwrap();
        }
        given.len() as u64
    }
}

/// Calls `test` with an allocator, and all its pages held. Frees what the test and the caches hold
/// at the end; then every page must be back.
fn with_exhausted(caches: &[&'static Cache], test: impl FnOnce(&Depot, &mut Vec<Pfn>)) {
    let ranges = [range(0, FRAMES)];
    let zones = [open_zone("z", &ranges)];
    let config = Config { high: HighPolicy::Fixed(512), ..Config::new(CPUS, &zones) };
    let metadata = vec![std::mem::MaybeUninit::uninit(); Depot::metadata_bytes(&config).unwrap()];
    let cpus = PinnedCpus(Parked::new(CPUS));
    let mut depot = Depot::new(&config, Box::leak(metadata.into_boxed_slice()), cpus).unwrap();
    for &cache in caches {
        cache.depot.store((&raw const depot).cast_mut(), Ordering::Relaxed);
        depot.register_reclaim(cache).unwrap();
    }
    run_on(Some(0));
    let take = || depot.alloc(Order::BASE, Flags::default().no_reclaim()).ok();
    let mut held: Vec<Pfn> = std::iter::from_fn(take).collect();
    assert_eq!(held.len() as u32, FRAMES);
    test(&depot, &mut held);
    caches.iter().for_each(|cache| held.append(&mut cache.pages.lock().unwrap()));
    held.into_iter().for_each(|pfn| depot.free(pfn, Order::BASE).unwrap());
    depot.drain(Scope::ALL, Mode::Full);
    assert_eq!(depot.validate().unwrap().free_pages, u64::from(FRAMES));
}

/// Makes `each` requests on each of `threads` threads, which start together. Returns the results.
fn request_together(depot: &Depot, threads: u32, each: u32) -> Vec<Result<Pfn, AllocError>> {
    let barrier = &Barrier::new(threads as usize);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads)
            .map(|cpu| {
                scope.spawn(move || {
                    run_on(Some(cpu % CPUS));
                    barrier.wait();
                    let requests = (0..each).map(|_| depot.alloc(Order::BASE, Flags::default()));
                    requests.collect::<Vec<_>>()
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    })
}

/// Waits until `is_so`, for a bounded time: if a request does not wait at all, the test must fail
/// by that request's result.
fn until(is_so: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(2);
    while !is_so() && Instant::now() < end {
        std::thread::sleep(Duration::from_micros(100));
    }
}

#[test]
fn a_slow_callback_serves_all_requesters() {
    for threads in [2, 4, 8] {
        let cache = Cache::new(20, |_, _| std::thread::sleep(Duration::from_millis(20)));
        with_exhausted(&[cache], |depot, held| {
            // As many pages as are requested.
            cache.fill(held, 10 * threads);
            for got in request_together(depot, threads, 10) {
                held.push(got.unwrap_or_else(|error| panic!("{threads} threads: {error}")));
            }
            assert!(depot.cpus().0.turn_waits() > 0, "they were served by turns");
            assert_eq!(depot.alloc(Order::BASE, Flags::default()), Err(AllocError::Exhausted));
        });
    }
}

/// A range needs frames that two caches hold; each gives up one at a time.
#[test]
fn a_slow_callback_serves_blocks_and_ranges() {
    let cache = Cache::new(16, |_, _| std::thread::sleep(Duration::from_millis(5)));
    with_exhausted(&[cache], |depot, held| {
        held.sort();
        cache.fill(held, 128);
        let (start, block) = std::thread::scope(|scope| {
            let range = scope.spawn(|| {
                run_on(Some(1));
                depot.alloc_contiguous(40, 1, Flags::default())
            });
            let block = scope.spawn(|| {
                run_on(Some(2));
                depot.alloc(order(4), Flags::default())
            });
            (range.join().unwrap().unwrap(), block.join().unwrap().unwrap())
        });
        held.extend((0..40).map(|i| start.add(i)));
        held.extend((0..16).map(|i| block.add(i)));
        depot.split(block, order(4), Order::BASE).unwrap();
    });
}

/// One request is preempted in a callback until another sleeps, and then runs `then`. Returns the
/// results of both.
fn preempted_until_another_sleeps(then: fn()) -> [Option<Result<Pfn, AllocError>>; 2] {
    let entered: &AtomicU32 = Box::leak(Box::default());
    let cache = Cache::new(10, move |depot, calls| {
        if calls == 0 {
            entered.store(1, Ordering::Release);
            until(|| depot.cpus().0.turn_waits() > 0);
            then();
        }
    });
    let mut got = [None; 2];
    with_exhausted(&[cache], |depot, held| {
        cache.fill(held, 2);
        std::thread::scope(|scope| {
            let [first, second] = [1, 2].map(|cpu| {
                scope.spawn(move || {
                    run_on(Some(cpu));
                    if cpu == 2 {
                        until(|| entered.load(Ordering::Acquire) == 1);
                    }
                    catch_unwind(AssertUnwindSafe(|| depot.alloc(Order::BASE, Flags::default())))
                        .ok()
                })
            });
            got = [first.join().unwrap(), second.join().unwrap()];
        });
        held.extend(got.into_iter().flatten().flatten());
    });
    got
}

#[test]
fn a_preempted_callback_is_waited_for() {
    let got = preempted_until_another_sleeps(|| {});
    assert!(got.iter().all(|got| got.is_some_and(|got| got.is_ok())), "{got:?}");
}

#[test]
fn a_callback_that_unwinds_lets_the_next_one_in() {
    let got = preempted_until_another_sleeps(|| panic!("out of luck"));
    assert!(got[0].is_none() && got[1].is_some_and(|got| got.is_ok()), "{got:?}");
}

/// Calls `meanwhile` while a request is stopped in a callback, of the first of several.
fn beside_a_stopped_callback(
    others: &[&'static Cache],
    meanwhile: impl FnOnce(&Depot, &mut Vec<Pfn>),
) {
    let (entered, leave) =
        (&*Box::leak(Box::new(Barrier::new(2))), &*Box::leak(Box::new(Barrier::new(2))));
    let stops = Cache::new(1, move |_, calls| {
        if calls == 0 {
            entered.wait();
            leave.wait();
        }
    });
    let caches: Vec<_> = std::iter::once(stops).chain(others.iter().copied()).collect();
    with_exhausted(&caches, |depot, held| {
        stops.fill(held, 1);
        std::thread::scope(|scope| {
            let stopped = scope.spawn(|| {
                run_on(Some(1));
                depot.alloc(Order::BASE, Flags::default())
            });
            entered.wait();
            let result = catch_unwind(AssertUnwindSafe(|| meanwhile(depot, held)));
            leave.wait();
            held.push(stopped.join().unwrap().unwrap());
            result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        });
    });
}

#[test]
fn other_callbacks_run_beside_a_stopped_one() {
    let other = Cache::new(5, |_, _| {});
    beside_a_stopped_callback(&[other], |depot, held| {
        other.fill(held, 40);
        for got in request_together(depot, 4, 10) {
            held.push(got.unwrap());
        }
        assert!(other.calls() >= 8);
    });
}

#[test]
fn a_request_beside_a_stopped_callback_fails_in_bounded_time() {
    beside_a_stopped_callback(&[], |depot, _| {
        let cpus = &depot.cpus().0;
        // From here on sleeping takes no time, but the clock advances.
        cpus.dream(true);
        for _ in 0..2 {
            let (began_ms, waits) = (cpus.dreamt_ms(), cpus.turn_waits());
            assert_eq!(depot.alloc(Order::BASE, Flags::default()), Err(AllocError::Exhausted));
            assert!(cpus.turn_waits() > waits);
            let ms = cpus.dreamt_ms() - began_ms;
            assert!((1000..=1200).contains(&ms), "{ms} ms");
        }
        cpus.dream(false);
    });
}

#[test]
fn requests_that_may_not_wait_do_not() {
    beside_a_stopped_callback(&[], |depot, _| {
        for flags in [Flags::default().atomic(), Flags::default().no_reclaim()] {
            assert_eq!(depot.alloc(Order::BASE, flags), Err(AllocError::Exhausted));
            assert_eq!(depot.alloc(order(4), flags), Err(AllocError::Exhausted));
            assert_eq!(depot.alloc_contiguous(3, 1, flags), Err(AllocError::Exhausted));
            assert_eq!(depot.alloc_at(Pfn::new(5), 3, flags), Err(AllocError::NotAvailable));
        }
        assert_eq!(depot.cpus().0.waits(), 0);
    });
}

/// Code that cannot be told from the caller in the callback would wait for itself.
#[test]
fn requests_without_a_name_do_not_wait() {
    beside_a_stopped_callback(&[], |depot, _| {
        depot.cpus().0.forget_names(true);
        assert_eq!(depot.alloc(Order::BASE, Flags::default()), Err(AllocError::Exhausted));
        assert_eq!(depot.cpus().0.turn_waits(), 0);
        depot.cpus().0.forget_names(false);
    });
}

/// The requests of a callback, and those of a signal handler above it, wait neither for their own
/// thread nor, from within a callback, for another.
#[test]
fn no_request_waits_for_its_own_thread() {
    let nested = Cache::new(5, |depot, calls| {
        let waits = depot.cpus().0.waits();
        let got = depot.alloc(order(3), Flags::default());
        assert_eq!(got, Err(AllocError::Exhausted));
        assert_eq!(depot.cpus().0.waits(), waits);
        assert!(calls < 100, "it calls no callbacks");
    });
    with_exhausted(&[nested], |depot, held| {
        nested.fill(held, 1);
        held.push(depot.alloc(Order::BASE, Flags::default()).unwrap());
        assert_eq!(nested.calls(), 1);
    });
    let nested = Cache::new(1, nested_once);
    beside_a_stopped_callback(&[nested], |depot, held| {
        nested.fill(held, 1);
        held.push(depot.alloc(Order::BASE, Flags::default()).unwrap());
        assert_eq!((nested.calls(), depot.cpus().0.turn_waits()), (1, 0));
    });
}

fn nested_once(depot: &Depot, calls: u32) {
    assert_eq!(calls, 0, "its own requests call no callbacks");
    assert_eq!(depot.alloc(order(3), Flags::default()), Err(AllocError::Exhausted));
}

/// Without names, a callback's own requests still call no callbacks.
#[test]
fn callbacks_of_callers_without_a_name_do_not_recurse() {
    let nested = Cache::new(1, nested_once);
    with_exhausted(&[nested], |depot, held| {
        depot.cpus().0.forget_names(true);
        nested.fill(held, 1);
        held.push(depot.alloc(Order::BASE, Flags::default()).unwrap());
        assert_eq!(depot.cpus().0.turn_waits(), 0);
    });
}

/// A shared callback that waits for pages of another thread. Any number of callers may run it at
/// once.
struct Shared {
    inside: AtomicU32,
    together: u32,
}

impl Reclaim for Shared {
    fn reclaim(&self, _: Pressure) -> u64 {
        self.inside.fetch_add(1, Ordering::AcqRel);
        until(|| self.inside.load(Ordering::Acquire) >= self.together);
        0
    }

    fn is_shared(&self) -> bool {
        true
    }
}

#[test]
fn all_requests_run_a_shared_callback_at_once() {
    let shared: &Shared = Box::leak(Box::new(Shared { inside: AtomicU32::new(0), together: 3 }));
    with_exhausted(&[], |depot, _| {
        depot.register_reclaim(shared).unwrap();
        let got = request_together(depot, 3, 1);
        assert!(got.iter().all(|got| *got == Err(AllocError::Exhausted)));
        assert!(shared.inside.load(Ordering::Acquire) >= 3);
        assert_eq!(depot.cpus().0.turn_waits(), 0);
    });
}

/// A drainer is preempted with the gate of a CPU closed, whose front has the only pages, until some
/// requests sleep.
#[test]
fn a_preempted_drainer_is_waited_for() {
    with_exhausted(&[], |depot, held| {
        run_on(Some(3));
        held.split_off(held.len() - 20)
            .into_iter()
            .for_each(|pfn| depot.free(pfn, Order::BASE).unwrap());
        run_on(Some(0));
        let (entered, leave) =
            (&*Box::leak(Box::new(Barrier::new(2))), &*Box::leak(Box::new(Barrier::new(2))));
        let stops = AtomicU32::new(1);
        depot.cpus().0.kernel.on_fence(Some(Box::new(move |_| {
            if stops.swap(0, Ordering::Relaxed) > 0 {
                entered.wait();
                leave.wait();
            }
        })));
        let got = std::thread::scope(|scope| {
            scope.spawn(|| depot.drain(Scope::cpu(CpuId::new(3)), Mode::Full));
            entered.wait();
            let requests = scope.spawn(|| request_together(depot, 3, 6));
            until(|| depot.cpus().0.waits() >= 3);
            leave.wait();
            requests.join().unwrap()
        });
        depot.cpus().0.kernel.on_fence(None);
        for got in got {
            held.push(got.unwrap());
        }
    });
}

/// Counts how often a request sleeps that `by` makes in the middle of a drain of the only pages
/// there are: of a quiet one with pages in flight, of a full one with the gate closed.
fn sleeps_in_a_drain(mode: Mode, by: fn(&Depot)) -> u64 {
    let (left, sleeps) = (&*Box::leak(Box::new(AtomicU32::new(1))), &*Box::leak(Box::default()));
    with_exhausted(&[], |depot, held| {
        let cpus = &depot.cpus().0;
        cpus.dream(true);
        run_on(Some(3));
        // Both magazines of a front, and a shelf.
        let freed = held.split_off(held.len() - 4 * 63);
        freed.into_iter().for_each(|pfn| depot.free(pfn, Order::BASE).unwrap());
        run_on(Some(0));
        let at = AtomicPtr::new(std::ptr::from_ref(depot).cast_mut());
        let interrupt = move || {
            // What `by` does drains, too.
            if left.swap(0, Ordering::Relaxed) > 0 {
                // SAFETY: the hooks are gone before the allocator.
                let depot = unsafe { &*at.load(Ordering::Relaxed) };
                let before = depot.cpus().0.waits();
                by(depot);
                AtomicU64::store(sleeps, depot.cpus().0.waits() - before, Ordering::Relaxed);
            }
        };
        match mode {
            Mode::Full => cpus.kernel.on_fence(Some(Box::new(move |_| interrupt()))),
            _ => cpus.on_event(Some(Box::new(move |event| {
                if matches!(event, Event::Drain(_)) {
                    interrupt();
                }
            }))),
        }
        assert!(depot.drain(Scope::cpu(CpuId::new(3)), mode).taken_pages > 0);
        assert_eq!(left.load(Ordering::Relaxed), 0, "the drain was interrupted");
        cpus.kernel.on_fence(None);
        cpus.on_event(None);
    });
    sleeps.load(Ordering::Relaxed)
}

/// Asks for more than there is.
fn ask_in_vain(depot: &Depot) {
    let got = depot.alloc_contiguous(FRAMES, 1, Flags::default());
    assert_eq!(got, Err(AllocError::Exhausted));
}

/// The code that a handler has interrupted cannot go on before the handler returns.
#[test]
fn a_handler_does_not_sleep_for_the_code_below_it() {
    for mode in [Mode::Quiet, Mode::Full] {
        assert_eq!(sleeps_in_a_drain(mode, ask_in_vain), 0, "{mode:?}");
        let beside = sleeps_in_a_drain(mode, |depot| {
            let beside = || {
                run_on(Some(1));
                ask_in_vain(depot);
            };
            std::thread::scope(|scope| scope.spawn(beside).join().unwrap());
        });
        assert!(beside > 1, "{mode:?}: another thread's request waits");
        let nameless = sleeps_in_a_drain(mode, |depot| {
            depot.cpus().0.forget_names(true);
            ask_in_vain(depot);
            depot.cpus().0.forget_names(false);
        });
        assert!(nameless > 1, "{mode:?}: it may be another thread's");
    }
}

/// A mover that does something else before it moves what it is asked to.
struct Then<'t>(&'t (dyn Fn() + 't));

impl Mover for Then<'_> {
    fn occupant(&self, frame: Pfn) -> Occupant {
        Occupant::Movable { first: frame, order: Order::BASE }
    }

    fn move_blocks(&self, moves: &mut [Move]) {
        self.0();
        moves.iter_mut().for_each(Move::moved);
    }
}

/// The only whole pageblock is isolated, because the range that is emptied has it.
#[test]
fn isolated_pages_are_waited_for_but_not_by_the_mover() {
    const PAGEBLOCK: u32 = 512;
    with_exhausted(&[], |depot, held| {
        held.sort_unstable();
        // Two pageblocks but for one page, and room for that elsewhere.
        let kept = held.remove(0);
        let freed: Vec<_> = held.drain(..2 * PAGEBLOCK as usize - 1).collect();
        let room = held.pop().unwrap();
        for pfn in freed.into_iter().chain([room]) {
            depot.free(pfn, Order::BASE).unwrap();
        }
        depot.drain(Scope::ALL, Mode::Full);
        let cpus = &depot.cpus().0;
        let own = Mutex::new(None);
        let (compacted, got) = std::thread::scope(|scope| {
            let request = Mutex::new(None);
            let then = || {
                let waits = cpus.waits();
                let got = depot.alloc(order(9), Flags::default());
                *own.lock().unwrap() = Some((got, cpus.waits() - waits));
                *request.lock().unwrap() = Some(scope.spawn(|| {
                    run_on(Some(1));
                    depot.alloc(order(9), Flags::default())
                }));
                until(|| cpus.waits() > waits);
            };
            let rules = Compaction::range(2 * PAGEBLOCK, PAGEBLOCK);
            let compacted = depot.compact(ZONE, rules, &Then(&then)).unwrap();
            let request = request.into_inner().unwrap().expect("the mover was called");
            (compacted, request.join().unwrap())
        });
        let emptied = compacted.range.map(|range| range.start);
        assert_eq!((compacted.moved_blocks, emptied), (1, Some(kept)));
        assert_eq!(*own.lock().unwrap(), Some((Err(AllocError::Exhausted), 0)));
        let got = got.unwrap();
        depot.split(got, order(9), Order::BASE).unwrap();
        held.extend((0..PAGEBLOCK).map(|i| got.add(i)).chain([room]));
        // What the compaction has left free.
        while let Ok(pfn) = depot.alloc(Order::BASE, Flags::default().no_reclaim()) {
            held.push(pfn);
        }
    });
}

/// Threads that together never hold all pages. Few of very many requests may fail: a request fails
/// after four rounds in which other threads moved pages.
#[test]
fn those_who_never_hold_all_pages_are_served() {
    const THREADS: u32 = 4;
    const SHARE: usize = (FRAMES as usize - 64) / THREADS as usize;
    with_exhausted(&[], |depot, held| {
        held.drain(..).for_each(|pfn| depot.free(pfn, Order::BASE).unwrap());
        let (failed, served) = (&AtomicU32::new(0), &AtomicU32::new(0));
        let end = Instant::now() + crate::common::soak(Duration::from_millis(500));
        std::thread::scope(|scope| {
            for cpu in 0..THREADS {
                scope.spawn(move || {
                    run_on(Some(cpu));
                    while Instant::now() < end {
                        let mut own = Vec::with_capacity(SHARE);
                        for _ in 0..SHARE {
                            match depot.alloc(Order::BASE, Flags::default()) {
                                Ok(pfn) => own.push(pfn),
                                Err(_) => _ = failed.fetch_add(1, Ordering::Relaxed),
                            }
                        }
                        served.fetch_add(own.len() as u32, Ordering::Relaxed);
                        own.into_iter().for_each(|pfn| depot.free(pfn, Order::BASE).unwrap());
                    }
                });
            }
        });
        let (failed, served) = (failed.load(Ordering::Relaxed), served.load(Ordering::Relaxed));
        assert!(failed <= served / 10_000, "{failed} of {served}");
    });
}

#[test]
fn a_claim_that_tries_asks_for_nothing() {
    let cache = Cache::new(10, |_, _| {});
    with_exhausted(&[cache], |depot, held| {
        cache.fill(held, 10);
        // Some pages lie in a front, where a drain would take them.
        let cached = held.pop().unwrap();
        depot.free(cached, Order::BASE).unwrap();
        let failures = || depot.zone_stats(ZONE).unwrap().counts.failures;
        let before = failures();
        let flags = Flags::default();
        assert_eq!(depot.try_alloc_at(cached, 1, flags), Err(AllocError::NotAvailable));
        assert_eq!(depot.try_alloc_at(held[0], 1, flags), Err(AllocError::NotAvailable));
        assert_eq!(depot.try_alloc_at(Pfn::new(0), 0, flags), Err(AllocError::BadSize));
        assert_eq!(depot.try_alloc_at(Pfn::new(FRAMES), 1, flags), Err(AllocError::NotAvailable));
        assert_eq!((failures(), cache.calls()), (before, 0));
        assert_eq!(depot.free_pages(ZONE), 0, "nothing was drained");
        depot.drain(Scope::ALL, Mode::Full);
        assert_eq!(depot.try_alloc_at(cached, 1, flags), Ok(()));
        held.push(cached);
        assert_eq!(depot.alloc_at(held[0], 1, flags), Err(AllocError::NotAvailable));
        assert_eq!(failures(), before + 1);
    });
}
