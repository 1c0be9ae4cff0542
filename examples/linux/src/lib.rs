//! Linux's per-CPU page lists by `pagedepot`: one allocator for each `struct zone`, over its buddy
//! lists.
//!
//! `glue/pagedepot.h` has the other side, in C: what of Linux calls these functions, and what they
//! call. All numbers that cross are plain integers; all that Linux alone knows stays there: which
//! CPU this is, whether a handler runs, `zone->lock`, types of pageblocks, grace periods. So one
//! library serves every version and configuration.
//!
//! | module | what |
//! |---|---|
//! | `calls` | the C functions that are called from here |
//! | `linux` | the seam to CPUs: pinning, fences, quiescence |
//! | `buddy` | the store: blocks taken and put under `zone->lock` |
//! | `depot` | the C functions that Linux calls |
#![cfg_attr(not(test), no_std)]

mod buddy;
mod calls;
mod depot;
mod linux;

#[cfg(not(test))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: it may be called from anywhere, and does not return.
    unsafe { calls::depot_c_panic() }
}
