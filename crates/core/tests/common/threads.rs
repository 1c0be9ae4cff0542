//! CPUs for tests with several threads: each thread says where it runs.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Instant;

use pagedepot::CpuId;
use pagedepot::cpus::{FenceError, Guard, Here, Processor, WhichCpu};

thread_local! {
    static CPU: Cell<Option<u32>> = const { Cell::new(Some(0)) };
}

/// From now on this thread runs on `cpu`, or nowhere.
pub fn run_on(cpu: Option<u32>) {
    CPU.set(cpu);
}

/// For [`Locked`](pagedepot::cpus::Locked): several threads may believe to be on one CPU.
pub struct Claimed(Instant);

impl Claimed {
    pub fn new() -> Self {
        Claimed(Instant::now())
    }
}

impl WhichCpu for Claimed {
    fn cpu(&self) -> Option<CpuId> {
        CPU.get().map(CpuId::new)
    }

    fn now_ms(&self) -> u64 {
        self.0.elapsed().as_millis() as u64 + 1
    }
}

/// Called in the middle of a fence, with the gate closed.
type OnFence = Box<dyn Fn(CpuId) + Send + Sync>;

/// A kernel whose preemption is a mutex per CPU.
pub struct Kernel {
    cpus: Vec<Mutex<()>>,
    spared: AtomicU64,
    on_fence: RwLock<Option<OnFence>>,
}

impl Kernel {
    pub fn new(cpus: u32) -> Self {
        Kernel {
            cpus: (0..cpus).map(|_| Mutex::new(())).collect(),
            spared: AtomicU64::new(0),
            on_fence: RwLock::new(None),
        }
    }

    /// CPUs that full drains leave alone, a bit each.
    pub fn spare(&self, cpus: u64) {
        self.spared.store(cpus, Ordering::Relaxed);
    }

    pub fn on_fence(&self, call: Option<OnFence>) {
        *self.on_fence.write().unwrap_or_else(PoisonError::into_inner) = call;
    }

    fn hold(&self, cpu: u32) -> Option<MutexGuard<'_, ()>> {
        // A test's panic leaves nothing half done under this mutex.
        Some(self.cpus.get(cpu as usize)?.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Preemption is off while this lives.
pub struct Pin {
    here: Here,
    /// Of a `Kernel` that outlives it, see `pin`.
    _held: MutexGuard<'static, ()>,
}

// SAFETY: the mutex of the CPU is held.
unsafe impl Guard for Pin {
    fn here(&self) -> Here {
        self.here
    }
}

// SAFETY: a fence takes the CPU's mutex, so all guards that existed are gone, and what they stored
// is visible.
unsafe impl Processor for Kernel {
    type Guard = Pin;

    fn pin(&self) -> Option<Pin> {
        let cpu = CPU.get()?;
        let held = self.hold(cpu)?;
        // SAFETY: guards are local to calls of the allocator, which owns the kernel.
        let held = unsafe { std::mem::transmute::<MutexGuard<'_, ()>, MutexGuard<'static, ()>>(held) };
        Some(Pin { here: Here::task(CpuId::new(cpu)), _held: held })
    }

    fn fence(&self, cpu: CpuId) -> Result<(), FenceError> {
        if let Some(call) = &*self.on_fence.read().unwrap_or_else(PoisonError::into_inner) {
            call(cpu);
        }
        drop(self.hold(cpu.get()));
        Ok(())
    }

    fn is_spared(&self, cpu: CpuId) -> bool {
        self.spared.load(Ordering::Relaxed) >> cpu.get() & 1 == 1
    }
}
