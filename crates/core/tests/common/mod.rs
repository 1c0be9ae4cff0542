//! What several test files need: books of the right size, and CPUs that are wherever a test says.
#![allow(dead_code, reason = "each test file uses its part")]

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use pagedepot::cpus::{Context, FenceError, Guard, Here, Pinned, Processor};
use pagedepot::{Allocator, Config, CpuId};

/// One thread that pretends to be any CPU, in any context.
pub struct Anywhere {
    cpu: AtomicU32,
    interrupt: AtomicBool,
}

impl Anywhere {
    pub fn new() -> Self {
        Anywhere { cpu: AtomicU32::new(0), interrupt: AtomicBool::new(false) }
    }

    pub fn run_on(&self, cpu: u32) {
        self.cpu.store(cpu, Ordering::Relaxed);
    }

    pub fn set_interrupt(&self, interrupt: bool) {
        self.interrupt.store(interrupt, Ordering::Relaxed);
    }
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
        let context = if self.interrupt.load(Ordering::Relaxed) { Context::Interrupt } else { Context::Task };
        Some(AnywhereGuard(Here { cpu: CpuId::new(self.cpu.load(Ordering::Relaxed)), context }))
    }

    fn fence(&self, _cpu: CpuId) -> Result<(), FenceError> {
        Ok(())
    }
}

pub type Single<'m> = Allocator<'m, Pinned<Anywhere>>;

/// Memory for the books of `config`.
pub fn books(config: &Config<'_>) -> Vec<MaybeUninit<u8>> {
    vec![MaybeUninit::uninit(); Single::metadata_bytes(config).unwrap()]
}

/// An allocator for one thread that pretends.
pub fn single<'m>(config: &Config<'_>, memory: &'m mut [MaybeUninit<u8>]) -> Single<'m> {
    Allocator::new(config, memory, Pinned(Anywhere::new())).unwrap()
}
