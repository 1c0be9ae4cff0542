//! Watermarks, reserves, callbacks, and failing only when it must.

use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use crate::common::sequences::{Aborted, Machine, Stepped, Steps};
use crate::common::{Single, metadata, open_zone, order, range, single};
use pagedepot::cpus::implement::BlockArray;
use pagedepot::cpus::{Environment, FenceError, Here};
use pagedepot::{
    AllocError, Allocator, Config, CpuId, DrainResult, Flags, HighPolicy, Mode, Order, Pfn,
    Pressure, Reclaim, Scope, TooManyCallbacks, Watermarks, ZoneConfig, ZoneId,
};

const FRAMES: u32 = 16384;
const MARKS: Watermarks = Watermarks { min: 500, low: 1000, high: 2000 };
const NOTHING_HELD_BACK: Watermarks = Watermarks { min: 0, low: 0, high: 0 };
const ZONE: ZoneId = ZoneId::new(0);

/// A machine with one zone and three CPUs.
fn machine<'m>(watermarks: Watermarks, callbacks: &[&'m dyn Reclaim]) -> Single<'m> {
    let ranges = [range(0, FRAMES)];
    let zones = [ZoneConfig { watermarks: Some(watermarks), ..open_zone("z", &ranges) }];
    let config = Config { high: HighPolicy::Fixed(2048), ..Config::new(3, &zones) };
    // Callbacks must live as long as the metadata, and some use the allocator, so both are leaked.
    let depot = single(&config, Box::leak(metadata(&config).into_boxed_slice()));
    callbacks.iter().for_each(|&callback| depot.register_reclaim(callback).unwrap());
    depot
}

/// Allocates single frames while `go_on` returns true and a request succeeds.
fn fill(depot: &Single<'_>, flags: Flags, go_on: impl Fn() -> bool) -> Vec<Pfn> {
    let mut held = Vec::new();
    while go_on() {
        match depot.alloc(Order::BASE, flags) {
            Ok(pfn) => held.push(pfn),
            Err(AllocError::Exhausted) => break,
            Err(error) => panic!("{error}"),
        }
    }
    held
}

fn free_all(depot: &Single<'_>, held: Vec<Pfn>) {
    held.into_iter().for_each(|pfn| depot.free(pfn, Order::BASE).unwrap());
}

fn check_all_free(depot: &mut Single<'_>) {
    depot.drain(Scope::ALL, Mode::Full);
    assert_eq!(depot.validate().unwrap().free_pages, u64::from(FRAMES));
}

/// A callback that records its calls and frees nothing.
#[derive(Default)]
struct Witness(Mutex<Vec<Pressure>>);

