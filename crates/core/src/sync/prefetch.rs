//! Asking for cache lines before they are needed: another CPU had them last.
#![allow(unsafe_code, reason = "an instruction that has no intrinsic")]

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
                    "prefetchw [{}]",
                    in(reg) start.add(line),
                    options(nostack, preserves_flags, readonly),
                );
            }
        }
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom), not(miri), not(feature = "simulated"))))]
    let _ = value;
}
