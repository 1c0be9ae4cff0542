//! The generic timer (Arm ARM, chapter D12): the virtual counter, and this CPU's virtual timer.

use super::{read_register, write_register};

const ENABLE: u64 = 1;

/// Microseconds since the machine started.
pub fn now_us() -> u64 {
    // SAFETY: a barrier: the counter is not read early.
    unsafe { core::arch::asm!("isb", options(nostack, nomem)) };
    let (ticks, hz) = (read_register!("cntvct_el0"), read_register!("cntfrq_el0"));
    (u128::from(ticks) * 1_000_000 / u128::from(hz)) as u64
}

/// Interrupts this CPU once, `us` microseconds from now.
pub fn timer_once(us: u64) {
    let ticks = (read_register!("cntfrq_el0") * us / 1_000_000).clamp(1, i32::MAX as u64);
    write_register!("cntv_tval_el0", ticks);
    write_register!("cntv_ctl_el0", ENABLE);
}

/// Stops this CPU's timer, and takes a pending interrupt of it back.
pub fn timer_stop() {
    write_register!("cntv_ctl_el0", 0);
}
