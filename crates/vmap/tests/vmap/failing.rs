//! A mapper and a page allocator that fail at the nth call: a typed error, no leak, consistent
//! metadata, and all areas from before as they were.

use pagedepot::{AllocError, Flags, Order, Pfn};
use pagedepot_vmap::{MapError, Options, PurgeDepth, VirtAddr, VmapConfig, VmapError};

use crate::paper::{PAGE, Paged, check_all_back, own_frames, paged};

fn fresh() -> Paged {
    let config = VmapConfig::new(1, 300);
    let vmap = paged(2000, 600, &config);
    // Scattered frames, so that every area takes several calls.
    let depot = vmap.host().depot;
    let all: Vec<Pfn> =
        std::iter::from_fn(|| depot.alloc(Order::BASE, Flags::default()).ok()).collect();
    let (keep, give): (Vec<_>, Vec<_>) = all.into_iter().partition(|frame| frame.get() % 4 == 3);
    give.iter().for_each(|&frame| depot.free(frame, Order::BASE).unwrap());
    KEPT.with_borrow_mut(|kept| *kept = keep);
    vmap
}

thread_local! {
    static KEPT: std::cell::RefCell<Vec<Pfn>> = const { std::cell::RefCell::new(Vec::new()) };
}

fn finish(mut vmap: Paged) {
    let kept = KEPT.with_borrow_mut(std::mem::take);
    vmap.mapper().never_fail();
    vmap.host().fail_frames_at(u64::MAX);
    vmap.purge(PurgeDepth::Everything);
    kept.iter().for_each(|&frame| vmap.host().depot.free(frame, Order::BASE).unwrap());
    check_all_back(&mut vmap);
}

fn stamp(vmap: &Paged, addr: VirtAddr, pages: usize) {
    (0..pages).for_each(|page| vmap.mapper().write(addr.add(page * PAGE), 100 + page as u64));
}

fn check_stamps(vmap: &Paged, addr: VirtAddr, pages: usize) {
    for page in 0..pages {
        assert_eq!(vmap.mapper().read(addr.add(page * PAGE)), 100 + page as u64);
    }
    let is_reserved = vmap.find(addr).unwrap().is_reserved;
    let behind = addr.add(pages * PAGE);
    assert!(is_reserved || !vmap.mapper().is_mapped(behind), "the guard is mapped");
}

/// Runs `request` with the nth call failing, for n = 0, 1, ... until none fails.
fn with_each_call_failing(mut request: impl FnMut(&mut Paged)) {
    for n in 0.. {
        assert!(n < 500, "it never succeeds");
        let mut vmap = fresh();
        vmap.mapper().fail_at(n);
        request(&mut vmap);
        let failed = vmap.mapper().has_failed();
        vmap.mapper().never_fail();
        vmap.validate().unwrap();
        finish(vmap);
        if !failed {
            assert!(n > 2, "nothing was tried");
            return;
        }
    }
}

#[test]
fn vmalloc_fails_cleanly_at_every_call() {
    with_each_call_failing(|vmap| match vmap.vmalloc(20, Options::DEFAULT) {
        Ok(addr) => {
            assert!(!vmap.mapper().has_failed());
            vmap.vfree(addr).unwrap();
        }
        Err(error) => assert_eq!(error, VmapError::Map(MapError::NoTables)),
    });
}

#[test]
fn vmap_fails_cleanly_at_every_call() {
    let frames: Vec<_> = own_frames(0, 20).into_iter().step_by(2).collect();
    with_each_call_failing(|vmap| match vmap.vmap(&frames, Options::DEFAULT) {
        Ok(addr) => vmap.vunmap(addr).unwrap(),
        Err(error) => assert_eq!(error, VmapError::Map(MapError::NoTables)),
    });
}

#[test]
fn short_lived_mappings_fail_cleanly_at_every_call() {
    let frames: Vec<_> = own_frames(0, 20).into_iter().step_by(2).collect();
    with_each_call_failing(|vmap| match vmap.vm_map_ram(&frames, Options::DEFAULT) {
        Ok(addr) => vmap.vm_unmap_ram(addr, 10).unwrap(),
        Err(error) => assert_eq!(error, VmapError::Map(MapError::NoTables)),
    });
}

