//! The fronts' sequences for x86-64, in inline assembly that is part of the caller.
//!
//! # Choices, measured on a hot pair of pop and push
//! * All addresses of a depot are relative to one base, which is in one register. The base, the
//!   steps and the front's address stay in registers in a loop, because nothing in a depot's own
//!   value changes. A step added from memory costs an eighth of a nanosecond.
//! * Pop and push check neither whether the CPU's number has a gate nor whether the gate is open
//!   ([`Cpus::FOLLOWS_GATES`](pagedepot::cpus::Cpus::FOLLOWS_GATES)). Every 16-bit number has a
//!   gate, and a closed gate leads to a word that refuses. Either check costs a tenth of a
//!   nanosecond or more.
//! * One register and a displacement name the front's word, which costs an `add`. A push stores the
//!   word that the next pop loads. Intel's processors since Golden Cove forward it in no time at
//!   such addresses; at one with an index register the load waits five cycles, twice a pair. AMD's
//!   forward both forms. A slot's address keeps its index: no word waits for it.
//! * A sequence does not retry after an abort: it sends its caller to the slow path. An abort
//!   happens once per preemption, and the slow path bounds its attempts.
//! * All exits except the commit lie in a section of their own, at the abort label. The exits of a
//!   sequence without a result jump to a label of the caller's, so that the caller need not test
//!   how the sequence ended.

use pagedepot::cpus::Here;
use pagedepot::cpus::implement::{
    BlockArray, GATES_AT, ONE_ROUND, POP_STEP, PUSH_STEP, REFUSALS_AT, WordOffset,
};
use pagedepot_rseq::{Area, sequence};

use super::{FrameCopy, NO_FRAME};

/// A sequence that begins by loading the low 16 bits of the CPU's number into `{at}`.
macro_rules! front_sequence {
    ($area:expr; $($line:literal),+; aborted: $($aborted:literal),+; $($operands:tt)+) => {
        sequence!(
            $area;
            body: "movzx {at:e}, word ptr fs:[{area} + {CPU_ID}]", $($line),+;
            aborted: $($aborted),+;
            GATES_AT = const GATES_AT,
            REFUSALS_AT = const REFUSALS_AT,
            $($operands)+
        )
    };
}

/// To find the word, add the offset in a gate and [`REFUSALS_AT`] to this address.
#[inline(always)]
fn front(blocks: &BlockArray, word: WordOffset) -> *mut u8 {
    blocks.base().wrapping_add(word.bytes())
}

/// Whether [`pop`] found no frame.
#[inline(always)]
pub fn is_none(popped: u64) -> bool {
    popped == NO_FRAME
}

