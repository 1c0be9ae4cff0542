//! Work that only assembly can do: for tests, and for a read that the compiler must not see.

use core::arch::asm;

use super::{read_register, write_register};

/// Copies bytes that other code may write meanwhile. By assembly, which the compiler does not look
/// into: a load beside plain stores, even an atomic one, is a data race.
///
/// # Safety
/// `from` and `to` have `bytes` bytes, those of `to` for the caller alone.
pub unsafe fn copy(from: usize, to: *mut u8, bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "2: cbz {bytes}, 3f",
            "ldrb {byte:w}, [{from}], #1",
            "strb {byte:w}, [{to}], #1",
            "sub {bytes}, {bytes}, #1",
            "b 2b",
            "3:",
            bytes = inout(reg) bytes => _,
            from = inout(reg) from => _,
            to = inout(reg) to => _,
            byte = out(reg) _,
            options(nostack, preserves_flags),
        );
    }
}

/// Changes a register that handlers must save; [`keep`] looks for it.
pub fn clobber() {
    // SAFETY: the register is declared.
    unsafe { asm!("movi v31.2d, #0", out("v31") _, options(nomem, nostack)) };
}

/// Spins with a number in both halves of a SIMD register and in a general one. Returns what these
/// hold afterwards.
pub fn keep(number: u64) -> [u64; 3] {
    let (low, high, general);
    // SAFETY: the registers are declared.
    unsafe {
        asm!(
            "dup v31.2d, {number}",
            "mov {general}, {number}",
            "2: yield",
            "subs {spins:w}, {spins:w}, #1",
            "b.ne 2b",
            "mov {low}, v31.d[0]",
            "mov {high}, v31.d[1]",
            number = in(reg) number,
            spins = inout(reg) 20 => _,
            general = out(reg) general,
            low = out(reg) low,
            high = out(reg) high,
            out("v31") _,
            options(nomem, nostack),
        );
    }
    [low, high, general]
}

/// Runs `work` with an exception after each instruction: software step (Arm ARM, D2.11). PSTATE.D,
/// which every exception sets, keeps handlers from being stepped through. MDSCR_EL1 is as it was
/// afterwards: a handler may do this above a task that does.
pub fn step_through(work: impl FnOnce()) {
    const SOFTWARE_STEP: u64 = 1 << 0;
    const IN_KERNEL: u64 = 1 << 13;
    let before = read_register!("mdscr_el1");
    write_register!("mdscr_el1", before | SOFTWARE_STEP | IN_KERNEL);
    // SAFETY: the handler of a step returns to where it came from, all registers as they were.
    unsafe { asm!("msr daifclr, #8", options(nostack)) };
    work();
    // SAFETY: as above.
    unsafe { asm!("msr daifset, #8", options(nostack)) };
    write_register!("mdscr_el1", before);
}
