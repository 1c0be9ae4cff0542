//! The sequences for x86-64, in inline assembly that is part of the caller.
//!
//! # How the kernel sees one
//! Storing the address of a descriptor to `rseq_cs` announces the sequence between the labels 2
//! and 3. If the thread is preempted, moved, signalled or fenced while its instruction pointer is
//! between them, it continues at the abort label 4 instead, which must follow the signature that
//! glibc registered. Label 3 follows directly on the one store that commits.
//!
//! The descriptor is emitted anew for each copy that inlining makes, in the section group of the
//! code it describes (`?`), so that the linker drops both or none.
//!
//! # Choices, measured on a hot pair of pop and push
//! * Operands of [`BlockArray`] are read from memory where they are used. In registers they are
//!   loaded by separate instructions at each call, since nothing survives the memory clobber.
//! * An abort is reported as "look closer", not retried here: it happens once per preemption, and
//!   the slow path, which bounds its attempts, tries again.
//! * All ways out but the commit lie in a section of their own.

use core::arch::asm;
use core::mem::offset_of;

use pagedepot::cache::word::{ONE_OPERATION, ONE_ROUND};
use pagedepot::cache::{BlockArray, GATE_OPEN, WordOffset};
use pagedepot::cpus::Here;

use super::{Area, NO_FRAME};

pub const HAS_SEQUENCES: bool = true;

/// `cpu_id` in the area: the CPU, or negative without registration.
const CPU_ID: usize = 4;
/// `rseq_cs` in the area: the address of the announced descriptor.
const RSEQ_CS: usize = 8;

/// Wraps a sequence: announcement before it; descriptor, signature and abort beside it. `$slow`
/// is where aborts and the jumps to label 5 go on. The CPU number is in `{at}` at its start.
macro_rules! sequence {
    ($($line:literal),+; aside: $($aside:literal),+; $($operands:tt)+) => {
        asm!(
            ".pushsection __rseq_cs, \"aw?\", @progbits",
            ".balign 32",
            "6: .long 0, 0",
            ".quad 2f, 3f - 2f, 4f",
            ".popsection",
            "lea {at}, [rip + 6b]",
            "mov qword ptr fs:[{area} + {RSEQ_CS}], {at}",
            "2:",
            "mov {at:e}, dword ptr fs:[{area} + {CPU_ID}]",
            "cmp {at:e}, dword ptr [{blocks} + {CPUS}]",
            "jae 5f",
            "imul {at}, qword ptr [{blocks} + {STRIDE}]",
            "add {at}, qword ptr [{blocks} + {FIRST}]",
            "cmp qword ptr [{at}], {GATE_OPEN}",
            "jne 5f",
            $($line,)+
            "3:",
            ".pushsection .text.unlikely, \"ax?\", @progbits",
            // ud1 [rip + signature], edi: what disassemblers make of it.
            ".byte 0x0f, 0xb9, 0x3d",
            ".long 0x53053053",
            "4:",
            "5:",
            $($aside,)+
            ".popsection",
            RSEQ_CS = const RSEQ_CS,
            CPU_ID = const CPU_ID,
            CPUS = const offset_of!(BlockArray, cpus),
            STRIDE = const offset_of!(BlockArray, stride),
            FIRST = const offset_of!(BlockArray, blocks),
            GATE_OPEN = const GATE_OPEN,
            at = out(reg) _,
            $($operands)+
        )
    };
}

/// The CPU this runs on, or a number above 2^31 when the thread is not registered.
#[inline]
pub fn cpu_id(area: Area) -> u32 {
    let cpu: u32;
    // SAFETY: reads a field of the thread's own area, which glibc keeps at this offset.
    unsafe {
        asm!(
            "mov {cpu:e}, dword ptr fs:[{area} + {CPU_ID}]",
            cpu = out(reg) cpu,
            area = in(reg) area.offset(),
            CPU_ID = const CPU_ID,
            options(nostack, readonly, preserves_flags),
        );
    }
    cpu
}