/// Implements [`Cpus::pop`](pagedepot::cpus::Cpus::pop), with [`NO_FRAME`] for `None`.
#[inline(always)]
pub fn pop(area: Area, blocks: &BlockArray, word: WordOffset) -> u64 {
    let frame: u64;
    // SAFETY: the area is this thread's own and registered, or `cpu_id` is negative (a child of
    // `vfork` or a bare `clone` calls nothing, see `pagedepot_rseq`). Each 16-bit number has a
    // gate, and the lower half of a gate leads to words. A word with credit names a magazine.
    // Nothing is stored before the commit, which is the last instruction. The code stays loaded
    // (`stay_loaded`).
    unsafe {
        front_sequence!(
            area;
            "mov {at:e}, dword ptr [{base} + 8*{at} + {GATES_AT}]",
            "add {at}, {front}",
            "mov {next}, qword ptr [{at} + {REFUSALS_AT}]",
            "test {next:l}, {next:l}",
            "jz 4f",
            "mov {slot:e}, {next:e}",
            "add {next}, {step}",
            "jnc 4f",
            "mov {frame:e}, dword ptr [{base} + {slot} - {ONE_ROUND}]",
            "mov qword ptr [{at} + {REFUSALS_AT}], {next}";
            aborted: "mov {frame}, -1", "jmp 3b";
            ONE_ROUND = const ONE_ROUND,
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

/// Implements [`Cpus::push`](pagedepot::cpus::Cpus::push).
#[inline(always)]
pub fn push(
    area: Area,
    blocks: &BlockArray,
    word: WordOffset,
    rounds_max: u32,
    frame: u32,
) -> bool {
    // SAFETY: as in `pop`, except for one store before the commit. With fewer than `rounds_max`
    // rounds the word's next slot belongs to this sequence, and nothing reads the slot before the
    // commit.
    unsafe {
        front_sequence!(
            area;
            "mov {at:e}, dword ptr [{base} + 8*{at} + {GATES_AT}]",
            "add {at}, {front}",
            "mov {next}, qword ptr [{at} + {REFUSALS_AT}]",
            "cmp {next:l}, {full:l}",
            "jae 4f",
            "mov {slot:e}, {next:e}",
            "add {next}, {step}",
            "jnc 4f",
            "mov dword ptr [{base} + {slot}], {frame:e}",
            "mov qword ptr [{at} + {REFUSALS_AT}], {next}";
            aborted: "jmp {slow}";
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

/// A sequence that executes the given lines and stores `new`, if the CPU is that of `here`, its
/// gate is open and its word is `old`. Where not, or after an abort, the function that it is in
/// returns `false`. It must check the gate: the words behind a closed one are 0, which `old` may
/// be, and must stay 0.
macro_rules! compare_sequence {
    (
        $area:expr, $blocks:expr, $here:expr, $word:expr, $old:expr, $new:expr;
        $($line:literal),*;
        $($operands:tt)*
    ) => {
        front_sequence!(
            $area;
            "cmp dword ptr fs:[{area} + {CPU_ID}], {cpu:e}",
            "jne 4f",
            "mov {at}, qword ptr [{base} + 8*{at} + {GATES_AT}]",
            "test {at}, {at}",
            "jle 4f",
            "add {at}, {front}",
            "cmp qword ptr [{at} + {REFUSALS_AT}], {old}",
            "jne 4f",
            $($line,)*
            "mov qword ptr [{at} + {REFUSALS_AT}], {new}";
            aborted: "jmp {slow}";
            base = in(reg) $blocks.base(),
            cpu = in(reg) $here.cpu.get(),
            front = in(reg) front($blocks, $word),
            old = in(reg) $old,
            new = in(reg) $new,
            slow = label { return false },
            $($operands)*
            options(nostack),
        )
    };
}

/// Commits a [`Change::Word`](pagedepot::cpus::Change::Word).
#[inline]
pub fn compare_store(
    area: Area,
    blocks: &BlockArray,
    here: Here,
    word: WordOffset,
    old: u64,
    new: u64,
) -> bool {
    // SAFETY: as in `pop`; and the gate is open.
    unsafe { compare_sequence!(area, blocks, here, word, old, new;;) };
    true
}

/// Stores a word like [`compare_store`], by a sequence that copies frames between the comparison
/// and the store: of each copy, up to the first of nothing, those beyond a multiple of four one by
/// one, and then four at a time.
///
/// # Safety
/// While the word is the old one, what is copied from may be read, and what is copied to may be
/// written by a sequence of this CPU, also if that aborts then.
#[inline]
pub unsafe fn copy_and_store(
    area: Area,
    blocks: &BlockArray,
    here: Here,
    word: WordOffset,
    (old, new): (u64, u64),
    copies: &[FrameCopy; 3],
) -> bool {
    // SAFETY: as in `compare_store`, and the caller's promise about the copies.
    unsafe {
        compare_sequence!(
            area, blocks, here, word, old, new;
            "5:",
            "mov {count}, qword ptr [{copies} + 16]",
            "test {count}, {count}",
            "jz 9f",
            "mov {from}, qword ptr [{copies}]",
            "mov {to}, qword ptr [{copies} + 8]",
            "add {copies}, 24",
            "52:",
            "test {count:l}, 3",
            "jz 54f",
            "mov {frame:e}, dword ptr [{from} + 4*{count} - 4]",
            "mov dword ptr [{to} + 4*{count} - 4], {frame:e}",
            "dec {count}",
            "jmp 52b",
            "54:",
            "sub {count}, 4",
            "jb 5b",
            "movups {frames}, xmmword ptr [{from} + 4*{count}]",
            "movups xmmword ptr [{to} + 4*{count}], {frames}",
            "jmp 54b",
            "9:";
            copies = inout(reg) copies => _,
            from = out(reg) _,
            to = out(reg) _,
            count = out(reg) _,
            frame = out(reg) _,
            frames = out(xmm_reg) _,
        );
    }
    true
}

/// Commits a [`Change::Gate`](pagedepot::cpus::Change::Gate).
///
/// The commit is a locked instruction: drainers change gates too.
#[inline]
pub fn claim_gate(area: Area, blocks: &BlockArray, here: Here, old: u64, new: u64) -> bool {
    let found: u64;
    // SAFETY: as in `pop`, except that the commit is a compare-and-swap of the gate. After an abort
    // `found` is -1, which no gate ever is.
    unsafe {
        sequence!(
            area;
            body: "movzx {at:e}, word ptr fs:[{area} + {CPU_ID}]",
            "cmp dword ptr fs:[{area} + {CPU_ID}], {cpu:e}",
            "jne 4f",
            "lock cmpxchg qword ptr [{base} + 8*{at} + {GATES_AT}], {new}";
            aborted: "mov rax, -1", "jmp 3b";
            GATES_AT = const GATES_AT,
            base = in(reg) blocks.base(),
            cpu = in(reg) here.cpu.get(),
            new = in(reg) new,
            inout("rax") old => found,
            options(nostack),
        );
    }
    found == old
}
