//! Allocators of processes, with the settings that they come with.

use std::ffi::c_void;
use std::ptr::NonNull;

use super::holder::Holder;
use pagedepot_cli::design::page_bytes;
use pagedepot_cli::failure::Failure;

/// jemalloc. Freed memory decays, but nothing makes it while no thread calls it.
pub struct Jemalloc;

impl Jemalloc {
    /// Has jemalloc's own thread give back what decays, as a program that goes on working would.
    pub fn with_background_thread() -> Result<Self, Failure> {
        let mut yes = true;
        // SAFETY: this setting is of type bool (jemalloc(3), "MALLCTL NAMESPACE").
        let error = unsafe {
            tikv_jemalloc_sys::mallctl(
                c"background_thread".as_ptr(),
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                (&raw mut yes).cast(),
                size_of::<bool>(),
            )
        };
        match error {
            0 => Ok(Jemalloc),
            _ => Err(Failure::Run(format!(
                "jemalloc was built without background threads (error {error}): rebuild with \
                 PAGEDEPOT_PEERS=crates"
            ))),
        }
    }
}

impl Holder for Jemalloc {
    fn alloc(&self, bytes: usize) -> Option<NonNull<u8>> {
        let flags = tikv_jemalloc_sys::MALLOCX_LG_ALIGN(page_bytes().ilog2() as usize);
        // SAFETY: the size is not 0.
        NonNull::new(unsafe { tikv_jemalloc_sys::mallocx(bytes, flags) }.cast())
    }

    fn free(&self, block: NonNull<u8>, bytes: usize) {
        let flags = tikv_jemalloc_sys::MALLOCX_LG_ALIGN(page_bytes().ilog2() as usize);
        // SAFETY: got by `alloc` with this size and alignment; the workload frees it once.
        unsafe { tikv_jemalloc_sys::sdallocx(block.as_ptr().cast(), bytes, flags) };
    }

    /// `arena.<all>.purge`.
    fn purge(&self) {
        // SAFETY: it takes and returns nothing (jemalloc(3), `MALLCTL_ARENAS_ALL` is 4096).
        let error = unsafe {
            tikv_jemalloc_sys::mallctl(
                c"arena.4096.purge".as_ptr(),
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                0,
            )
        };
        assert_eq!(error, 0, "arena.4096.purge");
    }
}

/// mimalloc.
pub struct Mimalloc;

impl Holder for Mimalloc {
    fn alloc(&self, bytes: usize) -> Option<NonNull<u8>> {
        // SAFETY: the alignment is a power of two.
        let block: *mut c_void = unsafe { libmimalloc_sys::mi_malloc_aligned(bytes, page_bytes()) };
        NonNull::new(block.cast())
    }

    fn free(&self, block: NonNull<u8>, _bytes: usize) {
        // SAFETY: got by `alloc`; the workload frees it once.
        unsafe { libmimalloc_sys::mi_free(block.as_ptr().cast()) };
    }

    /// `mi_collect(true)`.
    fn purge(&self) {
        // SAFETY: may be called at any time.
        unsafe { libmimalloc_sys::mi_collect(true) };
    }
}
