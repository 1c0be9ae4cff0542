//! CPUs for tests with several threads: each thread names the CPU that it runs on.

use std::cell::Cell;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use pagedepot::CpuId;
use pagedepot::cpus::{Environment, Event, FenceError, Guard, Here, Processor, WhichCpu};

thread_local! {
    static CPU: Cell<Option<u32>> = const { Cell::new(Some(0)) };
}

/// Makes this thread run on `cpu`, or nowhere, from now on.
pub fn run_on(cpu: Option<u32>) {
    CPU.set(cpu);
}

/// CPUs for [`LockedCpus`](pagedepot::cpus::LockedCpus): several threads may claim the same one.
pub struct Claimed {
    began: Instant,
    /// Isolated CPUs, a bit each.
    isolated: AtomicU64,
}

impl Claimed {
    pub fn new() -> Self {
        Claimed { began: Instant::now(), isolated: AtomicU64::new(0) }
    }

    /// Sets the isolated CPUs, a bit each.
    pub fn spare(&self, cpus: u64) {
        self.isolated.store(cpus, Ordering::Relaxed);
    }
}

impl WhichCpu for Claimed {
    fn cpu(&self) -> Option<CpuId> {
        CPU.get().map(CpuId::new)
    }
}

impl Environment for Claimed {
    fn now_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64 + 1
    }

    fn is_isolated(&self, cpu: CpuId) -> bool {
        self.isolated.load(Ordering::Relaxed) >> cpu.get() & 1 == 1
    }
}

/// Called in the middle of a fence, with the gate closed.
type OnFence = Box<dyn Fn(CpuId) + Send + Sync>;

/// A kernel whose preemption is a mutex per CPU.
pub struct Kernel {
    cpus: Vec<Mutex<()>>,
    isolated: AtomicU64,
    on_fence: RwLock<Option<OnFence>>,
}

impl Kernel {
    pub fn new(cpus: u32) -> Self {
        Kernel {
            cpus: (0..cpus).map(|_| Mutex::new(())).collect(),
            isolated: AtomicU64::new(0),
            on_fence: RwLock::new(None),
        }
    }

    /// Sets the isolated CPUs, a bit each.
    pub fn spare(&self, cpus: u64) {
        self.isolated.store(cpus, Ordering::Relaxed);
    }

    pub fn on_fence(&self, call: Option<OnFence>) {
        *self.on_fence.write().unwrap_or_else(PoisonError::into_inner) = call;
    }

    fn hold(&self, cpu: u32) -> Option<MutexGuard<'_, ()>> {
        // A panic in a test leaves nothing half changed under this mutex.
        Some(self.cpus.get(cpu as usize)?.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Preemption is off while this lives.
pub struct Pin {
    here: Here,
    /// The mutex of a `Kernel` that outlives this guard, see `pin`.
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
        let held =
            unsafe { std::mem::transmute::<MutexGuard<'_, ()>, MutexGuard<'static, ()>>(held) };
        Some(Pin { here: Here::task(CpuId::new(cpu)), _held: held })
    }

    fn fence(&self, cpu: CpuId) -> Result<(), FenceError> {
        if let Some(call) = &*self.on_fence.read().unwrap_or_else(PoisonError::into_inner) {
            call(cpu);
        }
        drop(self.hold(cpu.get()));
        Ok(())
    }
}

impl Environment for Kernel {
    fn is_isolated(&self, cpu: CpuId) -> bool {
        self.isolated.load(Ordering::Relaxed) >> cpu.get() & 1 == 1
    }
}

/// Called by slow paths, with pages in flight.
type OnEvent = Box<dyn Fn(Event) + Send + Sync>;

/// A [`Kernel`] whose threads have names, and sleep when they wait.
pub struct Parked {
    pub kernel: Kernel,
    parking: Mutex<()>,
    woken: Condvar,
    began: Instant,
    waits: AtomicU64,
    turn_waits: AtomicU64,
    /// Milliseconds that waiters would have slept, where they do not sleep.
    dreamt_ms: AtomicU64,
    /// The time awake at which dreams began, 0 outside of them.
    dreams_since_ms: AtomicU64,
    is_nameless: AtomicBool,
    on_event: RwLock<Option<OnEvent>>,
}

impl Parked {
    pub fn new(cpus: u32) -> Self {
        Parked {
            kernel: Kernel::new(cpus),
            parking: Mutex::new(()),
            woken: Condvar::new(),
            began: Instant::now(),
            waits: AtomicU64::new(0),
            turn_waits: AtomicU64::new(0),
            dreamt_ms: AtomicU64::new(0),
            dreams_since_ms: AtomicU64::new(0),
            is_nameless: AtomicBool::new(false),
            on_event: RwLock::new(None),
        }
    }

