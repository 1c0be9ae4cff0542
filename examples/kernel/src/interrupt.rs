//! The handlers of interrupts, whatever the processor calls them.

use core::sync::atomic::{AtomicPtr, Ordering};

use crate::cpu::Cpu;
use crate::{call, timer};

/// An interrupt that came.
#[cfg_attr(
    target_arch = "riscv64",
    expect(dead_code, reason = "one software interrupt, no NMI and no steps in supervisor mode")
)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interrupt {
    /// This CPU's timer.
    Timer,
    /// Another CPU sent a request; see `call`.
    Call,
    /// Another CPU has a job for this one.
    Wake,
    /// An interrupt that no mask keeps out.
    Nmi,
    /// A step of code that a test has trapped after each instruction.
    Step,
    /// Nothing to do: a step of code that runs with interrupts off, or an interrupt withdrawn.
    Nothing,
}

/// A function that a test has a handler call.
pub struct Hook(AtomicPtr<()>);

impl Hook {
    /// No function.
    pub const fn new() -> Self {
        Hook(AtomicPtr::new(core::ptr::null_mut()))
    }

    /// Sets the function, or removes it.
    pub fn set(&self, hook: Option<fn(&'static Cpu)>) {
        self.0.store(hook.map_or(core::ptr::null_mut(), |hook| hook as *mut ()), Ordering::Release);
    }

    /// Calls the function. `false`: there is none.
    pub fn call(&self, cpu: &'static Cpu) -> bool {
        let hook = self.0.load(Ordering::Acquire);
        if hook.is_null() {
            return false;
        }
        // SAFETY: only `set` writes it, and writes functions of this type.
        unsafe { core::mem::transmute::<*mut (), fn(&'static Cpu)>(hook)(cpu) };
        true
    }
}

/// Called at every NMI.
pub static ON_NMI: Hook = Hook::new();
/// Called after every instruction of code that is stepped through: every place where an interrupt
/// could have come.
pub static ON_STEP: Hook = Hook::new();

/// Serves an interrupt, with interrupts off. The processor's code has called
/// [`Cpu::leave_quiescence`], which said whether the CPU `was_quiescent`, and has acknowledged the
/// interrupt.
pub fn handle(cpu: &'static Cpu, was_quiescent: bool, interrupt: Interrupt) {
    cpu.interrupts.fetch_add(1, Ordering::Relaxed);
    cpu.wakeups.fetch_add(u64::from(was_quiescent), Ordering::Relaxed);
    let levels = if interrupt == Interrupt::Nmi { 2 } else { 1 };
    let _handler = cpu.enter_handler(levels);
    match interrupt {
        Interrupt::Timer => timer::tick(cpu),
        Interrupt::Call => call::serve(cpu),
        Interrupt::Nmi => _ = ON_NMI.call(cpu),
        Interrupt::Step => _ = ON_STEP.call(cpu),
        Interrupt::Wake | Interrupt::Nothing => {}
    }
}
