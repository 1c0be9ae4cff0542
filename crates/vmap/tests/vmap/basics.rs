//! Each request by itself: what its documentation promises.

use pagedepot::{Flags, Pressure, Reclaim};
use pagedepot_vmap::{
    AreaState, Kind, Options, Protection, PurgeBy, PurgeDepth, StaleData, VfreeError, VirtAddr,
    VmapConfig, VmapError,
};

use crate::paper::{ByThread, PAGE, TABLE, check_all_back, own_frames, paged, paged_at};

fn config() -> VmapConfig {
    VmapConfig { pool_pages_max: Some(1000), ..VmapConfig::new(2, 500) }
}

#[test]
fn areas_are_found_by_any_address_inside_and_by_none_outside() {
    let mut vmap = paged(1000, 64, &config());
    for pages in [1, 2, 15, 16, 17, 40, 300] {
        let addr = vmap.alloc(pages, Options::DEFAULT).unwrap();
        for page in [0, pages / 2, pages - 1, pages] {
            let info = vmap.find(addr.add(page as usize * PAGE + 5)).unwrap();
            assert_eq!((info.span.start, info.span.pages), (addr, pages + 1));
            assert_eq!((info.guard_pages, info.kind), (1, Kind::Address));
            assert!(info.caller.unwrap().file().ends_with("basics.rs"));
        }
        let after = addr.add((pages as usize + 1) * PAGE);
        assert!(vmap.find(after).is_none_or(|info| info.span.start == after));
        vmap.free(addr).unwrap();
        assert_eq!(vmap.find(addr), None);
    }
    check_all_back(&mut vmap);
}

#[test]
fn windows_alignment_and_reserved_places_are_kept() {
    let mut vmap = paged(4096, 64, &config());
    let span = vmap.span();
    let (start, end) = (span.start.add(100 * PAGE), span.start.add(110 * PAGE));
    let inside = vmap.alloc(9, Options::DEFAULT.window(start, end)).unwrap();
    assert_eq!(inside, start);
    assert_eq!(vmap.alloc(1, Options::DEFAULT.window(start, end)), Err(VmapError::NoSpace));
    assert_eq!(
        vmap.alloc_at(start.add(PAGE), 1, Options::DEFAULT.guard_pages(0)),
        Err(VmapError::Occupied)
    );
    vmap.free(inside).unwrap();
    // It is pooled now: the reservation purges it.
    assert_eq!(
        vmap.alloc_at(start.add(PAGE), 3, Options::DEFAULT.guard_pages(0)),
        Ok(start.add(PAGE))
    );
    assert_eq!(vmap.alloc(1, Options::DEFAULT.window(start, start)), Err(VmapError::BadWindow));
    assert_eq!(
        vmap.alloc_at(start.add(1), 3, Options::DEFAULT.guard_pages(0)),
        Err(VmapError::BadWindow)
    );
    for shift in 0..24 {
        let addr = vmap.alloc(3, Options::DEFAULT.align(1 << shift)).unwrap();
        assert_eq!(addr.get() % (1 << shift), 0);
        vmap.free(addr).unwrap();
    }
    assert_eq!(vmap.alloc(1, Options::DEFAULT.align(1 << 40)), Err(VmapError::NoSpace));
    assert_eq!(vmap.alloc(1, Options::DEFAULT.align(1 << 63)), Err(VmapError::NoSpace));
    assert_eq!(vmap.alloc(1, Options::DEFAULT.align(3)), Err(VmapError::BadAlign));
    assert_eq!(vmap.alloc(0, Options::DEFAULT), Err(VmapError::BadSize));
    assert_eq!(vmap.alloc(u32::MAX, Options::DEFAULT), Err(VmapError::BadSize));
    vmap.free(start.add(PAGE)).unwrap();
    check_all_back(&mut vmap);
}

