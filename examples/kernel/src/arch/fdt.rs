//! The flattened device tree that a loader passes where there is no PC's firmware (Devicetree
//! Specification 0.4).

use super::tables::BOOT_MAPPED;
use crate::cpu::CPUS_MAX;
use crate::memory::Place;
use crate::paging::HUGE_BYTES;

const RANGES_MAX: usize = 8;
const COMMAND_LINE_MAX: usize = 512;

/// The tree's command line, copied: the tree lies in memory that the allocator gets.
static COMMAND_LINE: Place<([u8; COMMAND_LINE_MAX], usize)> = Place::new();

/// The parts of the tree that this kernel reads.
pub struct BootInfo {
    ram: [(u64, u64); RANGES_MAX],
    ranges: usize,
    cpus: [u64; CPUS_MAX],
    count: usize,
    /// Ticks of the clock per second, where the tree says so.
    pub timebase_hz: u64,
}

impl BootInfo {
    /// # Safety
    /// `address` is the tree's, and the tree is unchanged. One CPU calls this, once.
    pub unsafe fn new(address: usize) -> Self {
        // SAFETY: the caller's promise.
        let tree = unsafe { fdt::Fdt::from_ptr(core::ptr::with_exposed_provenance(address)) };
        let tree = tree.unwrap_or_else(|error| panic!("no device tree at {address:#x}: {error}"));
        let mut info = BootInfo {
            ram: [(0, 0); RANGES_MAX],
            ranges: 0,
            cpus: [0; CPUS_MAX],
            count: 0,
            timebase_hz: 0,
        };
        for (place, region) in info.ram.iter_mut().zip(tree.memory().regions()) {
            *place = (region.starting_address.addr() as u64, region.size.unwrap_or(0) as u64);
            info.ranges += 1;
        }
        for (place, cpu) in info.cpus.iter_mut().zip(tree.cpus()) {
            *place = cpu.ids().first() as u64;
            info.count += 1;
        }
        if let Some(hz) =
            tree.find_node("/cpus").and_then(|cpus| cpus.property("timebase-frequency"))
        {
            info.timebase_hz = hz.as_usize().expect("a number of 32 or 64 bits") as u64;
        }
        let line = tree.chosen().bootargs().unwrap_or("").as_bytes();
        assert!(line.len() <= COMMAND_LINE_MAX, "a command line of more than 512 bytes");
        let mut copy = ([0; COMMAND_LINE_MAX], line.len());
        copy.0[..line.len()].copy_from_slice(line);
        COMMAND_LINE.set(copy);
        info
    }

    /// RAM as (address, bytes).
    pub fn ram(&self) -> impl Iterator<Item = (u64, u64)> {
        self.ram[..self.ranges].iter().copied()
    }

    /// The end of the zone of the lower addresses. RAM begins above the first GiB here, and a small
    /// machine has none above 4 GiB, so the zone ends at five eighths of it: a device might have
    /// that few address bits. The zone has no memory that `boot.s` does not map: tables that map
    /// the rest come from it.
    pub fn low_end(&self) -> u64 {
        let (start, bytes) = self.ram[0];
        let end = (start + bytes / 8 * 5).next_multiple_of(HUGE_BYTES as u64);
        end.min(BOOT_MAPPED as u64)
    }

    /// The hardware ids of all CPUs.
    pub fn cpus(&self) -> impl Iterator<Item = u64> {
        self.cpus[..self.count].iter().copied()
    }

    /// The words after QEMU's `-append`.
    pub fn command_line(&self) -> &'static str {
        let (bytes, length) = COMMAND_LINE.get();
        core::str::from_utf8(&bytes[..*length]).expect("the command line is ASCII")
    }
}
