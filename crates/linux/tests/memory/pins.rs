//! Trims leave pinned pages alone, free or held, while other threads trim and pin.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::{Random, StopAtEnd, all_back, in_child, mib, order, page_bytes, seed};
use pagedepot_linux::reclaim::{PinError, Reporting, TrimError};
use pagedepot_linux::{Depot, Flags, MemoryKind, Mode, Order, Pfn, Scope};

/// Whether each page of the depot is present.
fn present(depot: &Depot) -> Vec<bool> {
    let mut states = vec![0u8; depot.bytes() / page_bytes()];
    // SAFETY: one byte per page of the depot's mapping is written.
    let result = unsafe {
        libc::mincore(depot.raw().base().as_ptr().cast(), depot.bytes(), states.as_mut_ptr())
    };
    assert_eq!(result, 0);
    states.iter().map(|&state| state & 1 != 0).collect()
}

fn present_pages(depot: &Depot) -> usize {
    present(depot).into_iter().filter(|&present| present).count()
}

fn depots(bytes: usize) -> [Depot; 2] {
    [MemoryKind::Anonymous, MemoryKind::Memfd].map(|kind| {
        Depot::builder(bytes).memory(kind).caches(false).populate(true).build().unwrap()
    })
}

/// The memory of a page that is held goes back, unless the page is pinned.
#[test]
fn a_page_is_discarded_unless_it_is_pinned() {
    for depot in depots(16 * mib()) {
        let mut pages = depot.pages(600, Flags::default()).unwrap();
        pages.fill(7);
        let (start, before) = (pages.start(), present_pages(&depot));
        let pin = depot.pin_range(start.add(599), 1).unwrap();
        assert_eq!(pages.discard(), Err(TrimError::Pinned));
        assert!(pages.iter().all(|&byte| byte == 7));
        drop(pin);
        in_child(|| {
            // SAFETY: the parent keeps them.
            let mut pages = unsafe { pagedepot_linux::Pages::from_raw(&depot, start, 600) };
            assert_eq!(pages.discard(), Err(TrimError::Forked));
        });
        assert!(pages.iter().all(|&byte| byte == 7));
        assert_eq!(pages.discard(), Ok(600 * page_bytes() as u64));
        assert_eq!(before - present_pages(&depot), 600);
        assert_eq!(pages.discard(), Ok(0), "nothing is left");
        assert!(pages.iter().all(|&byte| byte == 0));
        drop(pages);
        let mut page = depot.page(order(9)).unwrap();
        page.fill(1);
        assert_eq!(page.discard(), Ok(512 * page_bytes() as u64));
        assert!(page.iter().all(|&byte| byte == 0));
        drop(page);
        all_back(&depot);
    }
    let pinned = Depot::builder(mib()).pinned(true).build().unwrap();
    assert_eq!(pinned.page(Order::BASE).unwrap().discard(), Err(TrimError::Pinned));
}

#[test]
fn a_trim_takes_all_but_pinned_pages() {
    for depot in depots(32 * mib()) {
        let held = depot.pages(50, Flags::default()).unwrap();
        // A range across two of a trim's chunks, one at the last page, one over held pages, and one
        // inside another.
        let ranges = [(4000, 200), (8191, 1), (held.start().get(), 60), (4100, 7)];
        let pinned = ranges.map(|(start, count)| depot.pin_range(Pfn::new(start), count).unwrap());
        assert_eq!((pinned[0].start(), pinned[0].count()), (Pfn::new(4000), 200));
        let kept = |page: u32| {
            ranges.iter().any(|&(start, count)| (start..start + count).contains(&page))
                || (held.start().get()..held.start().get() + held.count()).contains(&page)
        };
        let wanted: Vec<bool> = (0..8192).map(kept).collect();
        let trimmed = depot.trim().unwrap();
        assert_eq!(present(&depot), wanted);
        assert_eq!(
            trimmed.bytes as usize,
            wanted.iter().filter(|&&kept| !kept).count() * page_bytes()
        );
        // The pages are free again, and still pinned.
        drop(held);
        assert_eq!(depot.trim().unwrap().bytes, 0);
        drop(pinned);
        depot.trim().unwrap();
        assert_eq!(present_pages(&depot), 0);
        all_back(&depot);
    }
}