#[test]
fn a_second_free_and_a_wrong_one_are_refused() {
    let mut vmap = paged(1000, 64, &config());
    let area = vmap.alloc(5, Options::DEFAULT).unwrap();
    assert_eq!(vmap.vfree(area), Err(VfreeError::WrongKind(Kind::Address)));
    assert_eq!(vmap.free(area.add(PAGE)), Err(VfreeError::NotAllocated));
    assert_eq!(vmap.free(area.add(1)), Err(VfreeError::NotAllocated));
    assert_eq!(vmap.free(VirtAddr::new(PAGE)), Err(VfreeError::OutOfRange));
    vmap.free(area).unwrap();
    assert_eq!(vmap.free(area), Err(VfreeError::NotAllocated));
    let memory = vmap.vmalloc(5, Options::DEFAULT).unwrap();
    assert_eq!(vmap.vunmap(memory), Err(VfreeError::WrongKind(Kind::Vmalloc)));
    vmap.vfree(memory).unwrap();
    assert_eq!(vmap.vfree(memory), Err(VfreeError::NotAllocated));
    let frames = own_frames(0, 3);
    let mapped = vmap.vmap(&frames, Options::DEFAULT).unwrap();
    vmap.vunmap(mapped).unwrap();
    assert_eq!(vmap.vunmap(mapped), Err(VfreeError::NotAllocated));
    check_all_back(&mut vmap);
}

#[test]
fn memory_is_mapped_up_to_its_guard() {
    let mut vmap = paged(2000, 2048, &config());
    for pages in [1, 3, 16, 100, 700] {
        let addr = vmap.vmalloc(pages, Options::DEFAULT).unwrap();
        for page in 0..pages as usize {
            let at = addr.add(page * PAGE);
            vmap.mapper().write(at, page as u64);
            assert_eq!(vmap.frame_at(at), vmap.mapper().frame_at(at));
        }
        assert!(!vmap.mapper().is_mapped(addr.add(pages as usize * PAGE)));
        assert!(
            (0..pages as usize)
                .all(|page| vmap.mapper().read(addr.add(page * PAGE)) == page as u64)
        );
        vmap.vfree(addr).unwrap();
    }
    check_all_back(&mut vmap);
}

#[test]
fn a_warm_pair_maps_nothing_and_zeroes() {
    let mut vmap = paged(1000, 512, &config());
    let first = vmap.vmalloc(16, Options::DEFAULT).unwrap();
    vmap.mapper().write(first, 7);
    vmap.vfree(first).unwrap();
    let before = vmap.stats();
    for _ in 0..10 {
        let again = vmap.vmalloc(16, Options::DEFAULT).unwrap();
        assert_eq!((again, vmap.mapper().read(again)), (first, 0));
        vmap.mapper().write(again, 9);
        vmap.vfree(again).unwrap();
    }
    let after = vmap.stats();
    assert_eq!(after.pool_hits - before.pool_hits, 10);
    assert_eq!(after.counts, before.counts);
    // Requests for other frames, without a guard or without writing do not get them.
    for options in [
        Options::DEFAULT.flags(Flags::UNMOVABLE),
        Options::DEFAULT.guard_pages(0),
        Options::DEFAULT.protection(Protection::READ),
    ] {
        let other = vmap.vmalloc(16, options).unwrap();
        assert_ne!(other, first);
        vmap.vfree(other).unwrap();
    }
    // On another node neither.
    ByThread::run_on(1);
    let other = vmap.vmalloc(16, Options::DEFAULT).unwrap();
    assert_ne!(other, first);
    // Freed there, it returns to its own node.
    vmap.vfree(other).unwrap();
    assert_eq!(vmap.vmalloc(16, Options::DEFAULT), Ok(other));
    ByThread::run_on(0);
    vmap.vfree(other).unwrap();
    assert_eq!(vmap.vmalloc(16, Options::DEFAULT), Ok(first));
    vmap.vfree(first).unwrap();
    check_all_back(&mut vmap);
}

