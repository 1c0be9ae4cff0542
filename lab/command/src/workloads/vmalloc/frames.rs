//! Frames where nothing is mapped: an allocator of frame numbers without memory.

use std::mem::MaybeUninit;

use pagedepot::cpus::{CpuLock, Environment, LockedCpus, WhichCpu};
use pagedepot::{Allocator, Config, CpuId, FrameRange, Pfn};
use pagedepot_vmap::VirtAddr;

use pagedepot_cli::design::zone;
use pagedepot_cli::failure::Failure;

/// The start of ranges of addresses that nothing is mapped to, no more aligned than `mmap` would
/// have it.
pub const ADDRESSES_START: VirtAddr = VirtAddr::new(0x2000_4000_0000);

/// The CPU that the calling thread runs on.
pub struct Here;

impl WhichCpu for Here {
    #[inline]
    fn cpu(&self) -> Option<CpuId> {
        Some(pagedepot_rseq::current_cpu())
    }
}

impl Environment for Here {}

/// An allocator of frame numbers.
pub type Numbers<'m> = Allocator<'m, LockedCpus<'m, Here>>;

/// Calls `with` an allocator of `frames` frame numbers.
///
/// # Errors
/// When there are too many for its metadata.
pub fn with_numbers<T>(
    cpus: u32,
    frames: u32,
    with: impl FnOnce(&Numbers<'_>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let ranges = [FrameRange::new(Pfn::new(0), frames)];
    let zones = [zone::normal(&ranges, None)];
    let config = Config::new(cpus, &zones);
    let failed = |error: pagedepot::ConfigError| {
        Failure::Run(format!("the page allocator's metadata: {error}"))
    };
    let bytes = Numbers::metadata_bytes(&config).map_err(failed)?;
    let mut metadata = vec![MaybeUninit::uninit(); bytes];
    let locks: Vec<CpuLock> = (0..cpus).map(|_| CpuLock::new()).collect();
    let numbers =
        Numbers::new(&config, &mut metadata, LockedCpus::new(&locks, Here)).map_err(failed)?;
    with(&numbers)
}
