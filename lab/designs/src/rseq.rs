//! A CPU's lock in user space at the price of plain loads and stores, by a restartable sequence.
//!
//! The kernel's owners disable preemption. Here, one sequence asks "does this thread run on this
//! CPU, and is its lock free?" and takes the lock. The kernel aborts the sequence when the thread
//! is preempted, migrated or signalled in the middle. So it is atomic towards everything else that
//! runs on that CPU, without a locked instruction (`tools/testing/selftests/rseq`, percpu lock).
//! Releasing the lock is a plain store.
//!
//! A thread that is preempted while it holds the lock keeps it; others that act as this CPU
//! meanwhile find it held and go past the caches.

pub(crate) use pagedepot_rseq::Area;
use pagedepot_rseq::membarrier;
pub(crate) use pagedepot_rseq::membarrier::{fence, wait_for_grace_period};

use pagedepot_designs::prim::AtomicU32;

/// Attempts at a sequence before the caller goes past the caches. Each retry needs another
/// preemption within a few instructions, or a debugger that steps.
const TRIES: u32 = 3;

/// The area, if locks can be taken by sequences and fenced: registers the process for that, and
/// keeps this code loaded.
pub(crate) fn prepare() -> Option<Area> {
    let area = Area::find()?;
    let this_code = prepare as fn() -> Option<Area>;
    let is_ready =
        pagedepot_rseq::keep_loaded(this_code as *const ()) && membarrier::register().is_ok();
    is_ready.then_some(area)
}

/// Makes `state` odd if it is even and this thread runs on `cpu`. `true`: this thread did it.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn try_lock(area: Area, state: &AtomicU32, cpu: u32) -> bool {
    for _ in 0..TRIES {
        // SAFETY: reads `state`, a live atomic, and ends in the one store that commits; before it
        // nothing is written. Where `cpu_id` is negative it is no CPU's number. `prepare` keeps the
        // code loaded; the designs are not called from a child of `vfork`.
        unsafe {
            pagedepot_rseq::sequence!(
                area;
                body: "cmp dword ptr fs:[{area} + {CPU_ID}], {cpu:e}",
                "jne {miss}",
                "mov {at:e}, dword ptr [{state}]",
                "test {at:l}, 1",
                "jnz {miss}",
                "inc {at:e}",
                "mov dword ptr [{state}], {at:e}";
                aborted: "jmp {aborted}";
                cpu = in(reg) cpu,
                state = in(reg) state.as_ptr(),
                miss = label { return false },
                aborted = label { continue },
                options(nostack),
            );
        }
        return true;
    }
    false
}

/// Makes `state` odd if it is even and this thread runs on `cpu`. `true`: this thread did it.
///
/// The load of `state` is an acquire: it pairs with the Release in `OwnerGuard::drop`, because the
/// last owner may have been preempted, and may have released the lock on another CPU. The commit
/// needs no order but a drainer's fence.
#[cfg(all(target_arch = "aarch64", target_endian = "little"))]
#[inline(always)]
pub(crate) fn try_lock(area: Area, state: &AtomicU32, cpu: u32) -> bool {
    for _ in 0..TRIES {
        // SAFETY: as on x86-64.
        unsafe {
            pagedepot_rseq::sequence!(
                area;
                body: "ldr {at:w}, [{area}, {CPU_ID}]",
                "cmp {at:w}, {cpu:w}",
                "b.ne 9f",
                "ldar {at:w}, [{state}]",
                "tst {at:w}, 1",
                "b.ne 9f",
                "add {at:w}, {at:w}, 1",
                "str {at:w}, [{state}]";
                aborted: "b {aborted}", "9: b {miss}";
                cpu = in(reg) cpu,
                state = in(reg) state.as_ptr(),
                miss = label { return false },
                aborted = label { continue },
                options(nostack),
            );
        }
        return true;
    }
    false
}

/// Never called, because there is no area.
#[cfg(not(any(target_arch = "x86_64", all(target_arch = "aarch64", target_endian = "little"))))]
pub(crate) fn try_lock(area: Area, state: &AtomicU32, cpu: u32) -> bool {
    let _ = (area, state, cpu, TRIES);
    false
}
