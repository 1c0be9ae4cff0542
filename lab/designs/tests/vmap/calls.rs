//! The calls of the mapper that a mapping costs: what a system pays for where a call is dear.

use std::mem::MaybeUninit;

use pagedepot::cpus::{Environment, WhichCpu};
use pagedepot::{CpuId, PageSize, Pfn};
use pagedepot_lab_designs::vmap::{Depot, Nodes, VmapDesign, VmapSetup};
use pagedepot_vmap::{NoFrames, NullMapper, Span, VirtAddr, Vmap, VmapConfig};

const PAGES: u32 = 16;
const AREAS: u64 = 2000;
const PURGES: u64 = 4;

struct First;

impl WhichCpu for First {
    fn cpu(&self) -> Option<CpuId> {
        Some(CpuId::new(0))
    }
}

impl Environment for First {}

fn mapper() -> NullMapper {
    NullMapper::new(Span::new(VirtAddr::new(1 << 30), 1 << 18), PageSize::Kib4)
}

/// Maps frames in one run, again and again.
fn map_often(design: &dyn VmapDesign) {
    let frames: Vec<_> = (0..PAGES).map(|i| Pfn::new(64 + i)).collect();
    for _ in 0..AREAS * PURGES {
        let start = design.map_ram(&frames).unwrap();
        design.unmap_ram(start, PAGES).unwrap();
    }
}

#[test]
fn a_purge_unmaps_neighbours_by_one_call_and_nodes_by_one_each() {
    let lazy_pages_max = Some(AREAS * u64::from(PAGES + 1));
    let config = VmapConfig { lazy_pages_max, ..VmapConfig::new(2, 1 << 14) };
    let bytes = Vmap::<NullMapper, NoFrames<First>>::metadata_bytes(&config, &mapper()).unwrap();
    let mut metadata = vec![MaybeUninit::uninit(); bytes];
    // SAFETY: nothing is reached through the mapper.
    let vmap = unsafe { Vmap::new(&config, &mut metadata, mapper(), NoFrames(First)) }.unwrap();
    let depot = Depot::new(vmap);
    map_often(&depot);
    let calls = depot.vmap().mapper().calls();
    let purges = depot.counts().purges;
    assert!((PURGES - 1..=PURGES).contains(&purges), "{purges} purges");
    assert_eq!(calls.maps, AREAS * PURGES);
    assert!(calls.unmaps <= 2 * purges, "{calls:?}");

    let setup = VmapSetup { lazy_pages_max, ..VmapSetup::new(2) };
    // SAFETY: as above.
    let nodes = unsafe { Nodes::new(setup, mapper(), NoFrames(First)) };
    map_often(&nodes);
    let calls = nodes.mapper().calls();
    assert_eq!((calls.maps, calls.unmaps), (AREAS * PURGES, AREAS * nodes.counts().purges));
}
