// From an exception to `handle_exception`, and back.
//
// The kernel runs on SP_EL1, in tasks and in handlers. An exception in user mode switches to it and
// finds it as `user_enter` left it. Interrupts, FIQ and debug exceptions are masked on entry; FIQ
// may come again once ELR_EL1 and SPSR_EL1 are saved.

// Offsets in `Frame` (exception.rs).
.set FRAME_BYTES, 816
.set FRAME_ELR, 248
.set FRAME_SPSR, 256
.set FRAME_ESR, 264
.set FRAME_FAR, 272
.set FRAME_KIND, 280
.set FRAME_FPCR, 288
.set FRAME_FPSR, 296
.set FRAME_VECTORS, 304

.section .text.exception, "ax"
// 16 entries of 128 bytes (Arm ARM, D1.3.1.4): from the kernel on SP_EL0, from the kernel on
// SP_EL1, from user mode, from 32-bit user mode; each synchronous, IRQ, FIQ, SError.
.align 11
.global exception_vectors
exception_vectors:
    .set kind, 0
    .rept 16
    .align 7
    sub sp, sp, #FRAME_BYTES
    stp x0, x1, [sp]
    mov x1, #kind
    b exception_save
    .set kind, kind + 1
    .endr

exception_save:
    stp x2, x3, [sp, #16]
    stp x4, x5, [sp, #32]
    stp x6, x7, [sp, #48]
    stp x8, x9, [sp, #64]
    stp x10, x11, [sp, #80]
    stp x12, x13, [sp, #96]
    stp x14, x15, [sp, #112]
    stp x16, x17, [sp, #128]
    stp x18, x19, [sp, #144]
    stp x20, x21, [sp, #160]
    stp x22, x23, [sp, #176]
    stp x24, x25, [sp, #192]
    stp x26, x27, [sp, #208]
    stp x28, x29, [sp, #224]
    str x30, [sp, #240]
    str x1, [sp, #FRAME_KIND]
    mrs x0, elr_el1
    mrs x1, spsr_el1
    stp x0, x1, [sp, #FRAME_ELR]
    mrs x0, esr_el1
    mrs x1, far_el1
    stp x0, x1, [sp, #FRAME_ESR]
    // Rust code uses SIMD registers (the target's ABI does), so handlers save them.
    mrs x0, fpcr
    mrs x1, fpsr
    str x0, [sp, #FRAME_FPCR]
    str x1, [sp, #FRAME_FPSR]
    add x0, sp, #FRAME_VECTORS
    stp q0, q1, [x0, #0]
    stp q2, q3, [x0, #32]
    stp q4, q5, [x0, #64]
    stp q6, q7, [x0, #96]
    stp q8, q9, [x0, #128]
    stp q10, q11, [x0, #160]
    stp q12, q13, [x0, #192]
    stp q14, q15, [x0, #224]
    stp q16, q17, [x0, #256]
    stp q18, q19, [x0, #288]
    stp q20, q21, [x0, #320]
    stp q22, q23, [x0, #352]
    stp q24, q25, [x0, #384]
    stp q26, q27, [x0, #416]
    stp q28, q29, [x0, #448]
    stp q30, q31, [x0, #480]
    mov x0, sp
    bl handle_exception
    // No exception may come between these registers and ERET.
    msr daifset, #15
    add x0, sp, #FRAME_VECTORS
    ldp q0, q1, [x0, #0]
    ldp q2, q3, [x0, #32]
    ldp q4, q5, [x0, #64]
    ldp q6, q7, [x0, #96]
    ldp q8, q9, [x0, #128]
    ldp q10, q11, [x0, #160]
    ldp q12, q13, [x0, #192]
    ldp q14, q15, [x0, #224]
    ldp q16, q17, [x0, #256]
    ldp q18, q19, [x0, #288]
    ldp q20, q21, [x0, #320]
    ldp q22, q23, [x0, #352]
    ldp q24, q25, [x0, #384]
    ldp q26, q27, [x0, #416]
    ldp q28, q29, [x0, #448]
    ldp q30, q31, [x0, #480]
    ldr x0, [sp, #FRAME_FPCR]
    ldr x1, [sp, #FRAME_FPSR]
    msr fpcr, x0
    msr fpsr, x1
    ldp x0, x1, [sp, #FRAME_ELR]
    msr elr_el1, x0
    msr spsr_el1, x1
    ldr x30, [sp, #240]
    ldp x28, x29, [sp, #224]
    ldp x26, x27, [sp, #208]
    ldp x24, x25, [sp, #192]
    ldp x22, x23, [sp, #176]
    ldp x20, x21, [sp, #160]
    ldp x18, x19, [sp, #144]
    ldp x16, x17, [sp, #128]
    ldp x14, x15, [sp, #112]
    ldp x12, x13, [sp, #96]
    ldp x10, x11, [sp, #80]
    ldp x8, x9, [sp, #64]
    ldp x6, x7, [sp, #48]
    ldp x4, x5, [sp, #32]
    ldp x2, x3, [sp, #16]
    ldp x0, x1, [sp, #0]
    add sp, sp, #FRAME_BYTES
    eret