#[test]
fn stale_data_is_zeroed_poisoned_or_kept_as_configured() {
    let poison = u64::from_le_bytes([0xaa; 8]);
    for (stale, after) in
        [(StaleData::Zero, 0), (StaleData::Poison(0xaa), poison), (StaleData::Keep, 7)]
    {
        let mut vmap = paged(1000, 512, &VmapConfig { stale, ..config() });
        let addr = vmap.vmalloc(16, Options::DEFAULT).unwrap();
        vmap.mapper().write(addr.add(15 * PAGE), 7);
        vmap.vfree(addr).unwrap();
        assert_eq!(vmap.vmalloc(16, Options::DEFAULT), Ok(addr));
        assert_eq!(vmap.mapper().read(addr.add(15 * PAGE)), after, "{stale:?}");
        vmap.vfree(addr).unwrap();
        assert_eq!(vmap.vmalloc(16, Options::DEFAULT.zeroed()), Ok(addr));
        assert_eq!(vmap.mapper().read(addr.add(15 * PAGE)), 0);
        vmap.vfree(addr).unwrap();
        check_all_back(&mut vmap);
    }
}

#[test]
fn growing_keeps_contents_in_place_or_elsewhere() {
    let mut vmap = paged(4000, 2048, &config());
    let first = vmap.vmalloc(3, Options::DEFAULT).unwrap();
    for page in 0..3 {
        vmap.mapper().write(first.add(page * PAGE), 100 + page as u64);
    }
    // The pages behind it are free: it grows in place.
    assert_eq!(vmap.vrealloc(first, 40, Options::DEFAULT), Ok(first));
    let wall = vmap.alloc(1, Options::DEFAULT).unwrap();
    assert_eq!(wall, first.add(41 * PAGE));
    vmap.mapper().write(first.add(39 * PAGE), 139);
    // Now they are taken: it moves.
    let moved = vmap.vrealloc(first, 300, Options::DEFAULT).unwrap();
    assert_ne!(moved, first);
    assert_eq!(vmap.vfree(first), Err(VfreeError::NotAllocated));
    for (page, stamp) in [(0, 100), (1, 101), (2, 102), (3, 0), (39, 139), (40, 0), (299, 0)] {
        assert_eq!(vmap.mapper().read(moved.add(page * PAGE)), stamp);
    }
    assert!(!vmap.mapper().is_mapped(moved.add(300 * PAGE)));
    // Shrinking returns the rest at once, and keeps a guard.
    let free = || {
        vmap.host().depot.free_pages(pagedepot::ZoneId::new(0))
            + vmap.host().depot.zone_stats(pagedepot::ZoneId::new(0)).unwrap().cached_pages
    };
    let before = free();
    assert_eq!(vmap.vrealloc(moved, 2, Options::DEFAULT), Ok(moved));
    assert_eq!(free() - before, 298);
    assert_eq!(vmap.mapper().read(moved.add(PAGE)), 101);
    assert!(!vmap.mapper().is_mapped(moved.add(2 * PAGE)));
    assert_eq!(vmap.find(moved).unwrap().span.pages, 3);
    assert_eq!(vmap.vrealloc(moved, 0, Options::DEFAULT), Err(VmapError::BadSize));
    assert_eq!(vmap.vrealloc(wall, 9, Options::DEFAULT), Err(VmapError::NotAllocated));
    vmap.vfree(moved).unwrap();
    vmap.free(wall).unwrap();
    check_all_back(&mut vmap);
}

#[test]
fn ranges_are_filled_piece_by_piece() {
    let mut vmap = paged(1000, 64, &config());
    let area = vmap.alloc(100, Options::DEFAULT).unwrap();
    vmap.map_frames(area, 10, &own_frames(0, 5), Options::DEFAULT).unwrap();
    vmap.map_frames(area, 95, &own_frames(10, 5), Options::DEFAULT).unwrap();
    assert_eq!(
        vmap.map_frames(area, 12, &own_frames(20, 1), Options::DEFAULT),
        Err(VmapError::BadOffset)
    );
    assert_eq!(
        vmap.map_frames(area, 99, &own_frames(20, 2), Options::DEFAULT),
        Err(VmapError::BadOffset)
    );
    assert!(!vmap.mapper().is_mapped(area));
    assert_eq!(vmap.mapper().frame_at(area.add(95 * PAGE)), Some(own_frames(10, 1)[0]));
    assert_eq!(vmap.find(area).unwrap().mapped_pages, 10);
    assert_eq!(vmap.free(area), Err(VfreeError::WrongKind(Kind::Vmap)));
    vmap.vunmap(area).unwrap();
    check_all_back(&mut vmap);
}

