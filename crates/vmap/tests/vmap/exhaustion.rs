//! Running out of addresses, of descriptors, of frames: a typed error, nothing lost, and everything
//! available again afterwards.

use pagedepot::AllocError;
use pagedepot_vmap::{Options, VmapConfig, VmapError};

use crate::paper::{check_all_back, own_frames, paged};

#[test]
fn all_addresses_can_be_had_and_no_more() {
    let mut vmap = paged(1000, 64, &VmapConfig::new(1, 2000));
    let areas: Vec<_> = std::iter::from_fn(|| vmap.alloc(3, Options::DEFAULT).ok()).collect();
    assert_eq!(areas.len(), 250);
    assert_eq!(vmap.alloc(3, Options::DEFAULT), Err(VmapError::NoSpace));
    assert_eq!(vmap.stats().free_pages, 0);
    // Freed pages are available at once, also in another size.
    areas[10..20].iter().for_each(|&addr| vmap.free(addr).unwrap());
    assert_eq!(vmap.alloc(39, Options::DEFAULT), Ok(areas[10]));
    vmap.free(areas[10]).unwrap();
    areas[..10].iter().chain(&areas[20..]).for_each(|&addr| vmap.free(addr).unwrap());
    assert_eq!(vmap.alloc(999, Options::DEFAULT), Ok(areas[0]));
    vmap.free(areas[0]).unwrap();
    check_all_back(&mut vmap);
}

#[test]
fn descriptors_run_out_with_an_error_and_come_back() {
    let mut vmap = paged(10_000, 64, &VmapConfig::new(1, 100));
    let areas: Vec<_> = std::iter::from_fn(|| vmap.alloc(3, Options::DEFAULT).ok()).collect();
    // One describes what is free.
    assert_eq!(areas.len(), 99);
    assert_eq!(vmap.alloc(3, Options::DEFAULT), Err(VmapError::NoAreas));
    assert_eq!(vmap.alloc(9, Options::DEFAULT), Err(VmapError::NoAreas));
    assert_eq!(vmap.vmap(&own_frames(0, 2), Options::DEFAULT), Err(VmapError::NoAreas));
    // Two neighbours make one free range, and leave a descriptor: pooled ones are taken back.
    vmap.free(areas[0]).unwrap();
    vmap.free(areas[1]).unwrap();
    let other = vmap.alloc(9, Options::DEFAULT).unwrap();
    vmap.free(other).unwrap();
    areas[2..].iter().for_each(|&addr| vmap.free(addr).unwrap());
    check_all_back(&mut vmap);
}

#[test]
fn growth_without_a_descriptor_at_hand_fails_and_keeps_the_area() {
    let mut vmap = paged(10_000, 512, &VmapConfig::new(1, 10));
    let memory = vmap.vmalloc(4, Options::DEFAULT).unwrap();
    vmap.mapper().write(memory, 5);
    let areas: Vec<_> = std::iter::from_fn(|| vmap.alloc(3, Options::DEFAULT).ok()).collect();
    assert_eq!(vmap.vrealloc(memory, 40, Options::DEFAULT), Err(VmapError::NoAreas));
    assert_eq!(vmap.vrealloc(memory, 2, Options::DEFAULT), Err(VmapError::NoAreas));
    assert_eq!(vmap.mapper().read(memory), 5);
    vmap.vfree(memory).unwrap();
    areas.iter().for_each(|&addr| vmap.free(addr).unwrap());
    check_all_back(&mut vmap);
}

#[test]
fn frames_run_out_with_an_error_and_none_is_lost() {
    let mut vmap = paged(5000, 1000, &VmapConfig::new(1, 2000));
    let memory: Vec<_> = std::iter::from_fn(|| vmap.vmalloc(7, Options::DEFAULT).ok()).collect();
    assert!(memory.len() >= 140, "{}", memory.len());
    assert_eq!(vmap.vmalloc(300, Options::DEFAULT), Err(VmapError::Frames(AllocError::Exhausted)));
    assert_eq!(
        vmap.vrealloc(memory[0], 300, Options::DEFAULT),
        Err(VmapError::Frames(AllocError::Exhausted))
    );
    vmap.validate().unwrap();
    memory.iter().for_each(|&addr| vmap.vfree(addr).unwrap());
    check_all_back(&mut vmap);
}

#[test]
fn frames_of_freed_areas_serve_before_a_request_fails() {
    // No callback is registered: the vmap purges its own areas.
    let mut vmap = paged(5000, 1000, &VmapConfig::new(1, 2000));
    for pages in [16, 17, 40] {
        let memory: Vec<_> =
            std::iter::from_fn(|| vmap.vmalloc(pages, Options::DEFAULT).ok()).collect();
        assert!(memory.len() as u32 >= 950 / pages, "{} of {pages} pages", memory.len());
        memory.iter().for_each(|&addr| vmap.vfree(addr).unwrap());
    }
    let no_wait = vmap.vmalloc(900, Options::DEFAULT.no_wait());
    assert_eq!(no_wait, Err(VmapError::Frames(AllocError::Exhausted)));
    check_all_back(&mut vmap);
}

#[test]
fn resizing_gets_the_descriptors_of_what_was_freed() {
    for is_reserved in [true, false] {
        for pages in [50, 70] {
            // One for the memory, two for what is free around it, one each for two areas.
            let mut vmap = paged(1000, 512, &VmapConfig::new(1, 4));
            let at = match is_reserved {
                true => vmap.vmalloc_reserved(60, 100, Options::DEFAULT).unwrap(),
                false => vmap.vmalloc(60, Options::DEFAULT).unwrap(),
            };
            let freed = [3, 5].map(|pages| vmap.alloc(pages, Options::DEFAULT).unwrap());
            freed.into_iter().for_each(|area| vmap.free(area).unwrap());
            let resized = vmap.vrealloc(at, pages, Options::DEFAULT);
            assert!(resized.is_ok_and(|to| to == at || !is_reserved && pages > 60), "{resized:?}");
            vmap.validate().unwrap();
            vmap.vfree(resized.unwrap()).unwrap();
            check_all_back(&mut vmap);
        }
    }
}