#[test]
fn pins_are_counted() {
    let [depot, _] = depots(4 * mib());
    let all = depot.pin_range(Pfn::new(0), 1024).unwrap();
    depot.pin_range(Pfn::new(100), 10).unwrap().keep();
    let kept = depot.pin_range(Pfn::new(105), 10).unwrap();
    assert_eq!(depot.trim().unwrap().bytes, 0);
    drop(all);
    kept.keep();
    depot.trim().unwrap();
    assert_eq!(present_pages(&depot), 15);
    // 100..105 once, 105..110 twice, 110..115 once.
    assert_eq!(depot.unpin_range(Pfn::new(99), 2), Err(PinError::NotPinned));
    assert_eq!(depot.unpin_range(Pfn::new(114), 2), Err(PinError::NotPinned));
    depot.unpin_range(Pfn::new(100), 15).unwrap();
    depot.trim().unwrap();
    assert_eq!(present_pages(&depot), 5);
    assert_eq!(depot.unpin_range(Pfn::new(104), 6), Err(PinError::NotPinned));
    depot.unpin_range(Pfn::new(105), 5).unwrap();
    depot.trim().unwrap();
    assert_eq!(present_pages(&depot), 0);
    let text = PinError::NotPinned.to_string();
    assert!(text.contains("unpin what was pinned"), "{text}");
}

#[test]
fn bad_ranges_are_refused() {
    let [depot, _] = depots(4 * mib());
    for (start, count) in [(0, 0), (0, 1025), (1024, 1), (1023, 2), (u32::MAX, u32::MAX)] {
        let (start, error) =
            (Pfn::new(start), PinError::BadRange { start: Pfn::new(start), count });
        assert_eq!(depot.pin_range(start, count).map(|_| ()), Err(error));
        assert_eq!(depot.unpin_range(start, count), Err(error));
        assert!(error.to_string().contains("only pages of the depot"), "{error}");
    }
    in_child(|| {
        assert_eq!(depot.pin_range(Pfn::new(0), 1).map(|_| ()), Err(PinError::Forked));
        assert_eq!(depot.unpin_range(Pfn::new(0), 1), Err(PinError::Forked));
    });
    assert_eq!(depot.trim().unwrap().bytes as usize, 4 * mib(), "nothing was pinned");
}

/// While memory is registered no trim takes any, and each says how many free pages it left.
#[test]
fn trims_leave_registered_memory_alone() {
    for depot in depots(8 * mib()) {
        let held = depot.pages(100, Flags::default()).unwrap();
        let (first, second) = (depot.registered_iovecs().unwrap(), depot.registered_iovecs());
        assert_eq!(depot.pinned_pages(), Ok(2048));
        let trimmed = depot.trim().unwrap();
        assert_eq!((trimmed.bytes, trimmed.pinned_pages), (0, 1948));
        assert_eq!(
            Reporting::of(&depot).pass(4).unwrap().calls,
            1,
            "it reports, and drops nothing"
        );
        drop((second, held));
        assert_eq!(depot.trim().unwrap().pinned_pages, 2048);
        assert_eq!(present_pages(&depot), 2048);
        drop(first);
        assert_eq!(depot.pinned_pages(), Ok(0));
        let trimmed = depot.trim().unwrap();
        assert_eq!((trimmed.bytes as usize, trimmed.pinned_pages), (8 * mib(), 0));
        all_back(&depot);
    }
}

