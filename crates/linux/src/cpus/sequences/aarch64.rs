//! The fronts' sequences for AArch64, in inline assembly that is part of the caller.
//!
//! They are those of x86-64 (`x86_64.rs` says why each check is there or is not), with these
//! differences. The decision `docs/decisions/0017-sequences-on-aarch64.md` has what was rejected.
//! * A gate is loaded whole, and the word's address is the front's and the gate's lower half,
//!   extended: no instruction adds them.
//! * The exits lie behind the function, in its own section: a conditional branch does not reach
//!   further.
//! * The commit of a claim is a compare-and-swap (`casal`) where the program is built for
//!   processors that have one (`-C target-feature=+lse`), and elsewhere the store of a pair of
//!   exclusives, which all have.
//!
//! # Ordering
//! | access | order | partner |
//! |---|---|---|
//! | a gate before the word that it leads to | the word's address depends on the gate: the load of the word is ordered behind it | the Release of `ClosedGate::drop`, behind which a drainer's empty words are visible |
//! | a word before its slot | the slot's address depends on the word | none: both are this CPU's own stores, in its order |
//! | slots, read or written, before the commit | none | a drainer's fence: `membarrier` executes a full barrier on this CPU, or the switch to the thread that runs there now did |
//! | the commit before a claim on this CPU | the CPU's own order, which the scheduler carries to the CPU that the claiming thread moves to | `claim_gate` |
//! | a claim | acquire and release, as of a sequentially consistent compare-and-swap | `ASKS` in the core's `sync/total.rs` |
//!
//! So pop and push have neither an acquire nor a release. Nothing reads the slots that a word names
//! but the CPU itself, and who was let in by a fence or a claim of it (see `front/gate.rs` of the
//! core). Everyone else reads words alone, and takes them for hints.

use pagedepot::cpus::Here;
use pagedepot::cpus::implement::{
    BlockArray, GATES_AT, ONE_ROUND, POP_STEP, PUSH_STEP, REFUSALS_AT, WordOffset,
};
use pagedepot_rseq::{Area, sequence};

use super::FrameCopy;

/// A sequence that begins by loading the low 16 bits of the CPU's number into `{at}`, and the gate
/// of that number after it.
macro_rules! front_sequence {
    ($area:expr; $($line:literal),+; aborted: $($aborted:literal),+; $($operands:tt)+) => {
        sequence!(
            $area;
            body: "ldrh {at:w}, [{area}, {CPU_ID}]",
            "ldr {at}, [{gates}, {at}, lsl 3]",
            $($line),+;
            aborted: $($aborted),+;
            $($operands)+
        )
    };
}

/// The gate of CPU 0.
#[inline(always)]
fn gates(blocks: &BlockArray) -> *mut u8 {
    blocks.base().wrapping_add(GATES_AT)
}

