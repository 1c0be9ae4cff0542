//! Physical memory: what the loader reports, and the allocator of all of it.

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, Ordering};

use pagedepot::cpus::PinnedCpus;
use pagedepot::{
    Allocator, Census, Config, FrameRange, LinearMap, NodeId, Pfn, Watermarks, ZoneConfig, ZoneId,
};

use crate::arch::BootInfo;
use crate::paging::PAGE_BYTES;
use crate::processor::Machine;

/// The allocator of this kernel.
pub type Depot = Allocator<'static, PinnedCpus<Machine>>;

/// Level of the zone below [`BootInfo::low_end`], and of the one above (Linux's numbers).
pub const DMA32_LEVEL: u8 = 1;
const NORMAL_LEVEL: u8 = 2;
const RANGES_MAX: usize = 32;

/// Memory that is not used yet, as frames.
struct Ranges {
    list: [FrameRange; RANGES_MAX],
    count: usize,
}

impl Ranges {
    fn new() -> Self {
        Ranges { list: [FrameRange::new(Pfn::new(0), 0); RANGES_MAX], count: 0 }
    }

    fn as_slice(&self) -> &[FrameRange] {
        &self.list[..self.count]
    }

    /// Adds the whole frames between two addresses.
    fn add(&mut self, start: u64, end: u64) {
        let (first, last) = (start.div_ceil(PAGE_BYTES as u64), end / PAGE_BYTES as u64);
        if first >= last {
            return;
        }
        assert!(self.count < RANGES_MAX, "the memory map has more than {RANGES_MAX} pieces");
        self.list[self.count] = FrameRange::new(Pfn::new(first as u32), (last - first) as u32);
        self.count += 1;
    }

    /// Adds the part of `start..end` that is neither below `hole.start` nor inside `hole`.
    fn add_around(&mut self, start: u64, end: u64, hole: core::ops::Range<u64>) {
        self.add(start, end.min(hole.start));
        self.add(start.max(hole.end), end);
    }

    /// Takes `bytes` from the end of the first range that has them; returns their address.
    fn take(&mut self, bytes: usize) -> Option<usize> {
        let frames = bytes.div_ceil(PAGE_BYTES) as u32;
        let range = self.list[..self.count].iter_mut().find(|range| range.frames >= frames)?;
        range.frames -= frames;
        Some(address(range.start.add(range.frames)))
    }
}

/// The address at which the boot page tables and `paging::extend_linear_map` map a frame: its
/// physical address.
pub fn address(pfn: Pfn) -> usize {
    pfn.index() * PAGE_BYTES
}

unsafe extern "C" {
    /// Symbols of the linker script; only their addresses have a meaning.
    static kernel_start: u8;
    static kernel_end: u8;
}

/// RAM that is free once the kernel is loaded: the lower zone's, and the upper one's. Memory below
/// the kernel is left alone: the firmware, the loader's tables, the page where CPUs start.
fn free_ram(boot: &BootInfo) -> [Ranges; 2] {
    let mut zones = [Ranges::new(), Ranges::new()];
    let kernel = (&raw const kernel_start).addr() as u64..(&raw const kernel_end).addr() as u64;
    let low_end = boot.low_end();
    for (start, bytes) in boot.ram() {
        let end = start + bytes;
        zones[0].add_around(start.max(kernel.start), end.min(low_end), kernel.clone());
        zones[1].add(start.max(low_end), end);
    }
    zones
}

/// A zone's watermarks: nothing is held back, so that `oom` can count every page.
fn watermarks(ranges: &Ranges) -> Option<Watermarks> {
    let pages = ranges.as_slice().iter().map(|range| u64::from(range.frames)).sum();
    Some(Watermarks::without_reserve(pages, pagedepot::PageSize::Kib4))
}

