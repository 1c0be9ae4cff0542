//! Addresses that a mapper loses in a failed call: they are counted and never handed out again, and
//! all else works as before.

use pagedepot::{Flags, Order, Pfn};
use pagedepot_vmap::{
    Kind, MapError, Options, Protection, PurgeDepth, VfreeError, VirtAddr, VmapConfig, VmapError,
};

use crate::paper::{PAGE, Paged, own_frames, paged};

const PAGES: u32 = 2000;

/// Maps over scattered frames, so that every area takes several calls.
fn fresh() -> (Paged, Vec<Pfn>) {
    let config = VmapConfig::new(1, 4100);
    let vmap = paged(PAGES, 600, &config);
    let depot = vmap.host().depot;
    let all: Vec<Pfn> =
        std::iter::from_fn(|| depot.alloc(Order::BASE, Flags::default()).ok()).collect();
    let (kept, given): (Vec<_>, Vec<_>) = all.into_iter().partition(|frame| frame.get() % 4 == 3);
    given.iter().for_each(|&frame| depot.free(frame, Order::BASE).unwrap());
    (vmap, kept)
}

/// Fails if an area that is handed out at `addr` contains a lost page.
fn check_area(vmap: &Paged, addr: VirtAddr) {
    let span = vmap.find(addr).unwrap().span;
    let lost =
        (0..span.pages as usize).find(|&page| vmap.mapper().is_lost(span.start.add(page * PAGE)));
    assert_eq!(lost, None, "of {span:?}");
}

/// Frees and purges everything, takes every page there is, and finds that just the lost ones are
/// missing.
fn finish((mut vmap, kept): (Paged, Vec<Pfn>)) -> u64 {
    vmap.mapper().never_fail();
    vmap.purge(PurgeDepth::Everything);
    assert_eq!(vmap.purge(PurgeDepth::Everything).stuck_areas, 0);
    let lost = vmap.stats().lost_pages;
    let bare = Options::DEFAULT.guard_pages(0);
    // Large ones first: what they meet is split off.
    let mut starts: Vec<_> = std::iter::from_fn(|| vmap.alloc(40, bare).ok()).collect();
    starts.extend(std::iter::from_fn(|| vmap.alloc(1, bare).ok()));
    assert_eq!(vmap.alloc(1, bare), Err(VmapError::NoSpace));
    starts.iter().for_each(|&start| check_area(&vmap, start));
    let census = vmap.validate().unwrap();
    assert_eq!(
        (census.lost_pages, census.busy_pages),
        (lost, u64::from(PAGES) - lost),
        "{census:?}"
    );
    for info in vmap.areas().filter(|info| info.kind == Kind::Lost) {
        assert_eq!(vmap.free(info.span.start), Err(VfreeError::WrongKind(Kind::Lost)));
        assert_eq!(vmap.vunmap(info.span.start), Err(VfreeError::WrongKind(Kind::Lost)));
        let error = vmap.map_frames(info.span.start, 0, &own_frames(0, 1), Options::DEFAULT);
        assert_eq!(error, Err(VmapError::NotAllocated));
    }
    starts.iter().for_each(|&start| vmap.free(start).unwrap());
    vmap.purge(PurgeDepth::Everything);
    let census = vmap.validate().unwrap();
    assert_eq!((census.free_pages + census.lost_pages, census.lost_pages), (PAGES.into(), lost));
    assert_eq!((census.mapped_pages, census.own_frames, vmap.host().quarantined()), (0, 0, 0));
    let depot = vmap.host().depot;
    kept.iter().for_each(|&frame| depot.free(frame, Order::BASE).unwrap());
    depot.drain(pagedepot::Scope::ALL, pagedepot::Mode::Full);
    let zone = depot.zone_ids().next().unwrap();
    let stats = depot.zone_stats(zone).unwrap();
    assert_eq!(depot.free_pages(zone), stats.managed_pages - stats.carved_pages);
    lost
}

/// Memory, mappings and growth, all of it freed again. Errors are those of the call that failed.
fn session(vmap: &Paged) {
    let check = |result: Result<VirtAddr, VmapError>| match result {
        Ok(addr) => {
            check_area(vmap, addr);
            Some(addr)
        }
        Err(VmapError::Map(MapError::NoTables | MapError::TooManyMappings { .. })) => None,
        Err(error) => panic!("{error:?}"),
    };
    for protection in [Protection::READ_WRITE, Protection::READ] {
        let options = Options::DEFAULT.protection(protection);
        let memory: Vec<_> = [3, 8, 8, 20].map(|pages| check(vmap.vmalloc(pages, options))).into();
        let frames: Vec<_> = own_frames(0, 20).into_iter().step_by(2).collect();
        let mapped = check(vmap.vmap(&frames, options));
        for (pages, &start) in (30..).zip(memory.iter().flatten()) {
            let grown = check(vmap.vrealloc(start, pages, Options::DEFAULT)).unwrap_or(start);
            vmap.vfree(grown).unwrap();
        }
        if let Some(at) = check(vmap.vm_map_ram(&frames, options)) {
            vmap.vm_unmap_ram(at, 10).unwrap();
        }
        mapped.iter().for_each(|&start| vmap.vunmap(start).unwrap());
        vmap.purge(PurgeDepth::Lazy);
        let area = vmap.alloc(9, Options::DEFAULT).unwrap();
        check_area(vmap, area);
        if let Err(error) = vmap.map_frames(area, 2, &own_frames(0, 5), Options::DEFAULT) {
            assert_eq!(error, VmapError::Map(MapError::NoTables));
        }
        let _ = vmap.free(area).or_else(|_| vmap.vunmap(area));
        vmap.purge(PurgeDepth::Decay);
    }
}

#[test]
fn what_any_call_loses_is_never_handed_out_again() {
    let mut lost = 0;
    for n in 0.. {
        let (vmap, kept) = fresh();
        vmap.mapper().lose_at(n);
        session(&vmap);
        session(&vmap);
        let has_failed = vmap.mapper().has_failed();
        lost += finish((vmap, kept));
        if !has_failed {
            break;
        }
        assert!(n < 2000, "it never ends");
    }
    assert!(lost > 500, "{lost}");
}

#[test]
fn a_reservation_does_not_get_what_is_lost() {
    let (vmap, kept) = fresh();
    let memory = vmap.vmalloc(9, Options::DEFAULT.guard_pages(0)).unwrap();
    vmap.vfree(memory).unwrap();
    vmap.mapper().lose_at(0);
    vmap.purge(PurgeDepth::Everything);
    let lost = (0..9)
        .map(|page| memory.add(page * PAGE))
        .find(|&page| vmap.mapper().is_lost(page))
        .unwrap();
    vmap.mapper().never_fail();
    assert_eq!(vmap.alloc_at(memory, 9, Options::DEFAULT.guard_pages(0)), Err(VmapError::Occupied));
    assert_eq!(vmap.alloc_at(lost, 1, Options::DEFAULT.guard_pages(0)), Err(VmapError::Occupied));
    assert_eq!(
        vmap.alloc_at(lost.add(PAGE), 2, Options::DEFAULT.guard_pages(0)),
        Ok(lost.add(PAGE))
    );
    vmap.free(lost.add(PAGE)).unwrap();
    finish((vmap, kept));
}
