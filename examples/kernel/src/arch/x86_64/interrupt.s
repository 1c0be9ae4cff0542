# From an interrupt or exception to `handle_interrupt`, and back.
#
# Precompiled `core` uses the red zone: 128 bytes below RSP that belong to the code that runs. So
# every vector lands on a stack of its own (TSS, interrupt stack table; AMD APM vol. 2, 8.9.4; Intel
# SDM vol. 3A, "Interrupt Stack Table"), moves what the processor pushed to below the red zone of the
# code it interrupted, and goes on there. The landing stack is free again after a few instructions,
# with interrupts still off, so handlers may be interrupted themselves.
#
# NMI and double fault have landing stacks of their own and stay on them: an NMI may come while
# another vector is landing, and at a double fault the interrupted stack is not to be trusted.

.section .text.interrupt, "ax"

# Offsets in `Frame` (src/interrupt.rs), once RCX and RAX are pushed.
.set LANDED_CS, 40
.set LANDED_RSP, 56
.set CPU_KERNEL_STACK, 8        # in `Cpu` (src/cpu.rs)
.set USER_RPL, 3

interrupt_landed:
    push rax
    push rcx
    mov rax, [rsp + LANDED_RSP]
    sub rax, 128
    test byte ptr [rsp + LANDED_CS], USER_RPL
    jz 1f
    mov rax, gs:[CPU_KERNEL_STACK]          # GS is the kernel's in user mode too: see src/user.rs
1:  and rax, -16
    # RCX, RAX, vector, error code; RIP, CS, RFLAGS, RSP, SS
    .irp offset, 0, 8, 16, 24, 32, 40, 48, 56, 64
    mov rcx, [rsp + \offset]
    mov [rax - 80 + \offset], rcx
    .endr
    lea rsp, [rax - 80]
    jmp interrupt_save

interrupt_stays:
    push rax
    push rcx

interrupt_save:
    .irp register, rdx, rbx, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15
    push \register
    .endr
    mov rbx, rsp
    # Rust code uses SSE registers (the ABI of the host's target does), so handlers save them.
    sub rsp, 512
    and rsp, -16
    fxsave64 [rsp]
    cld
    mov rdi, rbx
    call handle_interrupt
    fxrstor64 [rsp]
    mov rsp, rbx
    .irp register, r15, r14, r13, r12, r11, r10, r9, r8, rdi, rsi, rbp, rbx, rdx, rcx, rax
    pop \register
    .endr
    add rsp, 16                             # vector, error code
    iretq

# An entry of 16 bytes for each vector: the error code, where the processor pushes none; then the
# vector. Vectors with an error code: AMD APM vol. 2, 8.2; Intel SDM vol. 3A, "Error Code".
.align 16
.global interrupt_entries
interrupt_entries:
.set vector, 0
.rept 64
    .align 16
    .if !(vector == 8 || vector >= 10 && vector <= 14 || vector == 17 || vector == 21 || vector == 29 || vector == 30)
    push 0
    .endif
    .byte 0x6a, vector                      # push imm8
    .if vector == 2 || vector == 8
    jmp interrupt_stays
    .else
    jmp interrupt_landed
    .endif
    .set vector, vector + 1
.endr
