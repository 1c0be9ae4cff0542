//! Shared by several test files: metadata of the right size, and a thread that acts as any CPU.
#![allow(dead_code, reason = "each test file uses its part")]

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use pagedepot::cpus::{Context, Environment, FenceError, Guard, Here, PinnedCpus, Processor};
use pagedepot::{Allocator, Config, CpuId, FrameRange, NodeId, Order, Pfn, Watermarks, ZoneConfig};

pub mod backing;
pub mod contents;
pub mod marks;
pub mod meetings;
pub mod pairs;
pub mod rng;
pub mod sequences;
pub mod threads;
pub mod usage;

/// One thread that acts as any CPU, in any context, at any time.
#[derive(Default)]
pub struct Anywhere {
    cpu: AtomicU32,
    interrupt: AtomicBool,
    nowhere: AtomicBool,
    now_ms: AtomicU64,
    /// Isolated CPUs, a bit each.
    isolated: AtomicU64,
    /// Quiescent CPUs, a bit each.
    quiescent: AtomicU64,
    /// Fences asked for.
    fences: AtomicU64,
    refuses_fences: AtomicBool,
}

impl Anywhere {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn run_on(&self, cpu: u32) {
        self.cpu.store(cpu, Ordering::Relaxed);
    }

    pub fn cpu(&self) -> u32 {
        self.cpu.load(Ordering::Relaxed)
    }

    pub fn set_interrupt(&self, interrupt: bool) {
        self.interrupt.store(interrupt, Ordering::Relaxed);
    }

    /// Makes the code run in a nested interrupt, where there is no guard, or no more.
    pub fn set_nowhere(&self, nowhere: bool) {
        self.nowhere.store(nowhere, Ordering::Relaxed);
    }

    pub fn is_nowhere(&self) -> bool {
        self.nowhere.load(Ordering::Relaxed)
    }

    pub fn set_now_ms(&self, now_ms: u64) {
        self.now_ms.store(now_ms, Ordering::Relaxed);
    }

    pub fn spare(&self, cpus: u64) {
        self.isolated.store(cpus, Ordering::Relaxed);
    }

    pub fn set_quiescent(&self, cpus: u64) {
        self.quiescent.store(cpus, Ordering::Relaxed);
    }

    pub fn refuse_fences(&self, refuse: bool) {
        self.refuses_fences.store(refuse, Ordering::Relaxed);
    }

    pub fn fences(&self) -> u64 {
        self.fences.load(Ordering::Relaxed)
    }
}

/// CPUs beyond 63 have no bit.
fn has_bit(bits: u64, cpu: CpuId) -> bool {
    bits.checked_shr(cpu.get()).is_some_and(|bits| bits & 1 == 1)
}

pub struct AnywhereGuard(Here);

// SAFETY: there is one thread.
unsafe impl Guard for AnywhereGuard {
    fn here(&self) -> Here {
        self.0
    }
}

// SAFETY: there is one thread, so no guard exists while it fences.
unsafe impl Processor for Anywhere {
    type Guard = AnywhereGuard;

    fn pin(&self) -> Option<AnywhereGuard> {
        let context =
            if self.interrupt.load(Ordering::Relaxed) { Context::Interrupt } else { Context::Task };
        (!self.is_nowhere()).then(|| AnywhereGuard(Here { cpu: CpuId::new(self.cpu()), context }))
    }

    fn fence(&self, _cpu: CpuId) -> Result<(), FenceError> {
        self.fences.fetch_add(1, Ordering::Relaxed);
        if self.refuses_fences.load(Ordering::Relaxed) { Err(FenceError::Refused) } else { Ok(()) }
    }

    fn is_quiescent(&self, cpu: CpuId) -> bool {
        has_bit(self.quiescent.load(Ordering::Relaxed), cpu)
    }
}

impl Environment for Anywhere {
    fn now_ms(&self) -> u64 {
        self.now_ms.load(Ordering::Relaxed)
    }

    fn is_isolated(&self, cpu: CpuId) -> bool {
        has_bit(self.isolated.load(Ordering::Relaxed), cpu)
    }
}

pub type Single<'m> = Allocator<'m, PinnedCpus<Anywhere>>;

/// Memory for the metadata of `config`.
pub fn metadata(config: &Config<'_>) -> Vec<MaybeUninit<u8>> {
    vec![MaybeUninit::uninit(); Single::metadata_bytes(config).unwrap()]
}

/// An allocator for one thread that acts as any CPU.
pub fn single<'m>(config: &Config<'_>, memory: &'m mut [MaybeUninit<u8>]) -> Single<'m> {
    Allocator::new(config, memory, PinnedCpus(Anywhere::new())).unwrap()
}

/// `frames` frames from `start`.
pub const fn range(start: u32, frames: u32) -> FrameRange {
    FrameRange::new(Pfn::new(start), frames)
}

/// A zone of level 2 on node 0 that holds nothing back.
pub fn open_zone<'c>(name: &'c str, ranges: &'c [FrameRange]) -> ZoneConfig<'c> {
    ZoneConfig {
        name,
        node: NodeId::new(0),
        level: 2,
        ranges,
        watermarks: Some(Watermarks::default()),
    }
}

pub fn order(n: u32) -> Order {
    Order::new(n).unwrap()
}

/// Duration of a soak: `PAGEDEPOT_SOAK_SECONDS`, otherwise `short`.
pub fn soak(short: Duration) -> Duration {
    match std::env::var("PAGEDEPOT_SOAK_SECONDS") {
        Ok(seconds) => Duration::from_secs(
            seconds
                .parse()
                .expect("PAGEDEPOT_SOAK_SECONDS is a whole number of seconds, as in 600"),
        ),
        Err(_) => short,
    }
}
