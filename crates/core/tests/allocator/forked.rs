//! In a fork of the process that made it, an allocator refuses every call, and says why.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{open_zone, order, range};
use pagedepot::cpus::{CpuLock, Environment, LockedCpus, Unusable, WhichCpu};
use pagedepot::{
    AllocError, Allocator, Class, Classes, Config, ConfigError, CpuId, DrainResult, Flags,
    FrameRange, FreeError, FreeManyError, Mobility, Mode, Order, Pfn, Pressure, Reclaim, Residency,
    Scope, ZoneId,
};
use pagedepot_contiguity::{
    CompactError, Compaction, Compactor, Contiguity, Move, Mover, Occupant, RemoveError,
    ReportError, Reporting, ReportingDevice,
};

const FRAMES: u32 = 4096;

/// A process that may be a fork.
#[derive(Default)]
struct Process {
    is_fork: AtomicBool,
}

impl WhichCpu for &Process {
    fn cpu(&self) -> Option<CpuId> {
        Some(CpuId::new(0))
    }
}

impl Environment for &Process {
    fn check_usable(&self) -> Result<(), Unusable> {
        if self.is_fork.load(Ordering::Relaxed) { Err(Unusable::Forked) } else { Ok(()) }
    }
}

/// A device, a mover and a callback that no fork may call.
struct Parents;

impl ReportingDevice for Parents {
    fn report(&self, _: &[FrameRange]) -> bool {
        unreachable!("a fork called it")
    }

    fn needed(&self, _: FrameRange) -> bool {
        unreachable!("a fork called it")
    }
}

impl Mover for Parents {
    fn occupant(&self, _: Pfn) -> Occupant {
        unreachable!("a fork called it")
    }

    fn move_blocks(&self, _: &mut [Move]) {
        unreachable!("a fork called it")
    }
}

impl Reclaim for Parents {
    fn reclaim(&self, _: Pressure) -> u64 {
        unreachable!("a fork called it")
    }
}

#[test]
fn a_fork_gets_errors_and_changes_nothing() {
    for checked in [false, true] {
        let ranges = [range(0, FRAMES)];
        let zones = [open_zone("z", &ranges)];
        let classes = Classes::ALIKE.apart(Mobility::Movable, Class::PAGE_CACHE);
        let config = Config { checked, classes, ..Config::new(1, &zones) };
        type Depot<'m> = Allocator<'m, LockedCpus<'m, &'m Process>>;
        let mut memory = vec![MaybeUninit::uninit(); Depot::metadata_bytes(&config).unwrap()];
        let (process, locks) = (Process::default(), [CpuLock::new()]);
        let compactor = Compactor::new(&Parents);
        let mut depot =
            Depot::new(&config, &mut memory, LockedCpus::new(&locks, &process)).unwrap();
        let flags = Flags::default();
        let held: Vec<(Pfn, Order)> = [0, 1, 2, 3, 4, 9]
            .map(order)
            .into_iter()
            .map(|size| (depot.alloc(size, flags).unwrap(), size))
            .collect();
        let start = depot.alloc_contiguous(20, 1, flags).unwrap();
        compactor.register(&depot).unwrap();
        depot.register_reclaim(&Parents).unwrap();
        Reporting::of(&depot).register(&Parents).unwrap();
        let before = depot.validate().unwrap();

        process.is_fork.store(true, Ordering::Relaxed);
        // Wipes the gates, as `MADV_WIPEONFORK` does in the child.
        let (blocks, bytes) = depot.cpu_blocks();
        let mut kept = vec![0u8; bytes];
        // SAFETY: there is one thread, which is in no call of the allocator.
        unsafe {
            kept.as_mut_ptr().copy_from_nonoverlapping(blocks.as_ptr(), bytes);
            blocks.as_ptr().write_bytes(0, bytes);
        }
        for size in Order::all() {
            assert_eq!(depot.alloc(size, flags), Err(AllocError::Forked), "{size}");
            let mut out = [Pfn::new(0); 200];
            assert_eq!(depot.alloc_many(size, flags, &mut out[..3]), Err(AllocError::Forked));
            assert_eq!(depot.alloc_many(size, flags, &mut out), Err(AllocError::Forked));
        }
        assert_eq!(depot.alloc_contiguous(3, 1, flags), Err(AllocError::Forked));
        assert_eq!(depot.alloc_at(Pfn::new(4000), 3, flags), Err(AllocError::Forked));
        for &(pfn, size) in &held {
            assert_eq!(depot.free(pfn, size), Err(FreeError::Forked), "{size}");
        }
        let all = FreeManyError { first: 0, error: FreeError::Forked, failed: held.len() };
        assert_eq!(depot.free_many(&held), Err(all));
        assert_eq!(depot.free_contiguous(start, 20), Err(FreeError::Forked));
        for mode in [Mode::Quiet, Mode::Full, Mode::Handover] {
            assert_eq!(depot.drain(Scope::ALL, mode), DrainResult::default());
        }
        assert_eq!(depot.drain_handover(Scope::ALL, Some(0)).drained(), DrainResult::default());
        assert_eq!(depot.cpu_caches().retire(CpuId::new(0)), DrainResult::default());
        let zone = ZoneId::new(0);
        let classed = flags.class(Class::PAGE_CACHE);
        for flags in [flags.compact(), flags.zeroed(), flags.atomic(), classed] {
            assert_eq!(depot.alloc(order(10), flags), Err(AllocError::Forked));
            assert_eq!(depot.alloc_contiguous(3000, 1, flags), Err(AllocError::Forked));
        }
        let (pfn, size) = held[5];
        assert_eq!(depot.split(pfn, size, order(1)), Err(FreeError::Forked));
        let compacted = depot.compact(zone, Compaction::all(), &Parents);
        assert_eq!(compacted, Err(CompactError::Forked));
        assert_eq!(depot.remove_memory(zone, range(0, 512)), Err(RemoveError::Forked));
        assert_eq!(Reporting::of(&depot).pass(zone, 1), Err(ReportError::Forked));
        assert_eq!(Residency::of(&depot).free_absent(start, 20), Err(FreeError::Forked));
        assert_eq!(Residency::of(&depot).free_present(start, 20), Err(FreeError::Forked));
        let added = depot.add_memory(zone, range(FRAMES, 512), &mut []);
        assert_eq!(added.map_err(ConfigError::from), Err(ConfigError::Forked));
        let added = depot.add_memory_held(zone, range(FRAMES, 512), &mut []);
        assert_eq!(added.map_err(ConfigError::from), Err(ConfigError::Forked));
        assert_eq!(depot.cpu_caches().add_magazines(&mut []), Err(ConfigError::Forked));
        assert!(depot.settings(zone).is_none());
        assert_eq!(depot.cpu_caches().disable(), DrainResult::default());
        assert_eq!(
            (depot.cpu_caches().decay(), depot.cpu_caches().are_enabled(CpuId::new(0))),
            (0, false)
        );
        depot.cpu_caches().enable();
        assert!(
            !depot.cpu_caches().are_enabled(CpuId::new(0))
                && !depot.cpu_caches().restore(CpuId::new(0))
        );

        // The parent finds everything as it was.
        process.is_fork.store(false, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { blocks.as_ptr().copy_from_nonoverlapping(kept.as_ptr(), bytes) };
        assert_eq!(depot.validate().unwrap(), before);
        depot.free_many(&held).unwrap();
        depot.free_contiguous(start, 20).unwrap();
        assert_eq!(depot.validate().unwrap().held_pages(), 0);
    }
}
