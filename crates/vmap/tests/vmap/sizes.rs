//! Sizes and offsets as large as their types allow: an error, nothing held, nothing damaged.

use std::mem::MaybeUninit;

use pagedepot::PageSize;
use pagedepot_vmap::{
    NoFrames, NullMapper, Options, Span, VirtAddr, Vmap, VmapConfig, VmapConfigError, VmapError,
};

use crate::large::Endless;
use crate::paper::{ByThread, PAGE, Paged, check_all_back, own_frames, paged};

type Frameless = NoFrames<ByThread>;

fn fresh() -> Paged {
    paged(1000, 512, &VmapConfig { pool_pages_max: Some(1000), ..VmapConfig::new(1, 500) })
}

#[test]
fn map_frames_beyond_the_end_is_refused_at_any_offset() {
    let mut vmap = fresh();
    let wall = vmap.alloc(3, Options::DEFAULT).unwrap();
    let area = vmap.alloc(10, Options::DEFAULT).unwrap();
    let frames = own_frames(0, 2);
    for offset in [9, 10, 11, u32::MAX - 1000, u32::MAX - 3, u32::MAX - 2, u32::MAX - 1, u32::MAX] {
        assert_eq!(
            vmap.map_frames(area, offset, &frames, Options::DEFAULT),
            Err(VmapError::BadOffset),
            "{offset}"
        );
        vmap.validate().unwrap();
    }
    assert_eq!(vmap.map_frames(area, 8, &frames, Options::DEFAULT), Ok(()));
    vmap.vunmap(area).unwrap();
    vmap.free(wall).unwrap();
    check_all_back(&mut vmap);
}

/// No frames enter no table, at the beginning of the range and inside of a table.
#[test]
fn map_frames_of_no_frames_changes_nothing() {
    let mut vmap = fresh();
    let area = vmap.alloc(10, Options::DEFAULT).unwrap();
    let before = vmap.stats();
    for offset in [0, 5, 10] {
        assert_eq!(vmap.map_frames(area, offset, &[], Options::DEFAULT), Ok(()));
        assert_eq!(vmap.stats().tables, before.tables);
        vmap.validate().unwrap();
    }
    vmap.free(area).unwrap();
    check_all_back(&mut vmap);
}

#[test]
fn sizes_that_overflow_with_their_guard_are_refused() {
    let mut vmap = fresh();
    // Pooled: a size that wraps around to theirs must not find them.
    let pooled: Vec<_> =
        (1..5).map(|pages| vmap.alloc(pages, Options::DEFAULT.guard_pages(0)).unwrap()).collect();
    let warm = vmap.vmalloc(2, Options::DEFAULT).unwrap();
    pooled.iter().for_each(|&area| vmap.free(area).unwrap());
    vmap.vfree(warm).unwrap();
    let span = vmap.span();
    for guard in [0, 1, 2, 4, 255] {
        for pages in [0, 1001, 1 << 31, u32::MAX - 254, u32::MAX - 2, u32::MAX - 1, u32::MAX] {
            let options = Options::DEFAULT.guard_pages(guard);
            let windowed = options.window(span.start, span.end(vmap.page_size()));
            for options in [options, windowed, options.align(PAGE << 4), options.no_wait()] {
                assert_eq!(
                    vmap.alloc(pages, options),
                    Err(VmapError::BadSize),
                    "{pages} + {guard}"
                );
                assert_eq!(
                    vmap.vmalloc(pages, options),
                    Err(VmapError::BadSize),
                    "{pages} + {guard}"
                );
            }
        }
    }
    for pages in [0, 1001, u32::MAX - 1, u32::MAX] {
        assert_eq!(
            vmap.alloc_at(span.start, pages, Options::DEFAULT.guard_pages(0)),
            Err(VmapError::BadSize)
        );
        assert_eq!(
            vmap.alloc_at(span.start.add(999 * PAGE), pages, Options::DEFAULT.guard_pages(0)),
            Err(VmapError::BadSize)
        );
    }
    check_all_back(&mut vmap);
}

