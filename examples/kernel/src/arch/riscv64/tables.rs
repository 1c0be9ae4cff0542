//! Entries of page tables (Priv 4.4.1 and 4.5, Sv48).

use core::arch::asm;

use pagedepot::Pfn;

use super::read_csr;
use crate::paging::{Access, Leaf};

const VALID: u64 = 1 << 0;
/// Loads are allowed.
pub(super) const READABLE: u64 = 1 << 1;
/// Stores are allowed.
pub(super) const WRITABLE: u64 = 1 << 2;
const EXECUTABLE: u64 = 1 << 3;
const USER: u64 = 1 << 4;
const ACCESSED: u64 = 1 << 6;
const DIRTY: u64 = 1 << 7;
const NUMBER: u64 = ((1 << 44) - 1) << 10;

/// End of the memory that `boot.s` maps; the devices lie below RAM.
pub const BOOT_MAPPED: usize = 4 << 30;

/// Checks what page tables rely on: that the hart has taken Sv48 over.
pub fn check() {
    assert!(read_csr!("satp") >> 60 == 9, "the hart has no Sv48: start QEMU with -cpu rv64");
}

/// The frame that an entry names.
pub fn frame_of(entry: u64) -> Pfn {
    Pfn::new(((entry & NUMBER) >> 10) as u32)
}

/// An entry with another frame.
pub fn with_frame(entry: u64, pfn: Pfn) -> u64 {
    entry & !NUMBER | u64::from(pfn.get()) << 10
}

/// An entry that allows or forbids writes.
pub fn with_writes(entry: u64, may_write: bool) -> u64 {
    if may_write { entry | WRITABLE } else { entry & !WRITABLE }
}

/// Whether the processor uses an entry.
pub fn is_present(entry: u64) -> bool {
    entry & VALID != 0
}

/// Whether a directory's entry maps a large page.
pub fn is_large(entry: u64) -> bool {
    entry & (READABLE | EXECUTABLE) != 0
}

/// An entry that leads to a table. What may be done is said by the leaves alone.
pub fn to_table(pfn: Pfn) -> u64 {
    with_frame(VALID, pfn)
}

/// An entry that maps a block.
pub fn to_leaf(pfn: Pfn, _: Leaf, access: Access) -> u64 {
    let flag = |is_set, bits| if is_set { bits } else { 0 };
    let flags = VALID
        | READABLE
        | ACCESSED
        | DIRTY
        | flag(access.may_write, WRITABLE)
        | flag(access.may_execute, EXECUTABLE)
        | flag(access.is_user, USER);
    with_frame(flags, pfn)
}

/// The entry of the page at `index` of a large one.
pub fn to_part(large: u64, index: usize) -> u64 {
    large + ((index as u64) << 10)
}

/// Makes a new entry visible to this CPU's table walks. Harts may cache that an entry is not valid:
/// another one that finds it so faults, and looks again (`trap::page_fault`).
pub fn publish() {
    // SAFETY: a barrier.
    unsafe { asm!("sfence.vma", options(nostack)) };
}
