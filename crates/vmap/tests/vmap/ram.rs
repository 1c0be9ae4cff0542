//! Short-lived mappings.

use pagedepot_vmap::{Kind, Options, PurgeDepth, VfreeError, VmapConfig};

use crate::paper::{PAGE, check_all_back, own_frames, paged};

#[test]
fn a_mapping_is_an_area_of_its_own() {
    let mut vmap = paged(5000, 64, &VmapConfig::new(1, 300));
    let [a, b] = [0, 64].map(|i| vmap.vm_map_ram(&own_frames(i, 64), Options::DEFAULT).unwrap());
    let info = vmap.find(a.add(7)).unwrap();
    assert_eq!((info.kind, info.span.start, info.guard_pages), (Kind::Ram, a, 1));
    vmap.vm_unmap_ram(a, 64).unwrap();
    // What lives long keeps no other mapping's addresses.
    vmap.purge(PurgeDepth::Everything);
    assert_eq!((vmap.find(a), vmap.mapper().mapped_pages()), (None, 64));
    vmap.vm_unmap_ram(b, 64).unwrap();
    check_all_back(&mut vmap);
}

#[test]
fn wrong_unmaps_are_refused() {
    let mut vmap = paged(5000, 64, &VmapConfig::new(1, 300));
    let addr = vmap.vm_map_ram(&own_frames(0, 10), Options::DEFAULT).unwrap();
    for (start, pages) in [(addr, 11), (addr, 9), (addr, 0), (addr.add(PAGE), 9), (addr.add(8), 10)]
    {
        assert_eq!(vmap.vm_unmap_ram(start, pages), Err(VfreeError::NotAllocated));
    }
    assert_eq!(vmap.vfree(addr), Err(VfreeError::WrongKind(Kind::Ram)));
    vmap.vm_unmap_ram(addr, 10).unwrap();
    assert_eq!(vmap.vm_unmap_ram(addr, 10), Err(VfreeError::NotAllocated));
    check_all_back(&mut vmap);
}
