//! Large areas that stay mapped: which, how many, for how long, and what of them is zeroed.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, Ordering};

use pagedepot::{AllocError, CpuId, Flags, FreeManyError, Order, PageSize, Pfn};
use pagedepot_vmap::{
    Host, LARGE_PAGES_MAX, NullMapper, Options, PurgeDepth, Span, StaleData, VirtAddr, Vmap,
    VmapConfig,
};

use crate::paper::{ByThread, PAGE, Paged, check_all_back, paged};

const BUDGET: u64 = 8192;

fn config() -> VmapConfig {
    VmapConfig { large_pages_max: Some(BUDGET), ..VmapConfig::new(2, 500) }
}

fn fresh(config: &VmapConfig) -> Paged {
    ByThread::run_on(0);
    paged(60_000, 30_000, config)
}

fn made(vmap: &Paged, pages: u32) -> VirtAddr {
    vmap.vmalloc(pages, Options::DEFAULT).unwrap()
}

fn made_and_freed(vmap: &Paged, pages: u32) -> VirtAddr {
    let at = vmap.vmalloc(pages, Options::DEFAULT).unwrap();
    vmap.mapper().write(at.add((pages as usize - 1) * PAGE), 7);
    vmap.vfree(at).unwrap();
    at
}

#[test]
fn every_size_up_to_the_largest_stays_mapped() {
    let mut vmap = fresh(&config());
    for pages in [255, 256, 257, 300, 1024, 2048, LARGE_PAGES_MAX - 1] {
        let first = made_and_freed(&vmap, pages);
        let calls = vmap.mapper().calls();
        for _ in 0..3 {
            assert_eq!(made_and_freed(&vmap, pages), first);
        }
        assert_eq!(vmap.mapper().calls(), calls, "{pages} pages are mapped or unmapped again");
        // Requests that it does not serve: other sizes, alignments, protections.
        let other = vmap.vmalloc(pages - 1, Options::DEFAULT).unwrap();
        let aligned = vmap.vmalloc(pages, Options::DEFAULT.align(PAGE << 13));
        assert!(other != first && aligned.is_ok_and(|at| at.get().is_multiple_of(PAGE << 13)));
        vmap.vfree(other).unwrap();
        vmap.vfree(aligned.unwrap()).unwrap();
        vmap.purge(PurgeDepth::Everything);
    }
    let calls = vmap.mapper().calls();
    made_and_freed(&vmap, LARGE_PAGES_MAX);
    made_and_freed(&vmap, LARGE_PAGES_MAX);
    assert!(vmap.mapper().calls() > calls + 1, "this is too large to stay mapped");
    check_all_back(&mut vmap);
}

#[test]
fn what_is_kept_has_a_bound_and_what_was_freed_last_is_kept() {
    let mut vmap = fresh(&config());
    let mut random = 1_u64;
    for round in 0..300 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let pages = 256 + (random >> 33) as u32 % 3841;
        let freed = made_and_freed(&vmap, pages);
        assert!(vmap.stats().warm_pages <= BUDGET, "{:?}", vmap.stats());
        if round % 10 == 0 {
            // As many of one size as the budget holds, and no more.
            let all = [(); 6].map(|()| vmap.vmalloc(pages, Options::DEFAULT).unwrap());
            assert!(all.contains(&freed), "{pages} pages were not kept");
            all.into_iter().for_each(|at| vmap.vfree(at).unwrap());
            let stats = vmap.stats();
            assert!(stats.warm_pages <= BUDGET && stats.warm_areas > 0, "{stats:?}");
            vmap.validate().unwrap();
        }
    }
    // More sizes than there are pools.
    for pages in 256..296 {
        made_and_freed(&vmap, pages);
    }
    assert!(vmap.stats().warm_areas <= 16);
    vmap.validate().unwrap();
    check_all_back(&mut vmap);
}

