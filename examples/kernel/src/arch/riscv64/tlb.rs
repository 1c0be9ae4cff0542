//! Translations that the running CPU caches (Priv 4.2.1, SFENCE.VMA).

use core::arch::asm;

/// Whether the functions here reach the other CPUs, too: on this processor they do not.
pub const BROADCASTS: bool = false;

/// Drops all translations.
pub fn flush_all() {
    // SAFETY: dropping translations is always allowed; the compiler moves no memory access across.
    unsafe { asm!("sfence.vma", options(nostack)) };
}

/// Left to [`finish`]: the form with an address drops no upper-level entries, and these lead to
/// tables that are taken out.
pub fn flush_page(_: usize) {}

/// Ends a series of [`flush_page`].
pub fn finish() {
    flush_all();
}
