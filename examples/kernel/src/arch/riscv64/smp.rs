//! Starting and stopping CPUs by the firmware's Hart State Management.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};

use super::sbi;
use crate::cpu::Cpu;

unsafe extern "C" {
    /// The entry of `boot.s`; only its address has a meaning.
    static ap_start: u8;
    /// The number of the hart that came first, and then of each that is started.
    static boot_hart: AtomicU64;
    /// The stack of the hart that is started.
    static start_stack: AtomicUsize;
}

/// The number of the running hart, while it starts.
pub fn hart_here() -> u64 {
    // SAFETY: a static of `boot.s`. One CPU is started at a time, and reads it first.
    unsafe { boot_hart.load(Ordering::Relaxed) }
}

/// Starts a CPU, which enters `smp::ap_main` on its stack. For one caller at a time.
pub fn start_cpu(cpu: &'static Cpu, _has_started: impl Fn() -> bool) {
    let (hart, top) = (cpu.hardware_id(), cpu.stack_top.load(Ordering::Relaxed) as usize);
    let word = core::ptr::with_exposed_provenance_mut::<usize>(top - 16);
    // SAFETY: the stack is the CPU's, which is off; the statics are `boot.s`'s, and this caller's.
    unsafe {
        word.write_volatile((&raw const *cpu).expose_provenance());
        boot_hart.store(hart, Ordering::Relaxed);
        start_stack.store(top, Ordering::Relaxed);
    }
    // Pairs with the fence in `boot.s`.
    fence(Ordering::SeqCst);
    let entry = (&raw const ap_start).addr();
    loop {
        // SAFETY: the CPU starts at the code of `boot.s`, on its own stack.
        match unsafe { sbi::start(hart, entry) } {
            0 => return,
            // It has said that it is offline, and is on its way.
            sbi::ALREADY_AVAILABLE => core::hint::spin_loop(),
            error => panic!("the firmware cannot start {:?}: SBI error {error}", cpu.id()),
        }
    }
}

/// Stops the running CPU, which is marked offline, until it is started again.
pub fn stop_here() -> ! {
    loop {
        super::interrupts::disable();
        sbi::stop();
    }
}
