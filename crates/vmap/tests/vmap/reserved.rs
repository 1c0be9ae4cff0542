//! Memory in reserved addresses: it grows and shrinks in place, and only what it has grown to is
//! mapped.

use pagedepot::AllocError;
use pagedepot_vmap::{MapError, Options, PurgeDepth, VirtAddr, VmapConfig, VmapError};

use crate::paper::{PAGE, Paged, check_all_back, paged};

const BARE: Options = Options::DEFAULT.guard_pages(0);

fn fresh() -> Paged {
    paged(4000, 1500, &VmapConfig::new(1, 300))
}

fn check_contents(vmap: &Paged, at: VirtAddr, stamped: usize, pages: usize) {
    for page in 0..pages {
        let expected = if page < stamped { 100 + page as u64 } else { 0 };
        assert_eq!(vmap.mapper().read(at.add(page * PAGE)), expected, "page {page}");
    }
    assert!(!vmap.mapper().is_mapped(at.add(pages * PAGE)), "more is mapped");
}

fn stamp(vmap: &Paged, at: VirtAddr, pages: std::ops::Range<usize>) {
    pages.for_each(|page| vmap.mapper().write(at.add(page * PAGE), 100 + page as u64));
}

#[test]
fn it_grows_and_shrinks_in_place() {
    let mut vmap = fresh();
    let at = vmap.vmalloc_reserved(0, 1000, Options::DEFAULT).unwrap();
    // Nothing is free right behind it.
    let wall = vmap.alloc_at(at.add(1001 * PAGE), 1, BARE).unwrap();
    check_contents(&vmap, at, 0, 1);
    let info = vmap.find(at.add(999 * PAGE)).unwrap();
    assert_eq!((info.span.pages, info.guard_pages, info.mapped_pages), (1001, 1, 1));
    assert!(info.is_reserved && vmap.frame_at(at.add(PAGE)).is_none());
    let mut size = 0;
    for pages in [1, 2, 64, 65, 300, 1000] {
        let calls = vmap.mapper().calls();
        assert_eq!(vmap.vrealloc(at, pages, Options::DEFAULT), Ok(at));
        // Only the new pages are mapped: at most a call for each block.
        assert!(vmap.mapper().calls() - calls <= 1 + u64::from(pages - size as u32).ilog2() as u64);
        check_contents(&vmap, at, size, pages as usize);
        stamp(&vmap, at, size..pages as usize);
        size = pages as usize;
    }
    for pages in [999, 400, 17, 1] {
        assert_eq!(vmap.vrealloc(at, pages, Options::DEFAULT), Ok(at));
        check_contents(&vmap, at, pages as usize, pages as usize);
        assert_eq!(vmap.find(at).unwrap().span.pages, 1001);
        vmap.validate().unwrap();
    }
    assert_eq!(vmap.vrealloc(at, 500, Options::DEFAULT), Ok(at));
    check_contents(&vmap, at, 1, 500);
    assert_eq!(vmap.vrealloc(at, 0, Options::DEFAULT), Err(VmapError::BadSize));
    vmap.vfree(at).unwrap();
    vmap.free(wall).unwrap();
    check_all_back(&mut vmap);
}

#[test]
fn beyond_its_addresses_it_grows_as_other_memory_does() {
    let mut vmap = fresh();
    for moves in [false, true] {
        let at = vmap.vmalloc_reserved(3, 10, Options::DEFAULT).unwrap();
        let wall = moves.then(|| vmap.alloc_at(at.add(11 * PAGE), 1, BARE).unwrap());
        stamp(&vmap, at, 0..3);
        let grown = vmap.vrealloc(at, 40, Options::DEFAULT).unwrap();
        assert_eq!(grown != at, moves);
        check_contents(&vmap, grown, 3, 40);
        let info = vmap.find(grown).unwrap();
        assert!(info.is_reserved && info.span.pages == 41, "{info:?}");
        assert_eq!(vmap.vrealloc(grown, 5, Options::DEFAULT), Ok(grown));
        assert_eq!(vmap.find(grown).unwrap().span.pages, 41);
        vmap.vfree(grown).unwrap();
        wall.into_iter().for_each(|wall| vmap.free(wall).unwrap());
        assert_eq!(vmap.stats().warm_areas, 0, "it does not stay mapped");
        vmap.validate().unwrap();
    }
    check_all_back(&mut vmap);
}

