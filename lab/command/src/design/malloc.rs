//! General-purpose allocators, asked for blocks of pages aligned to their size.
//!
//! Each by its own interface, with the size given on free where it takes one, and told to keep
//! freed memory for 30 s instead of giving it back to the system right away, as jemalloc's
//! TUNING.md advises for speed and mimalloc's documentation of `purge_delay` says; snmalloc has
//! no such setting.

use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};
use std::sync::Once;

use pagedepot_cli::design::allocator::Allocator;
use pagedepot_cli::design::block::Block;
use pagedepot_cli::design::demand::{Demand, PAGE_BYTES};
use pagedepot_cli::failure::Failure;
use pagedepot_cli::names::Design;

/// Time for which freed memory is kept, in milliseconds.
pub const KEEP_MS: i32 = 30_000;

/// A block of memory.
#[derive(Clone, Copy)]
pub struct Memory(NonNull<c_void>);

// SAFETY: the value owns its block, which any thread may use and free.
unsafe impl Send for Memory {}

impl Block for Memory {
    fn bits(self) -> usize {
        self.0.as_ptr().expose_provenance()
    }

    fn from_bits(bits: usize) -> Self {
        Memory::new(ptr::with_exposed_provenance_mut(bits)).expect("no block lies at address 0")
    }
}

impl Memory {
    pub fn new(pointer: *mut c_void) -> Option<Self> {
        NonNull::new(pointer).map(Memory)
    }

    pub fn as_ptr(self) -> *mut c_void {
        self.0.as_ptr()
    }
}

pub const fn bytes<const ORDER: u32>() -> usize {
    PAGE_BYTES << ORDER
}

/// mimalloc.
pub struct Mimalloc(());

/// `mi_option_purge_delay` in mimalloc.h, which the bindings leave out.
const MI_OPTION_PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;

impl Allocator for Mimalloc {
    const DESIGN: Design = Design::Mimalloc;
    type Block = Memory;

    fn new(_demand: &Demand) -> Result<Self, Failure> {
        // SAFETY: may be called at any time.
        unsafe { libmimalloc_sys::mi_option_set(MI_OPTION_PURGE_DELAY, KEEP_MS.into()) };
        Ok(Mimalloc(()))
    }

    #[inline]
    fn alloc<const ORDER: u32>(&self) -> Option<Memory> {
        // SAFETY: size and alignment are the same power of two.
        Memory::new(unsafe {
            libmimalloc_sys::mi_malloc_aligned(bytes::<ORDER>(), bytes::<ORDER>())
        })
    }

    #[inline]
    fn free<const ORDER: u32>(&self, block: Memory) {
        // SAFETY: got by `alloc`, freed once.
        unsafe { libmimalloc_sys::mi_free(block.as_ptr()) };
    }

    fn zeroed(&self) -> Option<Memory> {
        // SAFETY: size and alignment are the same power of two.
        Memory::new(unsafe { libmimalloc_sys::mi_zalloc_aligned(PAGE_BYTES, PAGE_BYTES) })
    }

    fn address(&self, block: Memory) -> NonNull<u8> {
        block.0.cast()
    }
}

/// jemalloc.
pub struct Jemalloc(());

/// Sets the decay time of arenas made from now on.
fn keep(name: &std::ffi::CStr) {
    let mut value: isize = KEEP_MS as isize;
    // SAFETY: these settings are of type ssize_t (jemalloc(3), "MALLCTL NAMESPACE").
    let error = unsafe {
        tikv_jemalloc_sys::mallctl(
            name.as_ptr(),
            ptr::null_mut(),
            ptr::null_mut(),
            (&raw mut value).cast(),
            size_of::<isize>(),
        )
    };
    debug_assert_eq!(error, 0, "{name:?}");
}

const fn lg_align<const ORDER: u32>() -> c_int {
    tikv_jemalloc_sys::MALLOCX_LG_ALIGN(bytes::<ORDER>().ilog2() as usize)
}

impl Allocator for Jemalloc {
    const DESIGN: Design = Design::Jemalloc;
    type Block = Memory;

    fn new(_demand: &Demand) -> Result<Self, Failure> {
        static SET: Once = Once::new();
        SET.call_once(|| {
            keep(c"arenas.dirty_decay_ms");
            keep(c"arenas.muzzy_decay_ms");
            // The main thread's arena exists already; workers get arenas of their own.
        });
        Ok(Jemalloc(()))
    }

    #[inline]
    fn alloc<const ORDER: u32>(&self) -> Option<Memory> {
        // SAFETY: the size is not 0.
        Memory::new(unsafe { tikv_jemalloc_sys::mallocx(bytes::<ORDER>(), lg_align::<ORDER>()) })
    }

    #[inline]
    fn free<const ORDER: u32>(&self, block: Memory) {
        // SAFETY: got by `alloc` with the same size and alignment, freed once.
        unsafe {
            tikv_jemalloc_sys::sdallocx(block.as_ptr(), bytes::<ORDER>(), lg_align::<ORDER>())
        };
    }

    fn zeroed(&self) -> Option<Memory> {
        let flags = lg_align::<0>() | tikv_jemalloc_sys::MALLOCX_ZERO;
        // SAFETY: the size is not 0.
        Memory::new(unsafe { tikv_jemalloc_sys::mallocx(PAGE_BYTES, flags) })
    }

    fn address(&self, block: Memory) -> NonNull<u8> {
        block.0.cast()
    }
}

/// snmalloc.
pub struct Snmalloc(());

impl Allocator for Snmalloc {
    const DESIGN: Design = Design::Snmalloc;
    type Block = Memory;

    fn new(_demand: &Demand) -> Result<Self, Failure> {
        Ok(Snmalloc(()))
    }

    #[inline]
    fn alloc<const ORDER: u32>(&self) -> Option<Memory> {
        // SAFETY: the alignment is a power of two.
        Memory::new(unsafe { snmalloc_sys::sn_rust_alloc(bytes::<ORDER>(), bytes::<ORDER>()) })
    }

    #[inline]
    fn free<const ORDER: u32>(&self, block: Memory) {
        // SAFETY: got by `alloc` with the same size and alignment, freed once.
        unsafe {
            snmalloc_sys::sn_rust_dealloc(block.as_ptr(), bytes::<ORDER>(), bytes::<ORDER>())
        };
    }

    fn zeroed(&self) -> Option<Memory> {
        // SAFETY: the alignment is a power of two.
        Memory::new(unsafe { snmalloc_sys::sn_rust_alloc_zeroed(PAGE_BYTES, PAGE_BYTES) })
    }

    fn address(&self, block: Memory) -> NonNull<u8> {
        block.0.cast()
    }
}