impl Witness {
    fn take(&self) -> Vec<Pressure> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl Reclaim for Witness {
    fn reclaim(&self, pressure: Pressure) -> u64 {
        self.0.lock().unwrap().push(pressure);
        0
    }
}

/// A callback that does something with the allocator.
struct Caller<F> {
    depot: AtomicPtr<Single<'static>>,
    calls: AtomicU32,
    act: F,
}

impl<F: Fn(&Single<'_>, Pressure) -> u64 + Sync> Caller<F> {
    fn new(act: F) -> Self {
        Caller { depot: AtomicPtr::default(), calls: AtomicU32::new(0), act }
    }

    /// Gives the callback the allocator, which must not move.
    fn know(&self, depot: &Single<'_>) {
        self.depot.store((&raw const *depot).cast_mut().cast(), Ordering::Relaxed);
    }

    fn calls(&self) -> u32 {
        self.calls.swap(0, Ordering::Relaxed)
    }
}

impl<F: Fn(&Single<'_>, Pressure) -> u64 + Sync> Reclaim for Caller<F> {
    fn reclaim(&self, pressure: Pressure) -> u64 {
        self.calls.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the allocator that `know` was given calls the callbacks, while it lives.
        let depot = unsafe { &*self.depot.load(Ordering::Relaxed) };
        (self.act)(depot, pressure)
    }
}

#[test]
fn callbacks_are_called_once_per_episode_below_low() {
    let witness = Witness::default();
    let mut depot = machine(MARKS, &[&witness]);
    let free = || depot.free_pages(ZONE);
    let mut held = fill(&depot, Flags::default(), || free() > MARKS.low + 64);
    assert_eq!(witness.take(), []);
    // Some refill does not fit above `low` any more.
    held.extend(fill(&depot, Flags::default(), || free() > MARKS.low - 100));
    let calls = witness.take();
    assert_eq!(calls.len(), 1);
    assert_eq!((calls[0].zone, calls[0].is_last_resort), (ZONE, false));
    // As many as would bring the zone above `high`.
    assert!((900..=1100).contains(&calls[0].wanted_pages), "{calls:?}");
    held.extend(fill(&depot, Flags::default(), || free() > MARKS.min + 100));
    assert_eq!(witness.take(), []);

    // Back above `low` is not enough; back above `high` ends the episode.
    for (freed, calls_expected) in [(900, 0), (3000, 1)] {
        let back = held.split_off(held.len() - freed);
        free_all(&depot, back);
        depot.drain(Scope::ALL, Mode::Full);
        held.extend(fill(&depot, Flags::default(), || free() > MARKS.min + 100));
        assert_eq!(witness.take().len(), calls_expected, "after {freed} pages came back");
    }
    free_all(&depot, held);
    check_all_free(&mut depot);
}

/// A request that a callback makes calls none, so the next request tells them.
#[test]
fn an_episode_that_begins_in_a_callback_is_told_all_the_same() {
    let (told, taken) = (AtomicU32::new(0), Mutex::new(Vec::new()));
    let callback = Caller::new(|depot, pressure| {
        match pressure.is_last_resort {
            true => taken
                .lock()
                .unwrap()
                .extend(fill(depot, Flags::default(), || depot.free_pages(ZONE) > MARKS.low - 100)),
            false => _ = told.fetch_add(1, Ordering::Relaxed),
        }
        0
    });
    let mut depot = machine(MARKS, &[&callback]);
    callback.know(&depot);
    let mut held = vec![depot.alloc(Order::BASE, Flags::default()).unwrap()];
    let refused = depot.alloc_at(held[0], 1, Flags::default());
    assert_eq!((refused, told.load(Ordering::Relaxed)), (Err(AllocError::NotAvailable), 0));
    assert!(depot.free_pages(ZONE) < MARKS.low);
    held.extend(fill(&depot, Flags::default(), || depot.free_pages(ZONE) > MARKS.min + 100));
    assert_eq!(told.load(Ordering::Relaxed), 1);
    free_all(&depot, held);
    free_all(&depot, taken.lock().unwrap().split_off(0));
    check_all_free(&mut depot);
}

/// CPUs keep changes of the count of free pages to themselves, here more than lie between `low` and
/// `high`.
#[test]
fn callbacks_are_called_once_where_the_count_is_not_exact() {
    let marks = Watermarks { min: 2048, low: 2560, high: 3072 };
    let witness = Witness::default();
    let ranges = [range(0, 1 << 20)];
    let zones = [ZoneConfig { watermarks: Some(marks), ..open_zone("z", &ranges) }];
    let config = Config::new(1, &zones);
    let mut memory = metadata(&config);
    let depot = single(&config, &mut memory);
    depot.register_reclaim(&witness).unwrap();
    let held = fill(&depot, Flags::default(), || depot.free_pages(ZONE) > marks.min + 64);
    let calls = witness.take();
    assert_eq!(calls.iter().filter(|call| !call.is_last_resort).count(), 1, "{calls:?}");
    free_all(&depot, held);
}

#[test]
fn reserves_are_for_those_who_may_not_wait() {
    let witness = Witness::default();
    let mut depot = machine(MARKS, &[&witness]);
    let mut held = fill(&depot, Flags::default(), || true);
    assert_eq!(depot.free_pages(ZONE), MARKS.min);
    assert_eq!(held.len() as u64, u64::from(FRAMES) - MARKS.min);
    assert!(witness.take().iter().any(|pressure| pressure.is_last_resort));
    for flags in [Flags::default(), Flags::UNMOVABLE, Flags::default().no_reclaim()] {
        assert_eq!(depot.alloc(Order::BASE, flags), Err(AllocError::Exhausted));
        assert_eq!(depot.alloc(order(4), flags), Err(AllocError::Exhausted));
        assert_eq!(depot.alloc_contiguous(3, 1, flags), Err(AllocError::Exhausted));
        assert_eq!(
            depot.alloc_many(order(0), flags, &mut [Pfn::new(0); 100]),
            Err(AllocError::Exhausted)
        );
    }
    witness.take();
    // Pages from the reserve serve the request that may use it, and do not stay cached for the next
    // one.
    held.push(depot.alloc(Order::BASE, Flags::default().atomic()).unwrap());
    assert_eq!(depot.alloc(Order::BASE, Flags::default()), Err(AllocError::Exhausted));
    assert_eq!(depot.free_pages(ZONE), MARKS.min - 1);
    assert!(!witness.take().is_empty());

    held.extend(fill(&depot, Flags::default().atomic(), || true));
    assert_eq!(held.len() as u32, FRAMES);
    assert_eq!(depot.free_pages(ZONE), 0);
    assert_eq!(depot.alloc_contiguous(1, 1, Flags::default().atomic()), Err(AllocError::Exhausted));
    assert_eq!(witness.take(), [], "atomic requests call no callback");
    free_all(&depot, held);
    check_all_free(&mut depot);
}

/// A callback that says more than it freed is no reason to fail before the others are called.
#[test]
fn a_claim_of_a_callback_is_no_proof() {
    let liar = Caller::new(|_, pressure| pressure.wanted_pages);
    let pool: Mutex<Vec<Pfn>> = Mutex::default();
    let cache = Caller::new(|depot, _| match pool.lock().unwrap().pop() {
        Some(pfn) => depot.free(pfn, Order::BASE).map(|()| 1).unwrap(),
        None => 0,
    });
    let mut depot = machine(NOTHING_HELD_BACK, &[&liar, &cache]);
    liar.know(&depot);
    cache.know(&depot);
    let mut held = fill(&depot, Flags::default(), || true);
    assert_eq!(held.len() as u32, FRAMES);
    pool.lock().unwrap().push(held.pop().unwrap());
    cache.calls();
    held.push(depot.alloc(Order::BASE, Flags::default()).unwrap());
    assert_eq!((cache.calls(), pool.lock().unwrap().len()), (1, 0));
    assert_eq!(depot.alloc(Order::BASE, Flags::default()), Err(AllocError::Exhausted));
    free_all(&depot, held);
    check_all_free(&mut depot);
}

#[test]
fn the_gentlest_means_first() {
    let pool: Mutex<Vec<Pfn>> = Mutex::default();
    let cache = Caller::new(|depot, pressure| {
        assert!(pressure.is_last_resort);
        let mut freed = 0;
        while freed < pressure.wanted_pages
            && let Some(pfn) = pool.lock().unwrap().pop()
        {
            depot.free(pfn, Order::BASE).unwrap();
            freed += 1;
        }
        freed
    });
    let mut depot = machine(NOTHING_HELD_BACK, &[&cache]);
    cache.know(&depot);
    let cpus = &depot.cpus().0;
    let mut held = fill(&depot, Flags::default(), || true);
    assert_eq!(held.len() as u32, FRAMES);
    cache.calls();

    // CPU 1 has full magazines on its shelf, and more in its fronts; the callback has pages too.
    cpus.run_on(1);
    free_all(&depot, held.split_off(held.len() - 5 * 63));
    pool.lock().unwrap().push(held.pop().unwrap());
    cpus.run_on(0);
    let fences = cpus.fences();
    for _ in 0..3 * 63 {
        held.push(depot.alloc(Order::BASE, Flags::default()).unwrap());
    }
    assert_eq!((cache.calls(), cpus.fences() - fences), (0, 0), "a quiet drain was enough");
    assert_eq!(pool.lock().unwrap().len(), 1);

    held.push(depot.alloc(Order::BASE, Flags::default()).unwrap());
    assert!(pool.lock().unwrap().is_empty());
    assert_eq!((cache.calls(), cpus.fences() - fences), (1, 0), "a callback was enough");
    let in_fronts = depot.shortage().zones().next().unwrap().unreachable_pages;
    let rest = fill(&depot, Flags::default(), || true);
    assert_eq!(rest.len() as u64, in_fronts);
    assert!(cpus.fences() > fences);
    held.extend(rest);
    assert_eq!(held.len() as u32, FRAMES);
    free_all(&depot, held);
    check_all_free(&mut depot);
}

#[test]
fn who_may_not_reclaim_neither_calls_nor_fences() {
    let witness = Witness::default();
    let depot = machine(NOTHING_HELD_BACK, &[&witness]);
    let cpus = &depot.cpus().0;
    let mut held = fill(&depot, Flags::default(), || true);
    cpus.run_on(1);
    // In CPU 1's front.
    free_all(&depot, held.split_off(held.len() - 10));
    cpus.run_on(0);
    witness.take();
    let fences = cpus.fences();
    for flags in [Flags::default().atomic(), Flags::default().no_reclaim()] {
        assert_eq!(depot.alloc(Order::BASE, flags), Err(AllocError::Exhausted));
        assert_eq!(depot.alloc_contiguous(1, 1, flags), Err(AllocError::Exhausted));
    }
    let shortage = depot.shortage().zones().next().unwrap();
    assert_eq!((shortage.free_pages, shortage.unreachable_pages), (0, 10));
    assert_eq!((witness.take().len(), cpus.fences() - fences), (0, 0));
    assert!(depot.alloc(Order::BASE, Flags::default()).is_ok());
    assert!(cpus.fences() > fences);
}

/// Such a request needs neither a fence nor a wait for the fronts of its own CPU.
#[test]
fn who_may_not_reclaim_has_what_its_own_cpu_caches() {
    for (marks, flags) in [
        (NOTHING_HELD_BACK, Flags::UNMOVABLE.atomic()),
        (NOTHING_HELD_BACK, Flags::RECLAIMABLE.no_reclaim()),
        (MARKS, Flags::UNMOVABLE.no_reclaim()),
    ] {
        let witness = Witness::default();
        let mut depot = machine(marks, &[&witness]);
        let mut held = fill(&depot, Flags::default(), || true);
        let fences = depot.cpus().0.fences();
        witness.take();
        free_all(&depot, held.split_off(held.len() - 50));
        assert_eq!(depot.free_pages(ZONE), marks.min, "they are in a front");
        let got = fill(&depot, flags, || true);
        assert_eq!((got.len(), depot.free_pages(ZONE)), (50, marks.min));
        assert_eq!((witness.take().len(), depot.cpus().0.fences()), (0, fences));
        free_all(&depot, [held, got].concat());
        check_all_free(&mut depot);
    }
}

/// One CPU, on which one sequence does not take place: where code was interrupted before it.
#[derive(Default)]
struct Interrupted {
    /// Sequences that take place before that one.
    before: AtomicU32,
}

// SAFETY: there is one thread.
unsafe impl Machine for Interrupted {
    const FOLLOWS_GATES: bool = false;

