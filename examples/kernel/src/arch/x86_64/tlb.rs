//! Translations that the running CPU caches (AMD APM vol. 2, 5.5; Intel SDM vol. 3A, "Caching
//! Translation Information").

pub use x86_64::instructions::tlb::flush_all;

/// Whether the functions here reach the other CPUs, too: on this processor they do not.
pub const BROADCASTS: bool = false;

/// Drops a page's translation, and all cached upper-level entries (Intel SDM vol. 3A, "Operations
/// that Invalidate TLBs and Paging-Structure Caches").
pub fn flush_page(address: usize) {
    x86_64::instructions::tlb::flush(x86_64::VirtAddr::new(address as u64));
}

/// Ends a series of [`flush_page`].
pub fn finish() {}
