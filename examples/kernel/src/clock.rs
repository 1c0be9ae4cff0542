//! Time, as this machine's counter tells it.

pub use crate::arch::now_us;

/// Milliseconds since the machine started.
pub fn now_ms() -> u64 {
    now_us() / 1000
}

/// Spins for `us` microseconds.
pub fn wait_us(us: u64) {
    let end = now_us() + us;
    while now_us() < end {
        core::hint::spin_loop();
    }
}
