# From a trap to `handle_trap`, and back.
#
# In the kernel `sscratch` is zero and TP the CPU's data; in user mode it is the other way round. A
# trap from user mode goes on at `Cpu::kernel_stack`.

.set CPU_WORD, 0                        # in `Cpu` (cpu.rs)
.set CPU_KERNEL_STACK, 8
# Offsets in `Frame` (trap.rs): register xN at 8 * N.
.set FRAME_BYTES, 464
.set FRAME_EPC, 256
.set FRAME_STATUS, 264
.set FRAME_CAUSE, 272
.set FRAME_VALUE, 280
.set FRAME_FCSR, 288
.set FRAME_FLOATS, 296

.section .text.trap, "ax"
.balign 4
.global trap_entry
trap_entry:
    csrrw tp, sscratch, tp
    bnez tp, 1f
    # From the kernel: back to how it was.
    csrrw tp, sscratch, tp
    addi sp, sp, -FRAME_BYTES
    sd x5, 8 * 5(sp)
    addi x5, sp, FRAME_BYTES
    sd x5, 8 * 2(sp)
    sd tp, 8 * 4(sp)
    ld x5, 8 * 5(sp)
    j 2f
1:  # From user mode: TP is the CPU's data.
    sd sp, CPU_WORD(tp)
    ld sp, CPU_KERNEL_STACK(tp)
    addi sp, sp, -FRAME_BYTES
    sd x5, 8 * 5(sp)
    ld x5, CPU_WORD(tp)
    sd x5, 8 * 2(sp)
    csrrw x5, sscratch, zero
    sd x5, 8 * 4(sp)
    ld x5, 8 * 5(sp)
2:
    sd x1, 8(sp)
    sd x5, 40(sp)
    sd x6, 48(sp)
    sd x7, 56(sp)
    sd x8, 64(sp)
    sd x9, 72(sp)
    sd x10, 80(sp)
    sd x11, 88(sp)
    sd x12, 96(sp)
    sd x13, 104(sp)
    sd x14, 112(sp)
    sd x15, 120(sp)
    sd x16, 128(sp)
    sd x17, 136(sp)
    sd x18, 144(sp)
    sd x19, 152(sp)
    sd x20, 160(sp)
    sd x21, 168(sp)
    sd x22, 176(sp)
    sd x23, 184(sp)
    sd x24, 192(sp)
    sd x25, 200(sp)
    sd x26, 208(sp)
    sd x27, 216(sp)
    sd x28, 224(sp)
    sd x29, 232(sp)
    sd x30, 240(sp)
    sd x31, 248(sp)
    csrr t0, sepc
    sd t0, FRAME_EPC(sp)
    csrr t0, sstatus
    sd t0, FRAME_STATUS(sp)
    csrr t0, scause
    sd t0, FRAME_CAUSE(sp)
    csrr t0, stval
    sd t0, FRAME_VALUE(sp)
    # Rust code uses floating-point registers (the target's ABI does); handlers keep those that
    # functions need not.
    frcsr t0
    sd t0, FRAME_FCSR(sp)
    fsd f0, FRAME_FLOATS + 0(sp)
    fsd f1, FRAME_FLOATS + 8(sp)
    fsd f2, FRAME_FLOATS + 16(sp)
    fsd f3, FRAME_FLOATS + 24(sp)
    fsd f4, FRAME_FLOATS + 32(sp)
    fsd f5, FRAME_FLOATS + 40(sp)
    fsd f6, FRAME_FLOATS + 48(sp)
    fsd f7, FRAME_FLOATS + 56(sp)
    fsd f10, FRAME_FLOATS + 64(sp)
    fsd f11, FRAME_FLOATS + 72(sp)
    fsd f12, FRAME_FLOATS + 80(sp)
    fsd f13, FRAME_FLOATS + 88(sp)
    fsd f14, FRAME_FLOATS + 96(sp)
    fsd f15, FRAME_FLOATS + 104(sp)
    fsd f16, FRAME_FLOATS + 112(sp)
    fsd f17, FRAME_FLOATS + 120(sp)
    fsd f28, FRAME_FLOATS + 128(sp)
    fsd f29, FRAME_FLOATS + 136(sp)
    fsd f30, FRAME_FLOATS + 144(sp)
    fsd f31, FRAME_FLOATS + 152(sp)
    mv a0, sp
    call handle_trap
    # Interrupts are off.
    fld f0, FRAME_FLOATS + 0(sp)
    fld f1, FRAME_FLOATS + 8(sp)
    fld f2, FRAME_FLOATS + 16(sp)
    fld f3, FRAME_FLOATS + 24(sp)
    fld f4, FRAME_FLOATS + 32(sp)
    fld f5, FRAME_FLOATS + 40(sp)
    fld f6, FRAME_FLOATS + 48(sp)
    fld f7, FRAME_FLOATS + 56(sp)
    fld f10, FRAME_FLOATS + 64(sp)
    fld f11, FRAME_FLOATS + 72(sp)
    fld f12, FRAME_FLOATS + 80(sp)
    fld f13, FRAME_FLOATS + 88(sp)
    fld f14, FRAME_FLOATS + 96(sp)
    fld f15, FRAME_FLOATS + 104(sp)
    fld f16, FRAME_FLOATS + 112(sp)
    fld f17, FRAME_FLOATS + 120(sp)
    fld f28, FRAME_FLOATS + 128(sp)
    fld f29, FRAME_FLOATS + 136(sp)
    fld f30, FRAME_FLOATS + 144(sp)
    fld f31, FRAME_FLOATS + 152(sp)
    ld t0, FRAME_FCSR(sp)
    fscsr t0
    ld t0, FRAME_EPC(sp)
    csrw sepc, t0
    ld t0, FRAME_STATUS(sp)
    csrw sstatus, t0
    andi t0, t0, 1 << 8                 # sstatus.SPP: set for the kernel
    bnez t0, 3f
    csrw sscratch, tp
    ld tp, 8 * 4(sp)
3:
    ld x1, 8(sp)
    ld x5, 40(sp)
    ld x6, 48(sp)
    ld x7, 56(sp)
    ld x8, 64(sp)
    ld x9, 72(sp)
    ld x10, 80(sp)
    ld x11, 88(sp)
    ld x12, 96(sp)
    ld x13, 104(sp)
    ld x14, 112(sp)
    ld x15, 120(sp)
    ld x16, 128(sp)
    ld x17, 136(sp)
    ld x18, 144(sp)
    ld x19, 152(sp)
    ld x20, 160(sp)
    ld x21, 168(sp)
    ld x22, 176(sp)
    ld x23, 184(sp)
    ld x24, 192(sp)
    ld x25, 200(sp)
    ld x26, 208(sp)
    ld x27, 216(sp)
    ld x28, 224(sp)
    ld x29, 232(sp)
    ld x30, 240(sp)
    ld x31, 248(sp)
    ld sp, 8 * 2(sp)
    sret
