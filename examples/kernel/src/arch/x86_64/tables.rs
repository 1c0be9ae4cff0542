//! Entries of page tables (AMD APM vol. 2, 5.3; Intel SDM vol. 3A, "4-level paging").

use pagedepot::Pfn;
use x86_64::structures::paging::PageTableFlags as Bits;

use crate::paging::{Access, Leaf};

const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// End of the memory that `boot.s` maps; the firmware's devices lie below it.
pub const BOOT_MAPPED: usize = 4 << 30;

/// Checks what page tables rely on.
pub fn check() {}

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
    let bit = Bits::WRITABLE.bits();
    if may_write { entry | bit } else { entry & !bit }
}

/// Whether the processor uses an entry.
pub fn is_present(entry: u64) -> bool {
    entry & Bits::PRESENT.bits() != 0
}

/// Whether a directory's entry maps a large page.
pub fn is_large(entry: u64) -> bool {
    entry & Bits::HUGE_PAGE.bits() != 0
}

/// An entry that leads to a table. What may be done is said by the leaves alone.
pub fn to_table(pfn: Pfn) -> u64 {
    with_frame((Bits::PRESENT | Bits::WRITABLE | Bits::USER_ACCESSIBLE).bits(), pfn)
}

/// An entry that maps a block.
pub fn to_leaf(pfn: Pfn, leaf: Leaf, access: Access) -> u64 {
    let mut flags = Bits::PRESENT;
    flags.set(Bits::HUGE_PAGE, leaf == Leaf::Huge);
    flags.set(Bits::WRITABLE, access.may_write);
    flags.set(Bits::NO_EXECUTE, !access.may_execute);
    flags.set(Bits::USER_ACCESSIBLE, access.is_user);
    with_frame(flags.bits(), pfn)
}

/// The entry of the page at `index` of a large one.
pub fn to_part(large: u64, index: usize) -> u64 {
    (large & !Bits::HUGE_PAGE.bits()) + ((index as u64) << 12)
}

/// Makes a new entry visible to this CPU's table walks: stores are in order, and an entry that is
/// not present is not cached (APM 5.5.1; Intel SDM vol. 3A, "Caching Translations in TLBs").
pub fn publish() {}
