//! Frames: what memory is counted in, and what is known of a frame by its number; ranges of frames,
//! and where they are mapped.
//!
//! | module | what |
//! |---|---|
//! | `units` | a newtype for each unit: frame numbers, orders, CPUs, zones, nodes, mobilities, kinds; how many blocks a magazine holds, by order |
//! | [`pageblock`] | runs of 512 frames, and the tag of each |
#![allow(unsafe_code, reason = "making a linear map is a promise about memory")]

pub mod pageblock;
mod units;

pub use units::{CpuId, Kind, Mobility, NodeId, Order, Pfn, ZoneId};

use core::ops::Range;
use pageblock::{PAGEBLOCK_FRAMES, SECTION_FRAMES};

/// The size of a base page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PageSize {
    /// 4 KiB.
    #[default]
    Kib4,
    /// 16 KiB.
    Kib16,
    /// 64 KiB.
    Kib64,
}

impl PageSize {
    /// log2 of the size in bytes.
    pub const fn shift(self) -> u32 {
        match self {
            PageSize::Kib4 => 12,
            PageSize::Kib16 => 14,
            PageSize::Kib64 => 16,
        }
    }

    /// The size in bytes.
    pub const fn bytes(self) -> usize {
        1 << self.shift()
    }
}

impl Order {
    /// The smallest order whose blocks have at least `bytes` bytes, in pages of `page_size`. `None`
    /// above 1024 pages (4 MiB of 4 KiB pages).
    ///
    /// ```
    /// use pagedepot::{Order, PageSize};
    ///
    /// assert_eq!(Order::for_bytes(1, PageSize::Kib4), Some(Order::BASE));
    /// assert_eq!(Order::for_bytes(3 * 4096, PageSize::Kib4), Order::new(2));
    /// assert_eq!(Order::for_bytes(5 << 20, PageSize::Kib4), None);
    /// ```
    pub const fn for_bytes(bytes: usize, page_size: PageSize) -> Option<Self> {
        Self::for_frames(bytes.div_ceil(page_size.bytes()))
    }
}

/// `frames` page frames from `start`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameRange {
    /// First frame.
    pub start: Pfn,
    /// Number of frames.
    pub frames: u32,
}

impl FrameRange {
    /// `frames` frames from `start`.
    pub const fn new(start: Pfn, frames: u32) -> Self {
        FrameRange { start, frames }
    }

    /// One past the last frame number.
    pub const fn end(self) -> u64 {
        self.start.get() as u64 + self.frames as u64
    }

    /// The pageblocks that the range touches, aligned runs of 512 frames, by number.
    pub const fn pageblocks(self) -> Range<u32> {
        let size = PAGEBLOCK_FRAMES as u64;
        self.start.get() / PAGEBLOCK_FRAMES..self.end().div_ceil(size) as u32
    }

    pub(crate) fn sections(self) -> Range<usize> {
        let size = u64::from(SECTION_FRAMES);
        (self.start.get() / SECTION_FRAMES) as usize..self.end().div_ceil(size) as usize
    }
}

/// A mapping under which every frame is reachable: frame `n` at `base + n * page size`.
///
/// With it the allocator can zero pages and carve further magazines from its own frames.
#[derive(Clone, Copy, Debug)]
pub struct LinearMap {
    /// The address of frame 0, which need not exist.
    base: usize,
}

impl LinearMap {
    /// Frame 0 is, or would be, at `base`.
    ///
    /// # Safety
    /// While the allocator lives:
    /// 1. The frames given to it are mapped readable and writable at `base + n * page size`,
    ///    through pointers of exposed provenance.
    /// 2. Only a frame's holder uses its memory: the code that an allocation returned it to, or
    ///    that it was passed on to. The allocator uses the memory of frames without a holder.
    /// 3. Only its holder frees a frame, once, and stops using its memory before. The methods that
    ///    free take numbers and are safe, so the caller of this vouches for all code that can reach
    ///    the allocator. (`pagedepot-linux` makes its own `free` unsafe.) With
    ///    [`Config::checked`](crate::Config::checked) the allocator refuses to free a frame that is
    ///    not held, and such a call does not break this promise.
    /// 4. What code registers through [`seam`](crate::seam) returns only frames that it took from
    ///    this allocator and gives up.
    ///
    /// Frames that the allocator carved into magazines do not depend on 3: it refuses to free them,
    /// whatever the options.
    pub const unsafe fn new(base: usize) -> Self {
        LinearMap { base }
    }

    pub(crate) fn address(self, pfn: Pfn, page_size: PageSize) -> usize {
        self.base + (pfn.index() << page_size.shift())
    }
}
