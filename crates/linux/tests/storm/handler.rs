//! A signal handler that allocates and frees above whatever its thread does.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use pagedepot_linux::{Depot, Flags, Page, Pfn};

use crate::common::meetings::Set;
use crate::common::order;
use crate::feature::Feature;
use crate::world::{World, check, write};

/// The holder of what handlers keep.
const HANDLER: u32 = 1000;
const SERIAL: u64 = 99;

static DEPOT: AtomicPtr<Depot> = AtomicPtr::new(ptr::null_mut());
static WORLD: AtomicPtr<World> = AtomicPtr::new(ptr::null_mut());
static TURNS: AtomicU64 = AtomicU64::new(0);
/// Blocks that handlers keep from one signal to the next: order, and page number + 1.
static KEPT: [AtomicU64; 16] = [const { AtomicU64::new(0) }; 16];

thread_local! {
    static IS_HANDLER: Cell<bool> = const { Cell::new(false) };
}

/// Whether this code runs in a handler.
pub fn is_one() -> bool {
    IS_HANDLER.get()
}

/// Runs `round` while handlers use a depot. Returns the pages that they keep.
pub fn while_over(depot: &Depot, world: &World, round: impl FnOnce()) -> u64 {
    // A storm that failed may have left some of another depot.
    KEPT.iter().for_each(|kept| kept.store(0, Ordering::Relaxed));
    WORLD.store(ptr::from_ref(world).cast_mut(), Ordering::Release);
    DEPOT.store(ptr::from_ref(depot).cast_mut(), Ordering::Release);
    round();
    // The threads that got signals have ended.
    DEPOT.store(ptr::null_mut(), Ordering::Release);
    let pages = |kept: &AtomicU64| match kept.load(Ordering::Acquire) {
        0 => 0,
        kept => 1 << (kept >> 32),
    };
    KEPT.iter().map(pages).sum()
}

/// Frees what handlers keep of a depot.
pub fn end(depot: &Depot, world: &World) {
    KEPT.iter().for_each(|kept| free(depot, world, kept.swap(0, Ordering::AcqRel)));
}

fn free(depot: &Depot, world: &World, kept: u64) {
    if kept != 0 {
        let (pfn, order) = (Pfn::new(kept as u32 - 1), order((kept >> 32) as u32));
        // SAFETY: swapped out of `KEPT`, so no other code has it.
        let page = unsafe { Page::from_raw(depot, pfn, order) };
        check(&page, SERIAL);
        world.marks.give_back(pfn, order.frames(), HANDLER);
        drop(page);
        world.usage.use_pages(-i64::from(order.frames()));
    }
}

pub extern "C" fn allocate_and_free(_: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: removed only after the threads that get signals have ended; the world lives longer.
    let Some(depot) = (unsafe { DEPOT.load(Ordering::Acquire).as_ref() }) else { return };
    // SAFETY: as above.
    let world = unsafe { &*WORLD.load(Ordering::Acquire) };
    IS_HANDLER.set(true);
    turn(depot, world);
    IS_HANDLER.set(false);
}

fn turn(depot: &Depot, world: &World) {
    let turn = TURNS.fetch_add(1, Ordering::Relaxed);
    let order = order([0, 0, 0, 3, 1, 4, 9, 2, 10, 0, 5, 8][turn as usize % 12]);
    let frames = order.frames();
    let via = Set::from(Feature::Signals).and(Feature::NoWait).and(Feature::of_order(order));
    let _now = world.meetings.begin(via);
    if turn.is_multiple_of(64) {
        compact(depot, world);
    }
    let new = world.usage.while_requested(frames, || {
        let mut page = depot.page_with(order, Flags::default().atomic()).ok()?;
        world.take(page.pfn(), frames, HANDLER, via);
        write(&mut page, SERIAL);
        let (pfn, order) = page.into_raw();
        Some((u64::from(order.get()) << 32 | u64::from(pfn.get() + 1), frames))
    });
    let old = KEPT[turn as usize % KEPT.len()].swap(new.unwrap_or(0), Ordering::AcqRel);
    free(depot, world, old);
}

/// Asks for a range for which others must give way, and frees it.
fn compact(depot: &Depot, world: &World) {
    const PAGES: u32 = 700;
    let _now = world.meetings.begin(Set::from(Feature::Compacting).and(Feature::Ranges));
    let got = world.usage.while_requested(PAGES, || {
        let flags = Flags::default().compact();
        Some((depot.raw().alloc_contiguous(PAGES, 1, flags).ok()?, PAGES))
    });
    if let Some(start) = got {
        world.marks.take(start, PAGES, HANDLER);
        world.marks.give_back(start, PAGES, HANDLER);
        // SAFETY: allocated above.
        unsafe { depot.raw().free_contiguous(start, PAGES) }.unwrap();
        world.usage.use_pages(-i64::from(PAGES));
    }
}
