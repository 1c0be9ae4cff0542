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
//! * Everything of a depot is named relative to one address, its base: one register. It, the steps
//!   and the front's address survive a loop in registers, because nothing in a depot's own value
//!   changes. A step added from memory costs an eighth of a nanosecond.
//! * Pop and push ask neither whether the CPU's number has a gate nor whether it is open
//!   ([`Cpus::FOLLOWS_GATES`](pagedepot::cpus::Cpus::FOLLOWS_GATES)): 16 bits of a number always
//!   have one, and a closed gate leads to a word that refuses. Either question costs a tenth of a
//!   nanosecond or more.
//! * An abort is reported as "look closer", not retried here: it happens once per preemption, and
//!   the slow path, which bounds its attempts, tries again.
//! * All ways out but the commit lie in a section of their own. Those of a sequence without a
//!   result lead to a label of the caller's, so that it need not look how the sequence ended.

use core::arch::asm;

use pagedepot::cpus::Here;
use pagedepot::cpus::implement::{
    BlockArray, GATES_AT, ONE_ROUND, POP_STEP, PUSH_STEP, REFUSALS_AT, WordOffset,
};

use super::Area;

pub const HAS_SEQUENCES: bool = true;

/// `cpu_id` in the area: the CPU, or negative without registration.
const CPU_ID: usize = 4;
/// `rseq_cs` in the area: the address of the announced descriptor.
const RSEQ_CS: usize = 8;

/// Wraps a sequence: announcement before it; descriptor, signature and abort beside it. `$slow`
/// is where aborts and the jumps to label 5 go on. 16 bits of the CPU's number are in `{at}` at its
/// start.
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
            "movzx {at:e}, word ptr fs:[{area} + {CPU_ID}]",
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
            GATES_AT = const GATES_AT,
            REFUSALS_AT = const REFUSALS_AT,
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

/// What the offset in a gate is added to, besides [`REFUSALS_AT`], to find the word.
#[inline(always)]
fn front(blocks: &BlockArray, word: WordOffset) -> *mut u8 {
    blocks.base().wrapping_add(word.bytes())
}

/// See [`Cpus::pop`](pagedepot::cpus::Cpus::pop); [`NO_FRAME`](super::NO_FRAME) for `None`.
#[inline(always)]
pub fn pop(area: Area, blocks: &BlockArray, word: WordOffset) -> u64 {
    let frame: u64;
    // SAFETY: the area is this thread's own and registered, or `cpu_id` is negative (a child of
    // `vfork` calls nothing, see the module `rseq`); there is a gate for each number of 16
    // bits, and where its lower half leads, words; a word with credit names a magazine.
    unsafe {
        sequence!(
            "mov {at:e}, dword ptr [{base} + 8*{at} + {GATES_AT}]",
            "mov {next}, qword ptr [{front} + {at} + {REFUSALS_AT}]",
            "test {next:l}, {next:l}",
            "jz 5f",
            "mov {slot:e}, {next:e}",
            "add {next}, {step}",
            "jnc 5f",
            "mov {frame:e}, dword ptr [{base} + {slot} - {ONE_ROUND}]",
            "mov qword ptr [{front} + {at} + {REFUSALS_AT}], {next}";
            aside: "mov {frame}, -1", "jmp 3b";
            ONE_ROUND = const ONE_ROUND,
            area = in(reg) area.offset(),
            base = in(reg) blocks.base(),
            front = in(reg) front(blocks, word),
            step = in(reg) POP_STEP,
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
pub fn push(
    area: Area,
    blocks: &BlockArray,
    word: WordOffset,
    rounds_max: u32,
    frame: u32,
) -> bool {
    // SAFETY: as in `pop`; with fewer than `rounds_max` rounds its next slot is this sequence's to
    // write.
    unsafe {
        sequence!(
            "mov {at:e}, dword ptr [{base} + 8*{at} + {GATES_AT}]",
            "mov {next}, qword ptr [{front} + {at} + {REFUSALS_AT}]",
            "cmp {next:l}, {full:l}",
            "jae 5f",
            "mov {slot:e}, {next:e}",
            "add {next}, {step}",
            "jnc 5f",
            "mov dword ptr [{base} + {slot}], {frame:e}",
            "mov qword ptr [{front} + {at} + {REFUSALS_AT}], {next}";
            aside: "jmp {slow}";
            area = in(reg) area.offset(),
            base = in(reg) blocks.base(),
            front = in(reg) front(blocks, word),
            step = in(reg) PUSH_STEP,
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
    // SAFETY: as in `pop`; the gate is open. It must be asked: the words behind a closed one are
    // what `old` may be, and nobody's to write.
    unsafe {
        sequence!(
            "cmp dword ptr fs:[{area} + {CPU_ID}], {cpu:e}",
            "jne 5f",
            "mov {at}, qword ptr [{base} + 8*{at} + {GATES_AT}]",
            "test {at}, {at}",
            "jle 5f",
            "cmp qword ptr [{front} + {at} + {REFUSALS_AT}], {old}",
            "jne 5f",
            "mov qword ptr [{front} + {at} + {REFUSALS_AT}], {new}";
            aside: "jmp {slow}";
            area = in(reg) area.offset(),
            base = in(reg) blocks.base(),
            cpu = in(reg) here.cpu.get(),
            front = in(reg) front(blocks, word),
            old = in(reg) old,
            new = in(reg) new,
            slow = label { return false },
            options(nostack),
        );
    }
    true
}
