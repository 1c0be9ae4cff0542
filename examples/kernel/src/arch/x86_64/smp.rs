//! Starting CPUs: from real mode, by the code that `boot.s` has for them.

use core::sync::atomic::{AtomicU64, Ordering};

use super::apic;
use crate::cpu::Cpu;

/// Page at which `boot.s` expects to run in real mode.
const AP_PAGE: usize = 0x8000;

unsafe extern "C" {
    static ap_trampoline: u8;
    static ap_trampoline_end: u8;
    /// The function that the next CPU calls, its stack and its argument (`boot.s`).
    static start_entry: AtomicU64;
    static start_stack: AtomicU64;
    static start_argument: AtomicU64;
}

/// Copies the code of a starting CPU to its place below 1 MiB.
pub fn init() {
    let (start, end) = (&raw const ap_trampoline, &raw const ap_trampoline_end);
    let to = core::ptr::with_exposed_provenance_mut::<u8>(AP_PAGE);
    // SAFETY: the code lies between the labels and is shorter than a page; the allocator does not
    // have the page below 1 MiB.
    unsafe { start.copy_to_nonoverlapping(to, end.addr() - start.addr()) };
}

/// Starts a CPU, which enters `smp::ap_main` on its stack; `has_started` tells when it has. For one
/// caller at a time.
pub fn start_cpu(cpu: &'static Cpu, has_started: impl Fn() -> bool) {
    // SAFETY: statics of `boot.s`. One CPU is started at a time, so they are this one's.
    unsafe {
        start_entry.store(crate::smp::ap_main as *const () as u64, Ordering::Relaxed);
        start_stack.store(cpu.stack_top.load(Ordering::Relaxed), Ordering::Relaxed);
        start_argument.store((&raw const *cpu).expose_provenance() as u64, Ordering::Release);
    }
    apic::start_cpu(cpu.hardware_id() as u32, AP_PAGE, has_started);
}

/// Stops the running CPU, which is marked offline, until it is started again.
pub fn stop_here() -> ! {
    loop {
        x86_64::instructions::interrupts::disable();
        x86_64::instructions::hlt();
    }
}
