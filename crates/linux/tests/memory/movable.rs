//! Movable pages keep their contents wherever compaction puts them.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common::{self, StopAtEnd, all_back, mib, order};
use pagedepot_linux::raw::Pfn;
use pagedepot_linux::reclaim::{
    CompactEnd, CompactError, Compaction, Move, Mover, Occupant, PinnedRange,
};
use pagedepot_linux::{
    AllocError, Depot, Flags, MemoryKind, Mode, Movable, Order, Page, Scope, WeakDepot,
};

/// All pages of a depot, of which a part stays.
fn scattered(depot: &Depot, keep_each: usize) -> Vec<Movable> {
    let all: Vec<_> =
        std::iter::from_fn(|| depot.movable(Order::BASE, Flags::default()).ok()).collect();
    let mut kept: Vec<_> = all
        .into_iter()
        .enumerate()
        .filter(|(i, _)| i % keep_each == 0)
        .map(|(_, page)| page)
        .collect();
    for (i, page) in kept.iter_mut().enumerate() {
        page.write()[..8].copy_from_slice(&(i as u64).to_ne_bytes());
    }
    kept
}

fn check(pages: &[Movable]) {
    for (i, page) in pages.iter().enumerate() {
        assert_eq!(page.read()[..8], (i as u64).to_ne_bytes(), "{page:?}");
    }
}

#[test]
fn memory_heals() {
    for kind in [MemoryKind::Anonymous, MemoryKind::Memfd] {
        for checked in [false, true] {
            let builder = Depot::builder(32 * mib()).memory(kind).checked(checked);
            let depot = builder.build().unwrap();
            let pages = scattered(&depot, 4);
            let done = depot.compact(Compaction::all()).unwrap();
            assert!(done.whole_pageblocks >= 11, "{done:?}");
            check(&pages);
            assert_eq!(depot.validate().unwrap().held_pages(), pages.len() as u64);
            // One of them becomes an ordinary page, and the others are dropped.
            let mut pages = pages;
            let page = pages.swap_remove(7).into_page();
            assert_eq!(page[..8], 7u64.to_ne_bytes());
            drop((pages, page));
            all_back(&depot);
        }
    }
}

#[test]
fn a_request_heals_if_it_may() {
    let depot = Depot::new(16 * mib()).unwrap();
    let pages = scattered(&depot, 3);
    let count = 1500;
    assert_eq!(depot.pages(count, Flags::default()).unwrap_err(), AllocError::Exhausted);
    let range = depot.pages(count, Flags::default().compact()).unwrap();
    assert_eq!(range.count(), count);
    check(&pages);
    drop((pages, range));
    all_back(&depot);
}

#[test]
fn pages_in_use_stay_where_they_are() {
    let depot = Depot::new(16 * mib()).unwrap();
    let mut pages = scattered(&depot, 8);
    let mut last = pages.pop().unwrap();
    let (first, rest) = pages.split_first().unwrap();
    let (place, place_of_last) = (first.pfn(), last.pfn());
    let bytes = first.read();
    let writing = last.write();
    let pinned = depot.pin_range(rest[0].pfn(), 1).unwrap();
    let place_of_pinned = rest[0].pfn();
    let done = depot.compact(Compaction::all()).unwrap();
    assert!(done.moved_blocks > 0, "{done:?}");
    assert_eq!((first.pfn(), rest[0].pfn()), (place, place_of_pinned));
    assert_eq!(bytes[..8], 0u64.to_ne_bytes());
    drop((bytes, writing));
    assert_eq!(last.pfn(), place_of_last);
    drop(pinned);
    check(&pages);
    drop((pages, last));
    all_back(&depot);
}

#[test]
fn blocks_of_all_orders_move() {
    let depot = Depot::builder(32 * mib()).checked(true).build().unwrap();
    let mut pages = Vec::new();
    'full: loop {
        for n in [0, 3, 1, 5, 0, 7, 2] {
            match depot.movable(order(n), Flags::default()) {
                Ok(page) => pages.push(page),
                Err(_) => break 'full,
            }
        }
    }
    let mut number = 0;
    pages.retain(|_| {
        number += 1;
        number % 3 == 0
    });
    for (i, page) in pages.iter_mut().enumerate() {
        page.write().fill(i as u8);
    }
    let done = depot.compact(Compaction::range(4 * 512, 512)).unwrap();
    assert_eq!(done.end, CompactEnd::Reached, "{done:?}");
    for (i, page) in pages.iter().enumerate() {
        assert!(page.read().iter().all(|&byte| byte == i as u8));
    }
    drop(pages);
    all_back(&depot);
}

#[test]
fn what_cannot_be_had_is_said() {
    let depot = Depot::new(4 * mib()).unwrap();
    let error = depot.compact(Compaction::pageblocks(100)).unwrap_err();
    assert!(matches!(error, CompactError::TooLarge { wanted: 100, .. }));
    let error = depot.compact(Compaction::range(0, 1)).unwrap_err();
    assert!(matches!(error, CompactError::BadRange { .. }));
    // A page outlives its depot's handles.
    let mut page = depot.movable(Order::BASE, Flags::default()).unwrap();
    drop(depot);
    page.write().fill(3);
    assert!(page.read().iter().all(|&byte| byte == 3));
}

/// Threads read, write, make and drop movable pages while two others compact and drain. They hold
/// half of the memory at most: where none is free, nothing can be moved.
#[test]
fn under_load() {
    let depot = Depot::builder(24 * mib()).checked(true).build().unwrap();
    let end = Instant::now() + Duration::from_millis(700);
    let (stop, moved) = (AtomicBool::new(false), AtomicU64::new(0));
    let (shared, stop, moved) = (&depot, &stop, &moved);
    // On a busy machine the first move may take its time.
    let latest = end + Duration::from_secs(60);
    let goes_on = move || {
        let now = Instant::now();
        now < end || moved.load(Ordering::Relaxed) == 0 && now < latest
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..3u64)
            .map(|seed| {
                scope.spawn(move || {
                    let mut random = seed + 1;
                    let mut pages: Vec<(Movable, u64)> = Vec::new();
                    while goes_on() {
                        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        let at = (random >> 40) as usize;
                        match random >> 61 {
                            0..=2 if pages.len() < 256 => {
                                let order = order((random >> 59 & 3) as u32);
                                let Ok(mut page) = shared.movable(order, Flags::default()) else {
                                    continue;
                                };
                                page.write().as_chunks_mut().0.fill(random.to_ne_bytes());
                                pages.push((page, random));
                            }
                            3..=4 if !pages.is_empty() => {
                                let at = at % pages.len();
                                drop(pages.swap_remove(at));
                            }
                            _ if !pages.is_empty() => {
                                let at = at % pages.len();
                                let (page, value) = &pages[at];
                                let is_same = |word: &[u8; 8]| *word == value.to_ne_bytes();
                                assert!(page.read().as_chunks().0.iter().all(is_same));
                            }
                            _ => {}
                        }
                    }
                })
            })
            .collect();
        for _ in 0..2 {
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let done = shared.compact(Compaction::all()).unwrap();
                    moved.fetch_add(done.moved_blocks, Ordering::Relaxed);
                    shared.drain(Scope::ALL, Mode::Full);
                }
            });
        }
        let stopping = StopAtEnd(stop);
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        drop(stopping);
    });
    assert!(moved.load(Ordering::Relaxed) > 0);
    all_back(&depot);
}

/// Single pages that a program holds by their numbers.
#[derive(Default)]
struct Numbers(Mutex<BTreeSet<u32>>);

impl Mover for Numbers {
    fn occupant(&self, frame: Pfn) -> Occupant {
        match self.0.lock().unwrap().contains(&frame.get()) {
            true => Occupant::Movable { first: frame, order: Order::BASE },
            false => Occupant::Unknown,
        }
    }

    fn move_blocks(&self, moves: &mut [Move]) {
        let mut held = self.0.lock().unwrap();
        for this in moves {
            if held.remove(&this.from().get()) {
                assert!(held.insert(this.to().get()));
                this.moved();
            } else {
                this.gone();
            }
        }
    }
}

#[test]
fn blocks_held_by_numbers_move_beside_movable_pages() {
    let depot = Depot::new(16 * mib()).unwrap();
    let numbers = Arc::new(Numbers::default());
    // SAFETY: the memory of the blocks is not used, and each is held in one place.
    unsafe { depot.raw().register_mover(numbers.clone()) }.unwrap();
    // SAFETY: as above.
    assert!(unsafe { depot.raw().register_mover(numbers.clone()) }.is_err());
    let mut pages = Vec::new();
    while let Ok(page) = depot.movable(Order::BASE, Flags::default()) {
        pages.push(page);
        if let Ok(pfn) = depot.raw().alloc(Order::BASE, Flags::default()) {
            numbers.0.lock().unwrap().insert(pfn.get());
        }
    }
    // Every other one of both goes.
    let mut nth = 0;
    pages.retain(|_| {
        nth += 1;
        nth % 2 == 0
    });
    for (i, page) in pages.iter_mut().enumerate() {
        page.write()[..8].copy_from_slice(&(i as u64).to_ne_bytes());
    }
    let freed: Vec<_> = numbers.0.lock().unwrap().iter().copied().step_by(2).collect();
    for number in freed {
        numbers.0.lock().unwrap().remove(&number);
        // SAFETY: held, and freed once.
        unsafe { depot.raw().free(Pfn::new(number), Order::BASE) }.unwrap();
    }
    let done = depot.compact(Compaction::all()).unwrap();
    assert!(done.whole_pageblocks >= 3, "{done:?}");
    // An unmovable page gets a pageblock of its own, whatever has to move.
    let unmovable = depot.page_with(Order::BASE, Flags::UNMOVABLE.compact()).unwrap();
    check(&pages);
    let held = (pages.len() + numbers.0.lock().unwrap().len() + 1) as u64;
    assert_eq!(depot.validate().unwrap().held_pages(), held);
    for number in std::mem::take(&mut *numbers.0.lock().unwrap()) {
        // SAFETY: held, and freed once.
        unsafe { depot.raw().free(Pfn::new(number), Order::BASE) }.unwrap();
    }
    drop((pages, unmovable));
    all_back(&depot);
}

/// A program's mover that acts when it is asked about one page for the nth time, in the middle of
/// what compaction does. The page lies behind the last movable one.
struct Interloper<F> {
    page: Pfn,
    left: AtomicU64,
    act: F,
}

impl<F: Fn() + Sync> Mover for Interloper<F> {
    fn occupant(&self, frame: Pfn) -> Occupant {
        if frame != self.page {
            return Occupant::Pinned;
        }
        if self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            (self.act)();
        }
        Occupant::Movable { first: frame, order: Order::BASE }
    }

    fn move_blocks(&self, moves: &mut [Move]) {
        moves.iter_mut().for_each(Move::pinned);
    }
}

/// Pages of a pageblock.
const PAGEBLOCK: u32 = 512;

/// Keeps compaction to windows around pageblocks 8 to 11: pages elsewhere stay where they are.
fn fence_in(depot: &Depot, free: &[u32]) {
    for pageblock in (0..32).filter(|pageblock| !free.contains(pageblock)) {
        for at in [5, 300] {
            let page = Pfn::new(pageblock * PAGEBLOCK + at);
            depot.raw().alloc_at(page, 1, Flags::default()).unwrap();
        }
    }
}

/// A movable block that lies at this page.
fn movable_at(depot: &Depot, order: Order, page: u32) -> Movable {
    let all: Vec<_> = std::iter::from_fn(|| depot.movable(order, Flags::default()).ok()).collect();
    let found = all.into_iter().find(|movable| movable.pfn().get() == page);
    depot.drain(Scope::ALL, Mode::Full);
    found.expect("all pages were allocated")
}

/// A block is dropped between compaction's look and its move, and a smaller one lies at its first
/// page then, beside the page of another holder.
#[test]
fn a_block_that_gave_way_to_a_smaller_one_is_not_moved() {
    struct Held {
        depot: WeakDepot,
        old: Option<Movable>,
        new: Option<(Movable, Page)>,
    }
    let (order, first) = (order(8), 8 * PAGEBLOCK);
    let mut gave_way = 0;
    for turn in 1..=6 {
        let depot = Depot::new(64 * mib()).unwrap();
        let old = Some(movable_at(&depot, Order::MAX, first));
        fence_in(&depot, &[8, 9, 10, 11, 20, 21]);
        let page = Pfn::new(10 * PAGEBLOCK);
        depot.raw().alloc_at(page, 1, Flags::default()).unwrap();
        let held = Arc::new(Mutex::new(Held { depot: depot.downgrade(), old, new: None }));
        let shared = held.clone();
        let act = move || {
            let mut held = shared.lock().unwrap();
            let depot = held.depot.upgrade().unwrap();
            held.old = None;
            depot.drain(Scope::ALL, Mode::Full);
            // None, where compaction has isolated what was the old one.
            let mut all: Vec<_> =
                std::iter::from_fn(|| depot.movable(order, Flags::default()).ok()).collect();
            let mut take = |page| {
                let at = all.iter().position(|movable| movable.pfn().get() == page)?;
                Some(all.swap_remove(at))
            };
            let (new, next) = (take(first), take(first + order.frames()));
            let (Some(mut new), Some(next)) = (new, next) else { return };
            drop(next);
            let mut neighbour = depot.page(order).unwrap();
            new.write().fill(0x55);
            neighbour.fill(0x77);
            held.new = Some((new, neighbour));
        };
        let mover = Interloper { page, left: AtomicU64::new(turn), act };
        // SAFETY: it moves nothing.
        unsafe { depot.raw().register_mover(Arc::new(mover)) }.unwrap();
        _ = depot.compact(Compaction::range(3 * PAGEBLOCK, PAGEBLOCK));
        let Some((new, neighbour)) = held.lock().unwrap().new.take() else { continue };
        gave_way += 1;
        let pages = neighbour.pfn().get()..neighbour.pfn().get() + order.frames();
        assert!(pages.clone().all(|page| !depot.raw().is_free(Pfn::new(page))), "turn {turn}");
        while let Ok(mut page) = depot.page(Order::BASE) {
            page.fill(0x11);
            assert!(!pages.contains(&page.pfn().get()), "turn {turn}: two have {page:?}");
            std::mem::forget(page);
        }
        assert!(neighbour.iter().all(|&byte| byte == 0x77), "turn {turn}");
        assert!(new.read().iter().all(|&byte| byte == 0x55), "turn {turn}");
    }
    assert!(gave_way > 0, "no smaller block came to lie there");
}

/// A block that is pinned during an access stays where it is, though compaction had looked at it
/// before.
#[test]
fn a_block_that_was_pinned_meanwhile_is_not_moved() {
    let mut pinned_times = 0;
    for turn in 1..=6 {
        let depot = Depot::new(64 * mib()).unwrap();
        let movable = Arc::new(movable_at(&depot, Order::BASE, 9 * PAGEBLOCK + 3));
        fence_in(&depot, &[9, 10, 11]);
        let page = Pfn::new(10 * PAGEBLOCK);
        depot.raw().alloc_at(page, 1, Flags::default()).unwrap();
        let pinned: Arc<Mutex<Option<PinnedRange>>> = Arc::default();
        let (held, weak, pin) = (movable.clone(), depot.downgrade(), pinned.clone());
        let act = move || {
            let access = held.read();
            let range = weak.upgrade().unwrap().pin_range(held.pfn(), 1).unwrap();
            *pin.lock().unwrap() = Some(range);
            drop(access);
        };
        let mover = Interloper { page, left: AtomicU64::new(turn), act };
        // SAFETY: it moves nothing.
        unsafe { depot.raw().register_mover(Arc::new(mover)) }.unwrap();
        _ = depot.compact(Compaction::range(3 * PAGEBLOCK, PAGEBLOCK));
        if let Some(pinned) = pinned.lock().unwrap().take() {
            pinned_times += 1;
            assert_eq!(movable.pfn(), pinned.start(), "turn {turn}");
        }
    }
    assert!(pinned_times > 0);
}

/// Children are forked at any moment of a compaction, and read or drop what their parent holds.
#[test]
fn children_read_and_drop_pages_that_are_being_copied() {
    let depot = Depot::new(64 * mib()).unwrap();
    let mut held: Vec<Movable> = Vec::new();
    let (stop, mut random) = (AtomicBool::new(false), common::Random::new(common::seed()));
    std::thread::scope(|scope| {
        let (depot, stop) = (&depot, &stop);
        let _stop = StopAtEnd(stop);
        scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                _ = depot.compact(Compaction::range(10 * PAGEBLOCK, PAGEBLOCK));
            }
        });
        for round in 0..40 {
            while let Ok(block) = depot.movable(Order::MAX, Flags::default()) {
                held.push(block);
            }
            while held.len() > 5 {
                held.swap_remove(random.below(held.len() as u64) as usize);
            }
            std::thread::sleep(Duration::from_micros(random.below(2000)));
            let held = &mut held;
            common::in_child(move || {
                // SAFETY: ends a child that waits; nothing handles the signal.
                unsafe { libc::alarm(60) };
                if round % 2 == 0 {
                    assert!(held.iter().map(|block| block.read().len()).sum::<usize>() > 0);
                }
                held.clear();
            });
        }
    });
    drop(held);
    all_back(&depot);
}