#[test]
fn reading_goes_across_areas_and_holes() {
    let mut vmap = paged(1000, 512, &config());
    let first = vmap.vmalloc(2, Options::DEFAULT).unwrap();
    let hole = vmap.alloc(1, Options::DEFAULT).unwrap();
    let frames = own_frames(0, 2);
    let last = vmap.vmap(&frames, Options::DEFAULT).unwrap();
    assert!(first < hole && hole < last);
    vmap.mapper().write(first.add(PAGE), u64::from_le_bytes([1; 8]));
    frames.iter().for_each(|&frame| vmap.mapper().set_contents(frame, u64::from_le_bytes([2; 8])));
    let start = first.add(PAGE + 100);
    let mut buf = vec![0xee; last.get() + 2 * PAGE + 50 - start.get()];
    let read = vmap.read_at(start, &mut buf);
    assert_eq!(read, PAGE - 100 + 2 * PAGE);
    let expected = |at: usize| match start.get() + at {
        addr if addr < first.get() + 2 * PAGE => 1,
        addr if (last.get()..last.get() + 2 * PAGE).contains(&addr) => 2,
        _ => 0,
    };
    assert!(buf.iter().enumerate().all(|(at, &byte)| byte == expected(at)));
    vmap.vunmap(last).unwrap();
    let mut gone = [0xee; 16];
    assert_eq!((vmap.read_at(last, &mut gone), gone), (0, [0; 16]));
    assert_eq!(vmap.read_at(VirtAddr::new(0), &mut gone), 0);
    assert_eq!(vmap.read_at(VirtAddr::new(usize::MAX - 3), &mut gone), 0);
    vmap.vfree(first).unwrap();
    vmap.free(hole).unwrap();
    check_all_back(&mut vmap);
}

#[test]
fn listings_are_sorted_and_say_who() {
    let mut vmap = paged(1000, 512, &config());
    let memory = vmap.vmalloc(4, Options::DEFAULT).unwrap();
    let frames = own_frames(0, 2);
    let mapped = vmap.vmap(&frames, Options::DEFAULT).unwrap();
    // Of another size: a second one would be stocked with a third.
    let lazy = vmap.vmap(&frames[..1], Options::DEFAULT).unwrap();
    let pooled = vmap.alloc(7, Options::DEFAULT).unwrap();
    vmap.vunmap(lazy).unwrap();
    vmap.free(pooled).unwrap();
    let areas: Vec<_> = vmap.areas().collect();
    assert!(areas.is_sorted_by(|a, b| a.span.end(vmap.page_size()) <= b.span.start));
    let states: Vec<_> = areas.iter().map(|info| (info.span.start, info.state)).collect();
    use AreaState::{Busy, Lazy, Pooled};
    assert_eq!(states, [(memory, Busy), (mapped, Busy), (lazy, Lazy), (pooled, Pooled)]);
    let text = vmap.vmallocinfo().to_string();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 4);
    let (start, end) = (memory.get(), memory.get() + 5 * PAGE);
    assert!(lines[0].starts_with(&format!("0x{start:016x}-0x{end:016x}    20480 ")), "{text}");
    assert!(lines[0].contains("tests/vmap/basics.rs:"), "{text}");
    assert!(lines[0].ends_with(" pages=4 vmalloc N0=4"), "{text}");
    assert!(lines[1].ends_with(" pages=2 vmap N0=2"), "{text}");
    assert!(lines[2].ends_with(" unpurged vm_area"), "{text}");
    vmap.vfree(memory).unwrap();
    vmap.vunmap(mapped).unwrap();
    check_all_back(&mut vmap);
}

