//! Short-lived mappings from blocks.

use pagedepot_vmap::{BLOCK_PAGES, Kind, Manner, Options, PurgeDepth, VfreeError, VmapConfig};

use crate::paper::{PAGE, check_all_back, own_frames, paged};

fn config() -> VmapConfig {
    VmapConfig { ram_blocks_max: 4, ..VmapConfig::new(1, 300) }
}

#[test]
fn a_block_is_handed_out_once_and_comes_back_whole() {
    let mut vmap = paged(5000, 64, &config());
    let map = |i: u32| {
        vmap.vm_map_ram(&own_frames(i * 64, 64), Manner::Blocks, Options::DEFAULT).unwrap()
    };
    let first: Vec<_> = (0..BLOCK_PAGES / 64).map(map).collect();
    assert!(first.windows(2).all(|pair| pair[1] == pair[0].add(64 * PAGE)));
    assert_eq!(vmap.find(first[3].add(7)).unwrap().kind, Kind::RamBlock);
    // The block is full: the next is another.
    let other = map(100);
    assert_ne!(vmap.find(other).unwrap().span, vmap.find(first[7]).unwrap().span);
    first[1..].iter().for_each(|&addr| vmap.vm_unmap_ram(addr, 64).unwrap());
    vmap.purge(PurgeDepth::Decay);
    // One mapping keeps the whole block.
    assert_eq!(vmap.mapper().mapped_pages() as u32, BLOCK_PAGES + 64);
    // Whoever must know that his frames are unmapped says so.
    vmap.purge(PurgeDepth::Lazy);
    assert_eq!(vmap.mapper().mapped_pages(), 128);
    assert_eq!(vmap.find(first[3]).unwrap().kind, Kind::RamBlock);
    assert_eq!(vmap.vm_unmap_ram(first[3], 64), Err(VfreeError::NotAllocated));
    vmap.vm_unmap_ram(first[0], 64).unwrap();
    vmap.purge(PurgeDepth::Decay);
    assert_eq!(vmap.find(first[3]), None);
    assert_eq!(vmap.mapper().mapped_pages(), 64);
    vmap.vm_unmap_ram(other, 64).unwrap();
    check_all_back(&mut vmap);
}

#[test]
fn wrong_unmaps_are_refused() {
    let mut vmap = paged(5000, 64, &config());
    let addr = vmap.vm_map_ram(&own_frames(0, 10), Manner::Blocks, Options::DEFAULT).unwrap();
    assert_eq!(vmap.vm_unmap_ram(addr, 11), Err(VfreeError::NotAllocated));
    assert_eq!(vmap.vm_unmap_ram(addr, 0), Err(VfreeError::NotAllocated));
    assert_eq!(vmap.vm_unmap_ram(addr.add(10 * PAGE), 1), Err(VfreeError::NotAllocated));
    assert_eq!(vmap.vm_unmap_ram(addr.add(8), 1), Err(VfreeError::OutOfRange));
    assert_eq!(vmap.vfree(addr), Err(VfreeError::WrongKind(Kind::RamBlock)));
    vmap.vm_unmap_ram(addr, 10).unwrap();
    assert_eq!(vmap.vm_unmap_ram(addr, 10), Err(VfreeError::NotAllocated));
    let pooled = vmap.vm_map_ram(&own_frames(0, 10), Manner::Pools, Options::DEFAULT).unwrap();
    assert_eq!(vmap.vm_unmap_ram(pooled, 9), Err(VfreeError::NotAllocated));
    vmap.vm_unmap_ram(pooled, 10).unwrap();
    check_all_back(&mut vmap);
}

#[test]
fn without_blocks_the_pools_serve() {
    let mut vmap = paged(5000, 64, &config());
    // Four blocks, each kept by one mapping.
    let frames = own_frames(0, 64);
    let mapped: Vec<_> = (0..4 * BLOCK_PAGES / 64 + 3)
        .map(|_| vmap.vm_map_ram(&frames, Manner::Blocks, Options::DEFAULT).unwrap())
        .collect();
    let kinds: Vec<_> = mapped.iter().map(|&addr| vmap.find(addr).unwrap().kind).collect();
    assert_eq!(kinds.iter().filter(|&&kind| kind == Kind::Ram).count(), 3);
    let large = vmap.vm_map_ram(&own_frames(0, 65), Manner::Blocks, Options::DEFAULT).unwrap();
    assert_eq!(vmap.find(large).unwrap().kind, Kind::Ram);
    vmap.vm_unmap_ram(large, 65).unwrap();
    mapped.iter().for_each(|&addr| vmap.vm_unmap_ram(addr, 64).unwrap());
    check_all_back(&mut vmap);
}