fn config<'c>(cpus: u32, zones: &'c [ZoneConfig<'c>], caches: bool) -> Config<'c> {
    // SAFETY: physical memory is mapped at its own address: the first by `boot.s`, the rest by
    // `extend_linear_map`, before anything is allocated from there. No other code uses it.
    let linear_map = Some(unsafe { LinearMap::new(0) });
    Config { linear_map, caches, ..Config::new(cpus, zones) }
}

/// Room for a value that the whole kernel uses. One CPU makes it while the kernel starts.
pub struct Place<T>(UnsafeCell<MaybeUninit<T>>, AtomicBool);

// SAFETY: written once, before the flag is set; then shared as the type itself allows.
unsafe impl<T: Send + Sync> Sync for Place<T> {}

impl<T> Place<T> {
    /// A place without a value.
    pub const fn new() -> Self {
        Place(UnsafeCell::new(MaybeUninit::uninit()), AtomicBool::new(false))
    }

    /// Sets the value. Call it once, while one CPU runs.
    pub fn set(&'static self, thing: T) {
        assert!(!self.1.load(Ordering::Relaxed), "made twice");
        // SAFETY: no reader comes before the flag is set, and there is no other writer: one CPU
        // runs.
        unsafe { (*self.0.get()).write(thing) };
        // Release: pairs with the Acquire in `get`.
        self.1.store(true, Ordering::Release);
    }

    /// The value.
    pub fn get(&'static self) -> &'static T {
        assert!(self.1.load(Ordering::Acquire), "used before it was made");
        // SAFETY: written before the flag was set; exclusive use is confined to `exclusive`.
        unsafe { (*self.0.get()).assume_init_ref() }
    }

    /// The value, for one caller alone.
    ///
    /// # Safety
    /// No other code uses the value while the reference lives.
    #[expect(clippy::mut_from_ref, reason = "the caller promises that there is no other reference")]
    pub unsafe fn exclusive(&'static self) -> &'static mut T {
        assert!(self.1.load(Ordering::Acquire), "used before it was made");
        // SAFETY: written, and the caller's promise.
        unsafe { (*self.0.get()).assume_init_mut() }
    }
}

static DEPOT: pagedepot::Global<PinnedCpus<Machine>> = pagedepot::Global::new();

/// Makes the allocator of all RAM, with its metadata in the first memory that has room for it. With
/// `caches` off every request goes to its store, for a design that has caches of its own.
pub fn init(boot: &BootInfo, cpus: u32, caches: bool) {
    let mut free = free_ram(boot);
    let bytes =
        Depot::metadata_bytes(&config(cpus, &zones(&free), caches)).expect("a usable memory map");
    let metadata =
        free[0].take(bytes).expect("room for the allocator's metadata: give QEMU more memory (-m)");
    // SAFETY: RAM that no other code uses, mapped, and not among the ranges any more.
    let metadata = unsafe {
        core::slice::from_raw_parts_mut(
            core::ptr::with_exposed_provenance_mut::<MaybeUninit<u8>>(metadata),
            bytes,
        )
    };
    let zones = zones(&free);
    DEPOT
        .init(|| Depot::new(&config(cpus, &zones, caches), metadata, PinnedCpus(Machine)))
        .expect("metadata of the size asked for");
    if let Some(end) = free[1].as_slice().iter().map(|range| range.end()).max() {
        crate::paging::extend_linear_map(Pfn::new(end as u32));
    }
}

fn zones(free: &[Ranges; 2]) -> [ZoneConfig<'_>; 2] {
    let zone = |name, level, ranges| ZoneConfig {
        name,
        node: NodeId::new(0),
        level,
        ranges: Ranges::as_slice(ranges),
        watermarks: watermarks(ranges),
    };
    [zone("DMA32", DMA32_LEVEL, &free[0]), zone("Normal", NORMAL_LEVEL, &free[1])]
}

/// The allocator.
pub fn depot() -> &'static Depot {
    DEPOT.get().expect("the allocator is made before anything asks for it")
}

/// Checks the allocator's metadata and counts all frames, while no other code uses the allocator:
/// the other CPUs are idle, and no timer runs.
pub fn census() -> Census {
    match depot().validate_at_rest() {
        Ok(census) => census,
        Err(fault) => panic!("{fault}"),
    }
}

/// Free pages of all zones' stores.
pub fn free_pages() -> u64 {
    depot().zone_ids().map(|zone| depot().free_pages(zone)).sum()
}

/// Pages of each zone, free or not: DMA32, Normal.
pub fn managed_pages() -> [u64; 2] {
    [0, 1].map(|zone| {
        depot().zone_stats(ZoneId::new(zone)).expect("there are two zones").managed_pages
    })
}

/// Pages that a CPU caches: in its fronts, and on its shelves.
pub fn cached_pages(cpu: pagedepot::CpuId) -> (u64, u64) {
    let stats = |zone: ZoneId| depot().cpu_stats(cpu, zone);
    depot().zone_ids().filter_map(stats).fold((0, 0), |(fronts, shelves), stats| {
        (fronts + stats.unreachable_pages, shelves + stats.shelved_pages)
    })
}
