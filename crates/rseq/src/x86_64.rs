//! x86-64: the frame around a sequence, in inline assembly that is part of the caller, and the load
//! of the CPU's number.

use core::arch::asm;

use crate::Area;
use crate::field::CPU_ID;

pub const HAS_SEQUENCES: bool = true;

/// Every kernel for this processor that registers areas restarts sequences.
pub fn are_restarted(_area: Area) -> Option<bool> {
    Some(true)
}

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
///     // SAFETY: `movzx` makes each number of a CPU, also a negative one, an index below 2^16; the
///     // one store is the last instruction of the body.
///     unsafe {
///         sequence!(
///             area;
///             body: "movzx {at:e}, word ptr fs:[{area} + {CPU_ID}]",
///             "mov {sum}, qword ptr [{counters} + 8*{at}]",
///             "inc {sum}",
///             "mov qword ptr [{counters} + 8*{at}], {sum}";
///             aborted: "jmp {aborted}";
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
/// the code it describes (`?`), so that the linker drops both or none. The abort code lies in
/// `.text.unlikely`.
///
/// # What the caller writes
/// * `area`: an expression of type [`Area`](crate::Area).
/// * `body`: the instructions between announcement and commit. The operand `{at}` is a register to
///   use freely; `{area}` is the area's offset from the thread pointer (`fs`), `{CPU_ID}` the
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
            ".pushsection __rseq_cs, \"aw?\", @progbits",
            ".balign 32",
            // struct rseq_cs: version, flags; start, bytes to the commit, abort label.
            "6: .long 0, 0",
            ".quad 2f, 3f - 2f, 4f",
            ".popsection",
            "7:",
            "lea {at}, [rip + 6b]",
            "mov qword ptr fs:[{area} + {RSEQ_CS}], {at}",
            "2:",
            $($body,)+
            "3:",
            ".pushsection .text.unlikely, \"ax?\", @progbits",
            // glibc's RSEQ_SIG, inside ud1 [rip + signature], edi: so disassemblers stay in step.
            ".byte 0x0f, 0xb9, 0x3d",
            ".long 0x53053053",
            "4:",
            $($aborted,)+
            ".popsection",
            RSEQ_CS = const $crate::field::RSEQ_CS,
            CPU_ID = const $crate::field::CPU_ID,
            at = out(reg) _,
            area = in(reg) $crate::Area::offset($area),
            $($operands)+
        )
    };
}

/// Loads the CPU's number in one instruction: see [`Area::cpu_id`].
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