/// See [`Cpus::pop`](pagedepot::cpus::Cpus::pop); [`NO_FRAME`] for `None`.
#[inline(always)]
pub fn pop(area: Area, blocks: &BlockArray, word: WordOffset) -> u32 {
    let frame: u32;
    // SAFETY: the area is registered (or `cpu_id` is negative); `cpu < cpus` is checked before an
    // address is formed, so block and word exist; a word with rounds names a magazine.
    unsafe {
        sequence!(
            "add {at}, {word}",
            "mov {next}, qword ptr [{at}]",
            "test {next:l}, {next:l}",
            "jz 5f",
            "mov {slot:e}, {next:e}",
            "add {next}, {step}",
            "jc 5f",
            "add {slot}, qword ptr [{blocks} + {MAGAZINES}]",
            "mov {frame:e}, dword ptr [{slot} - {ONE_ROUND}]",
            "mov qword ptr [{at}], {next}";
            aside: "mov {frame:e}, {NO_FRAME}", "jmp 3b";
            MAGAZINES = const offset_of!(BlockArray, magazines),
            ONE_ROUND = const ONE_ROUND,
            NO_FRAME = const NO_FRAME,
            area = in(reg) area.offset(),
            blocks = in(reg) blocks,
            word = in(reg) word.bytes(),
            step = in(reg) ONE_OPERATION - ONE_ROUND,
            next = out(reg) _,
            slot = out(reg) _,
            frame = out(reg) frame,
            options(nostack),
        );
    }
    frame
}

/// See [`Cpus::push`](pagedepot::cpus::Cpus::push).
#[inline(always)]
pub fn push(area: Area, blocks: &BlockArray, word: WordOffset, rounds_max: u32, frame: u32) -> bool {
    // SAFETY: as in `pop`; a word to which an operation can be added names a magazine, and with
    // fewer than `rounds_max` rounds its next slot is this sequence's to write.
    unsafe {
        sequence!(
            "add {at}, {word}",
            "mov {next}, qword ptr [{at}]",
            "cmp {next:l}, {full:l}",
            "jae 5f",
            "mov {slot:e}, {next:e}",
            "add {next}, {step}",
            "jc 5f",
            "add {slot}, qword ptr [{blocks} + {MAGAZINES}]",
            "mov dword ptr [{slot}], {frame:e}",
            "mov qword ptr [{at}], {next}";
            aside: "jmp {slow}";
            MAGAZINES = const offset_of!(BlockArray, magazines),
            area = in(reg) area.offset(),
            blocks = in(reg) blocks,
            word = in(reg) word.bytes(),
            step = in(reg) ONE_OPERATION + ONE_ROUND,
            full = in(reg) rounds_max * ONE_ROUND as u32,
            frame = in(reg) frame,
            next = out(reg) _,
            slot = out(reg) _,
            slow = label { return false },
            options(nostack),
        );
    }
    true
}

/// See [`Cpus::compare_store`](pagedepot::cpus::Cpus::compare_store).
#[inline]
pub fn compare_store(
    area: Area,
    blocks: &BlockArray,
    here: Here,
    word: WordOffset,
    old: u64,
    new: u64,
) -> bool {
    // SAFETY: as in `pop`: the CPU is checked twice, for having a block and for being the one
    // whose word the caller read.
    unsafe {
        sequence!(
            "cmp dword ptr fs:[{area} + {CPU_ID}], {cpu:e}",
            "jne 5f",
            "add {at}, {word}",
            "cmp qword ptr [{at}], {old}",
            "jne 5f",
            "mov qword ptr [{at}], {new}";
            aside: "jmp {slow}";
            area = in(reg) area.offset(),
            blocks = in(reg) blocks,
            cpu = in(reg) here.cpu.get(),
            word = in(reg) word.bytes(),
            old = in(reg) old,
            new = in(reg) new,
            slow = label { return false },
            options(nostack),
        );
    }
    true
}
