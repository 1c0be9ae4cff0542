//! The list of CPUs, from ACPI's Multiple APIC Description Table.
//!
//! Sections are those of the ACPI specification 6.5. The crates that read these tables need a heap
//! or a nightly compiler; the list of CPUs alone needs no more than this file.

use super::bootinfo::{BootInfo, read};

/// Bytes of the header that every table has (5.2.6).
const HEADER_BYTES: u64 = 36;
/// The area in which BIOS firmware leaves the pointer (5.2.5.1).
const BIOS_AREA: core::ops::Range<u64> = 0xe_0000..0x10_0000;

fn signature_at(address: u64, signature: &[u8]) -> bool {
    // SAFETY: callers pass addresses inside firmware tables or the BIOS area.
    signature.iter().zip(address..).all(|(&byte, at)| unsafe { read::<u8>(at) } == byte)
}

fn sums_to_zero(address: u64, bytes: u64) -> bool {
    // SAFETY: as above.
    (address..address + bytes).fold(0u8, |sum, at| sum.wrapping_add(unsafe { read::<u8>(at) })) == 0
}

/// The Root System Description Pointer (5.2.5): from the loader, or by searching.
fn find_rsdp(boot: &BootInfo) -> u64 {
    let is_rsdp = |&at: &u64| signature_at(at, b"RSD PTR ") && sums_to_zero(at, 20);
    let told = Some(boot.rsdp()).filter(|&at| at != 0);
    told.or_else(|| BIOS_AREA.step_by(16).find(is_rsdp))
        .expect("no ACPI tables: QEMU without -no-acpi has them")
}

/// The table with this signature, by the root table (5.2.7, 5.2.8).
fn find_table(boot: &BootInfo, signature: &[u8; 4]) -> Option<u64> {
    let rsdp = find_rsdp(boot);
    // SAFETY: the fields of the pointer structure, and of the tables it leads to.
    unsafe {
        let (root, entry_bytes) = match read::<u8>(rsdp + 15) {
            0 | 1 => (u64::from(read::<u32>(rsdp + 16)), 4),
            _ => (read::<u64>(rsdp + 24), 8),
        };
        let entries = (u64::from(read::<u32>(root + 4)) - HEADER_BYTES) / entry_bytes;
        (0..entries)
            .map(|i| root + HEADER_BYTES + i * entry_bytes)
            .map(|at| if entry_bytes == 4 { u64::from(read::<u32>(at)) } else { read::<u64>(at) })
            .find(|&table| {
                signature_at(table, signature)
                    && sums_to_zero(table, u64::from(read::<u32>(table + 4)))
            })
    }
}

/// The local APIC ids of all enabled CPUs, in the table's order (5.2.12.2).
pub fn cpus(boot: &BootInfo) -> impl Iterator<Item = u64> {
    const LOCAL_APIC: u8 = 0;
    const ENABLED: u32 = 1;
    let madt = find_table(boot, b"APIC").expect("no MADT among the ACPI tables");
    // SAFETY: entries follow one another up to the table's end; each begins with type and length.
    let end = madt + u64::from(unsafe { read::<u32>(madt + 4) });
    let mut next = madt + HEADER_BYTES + 8;
    let entries = core::iter::from_fn(move || {
        let at = next;
        if at + 2 > end {
            return None;
        }
        // SAFETY: as above.
        next += u64::from(unsafe { read::<u8>(at + 1) }.max(2));
        Some(at)
    });
    // SAFETY: the fields of an entry of this type.
    entries.filter_map(|at| unsafe {
        let is_cpu = read::<u8>(at) == LOCAL_APIC && read::<u32>(at + 4) & ENABLED != 0;
        is_cpu.then(|| u64::from(read::<u8>(at + 3)))
    })
}
