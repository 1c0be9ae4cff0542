//! The clock, and this CPU's timer, which the firmware sets.

use core::sync::atomic::{AtomicU64, Ordering};

use super::{read_csr, sbi};

/// Ticks of the clock per second.
static HZ: AtomicU64 = AtomicU64::new(1);

/// Notes the clock's rate, which the device tree says.
pub fn init(hz: u64) {
    assert!(hz > 0, "the device tree has no timebase-frequency");
    HZ.store(hz, Ordering::Relaxed);
}

/// Microseconds since the machine started.
pub fn now_us() -> u64 {
    let hz = HZ.load(Ordering::Relaxed);
    (u128::from(read_csr!("time")) * 1_000_000 / u128::from(hz)) as u64
}

/// Interrupts this CPU once, `us` microseconds from now.
pub fn timer_once(us: u64) {
    let ticks = (HZ.load(Ordering::Relaxed) * us / 1_000_000).max(1);
    sbi::set_timer(read_csr!("time") + ticks);
}

/// Stops this CPU's timer, and takes a pending interrupt of it back.
pub fn timer_stop() {
    sbi::set_timer(u64::MAX);
}
