//! Translations that the running CPU caches (Priv 4.2.1, SFENCE.VMA).

use core::arch::asm;

unsafe extern "C" {
    /// Root tables of `boot.s`, of which the addresses alone are used: one for CPUs that are not
    /// offline, and one for those that are, with the linear map alone.
    static boot_root: u8;
    static offline_root: u8;
}

/// Makes the running CPU translate by all page tables. Some may be freed later, so it is marked as
/// running before.
pub fn use_all_tables() {
    set_root((&raw const boot_root).addr());
}

/// Makes the running CPU translate by tables that are never freed, and drop what it cached of
/// others. It may be marked as offline then.
pub fn use_lasting_tables() {
    set_root((&raw const offline_root).addr());
}

fn set_root(address: usize) {
    /// Sv48 (Priv 4.1.11).
    const MODE: usize = 9 << 60;
    // SAFETY: both tables have the linear map, in which the kernel's code, data and stacks lie.
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
