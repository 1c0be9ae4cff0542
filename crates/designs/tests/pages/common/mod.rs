//! Shared by the tests that run over every design: how each is made, and for which machines.
#![allow(dead_code, unused_macros, unused_imports, reason = "each test file uses its part")]

mod watched;

use pagedepot::cpus::{Context, Here};
use pagedepot::{CacheLimits, CpuId, FrameRange, Order, Pfn, Watermarks};
use pagedepot_designs::*;
use pagedepot_rseq::affinity;

pub use watched::Watched;

/// The exclusion among owners that a test asks for. The designs here have locks of their own; those
/// of the lab take another type of this name.
#[derive(Clone, Copy, Debug)]
pub enum Entry {
    Lock,
    OnCpu,
    Pretend,
}

/// The designs that do the same with the same lists.
pub fn with_lists(setup: &Setup) -> Vec<(&'static str, Box<dyn PageCache>)> {
    vec![
        ("spin_trylock", Box::new(spin_trylock(setup, ()))),
        ("spin_plain", Box::new(spin_plain(setup, ()))),
    ]
}

/// A task on a CPU.
pub fn task(cpu: u32) -> Here {
    Here::task(CpuId::new(cpu))
}

/// An interrupt handler on a CPU.
pub fn interrupt(cpu: u32) -> Here {
    Here { cpu: CpuId::new(cpu), context: Context::Interrupt }
}

/// Three zones: a small one of odd size, one without memory, a large one in two pieces. Every page
/// can be allocated. Caches are small, so that blocks move.
pub fn three_zones(cpus: u32) -> Setup {
    let range = |start, frames| FrameRange::new(Pfn::new(start), frames);
    let limits = CacheLimits { batch: 7, high_min: 28, high_max: 200 };
    let zone = |name, ranges| ZoneSetup {
        watermarks: Some(Watermarks { min: 0, low: 20, high: 60 }),
        ..ZoneSetup::new(name, ranges).with_limits(limits)
    };
    Setup::new(
        cpus,
        vec![
            zone("DMA", vec![range(1, 700)]),
            zone("Empty", vec![]),
            zone("Normal", vec![range(2048, 1500), range(4096, 1024)]),
        ],
    )
}

/// The store every design has by default.
pub fn buddy(setup: &Setup) -> Buddy {
    Buddy::new(setup).unwrap()
}

pub fn zone_lock<E>(setup: &Setup, _: E) -> ZoneLock<Buddy> {
    ZoneLock::new(buddy(setup))
}

pub fn zone_lock_bitmap<E>(setup: &Setup, _: E) -> ZoneLock<Bitmap> {
    ZoneLock::new(Bitmap::new(setup).unwrap())
}

pub fn spin_plain<E>(setup: &Setup, _: E) -> Spin<Buddy> {
    Spin::new(buddy(setup), LockMode::Plain, Policy::default())
}

pub fn spin_trylock<E>(setup: &Setup, _: E) -> Spin<Buddy> {
    Spin::new(buddy(setup), LockMode::TryLock, Policy::default())
}

/// `spin` by the rules of 2022.
pub fn spin_2022<E>(setup: &Setup, _: E) -> Spin<Buddy> {
    Spin::new(buddy(setup), LockMode::TryLock, Policy::of_2022(FreeHighLimit::FourBatches))
}

pub fn spin_bitmap<E>(setup: &Setup, _: E) -> Spin<Bitmap> {
    Spin::new(Bitmap::new(setup).unwrap(), LockMode::TryLock, Policy::default())
}

pub type LockedDepot = Depot<'static, Watched, ByThread>;

/// pagedepot's allocator, with fronts behind locks, so that any thread may act as any CPU. Whatever
/// a test does, a full drain that fences a CPU whose lock is free, or none whose lock is held,
/// fails it ([`Watched`]).
pub fn depot<E>(setup: &Setup, _: E) -> LockedDepot {
    depot_with(setup, FreeHigh::OFF)
}

/// `depot` over the buddy store that the other designs have, and over pagedepot's bitmap as a
/// backing.
pub fn depot_buddy<E>(setup: &Setup, _: E) -> LockedDepot {
    depot_over(buddy(setup), setup)
}

pub fn depot_backed_bitmap<E>(setup: &Setup, _: E) -> LockedDepot {
    depot_over(Bitmap::new(setup).unwrap(), setup)
}

fn depot_over(store: impl Store + Send + 'static, setup: &Setup) -> LockedDepot {
    Depot::over(store, setup, Watched::new(setup.cpus), ByThread, FreeHigh::OFF).unwrap()
}

/// `depot` with a limit for CPUs that only free high orders.
pub fn depot_free_high<E>(setup: &Setup, _: E) -> LockedDepot {
    depot_with(setup, FreeHigh::default())
}

fn depot_with(setup: &Setup, free_high: FreeHigh) -> LockedDepot {
    Depot::owned(setup, Watched::new(setup.cpus), ByThread, free_high).unwrap()
}

/// Runs a generic test over every design, as a test of its own each.
macro_rules! over_all_designs {
    ($test:ident) => {
        mod $test {
            use crate::common::{self, over_all_designs};
            over_all_designs!(
                @each $test: zone_lock, zone_lock_bitmap, spin_plain, spin_trylock, spin_2022,
                spin_bitmap, depot, depot_buddy, depot_backed_bitmap, depot_free_high
            );
        }
    };
    (@each $test:ident: $($design:ident),*) => {
        $(
            #[test]
            fn $design() {
                super::$test(stringify!($design), common::$design);
            }
        )*
    };
}
pub(crate) use over_all_designs;

/// CPUs this process may run on, at most four.
pub fn allowed_cpus() -> Vec<u32> {
    affinity::allowed().unwrap().iter().map(CpuId::get).take(4).collect()
}

/// Pins the calling thread.
pub fn pin(cpu: u32) {
    affinity::pin(CpuId::new(cpu)).unwrap();
}

/// A small generator, so that each thread's choices follow from its seed.
pub struct Rng(pub u64);

impl Rng {
    pub fn below(&mut self, n: u64) -> u64 {
        // SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}