    pub fn on_event(&self, call: Option<OnEvent>) {
        *self.on_event.write().unwrap_or_else(PoisonError::into_inner) = call;
    }

    /// Number of times that a thread has slept.
    pub fn waits(&self) -> u64 {
        self.waits.load(Ordering::Acquire)
    }

    /// Number of times that a thread has slept for another's turn: longer than a nap.
    pub fn turn_waits(&self) -> u64 {
        self.turn_waits.load(Ordering::Acquire)
    }

    /// Makes a sleep take no time and only advance the clock from now on. Nothing else advances it
    /// until this ends, however slow the machine is.
    pub fn dream(&self, dreams: bool) {
        self.dreams_since_ms.store(if dreams { self.awake_ms() } else { 0 }, Ordering::Release);
    }

    fn awake_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64 + 1
    }

    pub fn dreamt_ms(&self) -> u64 {
        self.dreamt_ms.load(Ordering::Acquire)
    }

    /// Takes the threads' names away from now on.
    pub fn forget_names(&self, is_nameless: bool) {
        self.is_nameless.store(is_nameless, Ordering::Relaxed);
    }
}

// SAFETY: as for `Kernel`.
unsafe impl Processor for Parked {
    type Guard = Pin;

    fn pin(&self) -> Option<Pin> {
        self.kernel.pin()
    }

    fn fence(&self, cpu: CpuId) -> Result<(), FenceError> {
        self.kernel.fence(cpu)
    }
}

impl Environment for Parked {
    fn now_ms(&self) -> u64 {
        let awake_ms = match self.dreams_since_ms.load(Ordering::Acquire) {
            0 => self.awake_ms(),
            since_ms => since_ms,
        };
        awake_ms + self.dreamt_ms()
    }

    fn is_isolated(&self, cpu: CpuId) -> bool {
        self.kernel.is_isolated(cpu)
    }

    fn caller(&self) -> Option<NonZeroUsize> {
        let name = CPU.with(|cpu| NonZeroUsize::new(std::ptr::from_ref(cpu).addr()));
        name.filter(|_| !self.is_nameless.load(Ordering::Relaxed))
    }

    fn event(&self, event: Event) {
        if let Some(call) = &*self.on_event.read().unwrap_or_else(PoisonError::into_inner) {
            call(event);
        }
    }

    fn wait(&self, word: &AtomicU32, seen: u32, limit_ms: u32) {
        let guard = self.parking.lock().unwrap_or_else(PoisonError::into_inner);
        // A wait for a turn has a limit of a second; a nap is 32 ms at most.
        self.turn_waits.fetch_add(u64::from(limit_ms > 500), Ordering::AcqRel);
        self.waits.fetch_add(1, Ordering::AcqRel);
        if self.dreams_since_ms.load(Ordering::Acquire) > 0 {
            self.dreamt_ms.fetch_add(u64::from(limit_ms), Ordering::AcqRel);
        } else if word.load(Ordering::Acquire) == seen {
            let limit = Duration::from_millis(limit_ms.into());
            drop(self.woken.wait_timeout(guard, limit).unwrap_or_else(PoisonError::into_inner));
        }
    }

    fn wake_all(&self, _word: &AtomicU32) {
        drop(self.parking.lock().unwrap_or_else(PoisonError::into_inner));
        self.woken.notify_all();
    }
}
