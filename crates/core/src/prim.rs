//! The one seam for atomics and spinning: `core` in production, `loom` under `--cfg loom`.
//!
//! No other module of this crate names `core::sync::atomic` or `core::hint::spin_loop`, so that a
//! model checker (and later a many-CPU simulator) sees every shared access. Code uses relaxed
//! atomics where another language would use plain loads and stores: they compile to the same
//! instructions, and a race on them is defined.

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};

#[cfg(loom)]
pub use loom::sync::atomic::{
    AtomicBool, AtomicI64, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};

/// Tells the processor that this is a spin loop; under loom, lets another thread run.
#[inline]
pub fn spin_hint() {
    #[cfg(not(loom))]
    core::hint::spin_loop();
    #[cfg(loom)]
    loom::thread::yield_now();
}

/// Makes Dekker's pattern (write mine, then read yours) hold under loom as it does in production.
///
/// Production code writes by a SeqCst read-modify-write and reads by a SeqCst load, which is
/// enough; loom treats SeqCst accesses as AcqRel and models only SeqCst *fences*.
#[inline]
pub fn dekker_fence() {
    #[cfg(all(loom, test))]
    if crate::loom_tests::is_mutant(crate::loom_tests::Mutant::NoDekker) {
        return;
    }
    #[cfg(loom)]
    fence(Ordering::SeqCst);
}