#[test]
fn flushes_name_what_they_need_and_tables_come_back() {
    let config = VmapConfig { warm_pages_max: Some(0), ..VmapConfig::new(1, 5000) };
    let mut vmap = paged_at(0x4000_0000, 64 * TABLE, 4096, &config);
    let mut memory: Vec<_> =
        (0..150).map(|_| vmap.vmalloc(16, Options::DEFAULT).unwrap()).collect();
    // Far from the others, so that their hull would be most of the range.
    let far = vmap.span().start.add(4000 * PAGE);
    let frames = own_frames(0, 3);
    let window = Options::DEFAULT.window(far, vmap.span().end(vmap.page_size()));
    let lone = vmap.vmap(&frames, window).unwrap();
    let peak = vmap.stats().tables;
    assert_eq!(peak, vmap.mapper().tables());
    // Every second one: each table keeps something.
    let kept: Vec<_> = memory.iter().copied().step_by(2).collect();
    memory.iter().skip(1).step_by(2).for_each(|&addr| vmap.vfree(addr).unwrap());
    vmap.vunmap(lone).unwrap();
    vmap.purge(PurgeDepth::Decay);
    let stats = vmap.stats();
    assert_eq!((stats.counts.flushes, stats.counts.needed_pages), (1, 75 * 16 + 3));
    assert_eq!(vmap.mapper().flushed(), (stats.counts.flushed_pages, 1));
    assert!(stats.counts.flushed_pages * 10 <= stats.counts.needed_pages * 11);
    assert_eq!((stats.tables, stats.released_tables), (peak - 1, 1));
    memory = kept;
    memory.iter().for_each(|&addr| vmap.vfree(addr).unwrap());
    vmap.purge(PurgeDepth::Decay);
    assert_eq!((vmap.stats().tables, vmap.mapper().tables()), (0, 0));
    assert_eq!(vmap.stats().tables_max, peak);
    // Neighbours are unmapped in one go.
    assert!(vmap.stats().counts.unmapped_spans < 75 + 2 + 75);
    check_all_back(&mut vmap);
}

#[test]
fn purges_decay_pools_by_a_quarter_and_refill_them() {
    let config = VmapConfig {
        warm_pages_max: Some(0),
        pool_pages_max: Some(1000),
        ..VmapConfig::new(1, 500)
    };
    let mut vmap = paged(2000, 2048, &config);
    let memory: Vec<_> = (0..40).map(|_| vmap.vmalloc(4, Options::DEFAULT).unwrap()).collect();
    // Areas that were stocked and not requested.
    vmap.purge(PurgeDepth::Everything);
    memory.iter().for_each(|&addr| vmap.vfree(addr).unwrap());
    assert_eq!((vmap.stats().cold_areas, vmap.stats().lazy_pages), (0, 200));
    vmap.purge(PurgeDepth::Decay);
    let stats = vmap.stats();
    assert_eq!((stats.cold_areas, stats.counts.refilled_areas, stats.lazy_pages), (40, 40, 0));
    vmap.purge(PurgeDepth::Decay);
    assert_eq!(vmap.stats().cold_areas, 30);
    vmap.purge(PurgeDepth::Lazy);
    assert_eq!(vmap.stats().cold_areas, 30);
    vmap.purge(PurgeDepth::Everything);
    assert_eq!(vmap.stats().cold_areas, 0);
    check_all_back(&mut vmap);
}

