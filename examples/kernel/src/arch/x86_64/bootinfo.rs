//! The data that the loader passes: memory map and command line (Xen, `arch-x86/hvm/start_info.h`).

use core::ptr;

/// `hvm_start_info.magic`: "xEn3" with the top bit set.
const MAGIC: u32 = 0x336e_c578;
/// `XEN_HVM_MEMMAP_TYPE_RAM`.
const TYPE_RAM: u32 = 1;

#[repr(C)]
#[derive(Clone, Copy)]
struct StartInfo {
    magic: u32,
    version: u32,
    flags: u32,
    modules: u32,
    module_list: u64,
    command_line: u64,
    rsdp: u64,
    // From version 1 on.
    memory_map: u64,
    memory_map_entries: u32,
    reserved: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct MemoryMapEntry {
    address: u64,
    bytes: u64,
    kind: u32,
    reserved: u32,
}

/// Reads a value at a physical address.
///
/// # Safety
/// There is a value of that type, and `address` is below 4 GiB, where the boot page tables map it.
pub unsafe fn read<T: Copy>(address: u64) -> T {
    // SAFETY: the caller's promise; tables of the firmware need not be aligned.
    unsafe { ptr::with_exposed_provenance::<T>(address as usize).read_unaligned() }
}

/// The loader's information.
pub struct BootInfo {
    start: StartInfo,
}

impl BootInfo {
    /// # Safety
    /// `address` is the value that the loader left in EBX, and the memory that it points to is
    /// unchanged.
    pub unsafe fn new(address: usize) -> Self {
        // SAFETY: the caller's promise.
        let start = unsafe { read::<StartInfo>(address as u64) };
        assert!(start.magic == MAGIC, "not booted by PVH: start QEMU with -kernel");
        assert!(start.version >= 1, "the loader passes no memory map: QEMU 4.0 or newer does");
        BootInfo { start }
    }

    /// RAM as (address, bytes), in the loader's order.
    pub fn ram(&self) -> impl Iterator<Item = (u64, u64)> {
        let map = self.start.memory_map;
        (0..u64::from(self.start.memory_map_entries))
            // SAFETY: the table has this many entries.
            .map(move |i| unsafe {
                read::<MemoryMapEntry>(map + i * size_of::<MemoryMapEntry>() as u64)
            })
            .filter(|entry| entry.kind == TYPE_RAM)
            .map(|entry| (entry.address, entry.bytes))
    }

    /// The end of the zone of the lower addresses: what a device with 32 address bits reaches.
    pub fn low_end(&self) -> u64 {
        4 << 30
    }

    /// The hardware ids of all CPUs.
    pub fn cpus(&self) -> impl Iterator<Item = u64> {
        super::acpi::cpus(self)
    }

    /// The address of ACPI's root pointer; 0 when the loader does not know it.
    pub fn rsdp(&self) -> u64 {
        self.start.rsdp
    }

    /// The words after QEMU's `-append`.
    pub fn command_line(&self) -> &'static str {
        if self.start.command_line == 0 {
            return "";
        }
        let start = ptr::with_exposed_provenance(self.start.command_line as usize);
        // SAFETY: a C string below 1 MiB, in memory that the allocator does not have.
        let text = unsafe { core::ffi::CStr::from_ptr(start) };
        text.to_str().expect("the command line is ASCII")
    }
}
