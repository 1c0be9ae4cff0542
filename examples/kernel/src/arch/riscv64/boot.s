# From where the firmware leaves the hart to Rust, with translation on.
#
# SBI, "Hart State Management Extension": a hart comes in supervisor mode, translation and
# interrupts off, with its number in A0. A1 is the device tree's address on the first hart. Sections are those
# of the RISC-V privileged specification ("Priv", 20211203).

# A leaf entry of 1 GiB (Priv 4.4.1, 4.5): valid, readable, writable, executable, global, accessed,
# dirty.
.set LEAF, 0xef
.set GIB_STEP, 0x40000000 >> 2          # of the page number, which begins at bit 10

.section .boot.text, "ax"
.global boot_start
boot_start:
    # OpenSBI before 1.3 lets a hart that is being started go before it has noted where to: such a
    # hart comes here.
    la t0, boot_taken
    li t1, 1
    amoswap.d.aqrl t1, t1, (t0)
    bnez t1, ap_start
    la t0, boot_pointers
    li t1, LEAF
    li t2, GIB_STEP
    .irp gib, 0, 1, 2, 3
    sd t1, 8 * \gib(t0)
    add t1, t1, t2
    .endr
    srli t0, t0, 2
    ori t0, t0, 1
    la t1, boot_root
    sd t0, (t1)
    la t1, offline_root
    sd t0, (t1)
    # The number of the first hart: no register tells it in supervisor mode.
    la t0, boot_hart
    sd a0, (t0)
    la sp, boot_stack_top
    call enter_virtual
    li tp, 0
    li s0, 0
    mv a0, a1
    call kernel_main

# A started hart: its stack is at `start_stack`, and below its top lies the address of its data.
.global ap_start
ap_start:
    fence
    la t0, start_stack
    ld sp, (t0)
    call enter_virtual
    ld a0, -16(sp)
    addi sp, sp, -16
    li tp, 0
    li s0, 0
    call {ap_main}

# Turns translation and the floating-point registers on.
enter_virtual:
    la t0, offline_root
    srli t0, t0, 12
    li t1, 9 << 60                      # Sv48 (Priv 4.1.11)
    or t0, t0, t1
    sfence.vma
    csrw satp, t0
    sfence.vma
    li t0, 1 << 13                      # sstatus.FS: initial
    csrs sstatus, t0
    ret

.section .bss.boot, "aw", @nobits
.balign 4096
.global boot_root
.global offline_root
.global boot_hart
.global start_stack
boot_root:        .skip 4096
offline_root:     .skip 4096
boot_pointers:    .skip 4096
boot_stack:       .skip 64 * 1024
boot_stack_top:
boot_hart:        .skip 8
boot_taken:       .skip 8
start_stack:      .skip 8
