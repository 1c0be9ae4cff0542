//! The functions of `glue/pagedepot.h` that this library calls.

use core::ffi::c_void;

use pagedepot::Block;

unsafe extern "C" {
    /// Takes up to `wanted` blocks under `zone->lock`.
    pub fn depot_c_take(
        zone: *mut c_void,
        order: u32,
        mobility: u32,
        alloc_flags: u32,
        out: *mut Block,
        wanted: u32,
    ) -> u32;
    /// Puts blocks under `zone->lock`; returns how many frames were free already, the first of them
    /// in `first`.
    pub fn depot_c_put(zone: *mut c_void, blocks: *const Block, count: u32, first: *mut u32)
    -> u32;
    /// `NR_FREE_PAGES`.
    pub fn depot_c_free_pages(zone: *mut c_void) -> u64;
    /// Whether a free block of the buddy lists begins or goes on at this frame.
    pub fn depot_c_is_free(pfn: u32) -> bool;
    /// Disables preemption; [`HERE_NONE`](crate::linux::HERE_NONE), or where this is, packed.
    pub fn depot_c_pin() -> u32;
    /// Enables it again.
    pub fn depot_c_unpin();
    /// Waits until all sections without preemption and handlers that run on `cpu` have ended.
    pub fn depot_c_fence(cpu: u32) -> bool;
    /// Whether RCU knows that `cpu` is idle, offline or in user mode.
    pub fn depot_c_is_quiescent(cpu: u32) -> bool;
    /// Whether `cpu` is isolated and not quiescent.
    pub fn depot_c_is_isolated(cpu: u32) -> bool;
    /// `jiffies`, in milliseconds.
    pub fn depot_c_now_ms() -> u64;
    /// Warns of frames that were freed twice.
    pub fn depot_c_misuse(pfn: u32, frames: u32);
    /// `panic()`.
    #[cfg(not(test))]
    pub fn depot_c_panic() -> !;
}
