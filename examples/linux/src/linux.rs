//! The seam to CPUs.

use pagedepot::CpuId;
use pagedepot::cpus::{Context, Environment, FenceError, Guard, Here, Processor};

use crate::calls;

/// The value that C passes for a handler above a handler, or an NMI.
pub const HERE_NONE: u32 = u32::MAX;
/// Set in what C says when a handler runs.
const IN_HANDLER: u32 = 1 << 31;
/// Set in what C says when no other code of this CPU can have a guard.
const ALONE: u32 = 1 << 30;

/// Linux's CPUs.
pub struct Linux;

/// Preemption is off, and this code knows where it runs, as C packs it: a CPU's number,
/// [`IN_HANDLER`] in a softirq or an interrupt, and [`ALONE`].
pub struct Pin(u32);

impl Drop for Pin {
    fn drop(&mut self) {
        // SAFETY: once for each `depot_c_pin` that said where this is.
        unsafe { calls::depot_c_unpin() }
    }
}

// SAFETY: preemption is off while the value lives, so the task stays on its CPU, and no other task
// runs there. A softirq or an interrupt that comes above a task has the other context; what comes
// above such a handler gets no guard (`depot_c_pin`). A task is alone, because handlers above it
// have ended; an interrupt that came above user mode is, because no task has a guard there. With
// PREEMPT_RT softirqs are tasks, and of the handlers only the last one gets a guard.
unsafe impl Guard for Pin {
    fn here(&self) -> Here {
        let context = if self.0 & IN_HANDLER == 0 { Context::Task } else { Context::Interrupt };
        Here { cpu: CpuId::new(self.0 & !(IN_HANDLER | ALONE)), context }
    }

    fn is_alone(&self) -> bool {
        self.0 & ALONE != 0
    }
}

impl Environment for Linux {
    fn now_ms(&self) -> u64 {
        // SAFETY: a load.
        unsafe { calls::depot_c_now_ms() }
    }

    fn is_isolated(&self, cpu: CpuId) -> bool {
        // SAFETY: loads.
        unsafe { calls::depot_c_is_isolated(cpu.get()) }
    }
}

// SAFETY: `fence`: the stopper of that CPU has run, which takes it no earlier than after all code
// there that had preemption disabled, handlers included. `is_quiescent`: what RCU's own extended
// quiescent states promise (idle, user mode of `nohz_full` CPUs, offline): a full barrier on the
// way out of them, before any code that may pin.
unsafe impl Processor for Linux {
    type Guard = Pin;

    fn pin(&self) -> Option<Pin> {
        // SAFETY: any context; what it disables, `Pin::drop` enables.
        match unsafe { calls::depot_c_pin() } {
            HERE_NONE => None,
            here => Some(Pin(here)),
        }
    }

    fn fence(&self, cpu: CpuId) -> Result<(), FenceError> {
        // SAFETY: any context: it refuses where it may not wait.
        if unsafe { calls::depot_c_fence(cpu.get()) } { Ok(()) } else { Err(FenceError::Refused) }
    }

    fn is_quiescent(&self, cpu: CpuId) -> bool {
        // SAFETY: a barrier and a load.
        unsafe { calls::depot_c_is_quiescent(cpu.get()) }
    }
}
