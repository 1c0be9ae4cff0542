// From where QEMU leaves the processor to Rust, with the MMU on.
//
// QEMU starts a kernel in ELF format at EL1, MMU and caches off, on the first CPU; the device tree
// lies where RAM begins. Further CPUs come by PSCI. Sections are those of the Arm Architecture
// Reference Manual for A-profile ("Arm ARM", DDI 0487).

.set DEVICE_TREE, 0x40000000

// Blocks of 1 GiB (D8.3.1): valid; attribute index in bits 4:2; inner shareable; accessed; not
// executable by user mode (UXN). The first GiB is devices, and executable by no one (PXN).
.set BLOCK, 1 | 3 << 8 | 1 << 10 | 1 << 54
.set DEVICE, 1 << 2 | 1 << 53

// TCR_EL1, for the lower and the upper half: size, cached walks, shareability, granule.
.set LOWER, 16 | 1 << 8 | 1 << 10 | 3 << 12
.set UPPER, 16 << 16 | 1 << 24 | 1 << 26 | 3 << 28 | 2 << 30

.section .boot.text, "ax"
.global boot_start
boot_start:
    adrp x0, boot_pointers
    add x0, x0, :lo12:boot_pointers
    ldr x1, =BLOCK
    ldr x2, =DEVICE
    orr x2, x1, x2
    mov x3, #0x40000000
    str x2, [x0]
    .irp gib, 1, 2, 3
    add x1, x1, x3
    str x1, [x0, #8 * \gib]
    .endr
    adrp x1, boot_root
    add x1, x1, :lo12:boot_root
    orr x0, x0, #3
    str x0, [x1]
    adrp x0, boot_stack_top
    add x0, x0, :lo12:boot_stack_top
    mov sp, x0
    bl enter_virtual
    mov x29, xzr
    mov x0, #DEVICE_TREE
    bl kernel_main

// Where PSCI starts a CPU: X0 is the top of its stack, below which lies the address of its data.
.global ap_start
ap_start:
    mov sp, x0
    bl enter_virtual
    ldr x0, [sp, #-16]
    sub sp, sp, #16
    mov x29, xzr
    bl {ap_main}

// Turns translation, caches and the SIMD registers on. One root serves both halves of the address
// space: entries 0 to 255 the lower one (TTBR0_EL1), where memory is mapped at its own address, the
// others the upper one (TTBR1_EL1).
enter_virtual:
    adrp x1, boot_root
    add x1, x1, :lo12:boot_root
    msr ttbr0_el1, x1
    msr ttbr1_el1, x1
    // MAIR_EL1: attribute 0 is normal memory, written back; attribute 1 device, nGnRE.
    ldr x1, =0x04ff
    msr mair_el1, x1
    // TCR_EL1: 48 bits in both halves, pages of 4 KiB, walks cached and inner shareable, physical
    // addresses of 48 bits.
    ldr x1, =(LOWER | UPPER | 5 << 32)
    msr tcr_el1, x1
    // CPACR_EL1.FPEN: Rust uses SIMD registers.
    mov x1, #3 << 20
    msr cpacr_el1, x1
    dsb sy
    tlbi vmalle1
    dsb nsh
    ic iallu
    isb
    // SCTLR_EL1: M, C, I, and the bits that are one without later extensions.
    ldr x1, =0x30d01805
    msr sctlr_el1, x1
    isb
    ret

.section .bss.boot, "aw", @nobits
.align 12
.global boot_root
boot_root:        .skip 4096
boot_pointers:    .skip 4096
boot_stack:       .skip 64 * 1024
boot_stack_top:
