//! Trim gives memory back to the system, and only memory that is not held.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::skip::skip;
use crate::common::{
    StopAtEnd, all_back, check, mark, mib, order, page_bytes, present_bytes, seed, work,
};
use pagedepot_linux::reclaim::GiveBackEnd;
use pagedepot_linux::{Depot, Flags, MemoryKind, Mode, Order, PageSize, Scope};

fn builders() -> [(MemoryKind, pagedepot_linux::Builder); 2] {
    [MemoryKind::Anonymous, MemoryKind::Memfd]
        .map(|kind| (kind, Depot::builder(64 * mib()).memory(kind).checked(true)))
}

#[test]
fn gives_back_what_is_free() {
    for (kind, builder) in builders() {
        let depot = builder.populate(true).build().unwrap();
        assert_eq!(present_bytes(&depot), depot.bytes());
        let mut held: Vec<_> = (0..100).map(|_| depot.page(order(1)).unwrap()).collect();
        held.iter_mut().for_each(|page| mark(page, 7));
        depot.drain(Scope::ALL, Mode::Full);
        let trimmed = depot.trim().unwrap();
        assert_eq!(trimmed.bytes as usize, depot.bytes() - 200 * page_bytes(), "{kind:?}");
        assert_eq!(present_bytes(&depot), 200 * page_bytes());
        assert!(trimmed.calls <= 64 * 101, "{trimmed:?}");
        held.iter().for_each(|page| check(page, 7));
        assert_eq!(depot.trim().unwrap().bytes, 0, "nothing is given back twice");
        drop(held);
        // A page that is allocated again is zeroed and can be used.
        let page = depot.page(order(10)).unwrap();
        assert!(page.iter().all(|&byte| byte == 0) || kind == MemoryKind::Memfd);
        drop(page);
        all_back(&depot);
    }
}

fn in_ms(ms: u64) -> Instant {
    Instant::now() + Duration::from_millis(ms)
}

/// A request by number gets what it asks for, whole pageblocks first, or says why not.
#[test]
fn a_request_by_number_says_what_it_got() {
    for (kind, builder) in builders() {
        let depot = builder.populate(true).build().unwrap();
        let mut held: Vec<_> = (0..100).map(|_| depot.page(order(1)).unwrap()).collect();
        held.iter_mut().for_each(|page| mark(page, 7));
        let some = depot.give_back(5 * mib() as u64, in_ms(60_000)).unwrap();
        // Three pageblocks.
        let given = 6 * mib();
        assert_eq!((some.bytes as usize, some.whole_pageblocks), (given, 3), "{kind:?}");
        assert_eq!(some.end, GiveBackEnd::Enough);
        assert_eq!(present_bytes(&depot), depot.bytes() - given);
        assert_eq!(depot.give_back(0, in_ms(60_000)).unwrap().bytes, 0);
        let late = depot.give_back(u64::MAX, Instant::now()).unwrap();
        assert_eq!((late.bytes, late.end), (0, GiveBackEnd::Deadline));

        let rest = depot.give_back(u64::MAX, in_ms(60_000)).unwrap();
        let GiveBackEnd::NothingFree { held_bytes, cached_bytes, pinned_bytes } = rest.end else {
            panic!("{kind:?}: {rest:?}");
        };
        assert_eq!((held_bytes, pinned_bytes), (200 * page_bytes() as u64, 0), "{kind:?}");
        assert_eq!(present_bytes(&depot) as u64, held_bytes + cached_bytes);
        let said = format!("{held_bytes} bytes are allocated");
        assert!(rest.end.to_string().contains(&said), "{}", rest.end);
        held.iter().for_each(|page| check(page, 7));
        drop(held);
        all_back(&depot);
    }
}

#[test]
fn a_request_by_number_names_what_keeps_memory() {
    let depot = Depot::builder(8 * mib()).populate(true).build().unwrap();
    let _pinned = depot.pin_range(pagedepot_linux::Pfn::new(0), 1024).unwrap();
    let never = Instant::now() + Duration::from_secs(1 << 60);
    let given = depot.give_back(u64::MAX, never).unwrap();
    assert_eq!(given.bytes as usize, 4 * mib());
    let is_pinned = matches!(
        given.end,
        GiveBackEnd::NothingFree { pinned_bytes, .. } if pinned_bytes == 4 * mib() as u64
    );
    assert!(is_pinned, "{given:?}");

    // The calling thread runs on one of them, and would be interrupted.
    let all = pagedepot_rseq::affinity::allowed().unwrap();
    let depot = Depot::builder(8 * mib()).populate(true).isolated_cpus(all).build().unwrap();
    let given = depot.give_back(u64::MAX, in_ms(20)).unwrap();
    assert_eq!((given.bytes, given.end), (0, GiveBackEnd::Isolated));
    assert_eq!(present_bytes(&depot), depot.bytes());

    let pinned = Depot::builder(8 * mib()).pinned(true).build().unwrap();
    assert!(pinned.give_back(1, in_ms(10)).is_err());
}

/// A program that frees memory and takes as much again has the same memory, whatever the order.
/// Memory that a trim has given back is counted when it is needed again.
#[test]
fn freed_memory_is_used_before_new_memory() {
    for (kind, builder) in builders() {
        let depot = builder.build().unwrap();
        let hold = |size: Order| {
            let count = 20 * mib() / (size.frames() as usize * page_bytes());
            let mut pages: Vec<_> = (0..count).map(|_| depot.page(size).unwrap()).collect();
            pages.iter_mut().for_each(|page| mark(page, 5));
        };
        hold(Order::BASE);
        let first = depot.residency().first_touches;
        assert!((10..=12).contains(&first), "{kind:?}: {first} pageblocks for 20 MiB");
        for size in [0, 9, 0, 3, 10].map(order) {
            depot.drain(Scope::ALL, Mode::Full);
            hold(size);
        }
        depot.drain(Scope::ALL, Mode::Full);
        let counts = depot.residency();
        // Large blocks are cached two or more at a time.
        assert!(counts.first_touches <= first + 4 && counts.refaults == 0, "{kind:?}: {counts:?}");
        assert!(present_bytes(&depot) <= 2 * mib() * counts.first_touches as usize);

        let trimmed = depot.trim().unwrap();
        assert!(trimmed.bytes as usize >= 20 * mib() && present_bytes(&depot) == 0);
        depot.page(Order::MAX).unwrap();
        let all = 60 * mib() / (4 * mib());
        let held: Vec<_> = (0..all).map(|_| depot.page(Order::MAX).unwrap()).collect();
        assert!(depot.residency().refaults >= counts.first_touches - 2, "{kind:?}");
        drop(held);
    }
}

/// Right after a request ran out of pages trim gives nothing back, and reports that.
#[test]
fn what_is_left_out_is_said() {
    let depot = Depot::builder(4 * mib()).populate(true).build().unwrap();
    let mut held: Vec<_> = std::iter::from_fn(|| depot.page(Order::BASE).ok()).collect();
    assert_eq!(held.len(), 1024);
    held.clear();
    depot.drain(Scope::ALL, Mode::Full);
    let start = Instant::now();
    let mut given_back = 0;
    loop {
        let trimmed = depot.trim().unwrap();
        given_back += trimmed.bytes as usize;
        if !trimmed.cut_short {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(10), "{trimmed:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(given_back, depot.bytes());
}

/// Held pages between free ones: the most ranges possible, given back in few calls.
#[test]
fn scattered_pages() {
    let depot = Depot::builder(16 * mib()).caches(false).populate(true).build().unwrap();
    let mut pages: Vec<_> = (0..4096).map(|_| depot.page(Order::BASE).unwrap()).collect();
    pages.sort_by_key(|page| page.pfn().get());
    let mut number = 0;
    pages.retain(|_| {
        number += 1;
        number % 2 == 0
    });
    pages.iter_mut().for_each(|page| mark(page, 3));
    let trimmed = depot.trim().unwrap();
    assert_eq!(trimmed.bytes as usize, 8 * mib());
    assert_eq!(present_bytes(&depot), 8 * mib());
    pages.iter().for_each(|page| check(page, 3));
    drop(pages);
    all_back(&depot);
}

/// Threads allocate, mark and check pages while one thread trims all the time.
#[test]
fn under_load() {
    for (_, builder) in builders() {
        let depot = builder.build().unwrap();
        let (seed, end) = (seed(), Instant::now() + Duration::from_millis(700));
        let stop = AtomicBool::new(false);
        let shared = &depot;
        std::thread::scope(|scope| {
            let workers: Vec<_> = (1..=3)
                .map(|owner| scope.spawn(move || work(shared, owner, seed, 300, end)))
                .collect();
            let trimmer = scope.spawn(|| {
                let mut bytes = 0;
                while !stop.load(Ordering::Relaxed) {
                    shared.drain(Scope::ALL, Mode::Full);
                    bytes += shared.trim().unwrap().bytes;
                }
                bytes
            });
            let stopping = StopAtEnd(&stop);
            workers.into_iter().for_each(|worker| assert!(worker.join().unwrap() > 0));
            drop(stopping);
            assert!(trimmer.join().unwrap() > 0);
        });
        all_back(&depot);
    }
}

/// Calls `round` with a depot that another thread trims, and with the round's number, until
/// `enough` returns true and a trim has given memory back: on a busy machine the trimmer may begin
/// late.
fn beside_trims(enough: impl Fn(u32) -> bool, round: impl Fn(&Depot, u32)) {
    let depot = Depot::builder(16 * mib()).build().unwrap();
    let (stop, trimmed) = (AtomicBool::new(false), AtomicU64::new(0));
    let shared = &depot;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                trimmed.fetch_add(shared.trim().unwrap().bytes, Ordering::Relaxed);
            }
        });
        let _stop = StopAtEnd(&stop);
        let mut rounds = 0;
        while !enough(rounds) || trimmed.load(Ordering::Relaxed) == 0 {
            rounds += 1;
            round(shared, rounds);
        }
    });
    all_back(&depot);
}

/// A request that finds too little memory because a trim has it waits, and does not fail. One
/// thread allocates and frees all pages, again and again, while another trims.
#[test]
fn no_request_fails_because_of_a_trim() {
    beside_trims(
        |rounds| rounds >= 100,
        |depot, _| {
            let all = depot.bytes() / page_bytes();
            let mut blocks = Vec::new();
            for _ in 0..all {
                let pfn = depot.raw().alloc(Order::BASE, Flags::default());
                blocks.push((
                    pfn.unwrap_or_else(|e| panic!("{} of {all}: {e}", blocks.len())),
                    Order::BASE,
                ));
            }
            for (pfn, _) in &blocks {
                // The page becomes present, so that a trim can give it back. SAFETY: held by this
                // thread.
                unsafe { depot.raw().address(*pfn).as_ptr().write_volatile(1) };
            }
            // SAFETY: allocated above.
            unsafe { depot.raw().free_mixed(&blocks) }.unwrap();
        },
    );
}

/// Checks that no range of contiguous pages fails because of a trim, which may have any of them.
#[test]
fn no_range_fails_because_of_a_trim() {
    let start = Instant::now();
    beside_trims(
        |_| start.elapsed() >= Duration::from_millis(700),
        |depot, round| {
            let pages = depot.pages(3000, Flags::default());
            let mut pages = pages.unwrap_or_else(|error| panic!("round {round}: {error}"));
            pages.iter_mut().step_by(page_bytes()).for_each(|byte| *byte = 1);
            drop(pages);
            // Now and then a pause, in which trims can run again.
            if round % 16 == 0 {
                std::thread::sleep(Duration::from_millis(25));
            }
        },
    );
}

/// Whole pageblocks are given back as such, and are whole afterwards; parts of others come too.
#[test]
fn whole_pageblocks_stay_whole() {
    for (kind, builder) in builders() {
        let depot = builder.populate(true).build().unwrap();
        let held = depot.raw();
        // A page in every fourth pageblock.
        let place = |at: u32| pagedepot_linux::raw::Pfn::new(at * 2048 + 77);
        (0..8).for_each(|at| held.alloc_at(place(at), 1, Flags::default()).unwrap());
        let trimmed = depot.trim().unwrap();
        assert_eq!(trimmed.whole_pageblocks, 24, "{kind:?}: {trimmed:?}");
        assert_eq!(trimmed.bytes as usize, depot.bytes() - 8 * page_bytes());
        assert_eq!(present_bytes(&depot), 8 * page_bytes());
        let whole: Vec<_> = std::iter::from_fn(|| depot.page(order(9)).ok()).collect();
        assert_eq!(whole.len(), 24, "none was broken up");
        drop(whole);
        // SAFETY: allocated above, and not used.
        (0..8).for_each(|at| unsafe { held.free_contiguous(place(at), 1) }.unwrap());
        all_back(&depot);
    }
}

