# From where QEMU (or any loader that knows PVH) leaves the processor to Rust in long mode.
#
# Xen, "x86/HVM direct boot ABI": the loader enters in 32-bit protected mode with flat segments,
# paging off, interrupts off, and EBX = physical address of `hvm_start_info`.

.section .note.pvh, "a", @note
    .align 4
    .long 4                     # bytes of the name
    .long 8                     # bytes of the value
    .long 18                    # XEN_ELFNOTE_PHYS32_ENTRY
    .asciz "Xen"
    .quad pvh_start

.section .boot.text, "ax"
.code32
.global pvh_start
pvh_start:
    cli
    cld
    lgdt [boot_gdt_pointer]
    mov [start_argument], ebx

    # Physical memory below 4 GiB at its own address, by 2 MiB pages (AMD APM vol. 2, 5.3.4;
    # Intel SDM vol. 3A, "4-level paging"). 0x83: present, writable, large. The local APIC's
    # registers are among it; that they are uncached is the firmware's MTRRs' business.
    mov edi, offset boot_directories
    mov eax, 0x83
    mov ecx, 4 * 512
1:  mov [edi], eax
    mov dword ptr [edi + 4], 0
    add eax, 0x200000
    add edi, 8
    loop 1b
    mov edi, offset boot_pointers
    mov eax, offset boot_directories + 3
    mov ecx, 4
2:  mov [edi], eax
    add eax, 0x1000
    add edi, 8
    loop 2b
    mov dword ptr [boot_root], offset boot_pointers + 3
    mov dword ptr [offline_root], offset boot_pointers + 3

# Every CPU comes here: in 32-bit protected mode, at its physical address.
enter_long_mode:
    # The order is that of AMD APM vol. 2, 14.6.1 "Activating long mode" (Intel SDM vol. 3A,
    # "Initializing IA-32e mode"): PAE, CR3, EFER.LME, then CR0.PG.
    mov eax, cr4
    or eax, 1 << 5 | 1 << 9 | 1 << 10       # PAE; OSFXSR and OSXMMEXCPT: Rust uses SSE
    mov cr4, eax
    mov eax, offset offline_root
    mov cr3, eax
    mov ecx, 0xc0000080                     # EFER
    rdmsr
    or eax, 1 << 8 | 1 << 11                # LME, NXE
    wrmsr
    mov eax, cr0
    and eax, ~(1 << 2 | 1 << 3 | 1 << 29 | 1 << 30)   # EM, TS; NW and CD, which INIT sets
    or eax, 1 << 0 | 1 << 1 | 1 << 16 | 1 << 31     # PE, MP, WP, PG
    mov cr0, eax
    .byte 0xea                              # far jump into 64-bit code
    .long long_mode
    .word 0x18

.code64
long_mode:
    mov ax, 0x10
    mov ds, ax
    mov es, ax
    mov ss, ax
    xor eax, eax
    mov fs, ax
    mov gs, ax
    mov rsp, [start_stack]
    mov rdi, [start_argument]
    xor ebp, ebp
    call [start_entry]
    ud2

# Where a start-up IPI begins: real mode, CS:IP = vector * 0x100 : 0 (Intel SDM vol. 3A, "Typical
# AP initialization sequence"). Copied to AP_PAGE, which is below 1 MiB.
.set AP_PAGE, 0x8000
.code16
.global ap_trampoline
.global ap_trampoline_end
ap_trampoline:
    cli
    cld
    mov ax, cs
    mov ds, ax
    .byte 0x66, 0x0f, 0x01, 0x16            # lgdt with a 32-bit base, by a 16-bit address
    .word ap_gdt_pointer - ap_trampoline
    mov eax, cr0
    or eax, 1
    mov cr0, eax
    .byte 0x66, 0xea                        # far jump into 32-bit code
    .long AP_PAGE + (ap_protected - ap_trampoline)
    .word 0x08
.code32
ap_protected:
    mov ax, 0x10
    mov ds, ax
    mov es, ax
    mov ss, ax
    mov eax, offset enter_long_mode
    jmp eax
    .align 4
ap_gdt_pointer:
    .word boot_gdt_end - boot_gdt - 1
    .long boot_gdt
ap_trampoline_end:
.code64

.section .data
.align 8
boot_gdt:
    .quad 0
    .quad 0x00cf9a000000ffff                # 0x08: 32-bit code
    .quad 0x00cf92000000ffff                # 0x10: data
    .quad 0x00af9a000000ffff                # 0x18: 64-bit code
boot_gdt_end:
boot_gdt_pointer:
    .word boot_gdt_end - boot_gdt - 1
    .long boot_gdt

# What the next CPU that comes through `long_mode` calls, on which stack, with what argument.
.align 8
.global start_entry
.global start_stack
.global start_argument
start_entry:    .quad kernel_main
start_stack:    .quad boot_stack_top
start_argument: .quad 0

.section .bss
.align 4096
.global boot_root
.global offline_root
boot_root:        .skip 4096
offline_root:     .skip 4096
boot_pointers:    .skip 4096
boot_directories: .skip 4 * 4096
boot_stack:       .skip 64 * 1024
boot_stack_top:
