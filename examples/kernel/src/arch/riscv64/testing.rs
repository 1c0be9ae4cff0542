//! Work that only assembly can do: for tests, and for a read that the compiler must not see.

use core::arch::asm;

/// Copies bytes that other code may write meanwhile. By assembly, which the compiler does not look
/// into: a load beside plain stores, even an atomic one, is a data race.
///
/// # Safety
/// `from` and `to` have `bytes` bytes, those of `to` for the caller alone.
pub unsafe fn copy(from: usize, to: *mut u8, bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "2: beqz {bytes}, 3f",
            "lb {byte}, ({from})",
            "sb {byte}, ({to})",
            "addi {from}, {from}, 1",
            "addi {to}, {to}, 1",
            "addi {bytes}, {bytes}, -1",
            "j 2b",
            "3:",
            bytes = inout(reg) bytes => _,
            from = inout(reg) from => _,
            to = inout(reg) to => _,
            byte = out(reg) _,
            options(nostack),
        );
    }
}

/// Changes a register that handlers must save; [`keep`] looks for it.
pub fn clobber() {
    // SAFETY: the register is declared.
    unsafe { asm!("fmv.d.x ft11, zero", out("ft11") _, options(nomem, nostack)) };
}

/// Spins with a number in a floating-point register and in two general ones. Returns what these
/// hold afterwards.
pub fn keep(number: u64) -> [u64; 3] {
    let (float, general, temporary);
    // SAFETY: the registers are declared.
    unsafe {
        asm!(
            "fmv.d.x ft11, {number}",
            "mv {general}, {number}",
            "mv t6, {number}",
            "2: addi {spins}, {spins}, -1",
            "bnez {spins}, 2b",
            "fmv.x.d {float}, ft11",
            number = in(reg) number,
            spins = inout(reg) 20 => _,
            general = out(reg) general,
            float = out(reg) float,
            out("t6") temporary,
            out("ft11") _,
            options(nomem, nostack),
        );
    }
    [float, general, temporary]
}

/// Runs `work`: there is no trap after each instruction, see [`HAS_STEP`](super::HAS_STEP).
pub fn step_through(work: impl FnOnce()) {
    work();
}
