//! Address spaces over a depot: buffers, raw calls, options.

mod common;

use std::sync::Arc;

use pagedepot_linux::{Depot, MemoryKind, Vmalloc};

const MIB: usize = 1 << 20;
const PAGE: usize = 4096;

fn depot(bytes: usize) -> Arc<Depot> {
    Arc::new(Depot::builder(bytes).memory(MemoryKind::Memfd).build().unwrap())
}

/// Fails unless everything is back, in the space and then in the depot.
fn all_back(mut space: Vmalloc) {
    space.shrink();
    let census = space.validate().unwrap();
    assert_eq!((census.busy_areas, census.lazy_areas, census.pooled_areas), (0, 0, 0), "{census:?}");
    assert_eq!(space.stats().tables, 0);
    let depot = space.depot().clone();
    drop(space);
    common::all_back(&mut Arc::into_inner(depot).unwrap());
}

#[test]
fn buffers_are_zeroed_and_as_large_as_asked() {
    let space = Vmalloc::new(&depot(64 * MIB)).unwrap();
    for round in 0..4 {
        for pages in [1, 2, 16, 100, 300, 1025] {
            let mut buf = space.buf(pages * PAGE - 1).unwrap();
            assert_eq!((buf.len(), buf.addr() % PAGE), (pages * PAGE, 0));
            assert!(buf.iter().all(|&byte| byte == 0), "round {round}");
            buf.fill(0xa5);
        }
    }
    assert!(space.stats().pool_hits > 0);
    all_back(space);
}
