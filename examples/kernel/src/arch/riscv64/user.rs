//! The code that counts in user mode, and the way there and back.

use core::arch::{asm, global_asm};
use core::sync::atomic::Ordering;

use super::trap::{FROM_KERNEL, Frame};
use crate::cpu::Cpu;

global_asm!(
    ".section .text.user, \"ax\"",
    // Copied to a page of its own. A0: its counter; A1: the word that says stop.
    "user_code:",
    "    ld t0, (a0)",
    "    addi t0, t0, 1",
    "    sd t0, (a0)",
    "    ld t0, (a1)",
    "    beqz t0, user_code",
    "    ecall",
    "    unimp",
    "user_code_end:",
    // extern "C" fn(counter, stop, code): to user mode, until `leave`.
    "user_enter:",
    "    addi sp, sp, -208",
    "    sd ra, 0(sp)",
    "    sd s0, 8(sp)",
    "    sd s1, 16(sp)",
    "    sd s2, 24(sp)",
    "    sd s3, 32(sp)",
    "    sd s4, 40(sp)",
    "    sd s5, 48(sp)",
    "    sd s6, 56(sp)",
    "    sd s7, 64(sp)",
    "    sd s8, 72(sp)",
    "    sd s9, 80(sp)",
    "    sd s10, 88(sp)",
    "    sd s11, 96(sp)",
    "    fsd fs0, 104(sp)",
    "    fsd fs1, 112(sp)",
    "    fsd fs2, 120(sp)",
    "    fsd fs3, 128(sp)",
    "    fsd fs4, 136(sp)",
    "    fsd fs5, 144(sp)",
    "    fsd fs6, 152(sp)",
    "    fsd fs7, 160(sp)",
    "    fsd fs8, 168(sp)",
    "    fsd fs9, 176(sp)",
    "    fsd fs10, 184(sp)",
    "    fsd fs11, 192(sp)",
    "    sd sp, 8(tp)",
    // sstatus: to user mode, with interrupts on there.
    "    li t0, {from_kernel}",
    "    csrc sstatus, t0",
    "    li t0, 1 << 5",
    "    csrs sstatus, t0",
    "    csrw sepc, a2",
    "    csrw sscratch, tp",
    "    li tp, 0",
    "    sret",
    // By the return from the trap, with this stack.
    "user_return:",
    "    ld ra, 0(sp)",
    "    ld s0, 8(sp)",
    "    ld s1, 16(sp)",
    "    ld s2, 24(sp)",
    "    ld s3, 32(sp)",
    "    ld s4, 40(sp)",
    "    ld s5, 48(sp)",
    "    ld s6, 56(sp)",
    "    ld s7, 64(sp)",
    "    ld s8, 72(sp)",
    "    ld s9, 80(sp)",
    "    ld s10, 88(sp)",
    "    ld s11, 96(sp)",
    "    fld fs0, 104(sp)",
    "    fld fs1, 112(sp)",
    "    fld fs2, 120(sp)",
    "    fld fs3, 128(sp)",
    "    fld fs4, 136(sp)",
    "    fld fs5, 144(sp)",
    "    fld fs6, 152(sp)",
    "    fld fs7, 160(sp)",
    "    fld fs8, 168(sp)",
    "    fld fs9, 176(sp)",
    "    fld fs10, 184(sp)",
    "    fld fs11, 192(sp)",
    "    addi sp, sp, 208",
    "    ret",
    from_kernel = const FROM_KERNEL,
);

unsafe extern "C" {
    static user_code: u8;
    static user_code_end: u8;
    static user_return: u8;
    fn user_enter(counter: usize, stop: usize, code: usize);
}

/// Copies the code to a page, ready to be run.
///
/// # Safety
/// `to` is a page of the caller's own.
pub unsafe fn copy_code(to: *mut u8) {
    let (start, end) = (&raw const user_code, &raw const user_code_end);
    // SAFETY: the code lies between the labels and is shorter than a page, which is the caller's.
    unsafe { start.copy_to_nonoverlapping(to, end.addr() - start.addr()) };
}

/// Runs the code in user mode until it finds the word at `stop` set. Interrupts are on meanwhile,
/// off before and after.
///
/// # Safety
/// The page of code at `code` and the words are mapped for user mode. No task but the caller's runs
/// on this CPU.
pub unsafe fn run(counter: usize, stop: usize, code: usize) {
    // SAFETY: the code was copied by another CPU, and mapped: this one fetches and walks anew.
    unsafe { asm!("fence.i", "sfence.vma", options(nostack)) };
    // SAFETY: the caller's promise; it returns by `leave`, on the same stack.
    unsafe { user_enter(counter, stop, code) };
}

/// User mode asked to leave: go on in the kernel where `user_enter` was called.
pub(super) fn leave(cpu: &Cpu, frame: &mut Frame) {
    let at = (&raw const user_return).addr() as u64;
    frame.go_on_in_kernel(at, cpu.kernel_stack.load(Ordering::Relaxed));
}