/// Sizes without a pool take one each, and no other's areas.
#[test]
fn sizes_more_than_there_are_pools_cost_one_of_them_each() {
    let budget = Some(4 * BUDGET);
    let mut vmap = fresh(&VmapConfig { large_pages_max: budget, ..config() });
    for pages in 257..273 {
        let all = [(); 3].map(|()| made(&vmap, pages));
        all.into_iter().for_each(|at| vmap.vfree(at).unwrap());
    }
    assert_eq!(vmap.stats().warm_areas, 16 * 3);
    made_and_freed(&vmap, 300);
    assert_eq!(vmap.stats().warm_areas, 15 * 3 + 1);
    made_and_freed(&vmap, 310);
    assert_eq!(vmap.stats().warm_areas, 14 * 3 + 2);
    // Both are kept from now on.
    let calls = vmap.mapper().calls();
    for pages in [300, 310, 300, 310] {
        made_and_freed(&vmap, pages);
    }
    assert_eq!(vmap.mapper().calls(), calls);
    check_all_back(&mut vmap);
}

#[test]
fn what_is_kept_decays() {
    let mut vmap = fresh(&config());
    let all = [(); 8].map(|()| vmap.vmalloc(600, Options::DEFAULT).unwrap());
    all.into_iter().for_each(|at| vmap.vfree(at).unwrap());
    let mut kept = vmap.stats().warm_areas;
    assert_eq!(kept, 8);
    for _ in 0..8 {
        vmap.purge(PurgeDepth::Decay);
        assert_eq!(vmap.stats().warm_areas, kept - kept.div_ceil(4));
        kept = vmap.stats().warm_areas;
        vmap.validate().unwrap();
    }
    assert_eq!(kept, 0);
    let none = VmapConfig { large_pages_max: Some(0), ..config() };
    check_all_back(&mut vmap);
    let mut vmap = fresh(&none);
    made_and_freed(&vmap, 300);
    assert_eq!(vmap.stats().warm_areas, 0);
    made_and_freed(&vmap, 100);
    assert_eq!(vmap.stats().warm_areas, 1);
    check_all_back(&mut vmap);
}

fn zeroed_pages(vmap: &Paged, request: impl FnOnce(&Paged)) -> u64 {
    let before = vmap.stats().counts.zeroed_pages;
    request(vmap);
    vmap.stats().counts.zeroed_pages - before
}

#[test]
fn only_what_was_written_is_zeroed() {
    let mut vmap = fresh(&config());
    let check = |vmap: &Paged, at: VirtAddr, pages: usize| {
        (0..pages).for_each(|page| assert_eq!(vmap.mapper().read(at.add(page * PAGE)), 0));
    };
    // Fresh from the system: all of it is known to be zero.
    let fresh = zeroed_pages(&vmap, |vmap| {
        made_and_freed(vmap, 4000);
    });
    assert_eq!(fresh, 0);
    for written in [0, 1999, 3999] {
        let at = vmap.vmalloc(4000, Options::DEFAULT).unwrap();
        vmap.mapper().write(at.add(written * PAGE), 9);
        vmap.vfree(at).unwrap();
        let zeroed = zeroed_pages(&vmap, |vmap| {
            let at = vmap.vmalloc(4000, Options::DEFAULT).unwrap();
            check(vmap, at, 4000);
            vmap.vfree(at).unwrap();
        });
        assert!((1..=16).contains(&zeroed), "{zeroed} pages for one that was written");
    }
    // Written throughout.
    let at = vmap.vmalloc(4000, Options::DEFAULT).unwrap();
    (0..4000).for_each(|page| vmap.mapper().write(at.add(page * PAGE), 9));
    vmap.vfree(at).unwrap();
    let all = zeroed_pages(&vmap, |vmap| {
        let at = vmap.vmalloc(4000, Options::DEFAULT).unwrap();
        check(vmap, at, 4000);
        vmap.vfree(at).unwrap();
    });
    assert_eq!(all, 4000);
    // No frame of it is known to be zero from here on: the mapper is not asked again.
    let questions = vmap.mapper().questions.load(Ordering::Relaxed);
    assert_eq!(zeroed_pages(&vmap, |vmap| vmap.vfree(made(vmap, 4000)).unwrap()), 4000);
    assert_eq!(vmap.mapper().questions.load(Ordering::Relaxed), questions);
    // Its frames, when they are mapped again, are.
    vmap.purge(PurgeDepth::Everything);
    vmap.vfree(made(&vmap, 4000)).unwrap();
    assert!(vmap.mapper().questions.load(Ordering::Relaxed) > questions);
    // Every third page.
    let at = vmap.vmalloc(4000, Options::DEFAULT).unwrap();
    (0..4000).step_by(3).for_each(|page| vmap.mapper().write(at.add(page * PAGE), 9));
    vmap.vfree(at).unwrap();
    let at = vmap.vmalloc(4000, Options::DEFAULT).unwrap();
    check(&vmap, at, 4000);
    vmap.vfree(at).unwrap();
    check_all_back(&mut vmap);
    let mut keep = self::fresh(&VmapConfig { stale: StaleData::Keep, ..config() });
    assert_eq!(
        zeroed_pages(&keep, |vmap| {
            made_and_freed(vmap, 4000);
        }),
        0
    );
    check_all_back(&mut keep);
}