#[test]
fn pools_stay_within_their_budgets() {
    let config = VmapConfig {
        pool_pages_max: Some(60),
        warm_pages_max: Some(34),
        ..VmapConfig::new(1, 500)
    };
    let mut vmap = paged(2000, 2048, &config);
    let areas: Vec<_> = (0..20).map(|_| vmap.alloc(4, Options::DEFAULT).unwrap()).collect();
    let memory: Vec<_> = (0..20).map(|_| vmap.vmalloc(16, Options::DEFAULT).unwrap()).collect();
    areas.iter().for_each(|&addr| vmap.free(addr).unwrap());
    memory.iter().for_each(|&addr| vmap.vfree(addr).unwrap());
    let stats = vmap.stats();
    // Six small ones; one of 17 pages was stocked and not asked for, as two small ones were.
    assert_eq!((stats.cold_areas, stats.warm_areas, stats.counts.lazy_areas), (7, 1, 16 + 19));
    assert_eq!(vmap.host().quarantined(), 19 * 16);
    // Half was left for other sizes.
    let other = vmap.alloc(9, Options::DEFAULT).unwrap();
    vmap.free(other).unwrap();
    assert_eq!(vmap.stats().cold_areas, 8);
    check_all_back(&mut vmap);
}

#[test]
fn enough_lazy_pages_begin_a_purge_or_call_for_one() {
    let frames = own_frames(0, 4);
    let config = VmapConfig { lazy_pages_max: Some(100), ..VmapConfig::new(1, 500) };
    let mut vmap = paged(4000, 64, &config);
    for _ in 0..60 {
        let addr = vmap.vmap(&frames, Options::DEFAULT).unwrap();
        vmap.vunmap(addr).unwrap();
        assert!(vmap.stats().lazy_pages <= 100 + 25 + 5, "{}", vmap.stats().lazy_pages);
    }
    assert!(vmap.stats().counts.purges >= 2);
    check_all_back(&mut vmap);

    let mut vmap = paged(4000, 64, &VmapConfig { purge_by: PurgeBy::Helper, ..config });
    for _ in 0..30 {
        let addr = vmap.vmap(&frames, Options::DEFAULT).unwrap();
        vmap.vunmap(addr).unwrap();
    }
    assert_eq!(vmap.stats().counts.purges, 0);
    assert!(vmap.host().purges_wanted.load(std::sync::atomic::Ordering::Relaxed) > 0);
    for _ in 0..30 {
        let addr = vmap.vmap(&frames, Options::DEFAULT).unwrap();
        vmap.vunmap(addr).unwrap();
    }
    // No helper came: the caller purged.
    assert!(vmap.stats().counts.purges > 0);
    check_all_back(&mut vmap);
}

#[test]
fn memory_pressure_empties_pools_before_a_request_fails() {
    use crate::paper::Paged;
    let vmap: &'static mut Paged = Box::leak(Box::new(paged(4000, 600, &config())));
    let memory: Vec<_> = (0..30).map(|_| vmap.vmalloc(16, Options::DEFAULT).unwrap()).collect();
    memory.iter().for_each(|&addr| vmap.vfree(addr).unwrap());
    assert_eq!(vmap.stats().warm_pages, 30 * 17);
    let vmap: &'static Paged = vmap;
    vmap.host().depot.register_reclaim(vmap).unwrap();
    let frames: Vec<_> = std::iter::from_fn(|| {
        vmap.host().depot.alloc(pagedepot::Order::BASE, Flags::default()).ok()
    })
    .collect();
    assert!(frames.len() >= 590, "only {} of 600 frames were to be had", frames.len());
    assert_eq!(vmap.stats().warm_pages, 0);
    assert_eq!(
        vmap.vmalloc(64, Options::DEFAULT),
        Err(VmapError::Frames(pagedepot::AllocError::Exhausted))
    );
    for frame in frames {
        vmap.host().depot.free(frame, pagedepot::Order::BASE).unwrap();
    }
    let pressure =
        Pressure { zone: pagedepot::ZoneId::new(0), wanted_pages: 1, is_last_resort: true };
    assert_eq!(vmap.reclaim(pressure), 0);
}

#[test]
fn no_wait_requests_serve_from_pools_and_free_space() {
    let mut vmap = paged(100, 64, &config());
    let options = Options::DEFAULT.no_wait();
    let area = vmap.alloc(50, options).unwrap();
    vmap.free(area).unwrap();
    assert_eq!(vmap.alloc(50, options), Ok(area));
    vmap.free(area).unwrap();
    // It is pooled; a request that may wait takes it back, this one fails.
    assert_eq!(vmap.alloc(60, options), Err(VmapError::NoSpace));
    let memory = vmap.vmalloc(10, options).unwrap();
    vmap.vfree(memory).unwrap();
    let large = vmap.alloc(60, Options::DEFAULT).unwrap();
    vmap.free(large).unwrap();
    check_all_back(&mut vmap);
}

