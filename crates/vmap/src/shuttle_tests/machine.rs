//! CPUs with preemption, and an allocator on them whose frames a vmap takes.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::sync::Arc;

use pagedepot::cpus::{Environment, FenceError, Guard, Here, PinnedCpus, Processor};
use pagedepot::{
    Allocator, Config, CpuId, FrameRange, HighPolicy, Mode, NodeId, Pfn, Scope, Watermarks,
    ZoneConfig,
};
use shuttle::rand::Rng as _;
use shuttle::sync::{Mutex, MutexGuard};

use super::rng::Rng;

pub const CPUS: u32 = 3;
/// Frames of the one zone, from frame 0.
pub const FRAMES: u32 = 4096;

shuttle::thread_local! {
    static CPU: Cell<u32> = Cell::new(0);
}

/// Makes the calling thread run on `cpu` from now on.
pub fn run_on(cpu: u32) {
    CPU.with(|at| at.set(cpu));
}

/// A generator that the schedule seeds.
pub fn rng() -> Rng {
    Rng::new(shuttle::rand::thread_rng().gen_range(0..u64::MAX))
}

/// A kernel whose preemption is a mutex per CPU.
pub struct Preemption(Vec<Mutex<()>>);

pub struct Pin {
    here: Here,
    /// The lock of a `Preemption` that outlives it, see `pin`.
    _held: MutexGuard<'static, ()>,
}

// SAFETY: the mutex of the CPU is held.
unsafe impl Guard for Pin {
    fn here(&self) -> Here {
        self.here
    }
}

impl Environment for Preemption {}

// SAFETY: a fence takes the mutex of the CPU, so all guards that existed are gone.
unsafe impl Processor for Preemption {
    type Guard = Pin;

    fn pin(&self) -> Option<Pin> {
        let here = Here::task(CpuId::new(CPU.with(Cell::get)));
        let held = self.0.get(here.cpu.index())?.lock().ok()?;
        // SAFETY: guards are local to calls of the allocator, which owns the mutexes.
        let held =
            unsafe { std::mem::transmute::<MutexGuard<'_, ()>, MutexGuard<'static, ()>>(held) };
        Some(Pin { here, _held: held })
    }

    fn fence(&self, cpu: CpuId) -> Result<(), FenceError> {
        drop(self.0[cpu.index()].lock());
        Ok(())
    }
}

type Frames = Allocator<'static, PinnedCpus<Preemption>>;

/// An allocator and its memory.
pub struct Depot {
    pub allocator: Frames,
    memory: *mut [MaybeUninit<u8>],
}

// SAFETY: `memory` is only touched by `drop`.
unsafe impl Send for Depot {}
// SAFETY: as above.
unsafe impl Sync for Depot {}

impl Depot {
    pub fn new() -> Arc<Self> {
        let ranges = [FrameRange::new(Pfn::new(0), FRAMES)];
        let zones = [ZoneConfig {
            name: "Model",
            node: NodeId::new(0),
            level: 0,
            ranges: &ranges,
            watermarks: Some(Watermarks::default()),
        }];
        let config = Config { high: HighPolicy::Fixed(256), ..Config::new(CPUS, &zones) };
        let bytes = Frames::metadata_bytes(&config).unwrap();
        let memory: *mut [_] = Box::into_raw(vec![MaybeUninit::uninit(); bytes].into_boxed_slice());
        let cpus = PinnedCpus(Preemption((0..CPUS).map(|_| Mutex::new(())).collect()));
        // SAFETY: freed by `drop`, after the allocator's last use.
        let allocator = Allocator::new(&config, unsafe { &mut *memory }, cpus).unwrap();
        Arc::new(Depot { allocator, memory })
    }

    /// All threads have ended, and freed what they held: every frame is in the allocator, and a
    /// full drain brings all of them to the store.
    pub fn finish(self: Arc<Self>) {
        let mut depot = Arc::into_inner(self).expect("all threads have been joined");
        let drained = depot.allocator.drain(Scope::ALL, Mode::Full);
        let left = (drained.busy_cpus, drained.unreachable_pages, drained.in_flight_pages);
        assert_eq!(left, (0, 0, 0));
        let census = depot.allocator.validate().unwrap();
        assert_eq!(census.held_pages(), 0, "frames were lost");
        assert_eq!(census.free_pages, census.managed_pages, "frames stay in caches");
    }
}

impl Drop for Depot {
    fn drop(&mut self) {
        // SAFETY: came from `Box::into_raw`; the allocator does nothing when dropped.
        drop(unsafe { Box::from_raw(self.memory) });
    }
}