/// Pageblocks of 512 pages are given back whole whatever a page is, and are handed out after those
/// that are present.
#[test]
fn whole_pageblocks_of_large_pages_go_back_whole() {
    let builder = Depot::builder(128 << 20).page_size(PageSize::Kib64).caches(false);
    let depot = builder.build().unwrap();
    let mut all: Vec<_> = (0..4).map(|_| depot.page(order(9)).unwrap()).collect();
    for page in &mut all {
        page.chunks_mut(4 << 20).for_each(|part| part[0] = 1);
    }
    let held = all.pop().unwrap();
    drop(all);
    let trimmed = depot.trim().unwrap();
    assert_eq!((trimmed.whole_pageblocks, depot.residency().refaults), (3, 0), "{trimmed:?}");
    let again = held.pfn();
    drop(held);
    let present = depot.page(order(9)).unwrap();
    assert_eq!((present.pfn(), depot.residency().refaults), (again, 0));
    let absent = depot.page(order(9)).unwrap();
    assert_eq!(depot.residency().refaults, 1);
    drop((present, absent));
    all_back(&depot);
}

/// With huge pages, only whole ones are given back.
#[test]
fn huge_pages_are_given_back_whole() {
    let Ok(depot) = Depot::builder(16 * mib()).thp(true).populate(true).build() else {
        return skip("there are no huge pages");
    };
    let held = depot.page(Order::BASE).unwrap();
    depot.drain(Scope::ALL, Mode::Full);
    assert_eq!(depot.trim().unwrap().bytes as usize, depot.bytes() - 2 * mib());
    drop(held);
    depot.drain(Scope::ALL, Mode::Full);
    assert_eq!(depot.trim().unwrap().bytes as usize, 2 * mib());
    all_back(&depot);
}

/// A huge page that the end of the depot cuts off goes back, too.
#[test]
fn the_rest_of_a_huge_page_is_given_back() {
    let Ok(depot) = Depot::builder(3 * mib()).thp(true).populate(true).build() else {
        return skip("there are no huge pages");
    };
    assert_eq!(depot.trim().unwrap().bytes as usize, depot.bytes());
    all_back(&depot);
}

/// Does khugepaged's work on a few present pages among many absent ones, at once.
fn collapse(depot: &Depot) -> i32 {
    const MADV_COLLAPSE: i32 = 25;
    let start = depot.raw().base().as_ptr().cast();
    // SAFETY: the depot's own memory, whose contents the call keeps.
    unsafe { libc::madvise(start, depot.bytes(), MADV_COLLAPSE) }
}

/// Memory that was given back is not brought back by the system's huge pages, which the depot did
/// not ask for.
#[test]
fn huge_pages_bring_nothing_back() {
    for (kind, builder) in builders() {
        let depot = builder.build().unwrap();
        let start = depot.raw().base().as_ptr().cast();
        // As where the administrator has set `enabled` to `always`. SAFETY: advice that keeps
        // contents.
        unsafe { libc::madvise(start, depot.bytes(), libc::MADV_HUGEPAGE) };
        let mut pages: Vec<_> =
            (0..depot.bytes() / page_bytes()).map(|_| depot.page(Order::BASE).unwrap()).collect();
        pages.iter_mut().for_each(|page| mark(page, 5));
        if collapse(&depot) != 0 {
            skip(format_args!("no MADV_COLLAPSE for {kind:?}"));
            continue;
        }
        let mut number = 0;
        pages.retain(|_| {
            number += 1;
            number % 33 == 0
        });
        depot.drain(Scope::ALL, Mode::Full);
        let left = depot.bytes() - depot.trim().unwrap().bytes as usize;
        assert!(left < depot.bytes() / 16, "{left}");
        assert_eq!(present_bytes(&depot), left);
        collapse(&depot);
        assert_eq!(present_bytes(&depot), left, "{kind:?}");
        pages.iter().for_each(|page| check(page, 5));
        drop(pages);
        all_back(&depot);
    }
}
