//! Costs of the processor: values on cache lines of their own, requests for lines before they are
//! needed because another CPU had them last, counters, and waiting without sleep.
#![allow(unsafe_code, reason = "an instruction that has no intrinsic")]

use super::model::{IS_LOOM, bound};
use super::prim::{AtomicU32, AtomicU64, Ordering, spin_hint};

/// A value on cache lines of its own.
#[derive(Default)]
#[repr(C, align(128))]
pub struct CachePadded<T>(T);

impl<T> CachePadded<T> {
    pub fn new(value: T) -> Self {
        CachePadded(value)
    }
}

impl<T> core::ops::Deref for CachePadded<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// Adds to a counter.
#[inline]
pub fn count(cell: &AtomicU64, n: u64) {
    // No protocol reads counters; to a model each would be one more place to switch threads.
    if IS_LOOM {
        return;
    }
    // Relaxed: a statistic.
    cell.fetch_add(n, Ordering::Relaxed);
}

/// Adds to a counter that code on one CPU adds to, by one instruction, which nothing on that CPU
/// interrupts. It has no lock prefix, which would cost as much as the rest of an exchange. If a
/// drainer, or a thread that has just been moved to another CPU, adds to the counter at the same
/// moment, one of the two counts is lost.
#[inline]
pub fn count_here(cell: &AtomicU64, n: u64) {
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri), not(feature = "simulated")))]
    // SAFETY: a load and a store of an aligned integer, which other threads access as an atomic.
    unsafe {
        core::arch::asm!(
            "add qword ptr [{}], {}", in(reg) cell.as_ptr(), in(reg) n, options(nostack),
        );
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom), not(miri), not(feature = "simulated"))))]
    count(cell, n);
}

/// Asks for all lines of a value, to write them.
#[inline]
pub fn prefetch_write<T>(value: &T) {
    #[cfg(feature = "simulated")]
    pagedepot_sim_machine::touch(value, pagedepot_sim_machine::Access::Prefetch);
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri), not(feature = "simulated")))]
    {
        let start = (&raw const *value).cast::<u8>();
        for line in (0..size_of::<T>()).step_by(64) {
            // SAFETY: a hint without architectural effect, on an address inside `value`. Every
            // x86-64 processor executes PREFETCHW, some as a no-op.
            unsafe {
                core::arch::asm!(
                    "prefetchw [{}]", in(reg) start.add(line),
                    options(nostack, preserves_flags, readonly),
                );
            }
        }
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom), not(miri), not(feature = "simulated"))))]
    let _ = value;
}

/// Looks at the word before a waiter that cannot sleep gives up.
const WAIT_SPINS: u32 = bound(1000, 1);

/// Spins while `word` is `seen`, at most 1000 times.
pub fn spin_while(word: &AtomicU32, seen: u32) {
    for _ in 0..WAIT_SPINS {
        // Relaxed: the caller looks again, and orders what follows.
        if word.load(Ordering::Relaxed) != seen {
            return;
        }
        spin_hint();
    }
}
