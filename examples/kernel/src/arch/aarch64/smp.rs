//! Starting and stopping CPUs by the firmware: PSCI 0.2 and later, which QEMU answers at HVC.

use core::arch::asm;
use core::sync::atomic::Ordering;

use crate::cpu::Cpu;

/// Functions (PSCI, 5.1).
const CPU_OFF: u64 = 0x8400_0002;
const CPU_ON: u64 = 0xc400_0003;
/// Results: the CPU has not stopped yet (PSCI, 5.2.2).
const SUCCESS: i64 = 0;
const ALREADY_ON: i64 = -4;

unsafe extern "C" {
    /// The entry of `boot.s`; only its address has a meaning.
    static ap_start: u8;
}

/// Calls the firmware.
///
/// # Safety
/// The call does with memory what the caller may have done.
unsafe fn call(function: u64, arguments: [u64; 3]) -> i64 {
    let result: i64;
    // SAFETY: the caller's promise; registers as in the SMC calling convention (DEN 0028).
    unsafe {
        asm!(
            "hvc #0",
            inout("x0") function as i64 => result,
            inout("x1") arguments[0] => _,
            inout("x2") arguments[1] => _,
            inout("x3") arguments[2] => _,
            out("x4") _, out("x5") _, out("x6") _, out("x7") _, out("x8") _, out("x9") _,
            out("x10") _, out("x11") _, out("x12") _, out("x13") _, out("x14") _, out("x15") _,
            out("x16") _, out("x17") _,
            options(nostack),
        );
    }
    result
}

/// Starts a CPU, which enters `smp::ap_main` on its stack.
pub fn start_cpu(cpu: &'static Cpu, _has_started: impl Fn() -> bool) {
    let top = cpu.stack_top.load(Ordering::Relaxed);
    let word = core::ptr::with_exposed_provenance_mut::<usize>(top as usize - 16);
    // SAFETY: the stack is the CPU's, which is off. The CPU reads this word, and a first piece of
    // code, before it has its caches on, so the word goes to memory.
    unsafe {
        word.write_volatile((&raw const *cpu).expose_provenance());
        asm!("dc civac, {}", "dsb sy", in(reg) word, options(nostack));
    }
    let entry = (&raw const ap_start).addr() as u64;
    loop {
        // SAFETY: the CPU starts at the code of `boot.s`, on its own stack.
        match unsafe { call(CPU_ON, [cpu.hardware_id(), entry, top]) } {
            SUCCESS => return,
            // It has said that it is offline, and is on its way.
            ALREADY_ON => core::hint::spin_loop(),
            error => panic!("PSCI cannot start {:?}: error {error}", cpu.id()),
        }
    }
}

/// Stops the running CPU, which is marked offline, until it is started again.
pub fn stop_here() -> ! {
    loop {
        super::interrupts::disable();
        // SAFETY: this CPU does nothing any more.
        unsafe { call(CPU_OFF, [0; 3]) };
    }
}
