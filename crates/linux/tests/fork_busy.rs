//! A child may call every method and every drop of everything public, at whatever moment its parent
//! forked. It gets an error or nothing, and never waits for a thread that it does not have.

mod common;

use std::fmt::Write;
use std::hint::black_box;
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::{StopAtEnd, mib, page_bytes};
use pagedepot_linux::raw::Pfn;
use pagedepot_linux::reclaim::{Compaction, Move, Mover, Occupant, PinnedRange};
use pagedepot_linux::trace::{Stamp, TraceWriter};
use pagedepot_linux::vmalloc::{DepotHost, LinuxMapper, Options, PurgeDepth};
use pagedepot_linux::{
    CpuId, Depot, Flags, MemoryKind, Mobility, Mode, Movable, Order, Page, Pages, Scope, Vmalloc,
    VmallocBuf, ZoneId,
};

const GIB: usize = 1 << 30;
const ZONE: ZoneId = ZoneId::new(0);
const CPU: CpuId = CpuId::new(0);
/// Seconds: far more than a child needs, even on a busy machine.
const ALARM_S: u32 = 60;

/// The blocks that the parent holds when it forks.
struct Held {
    page: Page,
    movables: Vec<Movable>,
    pages: Pages,
    pinned: PinnedRange,
    buf: VmallocBuf,
    mapped: NonNull<u8>,
}

/// Movable pages between others, which compaction moves about.
fn scattered(depot: &Depot) -> Vec<Movable> {
    let mut all: Vec<_> =
        (0..4000).map_while(|_| depot.movable(Order::BASE, Flags::default()).ok()).collect();
    let mut nth = 0;
    all.retain(|_| {
        nth += 1;
        nth % 8 == 0
    });
    all
}

/// A program's mover that knows of no page.
struct Nothing;

impl Mover for Nothing {
    fn occupant(&self, _: Pfn) -> Occupant {
        Occupant::Unknown
    }

    fn move_blocks(&self, moves: &mut [Move]) {
        moves.iter_mut().for_each(Move::gone);
    }
}

/// Runs `child` in a forked process; fails unless it returns before the alarm.
fn in_child(what: &str, child: impl FnOnce()) {
    common::in_child(|| {
        // SAFETY: ends this child, in which nothing handles the signal.
        unsafe { libc::alarm(ALARM_S) };
        child();
        black_box(what);
    });
}

/// The child's copy of a value, to drop it or to borrow it mutably.
///
/// # Safety
/// This is a forked child, in which nothing else uses the value any more.
unsafe fn copy<T>(value: &T) -> T {
    // SAFETY: the caller's promise: the original is not used any more.
    unsafe { ptr::read(value) }
}

/// Keeps a depot and its address space busy with everything that takes a lock, until `stop`.
fn be_busy(depot: &Arc<Depot>, space: &Vmalloc, work: usize, stop: &AtomicBool) {
    let mut kept = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        match work {
            0 => _ = black_box(space.areas().count()),
            1 => _ = black_box(space.stats()),
            2 => {
                kept.extend((0..20).map_while(|_| space.buf(300 * page_bytes()).ok()));
                kept.clear();
                _ = space.purge(PurgeDepth::Lazy);
            }
            3 => {
                // Takes the lock, and finds no free place.
                _ = depot.on_pressure(|_| 0);
                _ = depot.grow(ZONE, usize::MAX);
                drop(depot.pin_range(Pfn::new(7), 9));
            }
            4 => drop(Vmalloc::builder(depot).bytes(2 * mib()).nodes(1).areas_max(64).build()),
            5 => {
                drop((0..100).map_while(|_| depot.page(Order::BASE).ok()).collect::<Vec<_>>());
                _ = depot.drain(Scope::ALL, Mode::Full);
                _ = depot.trim();
                _ = depot.cpu_caches().disable();
                depot.cpu_caches().enable();
            }
            // Waits, in vain: all CPUs' caches come and go.
            6 => {
                let (free, wait) = (Order::MAX, Duration::from_millis(2));
                let all: Vec<_> = std::iter::from_fn(|| depot.page(free).ok()).collect();
                _ = depot.page_timeout(free, wait);
                drop(all);
            }
            7 => _ = depot.compact(Compaction::all()),
            // The C library frees the dynamic linker's locks in a child.
            8 => drop(Depot::builder(mib()).numa(true).build()),
            _ => _ = black_box(space.shrink()),
        }
    }
}