/// To find the word, add the offset in a gate to this address.
///
/// The part that does not depend on the word is hidden from the compiler, which keeps it in a
/// register then: it would add the constant to each word's offset.
#[inline(always)]
#[allow(clippy::pointers_in_nomem_asm_block, reason = "nothing is read or written through it")]
fn front(blocks: &BlockArray, word: WordOffset) -> *mut u8 {
    let mut refusals = blocks.base().wrapping_add(REFUSALS_AT);
    // SAFETY: no instructions.
    unsafe {
        core::arch::asm!(
            "/* {0} */",
            inout(reg) refusals,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    refusals.wrapping_add(word.bytes())
}

/// Whether [`pop`] found no frame: [`NO_FRAME`](super::NO_FRAME) is the one number it returns that
/// is negative. The sign is one instruction, the comparison with a constant two. It is a branch:
/// else the compiler computes a flag, and looks at that.
#[inline(always)]
pub fn is_none(popped: u64) -> bool {
    if (popped as i64) < 0 {
        core::hint::cold_path();
        return true;
    }
    false
}

/// Implements [`Cpus::pop`](pagedepot::cpus::Cpus::pop), with [`NO_FRAME`](super::NO_FRAME) for
/// `None`.
#[inline(always)]
pub fn pop(area: Area, blocks: &BlockArray, word: WordOffset) -> u64 {
    let frame: u64;
    // SAFETY: the area is this thread's own and registered, or `cpu_id` is negative (a child of
    // `vfork` or a bare `clone` calls nothing, see `pagedepot_rseq`). Each 16-bit number has a
    // gate, and the lower half of a gate leads to words. A word with credit names a magazine, and
    // the lower half of the word behind the step is the offset of the slot that is taken. Nothing
    // is stored before the commit, which is the last instruction. The code stays loaded
    // (`stay_loaded`).
    unsafe {
        front_sequence!(
            area;
            "ldr {next}, [{front}, {at:w}, uxtw]",
            "tst {next}, 0xff",
            "b.eq 4f",
            "adds {next}, {next}, {step}",
            "b.cc 4f",
            "ldr {frame:w}, [{base}, {next:w}, uxtw]",
            "str {next}, [{front}, {at:w}, uxtw]";
            aborted: "mov {frame}, -1", "b 3b";
            base = in(reg) blocks.base(),
            gates = in(reg) gates(blocks),
            front = in(reg) front(blocks, word),
            step = in(reg) POP_STEP,
            next = out(reg) _,
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
            "ldr {slot}, [{front}, {at:w}, uxtw]",
            "cmp {full:w}, {slot:w}, uxtb",
            "b.ls 4f",
            "adds {next}, {slot}, {step}",
            "b.cc 4f",
            "str {frame:w}, [{base}, {slot:w}, uxtw]",
            "str {next}, [{front}, {at:w}, uxtw]";
            aborted: "b {slow}";
            base = in(reg) blocks.base(),
            gates = in(reg) gates(blocks),
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
            "ldr {found:w}, [{area}, {CPU_ID}]",
            "cmp {found:w}, {cpu:w}",
            "b.ne 4f",
            "cmp {at}, 0",
            "b.le 4f",
            "ldr {found}, [{front}, {at}]",
            "cmp {found}, {old}",
            "b.ne 4f",
            $($line,)*
            "str {new}, [{front}, {at}]";
            aborted: "b {slow}";
            gates = in(reg) gates($blocks),
            cpu = in(reg) $here.cpu.get(),
            front = in(reg) front($blocks, $word),
            old = in(reg) $old,
            new = in(reg) $new,
            found = out(reg) _,
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
            "ldr {bytes}, [{copies}, 16]",
            "cbz {bytes}, 9f",
            "ldp {from}, {to}, [{copies}], 24",
            "lsl {bytes}, {bytes}, 2",
            "52:",
            "tst {bytes}, 12",
            "b.eq 54f",
            "sub {bytes}, {bytes}, 4",
            "ldr {frame:w}, [{from}, {bytes}]",
            "str {frame:w}, [{to}, {bytes}]",
            "b 52b",
            "54:",
            "subs {bytes}, {bytes}, 16",
            "b.lo 5b",
            "ldr {frames:q}, [{from}, {bytes}]",
            "str {frames:q}, [{to}, {bytes}]",
            "b 54b",
            "9:";
            copies = inout(reg) copies => _,
            from = out(reg) _,
            to = out(reg) _,
            bytes = out(reg) _,
            frame = out(reg) _,
            frames = out(vreg) _,
        );
    }
    true
}

/// A sequence that executes the given lines with the address of the gate of `here` in `{gate}`.
macro_rules! claim_sequence {
    (
        $area:expr, $blocks:expr, $here:expr, $new:expr;
        $($line:literal),+; aborted: $aborted:literal; $($operands:tt)+
    ) => {
        sequence!(
            $area;
            body: "ldr {at:w}, [{area}, {CPU_ID}]",
            "cmp {at:w}, {cpu:w}",
            "b.ne 4f",
            // Also a negative number has a gate.
            "and {at}, {at}, 0xffff",
            "add {gate}, {gates}, {at}, lsl 3",
            $($line),+;
            aborted: $aborted, "b 3b";
            gates = in(reg) gates($blocks),
            cpu = in(reg) $here.cpu.get(),
            new = in(reg) $new,
            gate = out(reg) _,
            $($operands)+
            options(nostack),
        )
    };
}

/// Commits a [`Change::Gate`](pagedepot::cpus::Change::Gate).
///
/// The commit is a compare-and-swap: drainers change gates too.
#[cfg(target_feature = "lse")]
#[inline]
pub fn claim_gate(area: Area, blocks: &BlockArray, here: Here, old: u64, new: u64) -> bool {
    let found: u64;
    // SAFETY: as in `pop`, except that the commit is a compare-and-swap of the gate. After an abort
    // `found` is -1, which no gate ever is.
    unsafe {
        claim_sequence!(
            area, blocks, here, new;
            "casal {found}, {new}, [{gate}]";
            aborted: "mov {found}, -1";
            found = inout(reg) old => found,
        );
    }
    found == old
}

/// Commits a [`Change::Gate`](pagedepot::cpus::Change::Gate).
///
/// The commit is the store of a pair of exclusives: drainers change gates too. It may fail where
/// nothing has changed the gate, because the cache has lost its line. Then the gate is not claimed,
/// as after an abort, and the owner claims it when it comes by again.
#[cfg(not(target_feature = "lse"))]
#[inline]
pub fn claim_gate(area: Area, blocks: &BlockArray, here: Here, old: u64, new: u64) -> bool {
    let failed: u32;
    // SAFETY: as in `pop`, except that the commit is an exclusive store to the gate, which writes 0
    // to `failed` where it took place.
    unsafe {
        claim_sequence!(
            area, blocks, here, new;
            "ldaxr {found}, [{gate}]",
            "cmp {found}, {old}",
            "b.ne 4f",
            "stlxr {failed:w}, {new}, [{gate}]";
            aborted: "mov {failed:w}, 1";
            old = in(reg) old,
            found = out(reg) _,
            failed = out(reg) failed,
        );
    }
    failed == 0
}
