//! Work that only assembly can do: for tests, and for a read that the compiler must not see.

use core::arch::asm;

use x86_64::registers::rflags::{self, RFlags};

/// Copies bytes that other code may write meanwhile. By assembly, which the compiler does not look
/// into: a load beside plain stores, even an atomic one, is a data race.
///
/// # Safety
/// `from` and `to` have `bytes` bytes, those of `to` for the caller alone.
pub unsafe fn copy(from: usize, to: *mut u8, bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "rep movsb",
            inout("rcx") bytes => _,
            inout("rsi") from => _,
            inout("rdi") to => _,
            options(nostack, preserves_flags),
        );
    }
}

/// Changes a register that handlers must save; [`keep`] looks for it.
pub fn clobber() {
    // SAFETY: the register is declared.
    unsafe { asm!("pxor xmm15, xmm15", out("xmm15") _, options(nomem, nostack)) };
}

/// Spins with a number in an SSE register, in a general one and in the red zone, where code that
/// was compiled elsewhere keeps values. Returns what these hold afterwards.
pub fn keep(number: u64) -> [u64; 3] {
    let (sse, general, red_zone);
    // SAFETY: this kernel's code keeps nothing below RSP, so the red zone is free here; the
    // registers are declared.
    unsafe {
        asm!(
            "movq xmm15, {number}",
            "mov {general}, {number}",
            "mov [rsp - 128], {number}",
            "2: pause",
            "dec {spins:e}",
            "jnz 2b",
            "mov {red_zone}, [rsp - 128]",
            "movq {sse}, xmm15",
            number = in(reg) number,
            spins = inout(reg) 20 => _,
            sse = out(reg) sse,
            general = out(reg) general,
            red_zone = out(reg) red_zone,
            out("xmm15") _,
        );
    }
    [sse, general, red_zone]
}

/// Runs `work` with a trap after each instruction: the trap flag (APM vol. 2, 13.1.4), which a
/// handler of any interrupt has clear.
pub fn step_through(work: impl FnOnce()) {
    let trap = |on| {
        let mut flags = rflags::read();
        flags.set(RFlags::TRAP_FLAG, on);
        // SAFETY: the trap's handler returns to where it came from, all registers as they were.
        unsafe { rflags::write(flags) };
    };
    trap(true);
    work();
    trap(false);
}
