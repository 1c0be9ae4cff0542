//! Entries of page tables (Arm ARM, D8.3 "Translation table descriptor formats").

use core::arch::asm;

use pagedepot::Pfn;

use super::read_register;
use crate::paging::{Access, Leaf};

const VALID: u64 = 1 << 0;
/// A table, or at the last level a page; without it, a block.
const TABLE: u64 = 1 << 1;
/// AP: user mode's; read-only.
const USER: u64 = 1 << 6;
const READ_ONLY: u64 = 1 << 7;
const INNER_SHAREABLE: u64 = 3 << 8;
const ACCESSED: u64 = 1 << 10;
/// Bits that forbid fetches: by the kernel (PXN), by user mode (UXN).
const PRIVILEGED_NEVER: u64 = 1 << 53;
const USER_NEVER: u64 = 1 << 54;
const ADDRESS: u64 = 0x0000_ffff_ffff_f000;

/// End of the memory that `boot.s` maps; the devices are its first GiB.
pub const BOOT_MAPPED: usize = 4 << 30;

/// Checks what page tables rely on: a block may be replaced by a table of the same translations
/// while CPUs use it (FEAT_BBM level 2; Arm ARM, D8.14.1). A processor without it needs the entry
/// absent in between, and page faults that wait.
pub fn check() {
    let level = read_register!("id_aa64mmfr2_el1") >> 52 & 15;
    assert!(level >= 2, "the processor has no FEAT_BBM level 2: start QEMU with -cpu max");
}

/// The frame that an entry names.
pub fn frame_of(entry: u64) -> Pfn {
    Pfn::new(((entry & ADDRESS) >> 12) as u32)
}

/// An entry with another frame.
pub fn with_frame(entry: u64, pfn: Pfn) -> u64 {
    entry & !ADDRESS | u64::from(pfn.get()) << 12
}

/// An entry that allows or forbids writes.
pub fn with_writes(entry: u64, may_write: bool) -> u64 {
    if may_write { entry & !READ_ONLY } else { entry | READ_ONLY }
}

/// Whether the processor uses an entry.
pub fn is_present(entry: u64) -> bool {
    entry & VALID != 0
}

/// Whether a directory's entry maps a large page.
pub fn is_large(entry: u64) -> bool {
    entry & (VALID | TABLE) == VALID
}

/// An entry that leads to a table. What may be done is said by the leaves alone.
pub fn to_table(pfn: Pfn) -> u64 {
    with_frame(VALID | TABLE, pfn)
}

/// An entry that maps a block, as normal memory (attribute 0 of `boot.s`).
pub fn to_leaf(pfn: Pfn, leaf: Leaf, access: Access) -> u64 {
    let flag = |is_set, bits| if is_set { bits } else { 0 };
    let flags = VALID
        | INNER_SHAREABLE
        | ACCESSED
        | flag(leaf == Leaf::Page, TABLE)
        | flag(access.is_user, USER)
        | flag(!access.may_write, READ_ONLY)
        | flag(access.is_user || !access.may_execute, PRIVILEGED_NEVER)
        | flag(!access.is_user || !access.may_execute, USER_NEVER);
    with_frame(flags, pfn)
}

/// The entry of the page at `index` of a large one.
pub fn to_part(large: u64, index: usize) -> u64 {
    (large | TABLE) + ((index as u64) << 12)
}

/// Makes a new entry visible to table walks: a store is complete after DSB, and later instructions
/// of this CPU use it after ISB. An entry that is not valid is not cached.
pub fn publish() {
    // SAFETY: barriers.
    unsafe { asm!("dsb ishst", "isb", options(nostack)) };
}