#[test]
fn growth_beyond_the_range_is_refused_at_any_size() {
    let mut vmap = fresh();
    let memory = vmap.vmalloc(8, Options::DEFAULT).unwrap();
    (0..8).for_each(|page| vmap.mapper().write(memory.add(page * PAGE), 7));
    for pages in [0, 1000, 1001, 1 << 31, u32::MAX - 8, u32::MAX - 1, u32::MAX] {
        assert_eq!(
            vmap.vrealloc(memory, pages, Options::DEFAULT),
            Err(VmapError::BadSize),
            "{pages}"
        );
        vmap.validate().unwrap();
        assert_eq!(vmap.find(memory).unwrap().span.pages, 9);
    }
    (0..8).for_each(|page| assert_eq!(vmap.mapper().read(memory.add(page * PAGE)), 7));
    vmap.vfree(memory).unwrap();
    check_all_back(&mut vmap);
}

#[test]
fn unmapping_more_pages_than_there_are_is_refused() {
    let mut vmap = fresh();
    let memory = vmap.vmalloc(8, Options::DEFAULT).unwrap();
    assert_eq!(
        vmap.vm_unmap_ram(memory, u32::MAX),
        Err(pagedepot_vmap::VfreeError::WrongKind(pagedepot_vmap::Kind::Vmalloc))
    );
    vmap.vfree(memory).unwrap();
    check_all_back(&mut vmap);
}

#[test]
fn growth_at_the_end_of_the_addresses_is_refused_at_any_size() {
    let span = Span::new(VirtAddr::new(0xffff_fff0_0000_0000), 4000);
    let mapper = NullMapper::new(span, PageSize::Kib64);
    let config = VmapConfig::new(1, 50);
    let bytes = Vmap::<NullMapper, Endless>::metadata_bytes(&config, &mapper).unwrap();
    let mut metadata = vec![MaybeUninit::uninit(); bytes];
    let host = Endless::default();
    // SAFETY: nothing is ever reached through its addresses.
    let mut vmap = unsafe { Vmap::new(&config, &mut metadata, mapper, host) }.unwrap();
    let memory = vmap.vmalloc_reserved(0, 8, Options::DEFAULT).unwrap();
    let windowed = Options::DEFAULT.window(span.start, span.end(PageSize::Kib64));
    for options in [Options::DEFAULT, windowed] {
        for pages in [4000, 1 << 20, 1 << 31, u32::MAX] {
            assert_eq!(vmap.vrealloc(memory, pages, options), Err(VmapError::BadSize), "{pages}");
            vmap.validate().unwrap();
        }
    }
    vmap.vfree(memory).unwrap();
}

#[test]
fn ranges_whose_last_pages_have_no_whole_segment_are_refused() {
    let bytes = |pages| {
        let mapper = NullMapper::new(Span::new(VirtAddr::new(1 << 30), pages), PageSize::Kib4);
        Vmap::<NullMapper, Frameless>::metadata_bytes(&VmapConfig::new(1, 50), &mapper)
    };
    assert!(bytes(u32::MAX - 15).is_ok());
    for pages in [u32::MAX - 14, u32::MAX] {
        let start = VirtAddr::new(1 << 30);
        assert_eq!(bytes(pages), Err(VmapConfigError::BadRange { start, pages }));
    }
}

#[test]
fn an_alignment_that_is_no_power_of_two_is_refused_whatever_is_pooled() {
    let config = VmapConfig { large_pages_max: Some(4096), ..VmapConfig::new(1, 500) };
    let mut vmap = paged(1000, 512, &config);
    for pages in [1, 2, 300] {
        let memory = vmap.vmalloc(pages, Options::DEFAULT).unwrap();
        vmap.vfree(memory).unwrap();
        let area = vmap.alloc(pages, Options::DEFAULT).unwrap();
        vmap.free(area).unwrap();
        for align in [0, 3, PAGE - 1, PAGE + 1, 3 * PAGE, usize::MAX] {
            let options = Options::DEFAULT.align(align);
            assert_eq!(vmap.vmalloc(pages, options), Err(VmapError::BadAlign), "{align}");
            assert_eq!(vmap.alloc(pages, options), Err(VmapError::BadAlign), "{align}");
        }
        for align in [1, 2, PAGE / 2, PAGE] {
            assert_eq!(vmap.vmalloc(pages, Options::DEFAULT.align(align)), Ok(memory), "{align}");
            vmap.vfree(memory).unwrap();
        }
    }
    check_all_back(&mut vmap);
}
