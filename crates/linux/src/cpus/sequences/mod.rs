//! The sequences of a depot's fronts: pop, push, compare-store and claim, as [`Cpus`] requires
//! them.
//!
//! The crate [`pagedepot_rseq`] explains sequences, and what they require of a thread.
//!
//! [`Cpus`]: pagedepot::cpus::Cpus
//!
//! # Threads without a registration of their own
//! Such a thread's `cpu_id` is negative. Its sequences find a closed gate, and it uses the store.
//!
//! # Another architecture
//! Add a file beside `x86_64.rs` with the same functions, and a line to the selection of `arch`
//! below. Until then the architecture uses a lock per CPU.

#[cfg(target_arch = "x86_64")]
#[path = "x86_64.rs"]
mod arch;
#[cfg(not(target_arch = "x86_64"))]
#[path = "none.rs"]
mod arch;

#[cfg(test)]
mod tests;

use core::sync::atomic::{AtomicBool, Ordering};

pub(crate) use arch::{claim_gate, compare_store, pop, push, put_many, take_many};

/// The value that `pop` returns when the caller must take the slow path. No frame has this number:
/// ranges end at 2^32 at most, and an allocator's last section is never complete there.
pub(crate) const NO_FRAME: u64 = u64::MAX;

/// Keeps the object that contains the sequences loaded. `false`: the dynamic linker refused.
///
/// A depot's functions are inlined into their callers. This function cannot see a Rust dynamic
/// library that uses a depot which another object built; the crate's documentation demands that
/// such a library stays loaded.
pub(crate) fn stay_loaded() -> bool {
    static IS_KEPT: AtomicBool = AtomicBool::new(false);
    // Relaxed, both: two threads may do this at once, which is harmless.
    if !IS_KEPT.load(Ordering::Relaxed) {
        let this_code = stay_loaded as fn() -> bool;
        IS_KEPT.store(pagedepot_rseq::keep_loaded(this_code as *const ()), Ordering::Relaxed);
    }
    IS_KEPT.load(Ordering::Relaxed)
}
