//! The sequences of a depot's fronts: pop, push, compare-store and claim, as [`Cpus`] asks for them.
//!
//! What a sequence is, and what it takes to run one, is in the crate [`pagedepot_rseq`].
//!
//! [`Cpus`]: pagedepot::cpus::Cpus
//!
//! # Threads without a registration of their own
//! Where a thread's `cpu_id` is negative, each sequence finds a gate that is closed, and the thread
//! uses the store.
//!
//! # Another architecture
//! It needs one more file beside `x86_64.rs` with the same functions, and one more line in the
//! selection of `arch` below. Until then it takes the lock front.

#[cfg(target_arch = "x86_64")]
#[path = "x86_64.rs"]
mod arch;
#[cfg(not(target_arch = "x86_64"))]
#[path = "none.rs"]
mod arch;

#[cfg(test)]
mod tests;

use core::sync::atomic::{AtomicBool, Ordering};

pub(crate) use arch::{claim_gate, compare_store, pop, push};

/// What `pop` returns for "look closer". No frame has this number: ranges end at 2^32 at most, and
/// an allocator's last section is never complete there.
pub(crate) const NO_FRAME: u64 = u64::MAX;

/// Keeps the object with the sequences loaded; `false` when the dynamic linker refuses.
///
/// Functions of a depot are inlined into its users. A Rust dynamic library that uses a depot which
/// another object built is not seen from here: the documentation of the crate says that it must
/// stay.
pub(crate) fn stay_loaded() -> bool {
    static IS_KEPT: AtomicBool = AtomicBool::new(false);
    // Relaxed, both: doing it twice is harmless.
    if !IS_KEPT.load(Ordering::Relaxed) {
        let this_code = stay_loaded as fn() -> bool;
        IS_KEPT.store(pagedepot_rseq::keep_loaded(this_code as *const ()), Ordering::Relaxed);
    }
    IS_KEPT.load(Ordering::Relaxed)
}