/// Pieces cover the depot side by side, and each page and range is in the piece that has it.
#[test]
fn pieces_have_a_gibibyte_each() {
    const GIB: usize = 1 << 30;
    let depot = Depot::builder(2 * GIB + mib()).build().unwrap();
    let registered = depot.registered_iovecs().unwrap();
    let iovecs = registered.iovecs();
    assert_eq!(iovecs.iter().map(|piece| piece.iov_len).collect::<Vec<_>>(), [GIB, GIB, mib()]);
    let base = depot.raw().base().as_ptr();
    let starts = (0..3).map(|piece| base.wrapping_add(piece * GIB).cast());
    assert!(starts.eq(iovecs.iter().map(|piece| piece.iov_base)));
    for (page, piece) in [
        (0, Some(0)),
        (GIB / page_bytes() - 1, Some(0)),
        (GIB / page_bytes(), Some(1)),
        ((2 * GIB + mib()) / page_bytes() - 1, Some(2)),
        ((2 * GIB + mib()) / page_bytes(), None),
    ] {
        assert_eq!(registered.piece_of(Pfn::new(page as u32)), piece, "page {page}");
    }
    // A range across the end of a piece.
    let around = Pfn::new((GIB / page_bytes() - 2) as u32);
    depot.raw().alloc_at(around, 4, Flags::default()).unwrap();
    // SAFETY: allocated above, and nothing else holds it.
    let pages = unsafe { pagedepot_linux::Pages::from_raw(&depot, around, 4) };
    assert_eq!(registered.piece_of_bytes(&pages), None);
    assert_eq!(registered.piece_of_bytes(&pages[..2 * page_bytes()]), Some(0));
    assert_eq!(registered.piece_of_bytes(&pages[2 * page_bytes()..]), Some(1));
    assert_eq!(registered.piece_of_bytes(&pages[..0]), None);
    assert_eq!(registered.piece_of_bytes(&[0; 8]), None);
    drop(pages);
    let page = depot.page(order(10)).unwrap();
    assert_eq!(registered.piece_of_bytes(&page), registered.piece_of(page.pfn()));
    drop((page, registered));
    all_back(&depot);
}

#[test]
fn a_depot_can_be_pinned_as_a_whole() {
    for kind in [MemoryKind::Anonymous, MemoryKind::Memfd] {
        let depot =
            Depot::builder(4 * mib()).memory(kind).populate(true).pinned(true).build().unwrap();
        assert_eq!(depot.trim(), Err(TrimError::Pinned));
        assert!(TrimError::Pinned.to_string().contains("Builder::pinned"));
        assert!(present(&depot).iter().all(|&present| present));
    }
}

/// A huge page, or a pageblock where those are smaller, is given back whole or not at all.
#[test]
fn a_huge_page_around_a_pinned_page_stays() {
    let Ok(depot) = Depot::builder(8 * mib()).thp(true).populate(true).caches(false).build() else {
        return;
    };
    let pinned = depot.pin_range(Pfn::new(700), 1).unwrap();
    assert_eq!(depot.trim().unwrap().bytes as usize, depot.bytes() - 2 * mib());
    drop(pinned);
    assert_eq!(depot.trim().unwrap().bytes as usize, 2 * mib());
}

/// Beside trims without end, pages that are free and were pinned before keep their contents. The
/// depot is small, so that most trims are about to take pages when a range is pinned.
#[test]
fn a_range_is_safe_from_the_moment_it_is_pinned() {
    let mut random = Random::new(seed());
    for depot in depots(2 * mib()) {
        let (stop, trims) = (AtomicBool::new(false), AtomicU64::new(0));
        let (shared, end) = (&depot, Instant::now() + Duration::from_secs(1));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    shared.trim().unwrap();
                    trims.fetch_add(1, Ordering::Relaxed);
                }
            });
            let _stop = StopAtEnd(&stop);
            let mut rounds = 0;
            while rounds < 5 || Instant::now() < end {
                rounds += 1;
                let mut page = shared.page(order(random.below(5) as u32)).unwrap();
                let (pfn, pages) = (page.pfn(), page.order().frames());
                page.fill(rounds as u8 | 1);
                let pinned = shared.pin_range(pfn, pages).unwrap();
                let start = shared.raw().address(pfn);
                drop(page);
                // A trim that began before may have looked at the range already; the next has not.
                let seen = trims.load(Ordering::Relaxed);
                while trims.load(Ordering::Relaxed) < seen + 2 {
                    std::thread::yield_now();
                }
                for at in (0..pages as usize * page_bytes()).step_by(page_bytes()) {
                    // SAFETY: inside the depot; the only thread that allocates is this one.
                    assert_eq!(unsafe { start.add(at).read_volatile() }, rounds as u8 | 1);
                }
                drop(pinned);
            }
        });
        shared.drain(Scope::ALL, Mode::Full);
        assert_eq!(shared.page(Order::BASE).unwrap().len(), page_bytes());
        all_back(&depot);
    }
}