/// Calls every method of a depot that needs no value of its own.
fn call_depot(depot: &Depot, held: &Held) {
    let flags = Flags::default();
    for order in (0..=10).map(common::order) {
        assert!(depot.page(order).is_err() && depot.page_with(order, flags.zeroed()).is_err());
        assert!(depot.raw().alloc(order, flags).is_err());
        assert!(depot.raw().alloc_many(order, flags, &mut [held.page.pfn(); 70]).is_err());
    }
    let (pfn, order) = (held.page.pfn(), held.page.order());
    assert!(depot.pages(3, flags).is_err());
    assert!(
        depot.raw().alloc_contiguous(3, 1, flags).is_err()
            && depot.raw().alloc_at(pfn, 1, flags).is_err()
    );
    // SAFETY: refused, as is checked.
    unsafe {
        assert!(
            depot.raw().free(pfn, order).is_err()
                && depot.raw().free_mixed(&[(pfn, order)]).is_err()
        );
        assert!(depot.raw().free_contiguous(pfn, 1).is_err());
        black_box((
            depot.raw().allocator().cpus().sequences().fronts(),
            depot.raw().fd().is_some(),
        ));
        _ = depot.raw().split(pfn, order, Order::BASE);
    }
    for mode in [Mode::Quiet, Mode::Full] {
        assert_eq!(depot.drain(Scope::ALL, mode).taken_pages, 0);
        assert_eq!(depot.drain_each(Scope::ALL, mode, |_, _| ()).taken_pages, 0);
    }
    assert!(depot.trim().is_err());
    assert!(depot.page_timeout(order, Duration::MAX).is_err());
    assert!(depot.movable(order, flags).is_err());
    assert!(depot.compact(Compaction::all()).is_err());
    black_box(held.movables.iter().map(|page| page.read()[0]).max());
    // SAFETY: it moves nothing.
    _ = unsafe { depot.raw().register_mover(Arc::new(Nothing)) };
    assert!(depot.on_pressure(|_| 0).is_err());
    assert!(depot.grow(ZONE, GIB).is_err());
    let caches = depot.cpu_caches();
    _ = (caches.disable(), caches.retire(CPU), caches.restore(CPU), caches.are_enabled(CPU));
    caches.enable();
    assert_eq!((caches.decay(), caches.hand_over()), (0, false));
    assert!(depot.settings(ZONE).is_none());
    black_box(caches.handover_counts(CPU));
    black_box((depot.cpu_stats(CPU, ZONE), depot.zone_ids().count(), depot.raw().failed_claims()));
    black_box((depot.metadata_use(), depot.raw().is_free(pfn), depot.fronts(), depot.page_size()));
    black_box((
        depot.raw().base(),
        depot.bytes(),
        depot.raw().offset(pfn),
        depot.raw().address(pfn),
    ));
    black_box(depot.pfn_of(depot.raw().base().as_ptr()));
    assert!(depot.pin_range(pfn, 1).is_err() && depot.unpin_range(pfn, 1).is_err());
    let mut text = String::new();
    write!(text, "{depot:?} {}", depot.shortage()).unwrap();
    // SAFETY: a forked child, with one thread.
    let own = ManuallyDrop::new(unsafe { copy(depot) });
    assert!(own.validate().is_err());
}

fn call_space(depot: &Arc<Depot>, space: &Vmalloc, held: &Held) {
    let (options, frames) = (Options::DEFAULT, [held.page.pfn()]);
    for pages in [1, 5, 300] {
        assert!(
            space.vmalloc(pages, options).is_err()
                && space.vmalloc(pages, options.no_wait()).is_err()
        );
        assert!(space.buf(pages as usize * page_bytes()).is_err());
        assert!(space.buf_with(pages as usize * page_bytes(), options).is_err());
    }
    assert!(space.vmap(&frames, options).is_err());
    assert!(space.vm_map_ram(&frames, options).is_err());
    let start = NonNull::new(held.buf.as_ptr().cast_mut()).unwrap();
    // SAFETY: refused, as is checked.
    unsafe {
        assert!(space.vfree(start).is_err() && space.vfree_atomic(start).is_err());
        assert!(space.vrealloc(start, 9, options).is_err());
        assert!(space.vunmap(held.mapped).is_err() && space.vm_unmap_ram(held.mapped, 1).is_err());
        let inner = space.inner();
        black_box((inner.stats(), inner.span(), inner.page_size()));
        inner.reset_tables_max();
    }
    for depth in [PurgeDepth::Lazy, PurgeDepth::Decay, PurgeDepth::Everything] {
        assert_eq!(space.purge(depth), Default::default());
    }
    assert_eq!((space.shrink(), space.areas().count()), (Default::default(), 0));
    black_box((space.find(start.as_ptr()), space.pfn_of(start.as_ptr())));
    assert_eq!(space.read_at(start.as_ptr(), &mut [0; 5000]), 0);
    black_box((space.stats(), space.mappings(), space.mappings_max(), space.page_table_bytes()));
    black_box((space.depot(), space.range()));
    let mut text = String::new();
    write!(text, "{space:?} {}", space.vmallocinfo()).unwrap();
    // SAFETY: a forked child, with one thread.
    let mut own = ManuallyDrop::new(unsafe { copy(space) });
    assert!(own.validate().is_err());
    assert!(Vmalloc::builder(depot).bytes(2 * mib()).build().is_err());
    drop((LinuxMapper::new(depot, 2 * mib(), None), DepotHost::new(depot)));
}

