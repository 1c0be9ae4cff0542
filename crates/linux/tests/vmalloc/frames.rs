//! The states of frames: quarantined while lazy areas map them, present once mapped, back when the
//! depot needs them, untouched by a trim.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::{mib, page_bytes};
use pagedepot_linux::vmalloc::PurgeDepth;
use pagedepot_linux::{Depot, MemoryKind, Order, Vmalloc};

use crate::{all_back, common, depot};

fn quarantined(depot: &Depot) -> u64 {
    depot.shortage().zones().map(|zone| zone.quarantined_pages).sum()
}

#[test]
fn frames_are_quarantined_until_their_mapping_is_gone() {
    let depot = Arc::new(
        Depot::builder(16 * mib()).memory(MemoryKind::Memfd).caches(false).build().unwrap(),
    );
    let space = Vmalloc::builder(&depot).warm_bytes(0).build().unwrap();
    let buf = space.buf(20 * page_bytes()).unwrap();
    let frames: Vec<_> =
        buf.chunks(page_bytes()).map(|page| space.pfn_of(page.as_ptr()).unwrap()).collect();
    assert_eq!(quarantined(&depot), 0);
    drop(buf);
    assert_eq!(quarantined(&depot), 20);
    assert!(frames.iter().all(|&frame| !depot.raw().is_free(frame)));
    let purged = space.purge(PurgeDepth::Lazy);
    assert_eq!((purged.areas, purged.frames, quarantined(&depot)), (1, 20, 0));
    assert!(frames.iter().all(|&frame| depot.raw().is_free(frame)));
    drop(depot);
    all_back(space);
}

/// Page faults of this thread without I/O. AArch64 also counts the first write to a page that is
/// present, unless its processor notes itself what was written. So tests read.
fn faults() -> i64 {
    // SAFETY: a plain structure of numbers, filled by the call.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, &mut usage), 0);
        usage.ru_minflt
    }
}

#[test]
fn what_is_mapped_is_present() {
    let space = Vmalloc::new(&depot(64 * mib())).unwrap();
    // The memory is not zeroed here: that would be the first touch.
    let keep = Vmalloc::builder(space.depot())
        .stale(pagedepot_linux::vmalloc::StaleData::Keep)
        .populate(true)
        .build()
        .unwrap();
    let buf = keep.buf(1000 * page_bytes()).unwrap();
    let before = faults();
    buf.chunks(page_bytes()).for_each(|page| _ = black_box(page[0]));
    let by_touch = faults() - before;
    assert!(by_touch < 50, "{by_touch} faults for 1000 pages");
    drop(buf);
    drop(keep);
    all_back(space);
}

#[test]
fn short_runs_of_pages_that_the_depot_has_are_present() {
    let depot = Depot::builder(128 * mib()).memory(MemoryKind::Memfd).populate(true).build();
    let space = Vmalloc::builder(&depot.unwrap())
        .stale(pagedepot_linux::vmalloc::StaleData::Keep)
        .warm_bytes(0)
        .build()
        .unwrap();
    // More pages than a page table maps, so that some areas cross from one to the next.
    let bufs: Vec<_> = (0..700).map(|i| space.buf((1 + i % 63) * page_bytes())).collect();
    let (mut pages, before) = (0, faults());
    for buf in &bufs {
        let buf = buf.as_ref().unwrap();
        pages += (buf.len() / page_bytes()) as i64;
        buf.chunks(page_bytes()).for_each(|page| _ = black_box(page[0]));
    }
    let by_touch = faults() - before;
    assert!(by_touch < pages / 20, "{by_touch} faults for {pages} pages");
    drop(bufs);
    all_back(space);
}

#[test]
fn a_trim_leaves_areas_alone() {
    let depot = depot(64 * mib());
    let space = Vmalloc::new(&depot).unwrap();
    let mut buf = space.buf(300 * page_bytes()).unwrap();
    buf.fill(0x5a);
    drop(space.buf(100 * page_bytes()).unwrap());
    space.buf(500 * page_bytes()).unwrap().fill(1);
    depot.trim().unwrap();
    space.shrink();
    // A trim leaves what lies in fronts.
    depot.drain(pagedepot_linux::Scope::ALL, pagedepot_linux::Mode::Full);
    let trimmed = depot.trim().unwrap();
    assert!(trimmed.bytes >= 500 * page_bytes() as u64, "{trimmed:?}");
    assert!(buf.iter().all(|&byte| byte == 0x5a));
    let more = space.buf(600 * page_bytes()).unwrap();
    assert!(more.iter().all(|&byte| byte == 0));
    drop((buf, more, depot));
    all_back(space);
}

#[test]
fn spaces_come_and_go_under_pressure() {
    let depot = depot(16 * mib());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let space = Vmalloc::builder(&depot).bytes(32 * mib()).build().unwrap();
                    for pages in [1, 7, 40, 100] {
                        // The depot may have no pages at this moment.
                        drop(
                            (0..10)
                                .map_while(|_| space.buf(pages * page_bytes()).ok())
                                .collect::<Vec<_>>(),
                        );
                    }
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..100 {
                drop(std::iter::from_fn(|| depot.page(Order::BASE).ok()).collect::<Vec<_>>());
                std::thread::sleep(Duration::from_millis(2));
            }
            stop.store(true, Ordering::Relaxed);
        });
    });
    assert_eq!(quarantined(&depot), 0);
    common::all_back(&depot);
}
