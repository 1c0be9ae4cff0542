//! The calls of `pagedepot-lab bench`, design `mimalloc-pprof`, to the crate mimalloc-pprof, with
//! its feature `owner-gate`: threads take a gate of their own for each call, and `purge_all` sweeps
//! the heap of every thread whose gate is open.

use std::ffi::{c_int, c_void};

use mimalloc_pprof::{PurgeFlags, options, purge_all_ex, sys};

/// Milliseconds for which a purge waits for threads that are inside of a call: the default of
/// `mi_purge_all`.
const WAIT_MS: usize = mimalloc_pprof::PURGE_ALL_DEFAULT_WAIT_MS;

/// Sets for how long freed memory is kept before mimalloc gives it back by itself.
#[unsafe(no_mangle)]
pub extern "C" fn peer_keep_ms(ms: c_int) {
    options::set(options::Opt::PURGE_DELAY, ms.into());
}

/// Allocates `bytes` bytes, aligned to `align`; null if there are none.
#[unsafe(no_mangle)]
pub extern "C" fn peer_alloc(bytes: usize, align: usize) -> *mut c_void {
    // SAFETY: the alignment is a power of two, as the caller promises.
    unsafe { sys::mi_malloc_aligned(bytes, align) }
}

/// Frees a block.
///
/// # Safety
/// `block` came from [`peer_alloc`], and is freed once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn peer_free(block: *mut c_void) {
    // SAFETY: the caller's promise.
    unsafe { sys::mi_free(block) };
}

/// Gives back what all threads' heaps keep. Writes the bytes that went to the system and the
/// threads that were left out.
///
/// # Safety
/// Both pointers may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn peer_purge(bytes: *mut u64, pending: *mut u64) {
    let (_, report) = purge_all_ex(PurgeFlags::FORCE, WAIT_MS);
    // SAFETY: the caller's promise.
    unsafe {
        bytes.write((report.arena_bytes + report.hole_bytes) as u64);
        pending.write(report.theaps_pending as u64);
    }
}