#[test]
fn growth_in_a_reservation_fails_cleanly_at_every_call() {
    with_each_call_failing(|vmap| {
        let Ok(addr) = vmap.vmalloc_reserved(8, 60, Options::DEFAULT) else { return };
        stamp(vmap, addr, 8);
        let failed = vmap.mapper().has_failed();
        for pages in [30, 12] {
            match vmap.vrealloc(addr, pages, Options::DEFAULT) {
                Ok(same) => assert_eq!(same, addr),
                Err(error) => {
                    assert!(!failed);
                    assert_eq!(error, VmapError::Map(MapError::NoTables));
                    assert_eq!(vmap.find(addr).unwrap().mapped_pages, 8);
                }
            }
            check_stamps(vmap, addr, 8);
        }
        let info = vmap.find(addr).unwrap();
        assert!(info.is_reserved);
        // Where a cut cannot be unmapped, the addresses behind it are lost with it.
        let kept = info.span.pages == 61 && info.guard_pages == 1;
        assert!(kept || info.span.pages == info.mapped_pages, "{info:?}");
        vmap.vfree(addr).unwrap();
    });
}

#[test]
fn growth_in_place_fails_cleanly_at_every_call() {
    with_each_call_failing(|vmap| {
        let next = vmap.mapper();
        let Ok(addr) = vmap.vmalloc(8, Options::DEFAULT) else { return };
        stamp(vmap, addr, 8);
        let failed = next.has_failed();
        match vmap.vrealloc(addr, 30, Options::DEFAULT) {
            Ok(same) => assert_eq!(same, addr),
            Err(error) => {
                assert!(!failed);
                assert_eq!(error, VmapError::Map(MapError::NoTables));
                check_stamps(vmap, addr, 8);
                assert_eq!(vmap.find(addr).unwrap().span.pages, 9);
            }
        }
        vmap.vfree(addr).unwrap();
    });
}

#[test]
fn growth_elsewhere_fails_cleanly_at_every_call() {
    with_each_call_failing(|vmap| {
        let Ok(addr) = vmap.vmalloc(8, Options::DEFAULT) else { return };
        let wall = vmap.alloc(1, Options::DEFAULT).unwrap();
        stamp(vmap, addr, 8);
        let now = match vmap.vrealloc(addr, 30, Options::DEFAULT) {
            Ok(moved) => {
                assert_ne!(moved, addr);
                moved
            }
            Err(error) => {
                assert_eq!(error, VmapError::Map(MapError::NoTables));
                check_stamps(vmap, addr, 8);
                addr
            }
        };
        vmap.vfree(now).unwrap();
        vmap.free(wall).unwrap();
    });
}

#[test]
fn shrinking_keeps_the_area_whole_or_small() {
    with_each_call_failing(|vmap| {
        let Ok(addr) = vmap.vmalloc(20, Options::DEFAULT) else { return };
        stamp(vmap, addr, 20);
        vmap.vrealloc(addr, 5, Options::DEFAULT).unwrap();
        for page in 0..5 {
            assert_eq!(vmap.mapper().read(addr.add(page * PAGE)), 100 + page as u64);
        }
        vmap.validate().unwrap();
        vmap.vfree(addr).unwrap();
    });
}

#[test]
fn areas_that_cannot_be_unmapped_stay_lazy_until_they_can() {
    with_each_call_failing(|vmap| {
        let addrs: Vec<_> =
            (0..6).map_while(|_| vmap.vmalloc(10, Options::DEFAULT.guard_pages(0)).ok()).collect();
        let frames = own_frames(0, 10);
        let ram = vmap.vm_map_ram(&frames, Options::DEFAULT);
        // Every second one, so that there are several spans.
        addrs.iter().step_by(2).for_each(|&addr| vmap.vfree(addr).unwrap());
        if let Ok(ram) = ram {
            vmap.vm_unmap_ram(ram, 10).unwrap();
        }
        let failed = vmap.mapper().has_failed();
        let purged = vmap.purge(PurgeDepth::Lazy);
        if vmap.mapper().has_failed() && !failed {
            assert_eq!(purged.error, Some(MapError::TooManyMappings { limit: 7 }));
            assert!(purged.stuck_areas > 0 && vmap.stats().lazy_pages > 0);
            vmap.validate().unwrap();
            let purged = vmap.purge(PurgeDepth::Lazy);
            assert_eq!(purged.stuck_areas, 0);
        }
        assert_eq!(vmap.stats().lazy_pages, 0);
        addrs.iter().skip(1).step_by(2).for_each(|&addr| vmap.vfree(addr).unwrap());
    });
}