#[test]
fn only_what_is_mapped_is_unmapped_and_has_frames() {
    let mut vmap = fresh();
    let all: Vec<_> = [0, 1, 70, 200]
        .map(|pages| vmap.vmalloc_reserved(pages, 800, Options::DEFAULT).unwrap())
        .into();
    let census = vmap.validate().unwrap();
    assert_eq!((census.mapped_pages, census.own_frames), (272, 272));
    assert!(matches!(vmap.vmalloc_reserved(0, 2000, Options::DEFAULT), Err(VmapError::NoSpace)));
    all.into_iter().for_each(|at| vmap.vfree(at).unwrap());
    let before = vmap.stats().counts;
    vmap.purge(PurgeDepth::Everything);
    let counts = vmap.stats().counts;
    assert_eq!(counts.returned_frames, 272);
    assert_eq!(counts.needed_pages - before.needed_pages, 272);
    check_all_back(&mut vmap);
}

#[test]
fn growth_beyond_its_addresses_that_fails_gives_them_back() {
    let beyond = Err(VmapError::Frames(AllocError::Exhausted));
    for wanted in [0, 1, 10] {
        let (mut vmap, mapped) = (fresh(), wanted.max(1));
        let at = vmap.vmalloc_reserved(wanted, 10, Options::DEFAULT).unwrap();
        stamp(&vmap, at, 0..mapped as usize);
        assert_eq!(vmap.vrealloc(at, 3900, Options::DEFAULT), beyond);
        let info = vmap.find(at).unwrap();
        assert_eq!((info.span.pages, info.guard_pages, info.mapped_pages), (11, 1, mapped));
        assert!(info.is_reserved);
        vmap.validate().unwrap();
        // Of what it gets, the mapper maps a part.
        vmap.mapper().fail_at(1);
        let failed = vmap.vrealloc(at, 999, Options::DEFAULT);
        assert_eq!(failed, Err(VmapError::Map(MapError::NoTables)));
        vmap.mapper().never_fail();
        let info = vmap.find(at).unwrap();
        assert_eq!((info.span.pages, info.guard_pages, info.mapped_pages), (11, 1, mapped));
        vmap.validate().unwrap();
        // Its addresses are its own still, and no others.
        let all = vmap.alloc(4000 - 11, BARE).unwrap();
        check_contents(&vmap, at, mapped as usize, mapped as usize);
        assert_eq!(vmap.vrealloc(at, 10, Options::DEFAULT), Ok(at));
        check_contents(&vmap, at, mapped as usize, 10);
        vmap.free(all).unwrap();
        vmap.vfree(at).unwrap();
        check_all_back(&mut vmap);
    }
}

/// Neither the growth succeeds nor its undoing. What is left behind is for the next purge, and the
/// address stays with its memory.
#[test]
fn growth_of_nothing_that_cannot_be_undone_keeps_the_address() {
    for (nth, failures) in (0..6).flat_map(|nth| [(nth, 2), (nth, 3)]) {
        let mut vmap = fresh();
        let at = vmap.vmalloc_reserved(0, 1000, Options::DEFAULT).unwrap();
        vmap.mapper().fail_from(nth, failures);
        let grown = vmap.vrealloc(at, 300, Options::DEFAULT);
        vmap.mapper().never_fail();
        vmap.validate().unwrap();
        vmap.purge(PurgeDepth::Everything);
        let info = vmap.find(at).unwrap();
        assert!(info.span.start == at && info.is_reserved, "{grown:?}: {info:?}");
        check_contents(&vmap, at, 0, info.mapped_pages as usize);
        vmap.vfree(at).unwrap();
        check_all_back(&mut vmap);
    }
}