#[test]
fn frees_that_may_not_wait_leave_purges_to_others() {
    let config =
        VmapConfig { lazy_pages_max: Some(50), warm_pages_max: Some(0), ..VmapConfig::new(1, 500) };
    let mut vmap = paged(4000, 1000, &config);
    let memory: Vec<_> = (0..40).map(|_| vmap.vmalloc(9, Options::DEFAULT).unwrap()).collect();
    memory.iter().for_each(|&addr| vmap.vfree_atomic(addr).unwrap());
    assert_eq!((vmap.stats().lazy_pages, vmap.stats().counts.purges), (400, 0));
    assert!(vmap.host().purges_wanted.load(std::sync::atomic::Ordering::Relaxed) > 0);
    let last = vmap.vmalloc(9, Options::DEFAULT).unwrap();
    vmap.vfree(last).unwrap();
    assert_eq!((vmap.stats().lazy_pages, vmap.stats().counts.purges), (0, 1));
    check_all_back(&mut vmap);
}

/// A request that fits nowhere leaves the pools alone.
#[test]
fn impossible_alignments_take_nothing_back() {
    let vmap = paged(1000, 64, &config());
    let addr = vmap.alloc(5, Options::DEFAULT).unwrap();
    vmap.free(addr).unwrap();
    let pooled = vmap.stats().cold_areas;
    assert_eq!(vmap.alloc(5, Options::DEFAULT.align(1 << 62)), Err(VmapError::NoSpace));
    assert_eq!((pooled, vmap.stats().cold_areas), (1, 1));
    assert_eq!(vmap.alloc(999, Options::DEFAULT).map(drop), Ok(()));
    assert_eq!(vmap.stats().cold_areas, 0);
}

#[test]
fn a_size_that_is_wanted_again_and_again_is_stocked() {
    let mut vmap = paged(100_000, 16, &VmapConfig::new(1, 5000));
    let mut starts: Vec<_> = (0..2000).map(|_| vmap.alloc(2, Options::DEFAULT).unwrap()).collect();
    let stats = vmap.stats();
    // The more areas were requested, the more come along.
    assert!(stats.counts.carved_areas < 2000 / 30, "{stats:?}");
    assert_eq!(stats.counts.carved_areas + stats.counts.stocked_areas, 2000 + stats.cold_areas);
    // Lowest first: nothing is left out between them.
    starts.sort();
    assert!(starts.windows(2).all(|two| two[1] == two[0].add(3 * PAGE)));
    assert_eq!(starts[0], vmap.span().start);
    // A request that finds no free address space gets what was stocked.
    let rest = vmap.stats().free_pages + vmap.stats().cold_pages;
    starts.push(vmap.alloc(rest as u32, Options::DEFAULT.guard_pages(0)).unwrap());
    assert_eq!(vmap.alloc(1, Options::DEFAULT), Err(VmapError::NoSpace));
    starts.iter().for_each(|&start| vmap.free(start).unwrap());
    check_all_back(&mut vmap);
}

#[test]
fn memory_with_an_alignment_stays_warm() {
    let mut vmap = paged(4096, 64, &config());
    let aligned = Options::DEFAULT.align(64 * PAGE);
    let (other, memory) =
        (vmap.vmalloc(2, Options::DEFAULT).unwrap(), vmap.vmalloc(2, aligned).unwrap());
    let carved = vmap.stats().counts.carved_areas;
    for _ in 0..10 {
        vmap.vfree(memory).unwrap();
        assert_eq!(vmap.vmalloc(2, aligned), Ok(memory));
    }
    assert_eq!(vmap.stats().counts.carved_areas, carved);
    // A misaligned area does not serve the request.
    vmap.vfree(other).unwrap();
    let second = vmap.vmalloc(2, aligned).unwrap();
    assert!(second != other && second.get().is_multiple_of(64 * PAGE));
    assert_eq!(vmap.vmalloc(2, Options::DEFAULT.align(3 * PAGE)), Err(VmapError::BadAlign));
    vmap.vfree(second).unwrap();
    vmap.vfree(memory).unwrap();
    check_all_back(&mut vmap);
}