    fn here(&self) -> Option<Here> {
        Some(Here::task(CpuId::new(0)))
    }

    fn run<R>(
        &self,
        blocks: &BlockArray,
        sequence: impl Fn(Steps<'_>) -> Result<R, Aborted>,
    ) -> Option<R> {
        if self.before.fetch_sub(1, Ordering::Relaxed) == 0 {
            return None;
        }
        let here = Here::task(CpuId::new(0));
        sequence(Steps { blocks, here, step: &|| Ok(()), follows_gates: false }).ok()
    }

    fn fence(&self, _cpu: CpuId) -> Result<(), FenceError> {
        Ok(())
    }
}

impl Environment for Interrupted {}

#[test]
fn who_may_not_reclaim_has_what_its_own_cpu_caches_where_it_is_interrupted() {
    let ranges = [range(0, 1024)];
    let zones = [open_zone("z", &ranges)];
    let config = Config { high: HighPolicy::Fixed(256), ..Config::new(1, &zones) };
    type Depot<'m> = Allocator<'m, Stepped<Interrupted>>;
    let bytes = Depot::metadata_bytes(&config).unwrap();
    let mut before = 0;
    loop {
        let mut memory = vec![MaybeUninit::uninit(); bytes];
        let cpus = Interrupted { before: AtomicU32::new(u32::MAX) };
        let depot = Depot::new(&config, &mut memory, Stepped(cpus)).unwrap();
        let alloc = |flags| depot.alloc(Order::BASE, flags);
        let mut held: Vec<Pfn> = std::iter::from_fn(|| alloc(Flags::default()).ok()).collect();
        held.split_off(held.len() - 50).iter().for_each(|&pfn| {
            depot.free(pfn, Order::BASE).unwrap();
        });
        assert_eq!(depot.free_pages(ZONE), 0, "they are in a front");
        depot.cpus().0.before.store(before, Ordering::Relaxed);
        assert!(alloc(Flags::UNMOVABLE.atomic()).is_ok(), "sequence {before} did not take place");
        if depot.cpus().0.before.load(Ordering::Relaxed) <= before {
            break;
        }
        before += 1;
    }
    assert!(before > 1, "a request takes a few sequences");
}

#[test]
fn who_may_not_reclaim_has_ranges_of_what_its_own_cpu_caches() {
    const FLAGS: Flags = Flags::UNMOVABLE.no_reclaim();
    type Request = fn(&Single<'_>, Pfn) -> Result<(Pfn, u32), AllocError>;
    let requests: [Request; 3] = [
        |depot, _| Ok((depot.alloc(order(3), FLAGS)?, 8)),
        |depot, _| Ok((depot.alloc_contiguous(9, 1, FLAGS)?, 9)),
        |depot, at| depot.alloc_at(at.add(1), 5, FLAGS).map(|()| (at.add(1), 5)),
    ];
    for request in requests {
        let mut depot = machine(NOTHING_HELD_BACK, &[]);
        let (size, failures) = (order(4), || depot.zone_stats(ZONE).unwrap().counts.failures);
        let mut held: Vec<Pfn> =
            std::iter::from_fn(|| depot.alloc(size, Flags::default()).ok()).collect();
        assert_eq!((held.len() as u32 * size.frames(), failures()), (FRAMES, 1));
        let freed = held.split_off(held.len() - 10);
        freed.iter().for_each(|&pfn| depot.free(pfn, size).unwrap());
        assert_eq!(depot.free_pages(ZONE), 0, "they are in a front");
        let (start, frames) = request(&depot, freed[5]).unwrap();
        assert_eq!((failures(), depot.cpus().0.fences()), (1, 0));
        depot.free_contiguous(start, frames).unwrap();
        held.into_iter().for_each(|pfn| depot.free(pfn, size).unwrap());
        check_all_free(&mut depot);
    }
}

#[test]
fn spared_cpus_keep_their_fronts() {
    let mut depot = machine(NOTHING_HELD_BACK, &[]);
    let cpus = &depot.cpus().0;
    let mut held = fill(&depot, Flags::default(), || true);
    cpus.run_on(1);
    // Fronts and a shelf.
    free_all(&depot, held.split_off(held.len() - 4 * 63));
    cpus.run_on(0);
    cpus.spare(0b010);
    let fences = cpus.fences();
    held.extend(fill(&depot, Flags::default(), || true));
    let shortage = depot.shortage().zones().next().unwrap();
    assert!((1..=2 * 63).contains(&shortage.unreachable_pages));
    assert_eq!((shortage.free_pages, shortage.cached_pages, shortage.in_flight_pages), (0, 0, 0));
    assert_eq!(held.len() as u64 + shortage.unreachable_pages, u64::from(FRAMES));
    assert_eq!(cpus.fences(), fences, "no other CPU has a magazine");
    cpus.run_on(2);
    depot.free(held.pop().unwrap(), Order::BASE).unwrap();
    cpus.run_on(0);
    let drained = depot.drain(Scope::ALL, Mode::Full);
    assert_eq!((drained.isolated_cpus, drained.fences, drained.taken_pages), (1, 1, 1));
    assert_eq!(drained.unreachable_pages, shortage.unreachable_pages);
    assert_eq!(cpus.fences(), fences + 1);
    cpus.spare(0);
    held.extend(fill(&depot, Flags::default(), || true));
    assert_eq!(held.len() as u32, FRAMES);
    free_all(&depot, held);
    check_all_free(&mut depot);
}

/// A CPU that has no magazine has nothing to give: neither drains nor requests that fail fence it.
#[test]
fn cpus_without_magazines_are_not_fenced() {
    let mut depot = machine(NOTHING_HELD_BACK, &[]);
    let cpus = &depot.cpus().0;
    assert_eq!(depot.drain(Scope::ALL, Mode::Full), DrainResult::default());
    let mut held = fill(&depot, Flags::default(), || true);
    let fences = cpus.fences();
    for cpu in [0, 1, 2, 0] {
        cpus.run_on(cpu);
        assert!(depot.alloc(Order::BASE, Flags::default()).is_err());
        assert_eq!(depot.drain(Scope::ALL, Mode::Full), DrainResult::default());
    }
    assert_eq!(cpus.fences(), fences);
    // One that has freed since then is fenced, by the request that comes first, and found.
    let freed = held.pop().unwrap();
    depot.free(freed, Order::BASE).unwrap();
    cpus.run_on(1);
    assert_eq!(depot.alloc(Order::BASE, Flags::default()), Ok(freed));
    assert_eq!(cpus.fences(), fences + 1);
    assert!(depot.alloc(Order::BASE, Flags::default()).is_err());
    assert_eq!(cpus.fences(), fences + 1);
    held.push(freed);
    free_all(&depot, held);
    check_all_free(&mut depot);
}

#[test]
fn quiescent_cpus_need_no_fence() {
    let mut depot = machine(NOTHING_HELD_BACK, &[]);
    let pfn = depot.alloc(Order::BASE, Flags::default()).unwrap();
    let cpus = &depot.cpus().0;
    cpus.set_quiescent(0b111);
    let drained = depot.drain(Scope::ALL, Mode::Full);
    assert_eq!((drained.fences, cpus.fences(), drained.taken_pages), (0, 0, 63));
    depot.free(pfn, Order::BASE).unwrap();
    check_all_free(&mut depot);
}

#[test]
fn refused_fences_leave_the_fronts_alone() {
    let mut depot = machine(NOTHING_HELD_BACK, &[]);
    let pfn = depot.alloc(Order::BASE, Flags::default()).unwrap();
    let cpus = &depot.cpus().0;
    cpus.refuse_fences(true);
    let drained = depot.drain(Scope::ALL, Mode::Full);
    // The others have no magazine that they could be fenced for.
    assert_eq!((drained.busy_cpus, drained.taken_pages, drained.unreachable_pages), (1, 0, 63));
    // The gate is open again.
    let other = depot.alloc(Order::BASE, Flags::default()).unwrap();
    assert_eq!(depot.drain(Scope::ALL, Mode::Full).unreachable_pages, 62);
    let disabled = depot.cpu_caches().disable();
    assert_eq!((disabled.busy_cpus, disabled.taken_pages), (3, 0));
    assert!(disabled.unreachable_pages >= 62);
    for pfn in [pfn, other] {
        depot.free(pfn, Order::BASE).unwrap();
    }
    cpus.refuse_fences(false);
    // The pages that the request could not take are still cached.
    assert_eq!(depot.drain(Scope::ALL, Mode::Full).taken_pages, 62);
    depot.cpu_caches().enable();
    check_all_free(&mut depot);
}

#[test]
fn a_callback_that_panics_blocks_no_caller() {
    let panics = Caller::new(|_, _| panic!("out of luck"));
    let witness = Witness::default();
    let mut depot = machine(MARKS, &[&panics, &witness]);
    panics.know(&depot);
    let held = Mutex::new(Vec::new());
    let mut panicked = 0;
    for _ in 0..4 {
        let filled = catch_unwind(AssertUnwindSafe(|| {
            while let Ok(pfn) = depot.alloc(Order::BASE, Flags::default()) {
                held.lock().unwrap().push(pfn);
            }
        }));
        panicked += u32::from(filled.is_err());
    }
    // Once at `low`, and each time that no page was left elsewhere.
    assert_eq!((panicked, panics.calls()), (4, 4));
    assert_eq!(witness.take(), []);
    let held = held.into_inner().unwrap();
    assert_eq!(held.len() as u64, u64::from(FRAMES) - MARKS.min);
    let shortage = depot.shortage().zones().next().unwrap();
    assert_eq!(shortage.in_flight_pages, 0);
    // Requests that do not call it are served.
    let pfn = depot.alloc(Order::BASE, Flags::default().atomic()).unwrap();
    depot.free(pfn, Order::BASE).unwrap();
    free_all(&depot, held);
    check_all_free(&mut depot);
}

#[test]
fn a_callback_may_allocate() {
    let depth = AtomicU32::new(0);
    let deepest = AtomicU32::new(0);
    let allocates = Caller::new(|depot, _| {
        deepest.fetch_max(depth.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        if let Ok(pfn) = depot.alloc(order(2), Flags::default()) {
            depot.free(pfn, order(2)).unwrap();
        }
        depth.fetch_sub(1, Ordering::Relaxed);
        0
    });
    let a = [range(0, 4096)];
    let b = [range(4096, 4096)];
    let zones = [open_zone("a", &a), ZoneConfig { level: 1, ..open_zone("b", &b) }];
    let config = Config::new(2, &zones);
    let depot = single(&config, Box::leak(metadata(&config).into_boxed_slice()));
    depot.register_reclaim(&allocates).unwrap();
    allocates.know(&depot);
    let held = fill(&depot, Flags::default(), || true);
    assert_eq!(held.len(), 8192);
    assert!(allocates.calls() > 0);
    assert_eq!(deepest.load(Ordering::Relaxed), 1, "its own requests call no callbacks");
    let mut depot = depot;
    free_all(&depot, held);
    depot.drain(Scope::ALL, Mode::Full);
    assert_eq!(depot.validate().unwrap().free_pages, 8192);
}

#[test]
fn callbacks_stop_when_enough_is_free() {
    let pool: Mutex<Vec<Pfn>> = Mutex::default();
    let give_one = Caller::new(|depot, _| {
        let Some(pfn) = pool.lock().unwrap().pop() else { return 0 };
        depot.free(pfn, Order::BASE).unwrap();
        1
    });
    let witness = Witness::default();
    let depot = machine(NOTHING_HELD_BACK, &[&give_one, &witness]);
    give_one.know(&depot);
    let mut held = fill(&depot, Flags::default(), || true);
    witness.take();
    pool.lock().unwrap().push(held.pop().unwrap());
    held.push(depot.alloc(Order::BASE, Flags::default()).unwrap());
    assert_eq!(witness.take(), [], "the first had enough");
    assert_eq!(depot.alloc(Order::BASE, Flags::default()), Err(AllocError::Exhausted));
    assert!(!witness.take().is_empty());
}

#[test]
fn eight_callbacks_can_be_registered() {
    let witnesses: Vec<Witness> = (0..9).map(|_| Witness::default()).collect();
    let depot = machine(NOTHING_HELD_BACK, &[]);
    for witness in &witnesses[..8] {
        depot.register_reclaim(witness).unwrap();
    }
    assert_eq!(depot.register_reclaim(&witnesses[8]), Err(TooManyCallbacks));
    fill(&depot, Flags::default(), || true);
    assert!(witnesses[..8].iter().all(|witness| !witness.take().is_empty()));
    assert_eq!(witnesses[8].take(), []);
}
