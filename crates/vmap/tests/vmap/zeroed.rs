//! Checks that requests for zeroes get zeroes, whatever the protection, and that the caller's
//! frames are never written.

use pagedepot::{Flags, Order, Pfn};
use pagedepot_vmap::{Options, Protection, PurgeDepth, StaleData, VirtAddr, VmapConfig};

use crate::paper::{PAGE, Paged, TABLE, check_all_back, own_frames, paged};

const PROTECTIONS: [Protection; 3] =
    [Protection::READ, Protection::READ_WRITE, Protection::READ_EXECUTE];
const DIRT: u64 = 0x5a5a_5a5a_5a5a_5a5a;

fn fresh(stale: StaleData) -> Paged {
    let config = VmapConfig { stale, pool_pages_max: Some(1000), ..VmapConfig::new(1, 500) };
    paged(4000, 1200, &config)
}

/// Makes every free frame of the depot hold stale data.
fn dirty(vmap: &Paged) {
    vmap.purge(PurgeDepth::Everything);
    let depot = vmap.host().depot;
    let all: Vec<Pfn> =
        std::iter::from_fn(|| depot.alloc(Order::BASE, Flags::default()).ok()).collect();
    assert!(all.len() > 300, "there is memory");
    for &frame in &all {
        vmap.mapper().set_contents(frame, DIRT);
        depot.free(frame, Order::BASE).unwrap();
    }
}

/// Every kind of request for memory.
fn requests() -> Vec<(u32, Options)> {
    let mut requests = Vec::new();
    for protection in PROTECTIONS {
        let plain = Options::DEFAULT.protection(protection);
        for options in [
            plain,
            plain.guard_pages(0),
            plain.guard_pages(3),
            plain.align(PAGE << 4),
            plain.align(PAGE * TABLE as usize),
            plain.flags(Flags::UNMOVABLE),
            plain.no_wait(),
        ] {
            // Single frames, and blocks: those are what a mapper maps by large entries.
            requests.extend([1, 3, 64, 200].map(|pages| (pages, options)));
        }
    }
    requests
}

fn assert_zero(
    vmap: &Paged,
    at: VirtAddr,
    pages: std::ops::Range<usize>,
    what: &dyn std::fmt::Debug,
) {
    for page in pages {
        assert_eq!(vmap.mapper().read(at.add(page * PAGE)), 0, "page {page} of {what:?}");
    }
}

#[test]
fn new_memory_is_zero_where_that_is_promised() {
    for (stale, ask) in
        [(StaleData::Zero, false), (StaleData::Keep, true), (StaleData::Poison(0x6b), true)]
    {
        let mut vmap = fresh(stale);
        for (pages, options) in requests() {
            let options = if ask { options.zeroed() } else { options };
            dirty(&vmap);
            let at = vmap.vmalloc(pages, options).unwrap();
            assert_zero(&vmap, at, 0..pages as usize, &(stale, pages, options));
            vmap.vfree(at).unwrap();
        }
        check_all_back(&mut vmap);
    }
}

#[test]
fn grown_memory_is_zero_where_that_is_promised() {
    for (stale, ask) in [(StaleData::Zero, false), (StaleData::Keep, true)] {
        for moves in [false, true] {
            let mut vmap = fresh(stale);
            for (pages, options) in requests() {
                let options = if ask { options.zeroed() } else { options };
                dirty(&vmap);
                let at = vmap.vmalloc(pages, options).unwrap();
                let behind = vmap.find(at).unwrap().span.end(vmap.page_size());
                let wall = moves
                    .then(|| vmap.alloc_at(behind, 1, Options::DEFAULT.guard_pages(0)))
                    .and_then(Result::ok);
                let grown = vmap.vrealloc(at, pages + 70, options).unwrap();
                assert!(wall.is_none() || grown != at);
                assert_zero(&vmap, grown, 0..pages as usize + 70, &(stale, pages, options, moves));
                vmap.vfree(grown).unwrap();
                wall.iter().for_each(|&wall| vmap.free(wall).unwrap());
            }
            check_all_back(&mut vmap);
        }
    }
}

/// A block that cannot be split stays whole, and so does its area; what is used again later is new
/// memory all the same.
#[test]
fn memory_that_could_not_shrink_grows_by_zeroes() {
    for protection in PROTECTIONS {
        let mut vmap = fresh(StaleData::Keep);
        let options = Options::DEFAULT.protection(protection).zeroed();
        let at = vmap.vmalloc(64, options).unwrap();
        for page in 0..64 {
            vmap.mapper().set_contents(vmap.frame_at(at.add(page * PAGE)).unwrap(), DIRT);
        }
        vmap.host().refuse_splits(true);
        assert_eq!(vmap.vrealloc(at, 5, options), Ok(at));
        vmap.host().refuse_splits(false);
        assert_eq!(vmap.vrealloc(at, 64, options), Ok(at));
        (0..5).for_each(|page| assert_eq!(vmap.mapper().read(at.add(page * PAGE)), DIRT));
        assert_zero(&vmap, at, 5..64, &protection);
        vmap.vfree(at).unwrap();
        check_all_back(&mut vmap);
    }
}

/// The option does not concern them.
#[test]
fn frames_of_the_caller_are_never_written() {
    let mut vmap = fresh(StaleData::Zero);
    let frames = own_frames(0, 10);
    frames.iter().for_each(|&frame| vmap.mapper().set_contents(frame, DIRT));
    for protection in PROTECTIONS {
        let options = Options::DEFAULT.protection(protection).zeroed();
        let at = vmap.vmap(&frames, options).unwrap();
        vmap.vunmap(at).unwrap();
        let at = vmap.vm_map_ram(&frames, options).unwrap();
        vmap.vm_unmap_ram(at, 10).unwrap();
        let at = vmap.alloc(10, options).unwrap();
        vmap.map_frames(at, 0, &frames, Options::DEFAULT).unwrap();
        vmap.vunmap(at).unwrap();
    }
    assert!(frames.iter().all(|&frame| vmap.mapper().contents(frame) == DIRT));
    check_all_back(&mut vmap);
}