/// Makes what a child may make as its parent could: a depot and a space of its own.
fn make_own() {
    let own = Depot::builder(16 * mib()).memory(MemoryKind::Memfd).numa(true).build().unwrap();
    own.on_pressure(|_| 0).unwrap();
    own.page(Order::BASE).unwrap().fill(1);
    common::all_back(&own);
    let own = Arc::new(own);
    let space = Vmalloc::builder(&own).bytes(2 * mib()).build().unwrap();
    space.buf(page_bytes()).unwrap().fill(1);
    let mut trace = TraceWriter::new(Vec::new());
    let (at, block) = (Stamp::here("child"), (Pfn::new(1), Order::BASE).into());
    trace.alloc(&at, block, Mobility::Movable).unwrap();
    trace.alloc_failed(&at, Order::BASE, Mobility::Movable).unwrap();
    trace.free(&at, block).unwrap();
    trace.free_many(&at, &[block]).unwrap();
    assert!(!trace.finish().unwrap().is_empty());
}

/// Drops everything: what the parent held, the space, the depot.
fn drop_all(depot: &Depot, space: &Vmalloc, held: &Held) {
    // SAFETY: a forked child, in which nothing else uses these values, dropped before what they
    // borrow.
    unsafe {
        let mut buf = copy(&held.buf);
        assert!(buf.grow(mib()).is_err() && buf.resize(1).is_err());
        drop((buf, copy(&held.page), copy(&held.pages), copy(&held.pinned)));
        held.movables.iter().for_each(|page| drop(copy(page)));
        drop(copy(space));
        // The last drop: the child still has the parent's counts of references to the depot.
        drop(copy(depot));
    }
}

#[test]
fn a_child_of_a_busy_parent_is_never_kept_waiting() {
    let builder = Depot::builder(GIB).grow_to(2 * GIB).memory(MemoryKind::Memfd);
    let depot = Arc::new(builder.build().unwrap());
    let space = Vmalloc::builder(&depot).bytes(256 * mib()).build().unwrap();
    let page = depot.page(Order::BASE).unwrap();
    let mapped = space.vmap(&[page.pfn()], Options::DEFAULT).unwrap();
    let held = Held {
        pinned: depot.pin_range(page.pfn(), 1).unwrap(),
        page,
        movables: scattered(&depot),
        pages: depot.pages(3, Flags::default()).unwrap(),
        buf: space.buf(3 * page_bytes()).unwrap(),
        mapped,
    };
    while depot.on_pressure(|_| 0).is_ok() {}
    let (stop, end) = (AtomicBool::new(false), Instant::now() + Duration::from_secs(3));
    std::thread::scope(|scope| {
        let _stop = StopAtEnd(&stop);
        for work in 0..10 {
            let (depot, space, stop) = (&depot, &space, &stop);
            scope.spawn(move || be_busy(depot, space, work, stop));
        }
        let mut rounds = 0;
        while rounds < 10 || Instant::now() < end {
            // The first call is tried at more moments than the others; otherwise the order matters
            // little.
            in_child("the space", || call_space(&depot, &space, &held));
            in_child("the depot", || call_depot(&depot, &held));
            in_child("drops", || drop_all(&depot, &space, &held));
            in_child("its own", make_own);
            rounds += 1;
        }
    });
    // SAFETY: mapped above, and not used.
    unsafe { space.vunmap(held.mapped) }.unwrap();
}
