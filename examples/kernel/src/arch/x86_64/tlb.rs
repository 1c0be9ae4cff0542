//! Translations that the running CPU caches (AMD APM vol. 2, 5.5; Intel SDM vol. 3A, "Caching
//! Translation Information").

use x86_64::registers::control::{Cr3, Cr3Flags};
use x86_64::structures::paging::PhysFrame;
use x86_64::{PhysAddr, VirtAddr};

pub use x86_64::instructions::tlb::flush_all;

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
    let root = PhysFrame::containing_address(PhysAddr::new(address as u64));
    // SAFETY: both tables have the linear map, in which the kernel's code, data and stacks lie.
    unsafe { Cr3::write(root, Cr3Flags::empty()) };
}

/// Whether the functions here reach the other CPUs, too: on this processor they do not.
pub const BROADCASTS: bool = false;

/// Drops a page's translation, and all cached upper-level entries (Intel SDM vol. 3A, "Operations
/// that Invalidate TLBs and Paging-Structure Caches").
pub fn flush_page(address: usize) {
    x86_64::instructions::tlb::flush(VirtAddr::new(address as u64));
}

/// Ends a series of [`flush_page`].
pub fn finish() {}