#[test]
fn threads_share_large_pools() {
    let config = VmapConfig { large_pages_max: Some(3000), ..VmapConfig::new(2, 900) };
    let mut vmap = fresh(&config);
    std::thread::scope(|scope| {
        for thread in 0..3_u64 {
            let vmap = &vmap;
            scope.spawn(move || {
                for round in 0..400_u64 {
                    ByThread::run_on((round / 3 % 2) as u32);
                    let pages = 256 + (round * 7 + thread) as u32 % 20 * 37;
                    let at = vmap.vmalloc(pages, Options::DEFAULT).unwrap();
                    let (first, last) = (at, at.add((pages as usize - 1) * PAGE));
                    assert_eq!((vmap.mapper().read(first), vmap.mapper().read(last)), (0, 0));
                    vmap.mapper().write(first, thread + 1);
                    vmap.mapper().write(last, thread + 1);
                    assert_eq!(vmap.mapper().read(first), thread + 1);
                    vmap.vfree(at).unwrap();
                    if round % 50 == 0 {
                        vmap.purge(PurgeDepth::Decay);
                    }
                }
            });
        }
    });
    vmap.validate().unwrap();
    assert!(vmap.stats().warm_pages <= 2 * 3000);
    check_all_back(&mut vmap);
}

/// A host with a new frame for each request, of which none is ever used.
#[derive(Default)]
pub struct Endless(AtomicU32);

// SAFETY: no block is returned twice, and nobody has the frames.
unsafe impl Host for Endless {
    fn cpu(&self) -> Option<CpuId> {
        None
    }

    fn alloc_block(&self, order: Order, _flags: Flags) -> Result<Pfn, AllocError> {
        Ok(Pfn::new(self.0.fetch_add(order.frames(), Ordering::Relaxed)))
    }

    fn alloc_frames(&self, _flags: Flags, out: &mut [Pfn]) -> Result<usize, AllocError> {
        out.fill_with(|| Pfn::new(self.0.fetch_add(1, Ordering::Relaxed)));
        Ok(out.len())
    }

    unsafe fn free_blocks(&self, _blocks: &[(Pfn, Order)]) -> Result<(), FreeManyError> {
        Ok(())
    }
}

#[test]
fn a_pool_keeps_no_more_areas_than_it_can_count() {
    const AREAS: u32 = 4098;
    let mapper = NullMapper::new(Span::new(VirtAddr::new(1 << 30), AREAS * 257), PageSize::Kib4);
    let config = VmapConfig { large_pages_max: Some(1 << 22), ..VmapConfig::new(1, AREAS + 9) };
    let bytes = Vmap::<NullMapper, Endless>::metadata_bytes(&config, &mapper).unwrap();
    let mut metadata = vec![MaybeUninit::uninit(); bytes];
    // SAFETY: nothing is ever reached through its addresses.
    let mut vmap =
        unsafe { Vmap::new(&config, &mut metadata, mapper, Endless::default()) }.unwrap();
    let all: Vec<_> = (0..AREAS).map(|_| vmap.vmalloc(256, Options::DEFAULT).unwrap()).collect();
    all.into_iter().for_each(|at| vmap.vfree(at).unwrap());
    let stats = vmap.stats();
    assert_eq!((stats.warm_areas, stats.lazy_pages), (4095, 3 * 257));
    vmap.validate().unwrap();
}
