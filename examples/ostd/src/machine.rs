//! The seam to CPUs: a lock for each.
//!
//! OSTD's own means of fencing a CPU, inter-processor calls, panic where interrupts are off, and
//! their queues may allocate: no allocator can use them when it is short of memory. A lock that the
//! owner tries and never waits for needs no fence, so that a full drain works everywhere but in a
//! handler.

use alloc::boxed::Box;

use ostd::timer::Jiffies;
use pagedepot::CpuId;
use pagedepot::cpus::{CpuLock, Environment, LockedCpus, WhichCpu};

/// The allocator's access to its CPUs.
pub type Machine = LockedCpus<'static, Ostd>;

/// OSTD's CPUs and clock.
pub struct Ostd;

impl Environment for Ostd {
    /// Jiffies: OSTD has 1000 a second.
    fn now_ms(&self) -> u64 {
        Jiffies::elapsed().as_u64()
    }
}

impl WhichCpu for Ostd {
    #[inline]
    fn cpu(&self) -> Option<CpuId> {
        Some(CpuId::new(ostd::cpu::CpuId::current_racy().into()))
    }
}

/// Makes the machine of CPUs `0..cpus`. Allocates their locks.
pub fn machine(cpus: u32) -> Machine {
    let locks: Box<[CpuLock]> = (0..cpus).map(|_| CpuLock::new()).collect();
    LockedCpus::new(Box::leak(locks), Ostd)
}
