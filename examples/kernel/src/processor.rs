//! The allocator's seam to this kernel: the CPU and context of the running code, and fences.

use core::marker::PhantomData;
use core::sync::atomic::{AtomicU64, Ordering, compiler_fence};

use pagedepot::CpuId;
use pagedepot::cpus::{Context, Environment, FenceError, Guard, Here, Processor};

use crate::call::{self, Call};
use crate::clock;
use crate::cpu::{Cpu, State};

/// Time that a fence waits for a CPU that does not answer.
const FENCE_US: u64 = 1_000_000;

/// The machine this kernel runs on.
pub struct Machine;

/// Proof of a CPU and context.
///
/// There is no scheduler here: a CPU runs one task, which handlers interrupt. A kernel with
/// preemption turns it off in `pin` and on again in `drop`.
pub struct Pin {
    held: &'static AtomicU64,
    here: Here,
    /// A guard is its CPU's: it cannot be sent to another.
    local: PhantomData<*mut ()>,
}

// SAFETY: tasks stay on their CPU, one per CPU. The context is that of the code that runs: depth 0
// is the task (and what faults in it), 1 the handler above it; deeper ones and NMI get no guard. A
// handler returns before the code it interrupted goes on, so of one context nothing else runs. A
// handler is alone if the count of the task that it interrupted is even.
unsafe impl Guard for Pin {
    #[inline]
    fn here(&self) -> Here {
        self.here
    }

    fn is_alone(&self) -> bool {
        let task = &Cpu::get(self.here.cpu).guards[Context::Task as usize];
        // Relaxed: this CPU's own stores.
        self.here.context == Context::Task || task.load(Ordering::Relaxed).is_multiple_of(2)
    }
}

impl Drop for Pin {
    #[inline]
    fn drop(&mut self) {
        // Load and store: only this context writes it. Release: pairs with the Acquire in `fence`;
        // what was done under the guard comes first.
        self.held.store(self.held.load(Ordering::Relaxed) + 1, Ordering::Release);
    }
}

// SAFETY: `fence`: the CPU answers outside of any guard that its answer could miss. It answers in
// the handler of an interrupt, or where it waits, and the answer is visible with all its earlier
// stores; a guard that existed before shows as an odd count, which is then awaited. A guard that
// begins after the answer begins after the question. `is_quiescent`: a halted or user-mode CPU
// holds no guard and begins with `leave_quiescence`, an offline one with `Cpu::enter`; both pass a
// SeqCst fence, as `Cpu::state` does.
unsafe impl Processor for Machine {
    type Guard = Pin;

    #[inline]
    fn pin(&self) -> Option<Pin> {
        let cpu = Cpu::here();
        let context = cpu.context()?;
        let held = &cpu.guards[context as usize];
        let count = held.load(Ordering::Relaxed);
        debug_assert!(count.is_multiple_of(2), "guards of one context do not nest");
        held.store(count + 1, Ordering::Relaxed);
        // This CPU's handlers answer fences. They must see the count odd before anything is read
        // under the guard.
        compiler_fence(Ordering::SeqCst);
        Some(Pin { held, here: Here { cpu: cpu.id(), context }, local: PhantomData })
    }

    fn fence(&self, cpu: CpuId) -> Result<(), FenceError> {
        let here = Cpu::here();
        // A handler may have interrupted a guard of this CPU, or of a CPU that waits for this one.
        if here.in_handler() {
            return Err(FenceError::Refused);
        }
        let cpu = Cpu::get(cpu);
        if cpu.id() == here.id() {
            return Ok(());
        }
        if !call::ask(cpu, Call::Fence).wait(FENCE_US) {
            return Err(FenceError::Busy);
        }
        for context in [Context::Task, Context::Interrupt] {
            await_guard(&cpu.guards[context as usize])?;
        }
        Ok(())
    }

    fn is_quiescent(&self, cpu: CpuId) -> bool {
        Cpu::get(cpu).state() != State::Running
    }
}

impl Environment for Machine {
    fn now_ms(&self) -> u64 {
        clock::now_ms()
    }

    fn is_isolated(&self, cpu: CpuId) -> bool {
        Cpu::get(cpu).is_isolated() && !self.is_quiescent(cpu)
    }
}

/// Waits until a guard that is held now is dropped.
fn await_guard(held: &AtomicU64) -> Result<(), FenceError> {
    // Acquire: pairs with the Release in `Pin::drop`.
    let before = held.load(Ordering::Acquire);
    let end = clock::now_us() + FENCE_US;
    let is_dropped = || before.is_multiple_of(2) || held.load(Ordering::Acquire) != before;
    call::wait_until(|| is_dropped() || clock::now_us() > end);
    if is_dropped() { Ok(()) } else { Err(FenceError::Busy) }
}
