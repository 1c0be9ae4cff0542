//! A page allocator for a kernel written in C: a static library for the targets
//! `x86_64-unknown-none` and `aarch64-unknown-none`.
//!
//! ```text
//! size_t   depot_init_bytes(uint32_t cpus);
//! int      depot_init(void *metadata, size_t bytes, uint32_t cpus);
//! size_t   depot_add_bytes(uint32_t start, uint32_t frames);
//! int      depot_add(uint32_t start, uint32_t frames, int held, void *metadata, size_t bytes);
//! int      depot_remove(uint32_t start, uint32_t frames);
//! uint32_t depot_alloc(uint32_t frames, uint32_t align);              // DEPOT_NONE: none
//! int      depot_free(uint32_t start, uint32_t frames);
//! uint32_t depot_this_cpu(void);                                      // the kernel's
//! ```
//! Everything is counted in frames of 4 KiB, below 256 GiB. Functions that return `int` return 0
//! where nothing was done. All but `depot_init` may be called from interrupt handlers.
#![cfg_attr(target_os = "none", no_std)]

use core::ffi::c_int;
use core::mem::MaybeUninit;

use pagedepot::cpus::{CpuLock, Environment, LockedCpus, WhichCpu};
use pagedepot::{
    Allocator, Config, CpuId, Flags, FrameRange, Global, NodeId, Pfn, Watermarks, ZoneConfig,
    ZoneId,
};
use pagedepot_contiguity::Contiguity;

/// CPUs that get caches; others use the store.
const CPUS_MAX: u32 = 64;
/// One past the highest frame: 256 GiB.
const LIMIT: Pfn = Pfn::new(1 << 26);
const ZONE: ZoneId = ZoneId::new(0);
/// The value that `depot_alloc` returns for none.
const NONE: u32 = u32::MAX;

/// The kernel's: it says which CPU this is. A number that is out of date costs time and nothing
/// else.
struct Kernel;

unsafe extern "C" {
    safe fn depot_this_cpu() -> u32;
}

impl Environment for Kernel {}

impl WhichCpu for Kernel {
    fn cpu(&self) -> Option<CpuId> {
        Some(CpuId::new(depot_this_cpu()))
    }
}

type Depot = Allocator<'static, LockedCpus<'static, Kernel>>;

static LOCKS: [CpuLock; CPUS_MAX as usize] = [const { CpuLock::new() }; CPUS_MAX as usize];
static DEPOT: Global<LockedCpus<'static, Kernel>> = Global::new();

/// Calls `with` with the configuration: one zone, without memory as yet.
fn with_config<R>(cpus: u32, with: impl FnOnce(&Config<'_>) -> R) -> R {
    let zones = [ZoneConfig {
        name: "Normal",
        node: NodeId::new(0),
        level: 2,
        ranges: &[],
        watermarks: Some(Watermarks::default()),
    }];
    with(&Config { pfn_limit: Some(LIMIT), ..Config::new(cpus.min(CPUS_MAX), &zones) })
}

/// Memory of the kernel's that becomes the allocator's. None: an empty slice.
///
/// # Safety
/// `bytes` bytes at `memory` are mapped, and the allocator's from now on; or `bytes` is 0.
unsafe fn given(memory: *mut MaybeUninit<u8>, bytes: usize) -> &'static mut [MaybeUninit<u8>] {
    match bytes {
        0 => &mut [],
        // SAFETY: the caller's promise.
        _ => unsafe { core::slice::from_raw_parts_mut(memory, bytes) },
    }
}

/// Bytes that [`depot_init`] needs for so many CPUs; 0: there can be no such allocator.
#[unsafe(no_mangle)]
pub extern "C" fn depot_init_bytes(cpus: u32) -> usize {
    with_config(cpus, |config| Depot::metadata_bytes(config).unwrap_or(0))
}

/// Makes the allocator, without memory as yet. Once.
///
/// # Safety
/// `bytes` bytes at `metadata` are mapped, and the allocator's from now on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn depot_init(
    metadata: *mut MaybeUninit<u8>,
    bytes: usize,
    cpus: u32,
) -> c_int {
    // SAFETY: the caller's promise.
    let metadata = unsafe { given(metadata, bytes) };
    let made = DEPOT.init(|| {
        with_config(cpus, |config| Depot::new(config, metadata, LockedCpus::new(&LOCKS, Kernel)))
    });
    made.is_ok().into()
}

/// Bytes of metadata that [`depot_add`] needs for these frames now.
#[unsafe(no_mangle)]
pub extern "C" fn depot_add_bytes(start: u32, frames: u32) -> usize {
    let range = FrameRange::new(Pfn::new(start), frames);
    DEPOT.get().map_or(0, |depot| depot.section_bytes(range))
}

/// Adds frames: free, or held by the caller, who frees them in any parts by [`depot_free`].
///
/// # Safety
/// Requires what [`depot_init`] requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn depot_add(
    start: u32,
    frames: u32,
    held: c_int,
    metadata: *mut MaybeUninit<u8>,
    bytes: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    let metadata = unsafe { given(metadata, bytes) };
    let range = FrameRange::new(Pfn::new(start), frames);
    let added = DEPOT.get().is_some_and(|depot| match held {
        0 => depot.add_memory(ZONE, range, metadata).is_ok(),
        _ => depot.add_memory_held(ZONE, range, metadata).is_ok(),
    });
    added.into()
}

/// Takes whole runs of 512 frames out again, if all of them are free.
#[unsafe(no_mangle)]
pub extern "C" fn depot_remove(start: u32, frames: u32) -> c_int {
    let range = FrameRange::new(Pfn::new(start), frames);
    DEPOT.get().is_some_and(|depot| depot.remove_memory(ZONE, range).is_ok()).into()
}

/// Allocates contiguous frames, the first a multiple of `align`.
#[unsafe(no_mangle)]
pub extern "C" fn depot_alloc(frames: u32, align: u32) -> u32 {
    DEPOT.alloc_contiguous(frames, align, Flags::UNMOVABLE.atomic()).map_or(NONE, Pfn::get)
}

/// Frees frames that were allocated, or a part of them.
#[unsafe(no_mangle)]
pub extern "C" fn depot_free(start: u32, frames: u32) -> c_int {
    DEPOT.free_contiguous(Pfn::new(start), frames).is_ok().into()
}

#[cfg(target_os = "none")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {
        core::hint::spin_loop();
    }
}
