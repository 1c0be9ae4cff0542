//! Translations that the running CPU caches (AMD APM vol. 2, 5.5; Intel SDM vol. 3A, "Caching
//! Translation Information").

use x86_64::registers::control::{Cr3, Cr3Flags};
use x86_64::structures::paging::PhysFrame;
use x86_64::{PhysAddr, VirtAddr};

pub use x86_64::instructions::tlb::flush_all;

pub use crate::arch::roots::{use_all_tables, use_lasting_tables};

/// Makes the running CPU translate by the tables of this root, and drop what it cached of others.
///
/// # Safety
/// They have the linear map, in which the kernel's code, data and stacks lie.
pub(in crate::arch) unsafe fn set_root(address: usize) {
    let root = PhysFrame::containing_address(PhysAddr::new(address as u64));
    // SAFETY: the caller's promise.
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
