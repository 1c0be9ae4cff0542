//! A kernel on OSTD with pagedepot.
#![no_std]
#![no_main]
#![forbid(unsafe_code)]

extern crate alloc;

mod suite;

use alloc::format;
use alloc::string::String;
use core::alloc::Layout;

use ostd::mm::frame::GlobalFrameAllocator;
use ostd::mm::{FrameAllocOptions, PAGE_SIZE};
use pagedepot::{Mode, Scope};
use pagedepot_ostd::DepotFrames;

use suite::Design;

#[ostd::global_frame_allocator]
static FRAMES: DepotFrames = DepotFrames;

#[ostd::main]
fn main() {
    suite::run(Design { frames: &FRAMES, drain, check, edges });
}

/// Takes the caches of all CPUs, fronts included.
fn drain() {
    if let Some(depot) = DepotFrames::depot() {
        depot.drain(Scope::ALL, Mode::Full);
    }
}

/// Compares all counts, while no code allocates.
fn check(free_pages: u64) -> Result<(), String> {
    let depot = DepotFrames::depot().ok_or("no allocator")?;
    let census = depot.validate_at_rest().map_err(|fault| format!("{fault}"))?;
    let told = pagedepot_ostd::load_total_free_size() / ostd::mm::PAGE_SIZE;
    if told as u64 != free_pages {
        return Err(format!("{free_pages} pages should be free, and {told} are: {census:?}"));
    }
    match DepotFrames::refused_frames() {
        0 => Ok(()),
        refused => Err(format!("{refused} frames were refused")),
    }
}

/// Requests that are large, aligned or hopeless, segments through OSTD's own interface, and frees
/// that are wrong.
fn edges(frames: &'static dyn GlobalFrameAllocator) -> Result<(), String> {
    for (pages, align) in [(1, 8), (3, 1), (5, 4), (512, 512), (700, 1), (64, 1024)] {
        let layout = Layout::from_size_align(pages * PAGE_SIZE, align * PAGE_SIZE)
            .map_err(|error| format!("{error}"))?;
        let addr = frames.alloc(layout).ok_or(format!("no {pages} frames aligned to {align}"))?;
        if addr % (align * PAGE_SIZE) != 0 {
            return Err(format!("{addr:#x} is not aligned to {align} frames"));
        }
        frames.dealloc(addr, pages * PAGE_SIZE);
    }
    for pages in [1 << 18, (1 << 18) + 1, 1 << 30] {
        let layout = Layout::from_size_align(pages * PAGE_SIZE, PAGE_SIZE)
            .map_err(|error| format!("{error}"))?;
        if frames.alloc(layout).is_some() {
            return Err(format!("{pages} frames, which are not there"));
        }
    }
    for pages in 1..40 {
        let segment = FrameAllocOptions::new()
            .alloc_segment(pages)
            .map_err(|error| format!("a segment of {pages} frames: {error:?}"))?;
        // OSTD frees its frames one by one.
        drop(segment);
    }
    wrong_frees(frames)
}

/// A frame freed twice, one that belongs to the kernel, one that is not there: each is refused.
fn wrong_frees(frames: &'static dyn GlobalFrameAllocator) -> Result<(), String> {
    let before = DepotFrames::refused_frames();
    let pages = 700;
    let layout = Layout::from_size_align(pages * PAGE_SIZE, PAGE_SIZE)
        .map_err(|error| format!("{error}"))?;
    // So many that freeing them reaches the store, which tells frames that are free.
    let addr = frames.alloc(layout).ok_or("no frames")?;
    frames.dealloc(addr, pages * PAGE_SIZE);
    frames.dealloc(addr, pages * PAGE_SIZE);
    frames.dealloc(1 << 43, PAGE_SIZE);
    let refused = DepotFrames::refused_frames() - before;
    if refused != pages as u64 + 1 {
        return Err(format!("{refused} frames were refused, and {} should be", pages + 1));
    }
    let depot = DepotFrames::depot().ok_or("no allocator")?;
    depot.validate_at_rest().map(drop).map_err(|fault| format!("{fault}"))
}
