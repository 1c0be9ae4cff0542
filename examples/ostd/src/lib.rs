//! pagedepot as the global frame allocator of a kernel on [OSTD](ostd).
//!
//! ```ignore
//! #[ostd::global_frame_allocator]
//! static FRAMES: pagedepot_ostd::DepotFrames = pagedepot_ostd::DepotFrames;
//! ```
//! OSTD tells its memory piece by piece before it requests any. The pieces are noted, and the first
//! request makes the allocator (`boot`). From then on single frames come from and go to this CPU's
//! front, by one sequence under this CPU's lock (`machine`).
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

// What OSTD's log macros put before a message.
macro_rules! __log_prefix {
    () => {
        "pagedepot: "
    };
}

mod boot;
mod machine;

use core::alloc::Layout;
use core::sync::atomic::{AtomicU64, Ordering};

use ostd::irq::InterruptLevel;
use ostd::mm::frame::GlobalFrameAllocator;
use ostd::mm::{PAGE_SIZE, Paddr};
use pagedepot::{Allocator, Flags, FrameRange, FreeError, Global, Mobility, Order, Pfn};

pub use machine::{Machine, Ostd};

/// The allocator behind [`DepotFrames`].
pub type Depot = Allocator<'static, Machine>;

static DEPOT: Global<Machine> = Global::new();
/// Frames that OSTD gave and the allocator refused.
static REFUSED: AtomicU64 = AtomicU64::new(0);

/// The global frame allocator. All values are the same allocator.
pub struct DepotFrames;

impl DepotFrames {
    /// The allocator, for drains, statistics and `validate`. `None` before OSTD's first request for
    /// a frame.
    pub fn depot() -> Option<&'static Depot> {
        DEPOT.get()
    }

    /// Frames that were freed or added and could not be: freed twice, of no memory that OSTD added,
    /// in more pieces than can be noted before there is an allocator, or while it is made. 0 in a
    /// sound kernel.
    pub fn refused_frames() -> u64 {
        // Relaxed: a count alone.
        REFUSED.load(Ordering::Relaxed)
    }
}

/// Bytes of memory that can be allocated, cached or not. The sum is of one moment only while no
/// other CPU allocates or frees.
pub fn load_total_free_size() -> usize {
    let Some(depot) = DEPOT.get() else { return 0 };
    let zones = depot.zone_ids().filter_map(|zone| depot.zone_stats(zone));
    zones.map(|zone| (zone.free_pages + zone.cached_pages) as usize * PAGE_SIZE).sum()
}

impl GlobalFrameAllocator for DepotFrames {
    #[inline]
    fn alloc(&self, layout: Layout) -> Option<Paddr> {
        let Some(depot) = DEPOT.get() else { return boot::alloc(layout) };
        if layout.size() == PAGE_SIZE && layout.align() <= PAGE_SIZE {
            return alloc_frame(depot);
        }
        alloc_frames(depot, layout)
    }

    #[inline]
    fn dealloc(&self, addr: Paddr, size: usize) {
        if let Some(depot) = DEPOT.get()
            && size == PAGE_SIZE
        {
            let _preempt = ostd::task::disable_preempt();
            if pfn(addr).is_some_and(|pfn| depot.free_fast(pfn, Order::BASE)) {
                return;
            }
        }
        dealloc_slow(addr, size);
    }

    fn add_free_memory(&self, addr: Paddr, size: usize) {
        let Some(start) = pfn(addr) else { return refuse(addr, size, &FreeError::OutOfRange) };
        let range = FrameRange::new(start, frames(size));
        match DEPOT.get() {
            Some(depot) => boot::add_late(depot, range),
            None => boot::add(range),
        }
    }
}

#[inline]
fn alloc_frame(depot: &Depot) -> Option<Paddr> {
    // A task that is preempted here would keep its CPU's lock, and drains would wait for it.
    let _preempt = ostd::task::disable_preempt();
    depot.alloc_fast(Order::BASE, Flags::MOVABLE).or_else(|| alloc_frame_slow(depot)).map(paddr)
}

#[cold]
#[inline(never)]
fn alloc_frame_slow(depot: &Depot) -> Option<Pfn> {
    depot.alloc(Order::BASE, flags(Mobility::Movable)).ok()
}

/// Several frames, or aligned ones. OSTD frees them one by one.
#[cold]
#[inline(never)]
fn alloc_frames(depot: &Depot, layout: Layout) -> Option<Paddr> {
    let (size, align) = (frames(layout.size()), frames(layout.align().max(PAGE_SIZE)));
    let _preempt = ostd::task::disable_preempt();
    depot.alloc_contiguous(size, align, flags(Mobility::Unmovable)).ok().map(paddr)
}

#[cold]
#[inline(never)]
fn dealloc_slow(addr: Paddr, size: usize) {
    let freed =
        DEPOT.get().zip(pfn(addr)).ok_or(FreeError::OutOfRange).and_then(|(depot, start)| {
            let _preempt = ostd::task::disable_preempt();
            match frames(size) {
                1 => depot.free(start, Order::BASE),
                frames => depot.free_contiguous(start, frames),
            }
        });
    if let Err(error) = freed {
        refuse(addr, size, &error);
    }
}

/// Counts and reports frames that cannot be taken back.
fn refuse(addr: Paddr, size: usize, why: &dyn core::fmt::Display) {
    // Relaxed: a count alone.
    REFUSED.fetch_add(frames(size).into(), Ordering::Relaxed);
    ostd::error!("{} frames from {:#x} refused: {}", frames(size), addr, why);
}

/// OSTD does not say what a request is for. Single frames are kept apart from segments: those are
/// freed one by one, and become whole blocks again only if no other frames lie between them.
fn flags(mobility: Mobility) -> Flags {
    let flags = Flags::new(mobility);
    // A handler may have interrupted the code that holds this CPU's lock: it waits for no lock.
    if InterruptLevel::current().is_task_context() { flags } else { flags.atomic() }
}

/// `None` from 16 TiB on, where frames have no numbers.
fn pfn(addr: Paddr) -> Option<Pfn> {
    Pfn::try_from(addr / PAGE_SIZE).ok()
}

fn paddr(pfn: Pfn) -> Paddr {
    pfn.index() * PAGE_SIZE
}

fn frames(size: usize) -> u32 {
    (size / PAGE_SIZE) as u32
}
