//! A forked child gets an error, never a page of its parent. Its parent is not affected.

mod common;

use common::{all_back, in_child, mib};
use pagedepot_linux::reclaim::TrimError;
use pagedepot_linux::{
    AllocError, CpuId, Depot, Flags, FreeError, MemoryKind, Mode, Order, Page, Scope,
};

fn child_gets_errors(depot: &Depot, held: Page, order: Order) {
    for _ in 0..1000 {
        assert_eq!(depot.raw().alloc(order, Flags::default()), Err(AllocError::Forked));
        assert_eq!(depot.raw().alloc(order, Flags::default().atomic()), Err(AllocError::Forked));
    }
    let mut many = [held.pfn(); 200];
    assert_eq!(depot.raw().alloc_many(order, Flags::default(), &mut many), Err(AllocError::Forked));
    assert_eq!(depot.raw().alloc_contiguous(3, 1, Flags::default()), Err(AllocError::Forked));
    assert_eq!(depot.raw().alloc_at(held.pfn(), 1, Flags::default()), Err(AllocError::Forked));
    // SAFETY: the call is refused, as is checked.
    assert_eq!(unsafe { depot.raw().free(held.pfn(), order) }, Err(FreeError::Forked));
    let drained = depot.drain(Scope::ALL, Mode::Full);
    assert_eq!((drained.taken_pages, drained.fences), (0, 0));
    assert_eq!(depot.cpu_caches().disable().taken_pages, 0);
    depot.cpu_caches().enable();
    assert_eq!(depot.raw().alloc(order, Flags::default()), Err(AllocError::Forked));
    assert_eq!(depot.trim(), Err(TrimError::Forked));
    assert_eq!(&held[..6], b"parent", "what was there at the fork can be read");
    drop(held);
    let own = Depot::new(16 * mib()).unwrap();
    common::hammer(&own, std::time::Duration::from_millis(100));
}

fn fork_with(depot: &Depot) {
    for n in [0, 3, 4, 9, 10] {
        let order = common::order(n);
        // The caches hold some pages at the fork.
        drop((0..20).map(|_| depot.page(Order::BASE).unwrap()).collect::<Vec<_>>());
        let mut held = depot.page(order).unwrap();
        held[..6].copy_from_slice(b"parent");
        let (pfn, _) = held.into_raw();
        // SAFETY: the page was taken out of its owner above; the child's `Page` frees nothing.
        let held = |depot| unsafe { Page::from_raw(depot, pfn, order) };
        in_child(|| child_gets_errors(depot, held(depot), order));
        let held = held(depot);
        assert_eq!(&held[..6], b"parent");
        drop(held);
        drop(depot.page(order).unwrap());
    }
    all_back(depot);
}

#[test]
fn a_child_of_anonymous_memory() {
    fork_with(&Depot::builder(64 * mib()).build().unwrap());
}

#[test]
fn a_child_of_a_memory_file() {
    fork_with(&Depot::builder(64 * mib()).memory(MemoryKind::Memfd).build().unwrap());
}

#[test]
fn a_child_of_locks() {
    fork_with(&Depot::builder(64 * mib()).per_cpu_locks(true).build().unwrap());
}

#[test]
fn a_child_of_sequences_and_locks() {
    let isolated = common::usable_cpus().into_iter().skip(1).step_by(2).map(CpuId::new).collect();
    fork_with(&Depot::builder(64 * mib()).isolated_cpus(isolated).build().unwrap());
}

#[test]
fn a_child_of_checked() {
    fork_with(&Depot::builder(64 * mib()).checked(true).build().unwrap());
}