#[test]
fn frames_that_moved_outlive_mappings_that_are_stuck() {
    with_each_call_failing(|vmap| {
        let Ok(addr) = vmap.vmalloc(8, Options::DEFAULT.flags(Flags::MOVABLE)) else { return };
        let wall = vmap.alloc(1, Options::DEFAULT).unwrap();
        let moved = vmap.vrealloc(addr, 12, Options::DEFAULT);
        vmap.vfree(moved.unwrap_or(addr)).unwrap();
        // The host would notice a frame that comes back while the old place still reaches it.
        let failed = vmap.mapper().has_failed();
        let purged = vmap.purge(PurgeDepth::Lazy);
        assert_eq!(purged.stuck_areas > 0, !failed && vmap.mapper().has_failed());
        vmap.free(wall).unwrap();
    });
}

#[test]
fn requests_fail_cleanly_at_every_frame() {
    for n in 0..12 {
        let vmap = fresh();
        let addr = vmap.vmalloc(8, Options::DEFAULT).unwrap();
        stamp(&vmap, addr, 8);
        let exhausted = VmapError::Frames(AllocError::Exhausted);
        vmap.host().fail_frames_at(n);
        match vmap.vmalloc(200, Options::DEFAULT) {
            Ok(other) => vmap.vfree(other).unwrap(),
            Err(error) => assert_eq!(error, exhausted),
        }
        vmap.host().fail_frames_at(n);
        let mut now = addr;
        for pages in [100, 300] {
            match vmap.vrealloc(now, pages, Options::DEFAULT) {
                Ok(moved) => now = moved,
                Err(error) => {
                    assert_eq!(error, exhausted);
                    break;
                }
            }
        }
        (0..8).for_each(|page| {
            assert_eq!(vmap.mapper().read(now.add(page * PAGE)), 100 + page as u64)
        });
        vmap.vfree(now).unwrap();
        finish(vmap);
    }
}

#[test]
fn a_frame_number_that_cannot_be_kept_is_refused() {
    let vmap = fresh();
    let last = [Pfn::new(u32::MAX)];
    assert_eq!(vmap.vmap(&last, Options::DEFAULT), Err(VmapError::BadFrame));
    assert_eq!(vmap.vm_map_ram(&last, Options::DEFAULT), Err(VmapError::BadFrame));
    let area = vmap.alloc(3, Options::DEFAULT).unwrap();
    assert_eq!(vmap.map_frames(area, 0, &last, Options::DEFAULT), Err(VmapError::BadFrame));
    vmap.free(area).unwrap();
    finish(vmap);
}

/// Zeroing it goes through the frames, and may fail like a mapping.
#[test]
fn read_only_memory_fails_cleanly_at_every_call() {
    use pagedepot_vmap::Protection;
    let options = Options::DEFAULT.protection(Protection::READ);
    let is_clean = |error| assert_eq!(error, VmapError::Map(MapError::NoTables));
    with_each_call_failing(|vmap| {
        let addr = match vmap.vmalloc(8, options) {
            Ok(addr) => addr,
            Err(error) => return is_clean(error),
        };
        let wall = vmap.alloc(1, Options::DEFAULT).unwrap();
        let moved =
            vmap.vrealloc(addr, 20, options).inspect_err(|&error| is_clean(error)).unwrap_or(addr);
        vmap.free(wall).unwrap();
        let grown = vmap
            .vrealloc(moved, 30, options)
            .inspect_err(|&error| is_clean(error))
            .unwrap_or(moved);
        (0..8).for_each(|page| assert_eq!(vmap.mapper().read(grown.add(page * PAGE)), 0));
        vmap.vfree(grown).unwrap();
    });
}

