//! A kernel on OSTD with OSDK's frame allocator: the rival.
#![no_std]
#![no_main]
#![forbid(unsafe_code)]

extern crate alloc;

mod suite;

use osdk_frame_allocator::FrameAllocator;

use suite::Design;

#[ostd::global_frame_allocator]
static FRAMES: FrameAllocator = FrameAllocator;

#[ostd::main]
fn main() {
    // It has no drains, and nothing that checks it.
    suite::run(Design { frames: &FRAMES, drain: || {}, check: |_| Ok(()), edges: |_| Ok(()) });
}
