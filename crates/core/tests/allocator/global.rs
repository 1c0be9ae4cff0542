//! An allocator in a `static`, made later.

use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::common::{Anywhere, Single, open_zone, range};
use pagedepot::cpus::{CpuLock, LockedCpus, PinnedCpus};
use pagedepot::{
    AllocError, Allocator, Config, ConfigError, Flags, FrameRange, FreeError, Global, InitError,
    Order, Pfn, ZoneConfig, ZoneId,
};

const RANGES: [FrameRange; 1] = [range(0, 4096)];

/// Calls `with` with a configuration and memory for its metadata, given for good.
fn with_config<R>(with: impl FnOnce(&Config<'_>, &'static mut [MaybeUninit<u8>]) -> R) -> R {
    let zones: [ZoneConfig<'_>; 1] = [open_zone("a", &RANGES)];
    let config = Config::new(1, &zones);
    let bytes = Single::metadata_bytes(&config).unwrap();
    with(&config, Box::leak(Box::new_uninit_slice(bytes)))
}

fn make() -> Result<Single<'static>, ConfigError> {
    with_config(|config, metadata| Allocator::new(config, metadata, PinnedCpus(Anywhere::new())))
}

fn requests_fail(depot: &Global<PinnedCpus<Anywhere>>) {
    let (flags, pfn) = (Flags::default(), Pfn::new(0));
    assert!(depot.get().is_none());
    assert_eq!(depot.alloc(Order::BASE, flags), Err(AllocError::NotInitialized));
    assert_eq!(depot.alloc(Order::BASE, flags.atomic()), Err(AllocError::NotInitialized));
    assert_eq!(depot.alloc_contiguous(5, 1, flags), Err(AllocError::NotInitialized));
    assert_eq!(depot.free(pfn, Order::BASE), Err(FreeError::NotInitialized));
    assert_eq!(depot.free_contiguous(pfn, 5), Err(FreeError::NotInitialized));
}

#[test]
fn requests_fail_until_it_is_made() {
    static DEPOT: Global<PinnedCpus<Anywhere>> = Global::new();
    requests_fail(&DEPOT);
    assert!(format!("{DEPOT:?}").contains("not initialized"));
    let depot = DEPOT.init(make).unwrap();
    assert!(std::ptr::eq(depot, DEPOT.get().unwrap()));
    let pfn = DEPOT.alloc(Order::BASE, Flags::default()).unwrap();
    let run = DEPOT.alloc_contiguous(5, 1, Flags::default()).unwrap();
    assert_eq!(depot.validate_at_rest().unwrap().held_pages(), 6);
    DEPOT.free(pfn, Order::BASE).unwrap();
    DEPOT.free_contiguous(run, 5).unwrap();
    assert_eq!(depot.validate_at_rest().unwrap().held_pages(), 0);
}

#[test]
fn the_second_init_changes_nothing() {
    let depot = Global::new();
    depot.init(make).unwrap();
    let pfn = depot.alloc(Order::BASE, Flags::default()).unwrap();
    let again = depot.init(|| panic!("not called"));
    assert_eq!(again.map(drop), Err(InitError::AlreadyInitialized));
    depot.free(pfn, Order::BASE).unwrap();
}

/// Runs requests and inits as an interrupt handler in the middle of an init.
#[test]
fn requests_and_inits_inside_of_an_init_are_refused() {
    let depot = Global::new();
    let made = depot.init(|| {
        requests_fail(&depot);
        let inner = depot.init(|| panic!("not called"));
        assert_eq!(inner.map(drop), Err(InitError::InProgress));
        make()
    });
    assert!(made.is_ok());
}

#[test]
fn an_init_that_failed_or_panicked_can_be_repeated() {
    let depot = Global::new();
    let failed = depot.init(|| {
        with_config(|config, metadata| {
            Allocator::new(config, &mut metadata[..100], PinnedCpus(Anywhere::new()))
        })
    });
    assert!(matches!(
        failed,
        Err(InitError::Config(ConfigError::TooLittleMetadata { given: 100, .. }))
    ));
    requests_fail(&depot);
    catch_unwind(AssertUnwindSafe(|| depot.init(|| panic!("on purpose")).map(drop))).unwrap_err();
    requests_fail(&depot);
    depot.init(make).unwrap();
    depot.alloc(Order::BASE, Flags::default()).unwrap();
}

#[test]
fn of_many_threads_one_makes_it() {
    const THREADS: u32 = 4;
    for _ in 0..200 {
        let locks = Box::leak(Box::new([const { CpuLock::new() }; 1]));
        let depot = Global::new();
        let (made, together) = (AtomicU32::new(0), Barrier::new(THREADS as usize));
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    together.wait();
                    let result = depot.init(|| {
                        made.fetch_add(1, Ordering::Relaxed);
                        with_config(|config, metadata| {
                            let which = crate::common::threads::Claimed::new();
                            Allocator::new(config, metadata, LockedCpus::new(&*locks, which))
                        })
                    });
                    match result {
                        Ok(_) => {}
                        Err(InitError::AlreadyInitialized) => assert!(depot.get().is_some()),
                        Err(error) => assert_eq!(error, InitError::InProgress),
                    }
                    // No allocator, or all of it.
                    match depot.alloc(Order::BASE, Flags::default()) {
                        Ok(pfn) => depot.free(pfn, Order::BASE).unwrap(),
                        Err(error) => assert_eq!(error, AllocError::NotInitialized),
                    }
                });
            }
        });
        assert_eq!(made.into_inner(), 1);
        assert_eq!(depot.get().unwrap().validate_at_rest().unwrap().managed_pages, 4096);
    }
}

/// Adds memory to an allocator in a static, as a kernel does that learns of its memory piece by
/// piece.
#[test]
fn memory_is_added_to_an_allocator_in_a_static() {
    static DEPOT: Global<PinnedCpus<Anywhere>> = Global::new();
    let zones = [open_zone("a", &[])];
    let config = Config { pfn_limit: Some(Pfn::new(1 << 19)), ..Config::new(1, &zones) };
    let bytes = Single::metadata_bytes(&config).unwrap();
    let metadata = Box::leak(Box::new_uninit_slice(bytes));
    let depot =
        DEPOT.init(|| Allocator::new(&config, metadata, PinnedCpus(Anywhere::new()))).unwrap();
    assert_eq!(depot.alloc(Order::BASE, Flags::default()), Err(AllocError::Exhausted));
    for added in [range(512, 512), range(2048, 1000), range((1 << 18) - 512, 1024)] {
        let more = Box::leak(Box::new_uninit_slice(depot.section_bytes(added)));
        depot.add_memory(ZoneId::new(0), added, more).unwrap();
    }
    assert_eq!(depot.validate_at_rest().unwrap().free_pages, 512 + 1000 + 1024);
}
