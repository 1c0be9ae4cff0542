//! Google's TCMalloc, by the crate libtcmalloc-sys.
//!
//! It registers areas for restartable sequences itself, so the C library must not: run the command
//! with `GLIBC_TUNABLES=glibc.pthread.rseq=0`. Designs that use the C library's areas then fall
//! back to locks, so measure it in a process of its own. Sampling is off.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Once;

use pagedepot::{CpuId, Mode};
use pagedepot_designs::DrainResult;

use super::malloc::{Memory, bytes};
use pagedepot_cli::design::allocator::Allocator;
use pagedepot_cli::design::demand::{Demand, PAGE_BYTES, page_bytes};
use pagedepot_cli::failure::Failure;
use pagedepot_cli::names::Design;
use pagedepot_cli::workloads::giveback::holder::Holder;

unsafe extern "C" {
    fn MallocExtension_Internal_SetProfileSamplingInterval(bytes: i64);
    fn MallocExtension_Internal_SetGuardedSamplingInterval(bytes: i64);
    fn MallocExtension_Internal_SetBackgroundReleaseRate(bytes_per_s: usize);
    fn MallocExtension_Internal_ReleaseCpuMemory(cpu: i32) -> usize;
    fn MallocExtension_Internal_ReleaseMemoryToSystem(bytes: usize) -> usize;
}

/// Bytes per second that its background thread gives back, more than a program frees.
const RELEASE_PER_S: usize = 1 << 30;

/// The reason why it cannot run here, with a remedy.
pub fn unavailable() -> Option<String> {
    let tunables = std::env::var("GLIBC_TUNABLES").unwrap_or_default();
    let is_off = tunables.split(':').any(|tunable| tunable == "glibc.pthread.rseq=0");
    (!is_off).then(|| {
        format!(
            "design {} registers areas for restartable sequences itself: run with \
             GLIBC_TUNABLES=glibc.pthread.rseq=0, and with no other design",
            Design::Tcmalloc
        )
    })
}

/// Turns sampling off, once.
fn set_up() {
    static SET: Once = Once::new();
    // SAFETY: may be called at any time.
    SET.call_once(|| unsafe {
        MallocExtension_Internal_SetProfileSamplingInterval(i64::MAX);
        MallocExtension_Internal_SetGuardedSamplingInterval(-1);
    });
}

fn alloc(bytes: usize, align: usize) -> *mut c_void {
    // SAFETY: the alignment is a power of two.
    unsafe { libtcmalloc_sys::BridgeTCMallocInternalNewAlignedNothrow(bytes, align) }
}

/// # Safety
/// A block of [`alloc`] with this size and alignment, freed once.
unsafe fn free(block: *mut c_void, bytes: usize, align: usize) {
    // SAFETY: the caller's promise.
    unsafe { libtcmalloc_sys::TCMallocInternalDeleteSizedAligned(block, bytes, align) };
}

/// TCMalloc as an allocator to measure.
pub struct Tcmalloc(());

impl Allocator for Tcmalloc {
    const DESIGN: Design = Design::Tcmalloc;
    const DRAINS: &'static [Mode] = &[Mode::Full];
    type Block = Memory;

    fn new(_demand: &Demand) -> Result<Self, Failure> {
        set_up();
        Ok(Tcmalloc(()))
    }

    #[inline]
    fn alloc<const ORDER: u32>(&self) -> Option<Memory> {
        Memory::new(alloc(bytes::<ORDER>(), bytes::<ORDER>()))
    }

    #[inline]
    fn free<const ORDER: u32>(&self, block: Memory) {
        // SAFETY: got by `alloc` with the same size and alignment, freed once.
        unsafe { free(block.as_ptr(), bytes::<ORDER>(), bytes::<ORDER>()) };
    }

    /// Stops the CPU for a moment, by `membarrier`, and takes what it caches.
    fn drain(&self, cpu: Option<CpuId>, _mode: Mode) -> Option<DrainResult> {
        let all = || pagedepot_rseq::affinity::allowed().unwrap_or_default().iter().collect();
        let cpus: Vec<CpuId> = cpu.map_or_else(all, |cpu| vec![cpu]);
        let mut drained = DrainResult::default();
        for cpu in cpus {
            // SAFETY: a CPU that this process may use.
            let bytes = unsafe { MallocExtension_Internal_ReleaseCpuMemory(cpu.get() as i32) };
            drained.taken_pages += (bytes / PAGE_BYTES) as u64;
        }
        Some(drained)
    }
}

/// TCMalloc as a program has it, with its background thread.
pub struct Held(());

impl Held {
    /// Starts the thread.
    pub fn new() -> Self {
        set_up();
        // SAFETY: may be called at any time; the second from a thread of its own, which it keeps.
        unsafe {
            MallocExtension_Internal_SetBackgroundReleaseRate(RELEASE_PER_S);
            if libtcmalloc_sys::NeedsProcessBackgroundActions() {
                std::thread::spawn(|| libtcmalloc_sys::ProcessBackgroundActions());
            }
        }
        Held(())
    }
}

impl Holder for Held {
    fn alloc(&self, bytes: usize) -> Option<NonNull<u8>> {
        NonNull::new(alloc(bytes, page_bytes()).cast())
    }

    fn free(&self, block: NonNull<u8>, bytes: usize) {
        // SAFETY: got by `alloc` with this size; the workload frees it once.
        unsafe { free(block.as_ptr().cast(), bytes, page_bytes()) };
    }

    /// Gives back what all CPUs cache, and what is free.
    fn ask(&self) {
        // SAFETY: may be called at any time; the CPUs are this process's.
        unsafe {
            for cpu in pagedepot_rseq::affinity::allowed().unwrap_or_default().iter() {
                MallocExtension_Internal_ReleaseCpuMemory(cpu.get() as i32);
            }
            MallocExtension_Internal_ReleaseMemoryToSystem(usize::MAX >> 1);
        }
    }
}
