//! The tick: on ordinary CPUs only.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::cpu::{self, Cpu};
use crate::interrupt::Hook;
use crate::{arch, clock, memory, smp};

/// Microseconds between ticks.
const TICK_US: u64 = 10_000;
/// Milliseconds between decays of the allocator's caches.
const DECAY_MS: u64 = 1000;

/// Called in place of arming the next tick.
pub static ON_TICK: Hook = Hook::new();
/// Ticks of all CPUs.
static TICKS: AtomicU64 = AtomicU64::new(0);
static NEXT_DECAY_MS: AtomicU64 = AtomicU64::new(0);
/// Whether ordinary CPUs have a tick.
static ON: AtomicBool = AtomicBool::new(false);

/// Whether a CPU has a tick.
pub fn is_on(cpu: &Cpu) -> bool {
    ON.load(Ordering::Acquire) && !cpu.is_isolated()
}

/// Starts or stops the tick of all ordinary CPUs.
pub fn switch(on: bool) {
    ON.store(on, Ordering::Release);
    smp::run_everywhere(&|_| if on { start() } else { arch::timer_stop() });
}

/// Arms this CPU's next tick, if it has one.
pub fn start() {
    if is_on(Cpu::here()) {
        arch::timer_once(TICK_US);
    }
}

/// Isolates this CPU: its tick stops, and full drains leave it alone while it runs.
pub fn isolate() {
    // The mark comes first: a tick that comes in between does not arm another.
    Cpu::here().isolated.store(true, Ordering::SeqCst);
    arch::timer_stop();
    // A pending tick has come by then.
    clock::wait_us(100);
}

/// The handler, with interrupts off.
pub fn tick(cpu: &'static Cpu) {
    TICKS.fetch_add(1, Ordering::Relaxed);
    // For drains that ask a CPU whose task does not allocate.
    memory::depot().cpu_caches().hand_over();
    if cpu.id() == cpu::boot().id() {
        decay(clock::now_ms());
    }
    if !ON_TICK.call(cpu) {
        start();
    }
}

/// Returns to the store, once a second, what CPUs cache and do not use, and interrupts no CPU.
fn decay(now_ms: u64) {
    // Relaxed: only the boot CPU uses it.
    if now_ms >= NEXT_DECAY_MS.load(Ordering::Relaxed) {
        NEXT_DECAY_MS.store(now_ms + DECAY_MS, Ordering::Relaxed);
        memory::depot().cpu_caches().decay();
    }
}

/// Ticks so far, of all CPUs.
pub fn ticks() -> u64 {
    TICKS.load(Ordering::Relaxed)
}
