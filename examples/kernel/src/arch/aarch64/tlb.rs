//! Translations that CPUs cache (Arm ARM, D8.13 "TLB maintenance").
//!
//! The inner-shareable forms reach all CPUs, halted and in user mode, too, and interrupt none. DSB
//! waits until they have.

use core::arch::asm;

/// Whether the functions here reach the other CPUs, too.
pub const BROADCASTS: bool = true;

/// Does nothing: a CPU that starts drops what any other drops.
pub fn use_all_tables() {}

/// Does nothing: a CPU that stops drops it, too.
pub fn use_lasting_tables() {}

/// Drops all translations.
pub fn flush_all() {
    // SAFETY: dropping translations is always allowed; the compiler moves no memory access across.
    unsafe { asm!("dsb ishst", "tlbi vmalle1is", "dsb ish", "isb", options(nostack)) };
}

/// Begins to drop a page's translation, and cached upper-level entries that lead to it.
pub fn flush_page(address: usize) {
    // Bits 43:0: the page's number.
    let page = address as u64 >> 12 & ((1 << 44) - 1);
    // SAFETY: as in `flush_all`.
    unsafe { asm!("dsb ishst", "tlbi vaae1is, {}", in(reg) page, options(nostack)) };
}

/// Ends a series of [`flush_page`]: waits until all CPUs have dropped them.
pub fn finish() {
    // SAFETY: a barrier.
    unsafe { asm!("dsb ish", "isb", options(nostack)) };
}
