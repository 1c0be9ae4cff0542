//! The root tables of CPUs, where a CPU that stops keeps cached what others have dropped.

use super::tlb::set_root;

unsafe extern "C" {
    /// Root tables of `boot.s`, of which the addresses alone are used: one for CPUs that are not
    /// offline, and one for those that are, with the linear map alone.
    static boot_root: u8;
    static offline_root: u8;
}

/// Makes the running CPU translate by all page tables. Some may be freed later, so it is marked as
/// running before.
pub fn use_all_tables() {
    // SAFETY: it has the linear map.
    unsafe { set_root((&raw const boot_root).addr()) };
}

/// Makes the running CPU translate by tables that are never freed, and drop what it cached of
/// others. It may be marked as offline then.
pub fn use_lasting_tables() {
    // SAFETY: it has the linear map.
    unsafe { set_root((&raw const offline_root).addr()) };
}
