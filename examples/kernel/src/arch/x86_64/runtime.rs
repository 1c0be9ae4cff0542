//! Symbols that the compiler expects, and that libc has for programs with an operating system.

use core::arch::global_asm;

// `core` and generated code call these; the contracts are C's. Eight bytes at a time, because
// emulators take string instructions element by element.
global_asm!(
    ".section .text.memory, \"ax\"",
    ".global memcpy, memmove, memset, memcmp, bcmp, strlen",
    "memcpy:",
    "    mov rax, rdi",
    "    mov rcx, rdx",
    "    shr rcx, 3",
    "    rep movsq",
    "    mov ecx, edx",
    "    and ecx, 7",
    "    rep movsb",
    "    ret",
    "memmove:",
    "    mov rax, rdi",
    "    mov rcx, rdx",
    "    mov r8, rdi",
    "    sub r8, rsi",
    "    cmp r8, rdx", // unsigned: only a destination inside the source is copied backwards
    "    jb 1f",
    "    rep movsb",
    "    ret",
    "1:  lea rdi, [rdi + rdx - 1]",
    "    lea rsi, [rsi + rdx - 1]",
    "    std",
    "    rep movsb",
    "    cld",
    "    ret",
    "memset:",
    "    mov r8, rdi",
    "    movzx eax, sil",
    "    mov rcx, 0x0101010101010101",
    "    imul rax, rcx",
    "    mov rcx, rdx",
    "    shr rcx, 3",
    "    rep stosq",
    "    mov ecx, edx",
    "    and ecx, 7",
    "    rep stosb",
    "    mov rax, r8",
    "    ret",
    "bcmp:",
    "memcmp:",
    "    xor eax, eax",
    "    xor ecx, ecx",
    "2:  cmp rcx, rdx",
    "    je 3f",
    "    movzx eax, byte ptr [rdi + rcx]",
    "    movzx r8d, byte ptr [rsi + rcx]",
    "    inc rcx",
    "    sub eax, r8d",
    "    je 2b",
    "3:  ret",
    "strlen:",
    "    xor eax, eax",
    "4:  cmp byte ptr [rdi + rax], 0",
    "    je 5f",
    "    inc rax",
    "    jmp 4b",
    "5:  ret",
);

/// Precompiled `core` names this in its unwinding tables; with `panic = "abort"` no code calls it.
// SAFETY: no other definition of the symbol is linked.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}

// SAFETY: as above.
#[unsafe(no_mangle)]
extern "C" fn _Unwind_Resume() -> ! {
    panic!("nothing unwinds here");
}
