//! The system's own limit on mappings. In a process of its own: others would find none left.

use std::sync::Arc;

use pagedepot_linux::vmalloc::{MapError, Options, Vmalloc, VmapError};
use pagedepot_linux::{Depot, MemoryKind, Order};

/// Requests fail before it is reached, so that purges still work.
#[test]
fn a_space_stays_below_the_systems_limit() {
    let depot = Arc::new(Depot::builder(512 << 20).memory(MemoryKind::Memfd).build().unwrap());
    let mut space = Vmalloc::builder(&depot).bytes(1 << 30).areas_max(200_000).build().unwrap();
    let limit: u32 = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap().trim().parse().unwrap();
    if limit > 100_000 {
        return;
    }
    assert!(space.mappings_max() <= limit - limit / 8);
    let frame = depot.alloc(Order::BASE, Default::default()).unwrap();
    let mut starts = Vec::new();
    let error = loop {
        match space.vmap(&[frame], Options::DEFAULT) {
            Ok(start) => starts.push(start),
            Err(error) => break error,
        }
    };
    assert_eq!(error, VmapError::Map(MapError::TooManyMappings { limit: space.mappings_max() }));
    assert!(starts.len() as u32 > limit / 4, "{}", starts.len());
    for start in starts {
        // SAFETY: never used.
        unsafe { space.vunmap(start) }.unwrap();
    }
    let purged = space.shrink();
    assert_eq!((purged.stuck_areas, purged.error), (0, None));
    // SAFETY: mapped nowhere any more.
    unsafe { depot.free(frame, Order::BASE) }.unwrap();
    assert_eq!((space.mappings(), space.validate().unwrap().mapped_pages), (1, 0));
}
