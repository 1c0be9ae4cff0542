//! The code that counts in user mode, and the way there and back.

use core::arch::{asm, global_asm};

use super::exception::Frame;

global_asm!(
    ".section .text.user, \"ax\"",
    // Copied to a page of its own. X0: its counter; X1: the word that says stop.
    "user_code:",
    "    ldr x2, [x0]",
    "    add x2, x2, #1",
    "    str x2, [x0]",
    "    yield",
    "    ldr x2, [x1]",
    "    cbz x2, user_code",
    "    svc #0",
    "    udf #0",
    "user_code_end:",
    // extern "C" fn(counter, stop, code): to user mode, until `leave`. What the C ABI has callees
    // keep, the low halves of V8 to V15 among it, stays on this stack.
    "user_enter:",
    "    sub sp, sp, #160",
    "    stp x19, x20, [sp]",
    "    stp x21, x22, [sp, #16]",
    "    stp x23, x24, [sp, #32]",
    "    stp x25, x26, [sp, #48]",
    "    stp x27, x28, [sp, #64]",
    "    stp x29, x30, [sp, #80]",
    "    stp d8, d9, [sp, #96]",
    "    stp d10, d11, [sp, #112]",
    "    stp d12, d13, [sp, #128]",
    "    stp d14, d15, [sp, #144]",
    // No FIQ between these registers and ERET. SPSR_EL1: EL0, nothing masked.
    "    msr daifset, #15",
    "    msr elr_el1, x2",
    "    msr spsr_el1, xzr",
    "    eret",
    // By the return from the exception, which has left the stack as it was.
    "user_return:",
    "    ldp x19, x20, [sp]",
    "    ldp x21, x22, [sp, #16]",
    "    ldp x23, x24, [sp, #32]",
    "    ldp x25, x26, [sp, #48]",
    "    ldp x27, x28, [sp, #64]",
    "    ldp x29, x30, [sp, #80]",
    "    ldp d8, d9, [sp, #96]",
    "    ldp d10, d11, [sp, #112]",
    "    ldp d12, d13, [sp, #128]",
    "    ldp d14, d15, [sp, #144]",
    "    add sp, sp, #160",
    "    ret",
);

unsafe extern "C" {
    static user_code: u8;
    static user_code_end: u8;
    static user_return: u8;
    fn user_enter(counter: usize, stop: usize, code: usize);
}

/// SPSR_EL1 of the kernel's tasks: EL1 on SP_EL1; debug exceptions, SError and IRQ masked.
const KERNEL: u64 = 0b0101 | 1 << 9 | 1 << 8 | 1 << 7;

/// Copies the code to a page, ready to be run.
///
/// # Safety
/// `to` is a page of the caller's own.
pub unsafe fn copy_code(to: *mut u8) {
    let (start, end) = (&raw const user_code, &raw const user_code_end);
    // SAFETY: the code lies between the labels and is shorter than a page, which is the caller's.
    // Instructions are fetched from memory that the stores have reached, past what the instruction
    // cache had of it (Arm ARM, B2.4.4).
    unsafe {
        start.copy_to_nonoverlapping(to, end.addr() - start.addr());
        asm!("dc cvau, {}", "dsb ish", "ic ialluis", in(reg) to, options(nostack));
        asm!("dsb ish", "isb", options(nostack));
    }
}

/// Runs the code in user mode until it finds the word at `stop` set. Interrupts are on meanwhile,
/// off before and after.
///
/// # Safety
/// The page of code at `code` and the words are mapped for user mode. No task but the caller's runs
/// on this CPU.
pub unsafe fn run(counter: usize, stop: usize, code: usize) {
    // SAFETY: the caller's promise; it returns by `leave`, on the same stack.
    unsafe { user_enter(counter, stop, code) };
}

/// User mode asked to leave: go on in the kernel where `user_enter` was called.
pub(super) fn leave(frame: &mut Frame) {
    frame.elr = (&raw const user_return).addr() as u64;
    frame.spsr = KERNEL;
}
