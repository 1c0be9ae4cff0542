//! Translations that the running CPU caches (Priv 4.2.1, SFENCE.VMA).

use core::arch::asm;

pub use crate::arch::roots::{use_all_tables, use_lasting_tables};

/// Makes the running CPU translate by the tables of this root, and drop what it cached of others.
///
/// # Safety
/// They have the linear map, in which the kernel's code, data and stacks lie.
pub(in crate::arch) unsafe fn set_root(address: usize) {
    /// Sv48 (Priv 4.1.11).
    const MODE: usize = 9 << 60;
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "csrw satp, {}", "sfence.vma",
            in(reg) MODE | address >> 12,
            options(nostack, preserves_flags),
        )
    };
}

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
