//! The code that counts in user mode, and the way there and back.
//!
//! GS stays the kernel's: this code does not change it and cannot read through it. A kernel that
//! runs other people's code swaps it on the way (AMD APM vol. 2, 6.1.2, SWAPGS).

use core::arch::global_asm;
use core::sync::atomic::Ordering;

use super::descriptor::{KERNEL_CODE, KERNEL_DATA, USER_CODE, USER_DATA};
use super::interrupt::{Frame, Vector};
use crate::cpu::Cpu;

global_asm!(
    ".section .text.user, \"ax\"",
    // Copied to a page of its own. RDI: its counter; RSI: the word that says stop.
    "user_code:",
    "    inc qword ptr [rdi]",
    "    pause",
    "    cmp qword ptr [rsi], 0",
    "    je user_code",
    "    int {exit}",
    "    ud2",
    "user_code_end:",
    // extern "C" fn(counter, stop, code): to user mode, until `leave`.
    "user_enter:",
    ".irp register, rbx, rbp, r12, r13, r14, r15",
    "    push \\register",
    ".endr",
    "    mov gs:[8], rsp",
    // The words that IRETQ takes (AMD APM vol. 3): SS, RSP, RFLAGS with interrupts on, CS, RIP.
    "    push {data}",
    "    push 0",
    "    push 0x202",
    "    push {code}",
    "    push rdx",
    "    iretq",
    "user_return:",
    ".irp register, r15, r14, r13, r12, rbp, rbx",
    "    pop \\register",
    ".endr",
    "    ret",
    exit = const Vector::UserExit as u8,
    data = const USER_DATA,
    code = const USER_CODE,
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
    // SAFETY: the caller's promise; it returns by `leave`, on the same stack.
    unsafe { user_enter(counter, stop, code) };
}

/// User mode asked to leave: go on in the kernel where `user_enter` was called.
pub(super) fn leave(cpu: &Cpu, frame: &mut Frame) {
    frame.rip = (&raw const user_return).addr() as u64;
    frame.cs = u64::from(KERNEL_CODE);
    frame.flags = 2; // what is always set; interrupts off
    frame.rsp = cpu.kernel_stack.load(Ordering::Relaxed);
    frame.ss = u64::from(KERNEL_DATA);
}
