//! AArch64: the frame around a sequence, in inline assembly that is part of the caller, and the
//! load of the CPU's number.

use core::arch::asm;

use crate::Area;
use crate::field::CPU_ID;
pub use crate::restarts::are_restarted;

pub const HAS_SEQUENCES: bool = true;

/// Writes a restartable sequence: [`asm!`](core::arch::asm) with the announcement before the body,
/// and the descriptor, the signature and the abort code beside it.
///
/// ```
/// use std::sync::atomic::AtomicU64;
///
/// use pagedepot_rseq::{Area, sequence};
///
/// /// Adds 1 to the counter of the CPU that this thread runs on; `false` after an abort.
/// ///
/// /// # Safety
/// /// Nothing else writes the counters, and the program is not unloaded.
/// unsafe fn count(area: Area, counters: &[AtomicU64; 1 << 16]) -> bool {
///     // SAFETY: `ldrh` makes each number of a CPU, also a negative one, an index below 2^16; the
///     // one store is the last instruction of the body.
///     unsafe {
///         sequence!(
///             area;
///             body: "ldrh {at:w}, [{area}, {CPU_ID}]",
///             "ldr {sum}, [{counters}, {at}, lsl 3]",
///             "add {sum}, {sum}, 1",
///             "str {sum}, [{counters}, {at}, lsl 3]";
///             aborted: "b {aborted}";
///             counters = in(reg) counters.as_ptr(),
///             sum = out(reg) _,
///             aborted = label { return false },
///             options(nostack),
///         );
///     }
///     true
/// }
/// ```
///
/// # How the kernel sees a sequence
/// Storing the address of a descriptor to `rseq_cs` announces the sequence between the labels 2
/// and 3. If the thread is preempted, migrated, signalled or fenced while its instruction pointer
/// is between them, it continues at the abort label 4 instead, which must follow the signature that
/// glibc registered. Label 3 follows directly on the one store that commits.
///
/// The macro emits the descriptor anew for each copy that inlining makes, in the section group of
/// the code it describes (`?`), so that the linker drops both or none. The abort code lies behind
/// the function in the function's own section: a conditional branch reaches a mebibyte and no
/// linker extends it, so that none may lead to another section.
///
/// # What the caller writes
/// * `area`: an expression of type [`Area`](crate::Area).
/// * `body`: the instructions between announcement and commit. The operand `{at}` is a register to
///   use freely; `{area}` is a register with the address of the thread's area, `{CPU_ID}` the
///   offset of the CPU's number in it. A body must use `{CPU_ID}`: a sequence that never looks
///   where it runs excludes nothing.
/// * `aborted`: the instructions at the abort label 4. They end in a jump: to a label of the
///   caller, to `3b` (past the commit), or to `7b` (the announcement: try again).
/// * Further operands and options of `asm!`.
///
/// # Safety
/// Requires what `asm!` requires, and:
/// * The body's only store that others can see is its last instruction. Stores before it go to
///   memory that is garbage until the commit.
/// * The body neither calls, nor uses the stack, nor makes a system call, nor loops. Without a
///   commit it leaves by a jump to `3f` (past the commit), `4f`, or a label of the caller.
/// * It does no harm when `cpu_id` is negative, or the CPU one that the caller has no data for.
/// * The code stays loaded: see [`keep_loaded`](crate::keep_loaded). The thread is no child of
///   `vfork`: see the [crate](crate).
#[macro_export]
macro_rules! sequence {
    ($area:expr; body: $($body:literal),+; aborted: $($aborted:literal),+; $($operands:tt)+) => {
        ::core::arch::asm!(
            ".pushsection __rseq_cs, \"aw?\", %progbits",
            ".balign 32",
            // struct rseq_cs: version, flags; start, bytes to the commit, abort label.
            "6: .long 0, 0",
            ".quad 2f, 3f - 2f, 4f",
            ".popsection",
            // Read anew by each sequence: what the compiler kept across a switch of stacks would be
            // another thread's.
            "mrs {area}, tpidr_el0",
            "add {area}, {area}, {offset}",
            "7:",
            "adrp {at}, 6b",
            "add {at}, {at}, :lo12:6b",
            "str {at}, [{area}, {RSEQ_CS}]",
            "2:",
            $($body,)+
            "3:",
            ".subsection 1",
            // glibc's RSEQ_SIG: brk 0x45e0, which no function begins with.
            ".inst 0xd428bc00",
            "4:",
            $($aborted,)+
            ".previous",
            RSEQ_CS = const $crate::field::RSEQ_CS,
            CPU_ID = const $crate::field::CPU_ID,
            at = out(reg) _,
            area = out(reg) _,
            offset = in(reg) $crate::Area::offset($area),
            $($operands)+
        )
    };
}

/// Loads the CPU's number: see [`Area::cpu_id`].
#[inline]
pub fn cpu_id(area: Area) -> u32 {
    let cpu: u32;
    // SAFETY: reads a field of the thread's own area, which glibc keeps at this offset.
    unsafe {
        asm!(
            "mrs {pointer}, tpidr_el0",
            "add {pointer}, {pointer}, {offset}",
            "ldr {cpu:w}, [{pointer}, {CPU_ID}]",
            pointer = out(reg) _,
            cpu = lateout(reg) cpu,
            offset = in(reg) area.offset(),
            CPU_ID = const CPU_ID,
            options(nostack, readonly, preserves_flags),
        );
    }
    cpu
}
