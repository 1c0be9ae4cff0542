//! Calls made while their own thread holds the lock that they need, as by a signal handler above
//! another call: each ends with an error.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::error::{BuildError, CallbackError, CeilingError};
use crate::reclaim::{Ceiling, PinError, ReportEnd, Reporting, TrimError};
use crate::test_units::mib;
use crate::vmalloc::{ValidateError, VmallocBuildError};
use crate::{Depot, MemoryKind, Mode, Order, Pfn, Scope, Vmalloc, ZoneId};

const FIRST: Pfn = Pfn::new(0);

/// A depot with memory to give back.
fn depot() -> Depot {
    let depot = Depot::builder(16 * mib()).memory(MemoryKind::Memfd).build().unwrap();
    depot.page(Order::MAX).unwrap().fill(1);
    depot.drain(Scope::ALL, Mode::Full);
    depot
}

#[test]
fn pins_and_trims_above_a_pin() {
    let depot = depot();
    let pinned = depot.pin_range(FIRST, 1).unwrap();
    let lock = depot.shared().pins().lock().unwrap();
    assert_eq!(depot.pin_range(FIRST, 1).err(), Some(PinError::Reentrant));
    assert_eq!(depot.unpin_range(FIRST, 1), Err(PinError::Reentrant));
    assert_eq!(depot.pinned_pages(), Err(PinError::Reentrant));
    assert_eq!(depot.registered_iovecs().err(), Some(PinError::Reentrant));
    assert_eq!(depot.trim(), Err(TrimError::Reentrant));
    assert_eq!(Ceiling::of(&depot).set(4 * mib()), Err(CeilingError::Reentrant));
    let pass = Reporting::of(&depot).pass(1).unwrap();
    assert_eq!((pass.end, pass.pageblocks), (ReportEnd::Refused, 0));
    drop(pinned); // stays pinned
    drop(lock);
    assert_eq!(depot.pinned_pages(), Ok(1));
    assert_eq!(depot.unpin_range(FIRST, 1), Ok(()));
    assert!(depot.trim().unwrap().bytes > 0);
    assert_eq!(Ceiling::of(&depot).set(4 * mib()), Ok(4 * mib()));
    depot.validate().unwrap();
}

#[test]
fn a_ceiling_above_a_ceiling() {
    let depot = depot();
    let lock = depot.shared().balloon().lock().unwrap();
    assert_eq!(Ceiling::of(&depot).set(4 * mib()), Err(CeilingError::Reentrant));
    drop(lock);
    assert_eq!(Ceiling::of(&depot).set(4 * mib()), Ok(4 * mib()));
}

#[test]
fn growing_above_growing() {
    let depot = Depot::builder(mib()).grow_to(2048 * mib()).build().unwrap();
    let zone = ZoneId::new(0);
    let lock = depot.shared().growth().lock_for_tests();
    assert_eq!(depot.grow(zone, 1), Err(BuildError::Reentrant));
    drop(lock);
    depot.grow(zone, 1).unwrap();
}

#[test]
fn callbacks_above_a_callback_that_is_registered() {
    let depot = depot();
    let lock = depot.shared().callbacks().lock_for_tests();
    assert_eq!(depot.on_pressure(|_| 0), Err(CallbackError::Reentrant));
    assert_eq!(Vmalloc::new(&depot).err(), Some(VmallocBuildError::Reentrant));
    drop(lock);
    depot.on_pressure(|_| 0).unwrap();
    Vmalloc::new(&depot).unwrap();
}

/// An address space that is dropped while its own thread is in the list of address spaces stays,
/// because the thread goes on to use it.
#[test]
fn address_spaces_above_their_list() {
    let depot = depot();
    let space = Vmalloc::builder(&depot).bytes(mib()).build().unwrap();
    let (start, _) = space.range();
    let shared = depot.shared();
    let list = shared.callbacks().shrinkers(shared).unwrap();
    let lock = list.pause().unwrap();
    assert_eq!(Vmalloc::new(&depot).err(), Some(VmallocBuildError::Reentrant));
    drop(space);
    drop(lock);
    let page = rustix::param::page_size();
    // SAFETY: maps one page over nothing, and not where there is a mapping.
    let mapped = unsafe {
        libc::mmap(
            start.as_ptr().cast(),
            page,
            libc::PROT_NONE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
            -1,
            0,
        )
    };
    assert_eq!(mapped, libc::MAP_FAILED, "the range is still mapped");
    assert_eq!(io::Error::last_os_error().raw_os_error(), Some(libc::EEXIST));
    // A request that runs short calls the space that stayed.
    let pages: Vec<_> = std::iter::from_fn(|| depot.page(Order::BASE).ok()).collect();
    assert!(pages.len() > 1000);
}

#[test]
fn validating_an_address_space_above_the_list_of_them() {
    let depot = depot();
    let mut space = Vmalloc::builder(&depot).bytes(mib()).build().unwrap();
    let shared = depot.shared();
    let list = shared.callbacks().shrinkers(shared).unwrap();
    let lock = list.pause().unwrap();
    assert!(matches!(space.validate(), Err(ValidateError::Reentrant)));
    drop(lock);
    space.validate().unwrap();
}

/// A callback runs in the middle of the call that needs pages.
#[test]
fn a_callback_sets_the_ceiling_that_is_being_set() {
    let depot = depot();
    let held: Vec<_> = std::iter::from_fn(|| depot.page(Order::BASE).ok()).collect();
    let (refused, weak) = (Arc::new(AtomicU32::new(0)), depot.downgrade());
    let counted = refused.clone();
    depot
        .on_pressure(move |_| {
            let Some(depot) = weak.upgrade() else { return 0 };
            if Ceiling::of(&depot).set(8 * mib()) == Err(CeilingError::Reentrant) {
                counted.fetch_add(1, Ordering::Relaxed);
            }
            0
        })
        .unwrap();
    let set = Ceiling::of(&depot).set(4 * mib());
    assert!(matches!(set, Err(CeilingError::Held { .. })), "{set:?}");
    assert!(refused.load(Ordering::Relaxed) > 0);
    drop(held);
}