#[test]
fn what_fails_is_purged_whole_whatever_guard_the_area_had_before() {
    let frames: Vec<_> = own_frames(0, 24).into_iter().step_by(2).collect();
    let guards = Options::DEFAULT.guard_pages(3);
    let bare = Options::DEFAULT.guard_pages(0);
    for fails_at in 0..12 {
        for is_short_lived in [false, true] {
            let mut vmap = fresh();
            let first = vmap.vmap(&frames[..9], guards).unwrap();
            vmap.vunmap(first).unwrap();
            vmap.purge(PurgeDepth::Lazy);
            // Gets the same area, all of it to be mapped.
            vmap.mapper().fail_at(fails_at);
            let failed = if is_short_lived {
                vmap.vm_map_ram(&frames, bare)
            } else {
                vmap.vmap(&frames, bare)
            };
            assert_eq!(failed, Err(VmapError::Map(MapError::NoTables)));
            vmap.mapper().never_fail();
            vmap.validate().unwrap();
            vmap.purge(PurgeDepth::Lazy);
            vmap.validate().unwrap();
            let again = vmap.vmap(&frames, bare).unwrap();
            assert_eq!((again, vmap.frame_at(again)), (first, Some(frames[0])));
            vmap.vunmap(again).unwrap();
            finish(vmap);
        }
    }
}

#[test]
fn the_purge_that_a_failed_request_makes_due_is_asked_for() {
    let frames: Vec<_> = own_frames(0, 40).into_iter().step_by(2).collect();
    for fails_at in [8, 15] {
        let mut vmap =
            paged(2000, 64, &VmapConfig { lazy_pages_max: Some(16), ..VmapConfig::new(1, 300) });
        vmap.mapper().fail_at(fails_at);
        let failed = vmap.vmap(&frames, Options::DEFAULT.no_wait());
        assert_eq!(failed, Err(VmapError::Map(MapError::NoTables)));
        assert_eq!(vmap.stats().lazy_pages, 21);
        assert_eq!(vmap.host().purges_wanted.load(std::sync::atomic::Ordering::Relaxed), 1);
        check_all_back(&mut vmap);
    }
}

#[test]
fn requests_that_fail_are_counted_and_areas_that_they_had_are_no_misses() {
    let vmap = fresh();
    vmap.host().fail_frames_at(0);
    let exhausted = Err(VmapError::Frames(AllocError::Exhausted));
    assert_eq!(vmap.vmalloc(7, Options::DEFAULT), exhausted);
    let counts = vmap.stats().counts;
    assert_eq!((counts.failures, counts.carved_areas, counts.abandoned_areas), (1, 1, 1));
    let area = vmap.alloc(7, Options::DEFAULT).unwrap();
    let stats = vmap.stats();
    assert_eq!((stats.allocated_areas, stats.pool_hits, stats.counts.carved_areas), (1, 1, 1));
    vmap.free(area).unwrap();
    // Each attempt at it fails, for want of addresses.
    assert_eq!(vmap.alloc(3000, Options::DEFAULT), Err(VmapError::BadSize));
    let whole = vmap.alloc_at(vmap.span().start, 2000, Options::DEFAULT.guard_pages(0)).unwrap();
    assert_eq!(vmap.vmalloc(7, Options::DEFAULT), Err(VmapError::NoSpace));
    assert_eq!(vmap.alloc(7, Options::DEFAULT), Err(VmapError::NoSpace));
    let occupied = vmap.alloc_at(whole, 1, Options::DEFAULT);
    assert_eq!(occupied, Err(VmapError::Occupied));
    assert_eq!(vmap.vrealloc(whole, 1, Options::DEFAULT), Err(VmapError::NotAllocated));
    vmap.free(whole).unwrap();
    assert_eq!(vmap.stats().counts.failures, 5);
    finish(vmap);
}

#[test]
fn growth_that_fails_elsewhere_quarantines_nothing_that_is_in_use() {
    let vmap = fresh();
    let at = vmap.vmalloc(20, Options::DEFAULT).unwrap();
    let wall = vmap.alloc_at(at.add(21 * PAGE), 1, Options::DEFAULT).unwrap();
    stamp(&vmap, at, 20);
    vmap.mapper().fail_at(3);
    let failed = vmap.vrealloc(at, 30, Options::DEFAULT);
    assert_eq!(failed, Err(VmapError::Map(MapError::NoTables)));
    assert_eq!(vmap.host().quarantined(), 0);
    vmap.purge(PurgeDepth::Lazy);
    check_stamps(&vmap, at, 20);
    vmap.vfree(at).unwrap();
    vmap.free(wall).unwrap();
    finish(vmap);
}
