//! Running out of addresses, frames and mappings: typed errors, no leaks, and a purge of what was
//! freed first.

use crate::common::{mib, page_bytes};
use pagedepot_linux::vmalloc::{MapError, Vmalloc, VmapError};
use pagedepot_linux::{AllocError, Order};

use crate::{all_back, depot, scatter};

/// Allocates buffers of `pages` pages until a request fails.
fn exhaust(space: &Vmalloc, pages: usize) -> (Vec<pagedepot_linux::VmallocBuf>, VmapError) {
    let mut bufs = Vec::new();
    loop {
        match space.buf(pages * page_bytes()) {
            Ok(buf) => bufs.push(buf),
            Err(error) => return (bufs, error),
        }
    }
}

#[test]
fn addresses_run_out() {
    let space = Vmalloc::builder(&depot(64 * mib())).bytes(8 * mib()).build().unwrap();
    // More where a page table is larger.
    let bytes = space.range().1;
    let (bufs, error) = exhaust(&space, 15);
    assert_eq!((bufs.len(), error), (bytes / page_bytes() / 16, VmapError::NoSpace));
    assert!(error.to_string().contains("larger range"));
    drop(bufs);
    // All of the space is in pools, and a request gets it back from there.
    let whole = space.buf(bytes - page_bytes()).unwrap();
    drop(whole);
    all_back(space);
}

#[test]
fn areas_run_out() {
    let space = Vmalloc::builder(&depot(64 * mib())).areas_max(10).build().unwrap();
    let (bufs, error) = exhaust(&space, 3);
    assert_eq!(error, VmapError::NoAreas);
    assert!(bufs.len() >= 5);
    drop(bufs);
    all_back(space);
}

#[test]
fn frames_run_out() {
    let space = Vmalloc::builder(&depot(4 * mib())).build().unwrap();
    let (bufs, error) = exhaust(&space, 100);
    assert_eq!((bufs.len(), error), (10, VmapError::Frames(AllocError::Exhausted)));
    let (more, _) = exhaust(&space, 1);
    assert_eq!(more.len(), 24, "what failed has given its frames back");
    drop((bufs, more));
    drop(space.buf(1000 * page_bytes()).unwrap());
    all_back(space);
}

#[test]
fn pools_shrink_before_the_depot_fails() {
    let depot = depot(16 * mib());
    let space = Vmalloc::builder(&depot).warm_bytes(32 * mib()).build().unwrap();
    drop((0..20).map(|_| space.buf(100 * page_bytes()).unwrap()).collect::<Vec<_>>());
    assert!(space.stats().warm_pages > 1000);
    let pages: Vec<_> = std::iter::from_fn(|| depot.page(Order::BASE).ok()).collect();
    assert_eq!(pages.len(), 4096);
    assert_eq!(space.stats().warm_pages, 0);
    drop(pages);
    drop(depot);
    all_back(space);
}

#[test]
fn mappings_run_out() {
    let depot = depot(16 * mib());
    let held = scatter(&depot);
    let space = Vmalloc::builder(&depot).mappings_max(104).build().unwrap();
    assert_eq!((space.mappings_max(), space.mappings()), (100, 1));
    // 10 scattered frames are 10 mappings, and their guard is one.
    let (bufs, error) = exhaust(&space, 10);
    let scattered = VmapError::Map(MapError::TooScattered { needed: 10 });
    assert_eq!((bufs.len(), error), (9, scattered));
    let text = error.to_string();
    assert!(text.contains("purge") && text.contains("vm.max_map_count"), "{text}");
    // Freed buffers that are still mapped count, until a request needs their mappings: one of
    // another size here.
    drop(bufs);
    let used = space.mappings();
    let (bufs, error) = exhaust(&space, 4);
    assert!(bufs.len() >= 18, "{} buffers after {used} mappings: {error}", bufs.len());
    assert!(space.stats().counts.purges > 0);
    assert_eq!(space.stats().counts.failures, 2, "requests, and not attempts");
    drop(bufs);
    // Longer runs are preferred now: all of this is one mapping.
    drop(held);
    let (mut bufs, _) = exhaust(&space, 1);
    bufs.truncate(space.mappings_max() as usize * 3 / 8 + 1);
    space.shrink();
    let before = space.mappings();
    assert!(before > 70);
    let long = space.buf(512 * page_bytes()).unwrap();
    assert!(space.mappings() <= before + 2, "{before} {}", space.mappings());
    drop((long, bufs, depot));
    all_back(space);
}

#[test]
fn runs_that_do_not_all_fit_are_refused_before_one_is_mapped() {
    let depot = depot(16 * mib());
    let held = scatter(&depot);
    for mappings in 8..40 {
        let space = Vmalloc::builder(&depot).mappings_max(mappings).build().unwrap();
        let first = space.buf(page_bytes()).unwrap();
        for pages in 2..20 {
            if let Err(error) = space.buf(pages * page_bytes()) {
                let needed = pages as u32;
                assert_eq!(error, VmapError::Map(MapError::TooScattered { needed }));
            }
            space.shrink();
        }
        drop(first);
        space.shrink();
    }
    drop((held, depot));
}

#[test]
fn a_scattered_buffer_takes_a_mapping_per_run() {
    let depot = depot(16 * mib());
    // Free runs of three frames.
    let all: Vec<_> = std::iter::from_fn(|| depot.page(Order::BASE).ok()).collect();
    let (held, free): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|page| page.pfn().get() % 4 == 3);
    drop(free);
    depot.drain(pagedepot_linux::Scope::ALL, pagedepot_linux::Mode::Full);
    let space = Vmalloc::builder(&depot).mappings_max(1204).build().unwrap();
    // More than the pairs of frames: single ones beside them fill it up.
    let mut buf = space.buf(2700 * page_bytes()).unwrap();
    assert!(space.mappings() <= 1 + 1024 + 20, "{} mappings", space.mappings());
    buf.fill(3);
    // More runs than mappings are left: told in advance, by a request that maps nothing.
    let before = (space.mappings(), space.stats().counts.unmapped_spans);
    let failed = space.buf(300 * page_bytes()).unwrap_err();
    let VmapError::Map(MapError::TooScattered { needed }) = failed else { panic!("{failed:?}") };
    assert!((200..=300).contains(&needed), "{needed}");
    assert!(failed.to_string().contains("vm.max_map_count"), "{failed}");
    assert_eq!((space.mappings(), space.stats().counts.unmapped_spans), before);
    // A buffer that grows and fails is as before.
    let error = buf.grow(3000 * page_bytes()).unwrap_err();
    assert!(matches!(error, VmapError::Map(MapError::TooScattered { .. })), "{error:?}");
    assert!(buf.len() == 2700 * page_bytes() && buf.iter().all(|&byte| byte == 3));
    drop((buf, held, depot));
    all_back(space);
}