#[test]
fn no_purge_is_run_for_a_place_that_is_busy() {
    let mut vmap = paged_at(0x4000_0000, 4096, 64, &config());
    let (first, pooled) =
        (vmap.alloc(1, Options::DEFAULT).unwrap(), vmap.alloc(5, Options::DEFAULT).unwrap());
    vmap.free(pooled).unwrap();
    let purges = vmap.stats().counts.purges;
    // The range has two such places, and `first` lies in one.
    let large = Options::DEFAULT.align(2048 * PAGE);
    let second = vmap.alloc(1, large).unwrap();
    assert_eq!(vmap.alloc(1, large), Err(VmapError::NoSpace));
    assert_eq!((vmap.stats().counts.purges, vmap.stats().cold_areas), (purges, 1));
    // Freed, and in the way for another size: taken back.
    vmap.free(second).unwrap();
    assert_eq!(vmap.alloc(7, large), Ok(second));
    vmap.free(first).unwrap();
    vmap.free(second).unwrap();
    check_all_back(&mut vmap);
}

#[test]
fn memory_that_grew_with_flags_of_its_own_serves_no_other_request() {
    let config = VmapConfig { pool_pages_max: Some(0), ..VmapConfig::new(1, 100) };
    let mut vmap = paged(1000, 300, &config);
    for moves in [false, true] {
        let at = vmap.vmalloc(5, Options::DEFAULT).unwrap();
        let wall = moves.then(|| vmap.alloc(1, Options::DEFAULT).unwrap());
        let grown = vmap.vrealloc(at, 9, Options::DEFAULT.flags(Flags::UNMOVABLE)).unwrap();
        assert_eq!(grown != at, moves);
        vmap.vfree(grown).unwrap();
        assert_eq!(vmap.stats().warm_areas, 0);
        wall.into_iter().for_each(|wall| vmap.free(wall).unwrap());
    }
    let at = vmap.vmalloc(5, Options::DEFAULT).unwrap();
    let grown = vmap.vrealloc(at, 9, Options::DEFAULT).unwrap();
    vmap.vfree(grown).unwrap();
    assert_eq!(vmap.stats().warm_areas, 1);
    check_all_back(&mut vmap);
}

#[test]
fn memory_grows_to_where_its_options_allow() {
    let config = VmapConfig { pool_pages_max: Some(0), ..VmapConfig::new(1, 100) };
    let mut vmap = paged(1000, 300, &config);
    let wall = vmap.alloc(1, Options::DEFAULT.guard_pages(0)).unwrap();
    let at = vmap.vmalloc(5, Options::DEFAULT).unwrap();
    let aligned = vmap.vrealloc(at, 6, Options::DEFAULT.align(8 * PAGE)).unwrap();
    assert_eq!(aligned.get() % (8 * PAGE), 0);
    assert_eq!(vmap.vrealloc(aligned, 7, Options::DEFAULT.align(8 * PAGE)), Ok(aligned));
    let window = (vmap.span().start.add(100 * PAGE), vmap.span().start.add(200 * PAGE));
    let inside = vmap.vrealloc(aligned, 8, Options::DEFAULT.window(window.0, window.1)).unwrap();
    assert!(window.0 <= inside && inside.add(9 * PAGE) <= window.1);
    let bad = vmap.vrealloc(inside, 9, Options::DEFAULT.align(3));
    assert_eq!(bad, Err(VmapError::BadAlign));
    vmap.vfree(inside).unwrap();
    vmap.free(wall).unwrap();
    check_all_back(&mut vmap);
}
