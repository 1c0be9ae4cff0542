//! Sequences that follow gates without looking at them. For every CPU number and every state of the
//! gate they find the CPU's words, or words that refuse.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::common::sequences::{Aborted, Machine, Stepped, Steps};
use crate::common::{open_zone, order, range};
use pagedepot::cpus::implement::{BlockArray, REFUSALS_AT};
use pagedepot::cpus::{Environment, FenceError, Here, Unusable};
use pagedepot::{Allocator, Config, ConfigError, CpuId, Fault, Flags, Mode, Scope};

const FRAMES: u32 = 4096;

/// One thread, which names the CPU that it runs on.
#[derive(Default)]
struct Thread {
    number: AtomicU32,
}

impl Thread {
    fn number(&self) -> u32 {
        self.number.load(Ordering::Relaxed)
    }
}

// SAFETY: there is one thread and no handler, so no code comes between two steps of a sequence.
unsafe impl Machine for &Thread {
    const FOLLOWS_GATES: bool = true;

    fn here(&self) -> Option<Here> {
        Some(Here::task(CpuId::new(self.number())))
    }

    fn run<R>(
        &self,
        blocks: &BlockArray,
        sequence: impl Fn(Steps<'_>) -> Result<R, Aborted>,
    ) -> Option<R> {
        let here = Here::task(CpuId::new(self.number()));
        sequence(Steps { blocks, here, step: &|| Ok(()), follows_gates: true }).ok()
    }

    fn fence(&self, _cpu: CpuId) -> Result<(), FenceError> {
        Ok(())
    }
}

impl Environment for &Thread {
    fn check_usable(&self) -> Result<(), Unusable> {
        Ok(())
    }
}

type Depot<'m> = Allocator<'m, Stepped<&'m Thread>>;

fn with_depot(cpus: u32, test: impl FnOnce(&mut Depot<'_>, &Thread)) {
    let ranges = [range(0, FRAMES)];
    let zones = [open_zone("z", &ranges), open_zone("empty", &[])];
    let config = Config::new(cpus, &zones);
    // A gate of ones would be taken for one that leads to the end of the address space.
    let mut metadata = vec![MaybeUninit::new(0xff_u8); Depot::metadata_bytes(&config).unwrap()];
    let thread = Thread::default();
    test(&mut Depot::new(&config, &mut metadata, Stepped(&thread)).unwrap(), &thread);
}

/// Allocates and frees, more than a magazine's worth.
fn exercise(depot: &Depot<'_>) {
    // The pageblocks first: the request that finds no more of them empties the caches.
    for size in [9, 0, 0, 3].map(order) {
        let held: Vec<_> =
            (0..80).map_while(|_| depot.alloc(size, Flags::default()).ok()).collect();
        assert!(!held.is_empty());
        held.into_iter().for_each(|pfn| depot.free(pfn, size).unwrap());
    }
}

fn hits(depot: &Depot<'_>) -> u64 {
    depot.zone_ids().map(|zone| depot.zone_stats(zone).unwrap().counts.hits).sum()
}

#[test]
fn every_number_may_ask() {
    with_depot(2, |depot, thread| {
        for number in [0, 1, 2, 63, 8191, -2i32 as u32, -1i32 as u32] {
            thread.number.store(number, Ordering::Relaxed);
            let before = hits(depot);
            exercise(depot);
            assert_eq!(hits(depot) > before, number < 2, "{number}");
            assert_eq!(depot.validate().unwrap().held_pages(), 0);
        }
    });
}

#[test]
fn gates_of_numbers_without_a_cpu_are_zeroed() {
    with_depot(1, |depot, thread| {
        for number in [1, 2, 1 << 15, (1 << 16) - 1] {
            thread.number.store(number, Ordering::Relaxed);
            exercise(depot);
        }
        assert_eq!(depot.validate().unwrap().cached_pages, 0);
    });
}

#[test]
fn zeroed_memory_is_left_alone() {
    let ranges = [range(0, FRAMES)];
    let zones = [open_zone("z", &ranges)];
    let config = Config::new(1, &zones);
    let mut metadata = vec![MaybeUninit::zeroed(); Depot::metadata_bytes(&config).unwrap()];
    let thread = Thread::default();
    // SAFETY: the memory is zeroed.
    let mut depot =
        unsafe { Depot::builder(&config).build_zeroed(&mut metadata, Stepped(&thread)) }.unwrap();
    exercise(&depot);
    assert!(depot.validate().unwrap().cached_pages > 0);
}

#[test]
fn closed_gates_refuse_until_they_are_open() {
    with_depot(1, |depot, _| {
        exercise(depot);
        depot.cpu_caches().disable();
        let before = hits(depot);
        exercise(depot);
        assert_eq!((hits(depot), depot.validate().unwrap().cached_pages), (before, 0));
        depot.cpu_caches().enable();
        exercise(depot);
        assert!(hits(depot) > before && depot.validate().unwrap().cached_pages > 0);
        depot.drain(Scope::ALL, Mode::Full);
        assert_eq!(depot.validate().unwrap().cached_pages, 0);
    });
}

#[test]
fn words_that_refuse_are_never_written() {
    with_depot(1, |depot, _| {
        exercise(depot);
        let (base, bytes) = depot.cpu_blocks();
        assert!(REFUSALS_AT < bytes);
        // SAFETY: in the metadata, which no other code uses now.
        unsafe { base.add(REFUSALS_AT + 40).write(1) };
        assert_eq!(depot.validate(), Err(Fault::Refusals));
    });
}

#[test]
fn more_cpus_than_can_be_followed() {
    let ranges = [range(0, FRAMES)];
    let zones = [open_zone("z", &ranges)];
    let bare = |cpus| Config { caches: false, ..Config::new(cpus, &zones) };
    assert!(Depot::metadata_bytes(&bare(1 << 15)).is_ok());
    assert_eq!(Depot::metadata_bytes(&bare((1 << 15) + 1)), Err(ConfigError::TooLarge));
}

#[test]
fn unused_gates_are_not_counted() {
    let used = |cpus| {
        let mut bytes = 0;
        with_depot(cpus, |depot, _| bytes = depot.metadata_use().cpus);
        bytes
    };
    assert!(used(1) < 16 << 10 && used(2) > used(1), "{} {}", used(1), used(2));
}
