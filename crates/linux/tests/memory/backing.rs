//! A depot over a store of the program's own.

#[path = "../../../core/tests/common/backing.rs"]
mod store;

use std::sync::Arc;
use std::time::Duration;

use pagedepot_linux::reclaim::Ceiling;

use crate::common::{all_back, hammer, mib, order, page_bytes};
use pagedepot_linux::{AllocError, Builder, Depot, Flags, Mode, Pfn, Scope, ZoneId};
use store::Sets;

/// A depot, and the store under it.
fn over(builder: Builder, has_ranges: bool) -> (Depot, Arc<Sets>) {
    let mut sets = None;
    let depot =
        builder.build_over(|zones| sets.insert(Arc::new(Sets::new(zones, has_ranges))).clone());
    (depot.unwrap(), sets.unwrap())
}

#[test]
fn threads_share_a_store_of_their_own() {
    for locks in [false, true] {
        let (depot, _) = over(Depot::builder(64 * mib()).per_cpu_locks(locks), false);
        hammer(&depot, Duration::from_millis(300));
        all_back(&depot);
    }
}

#[test]
fn what_it_cannot_do_is_refused() {
    let (depot, _) = over(Depot::builder(16 * mib()).populate(true), false);
    assert_eq!(depot.metadata_use().sections, 0);
    assert_eq!(
        depot.raw().alloc_at(Pfn::new(100), 7, Flags::default()),
        Err(AllocError::Unsupported)
    );
    assert_eq!(depot.pages(2000, Flags::default()).unwrap_err(), AllocError::Unsupported);
    assert_eq!(depot.trim().unwrap().bytes, 0);
    all_back(&depot);
}

#[test]
fn what_it_can_do_is_used() {
    let (depot, sets) = over(Depot::builder(16 * mib()).populate(true), true);
    let held = depot.page(order(4)).unwrap();
    depot.drain(Scope::ALL, Mode::Full);
    assert_eq!(depot.trim().unwrap().bytes as usize, 16 * mib() - 16 * page_bytes());
    assert_eq!(pagedepot::Backing::free_pages(&*sets, ZoneId::new(0)), 4096 - 16);
    drop(held);
    // A word of the program's own reaches its store.
    drop(depot.page_with(order(9), Flags::default().backing_bits(0x1234)));
    assert_eq!(sets.last_bits(), 0x1234);
    drop(depot.pages(2000, Flags::default()).unwrap());
    all_back(&depot);
}

/// A higher ceiling puts into the store what a lower one took.
#[test]
fn a_ceiling_gives_back_what_it_took() {
    let (depot, sets) = over(Depot::builder(16 * mib()), true);
    let ceiling = Ceiling::of(&depot);
    let free = || pagedepot::Backing::free_pages(&*sets, ZoneId::new(0));
    assert_eq!((ceiling.set(4 * mib()), free()), (Ok(4 * mib()), 1024));
    for (bytes, pages) in [(6 * mib(), 1536), (16 * mib(), 4096)] {
        assert_eq!(ceiling.set(bytes), Ok(bytes));
        depot.drain(Scope::ALL, Mode::Full);
        assert_eq!(free(), pages);
    }
    drop(depot.pages(4096, Flags::default()).unwrap());
    all_back(&depot);
}
