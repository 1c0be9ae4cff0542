//! A CPU's lock by a sequence of the simulated machine: see `rseq.rs` for that of a real one.

use std::convert::Infallible;

use pagedepot::CpuId;
use pagedepot_sim_machine as machine;

use pagedepot_designs::prim::{AtomicU32, Ordering};

/// Sequences always run on the simulated machine.
#[derive(Clone, Copy)]
pub(crate) struct Area;

/// Duration of a grace period: 10 ms, as `MEMBARRIER_CMD_GLOBAL` takes 8 to 16 ms on a machine of
/// two CPUs.
const GRACE_PS: u64 = 10_000_000_000;

/// Attempts at a sequence before the caller goes past the caches.
const TRIES: u32 = 3;

/// The area.
pub(crate) fn prepare() -> Option<Area> {
    Some(Area)
}

/// Makes `state` odd if it is even and this task runs on `cpu`. `true`: this task did it.
#[inline]
pub(crate) fn try_lock(_: Area, state: &AtomicU32, cpu: u32) -> bool {
    for _ in 0..TRIES {
        machine::begin_sequence();
        let now = state.load(Ordering::Relaxed);
        // Outside of a run, callers are whichever CPU they say.
        let is_elsewhere = machine::cpu().is_some_and(|here| here != cpu as usize);
        if is_elsewhere || !now.is_multiple_of(2) {
            machine::end_sequence();
            return false;
        }
        if state.commit(now + 1) {
            return true;
        }
    }
    false
}

/// Interrupts a CPU, which aborts its sequence.
///
/// # Errors
/// None.
pub(crate) fn fence(cpu: CpuId) -> Result<(), Infallible> {
    machine::fence(cpu.index());
    Ok(())
}

/// Waits for a grace period, which interrupts no CPU. Memory is sequentially consistent here.
///
/// # Errors
/// None.
pub(crate) fn wait_for_grace_period() -> Result<(), Infallible> {
    machine::sleep_until(machine::now_ps() + GRACE_PS);
    Ok(())
}
