//! Frames that the allocator cut into magazines, a bit each.
//!
//! `free` must refuse them, or a magazine in use would be handed out, and zeroed. It finds the tag
//! of their pageblock there, which leads the fast path to words that never take anything (see
//! [`Tag`](crate::frame::pageblock::Tag)); the slow path then looks here, one frame at a time. So
//! the frames beside them are freed a little slower, and all others as if there were no such thing.
//!
//! A magazine's number reaches 512 MiB: there are bits for the frames that lie there, at most 16
//! KiB.

use core::ops::Range;

use crate::frame::{LinearMap, PageSize, Pfn};
use crate::front::{Magazine, MagazineIndex};
use crate::sync::prim::{AtomicU64, Ordering};

/// The bits; see the module.
pub struct CarvedFrames<'m> {
    /// Frame numbers that may be carved; none without a linear map.
    first: u32,
    end: u32,
    /// The bits of frames from `first` on.
    bits: &'m [AtomicU64],
}

impl<'m> CarvedFrames<'m> {
    /// No frame is carved yet. `reach`: the frames whose magazines have numbers, of which the first
    /// have `bits`.
    pub fn new(reach: Range<u32>, bits: &'m [AtomicU64]) -> Self {
        let first = reach.start;
        let end = reach.end.min(first.saturating_add(bits.len() as u32 * u64::BITS));
        CarvedFrames { first, end, bits }
    }

    /// The frames whose magazines have numbers, when these count from `base`.
    pub fn reach(map: LinearMap, page_size: PageSize, base: usize) -> Option<Range<u32>> {
        let page = page_size.bytes();
        let frame_zero = map.address(Pfn::new(0), page_size);
        let first = (base + size_of::<Magazine>()).saturating_sub(frame_zero).div_ceil(page);
        let end =
            (base + (size_of::<Magazine>() << MagazineIndex::BITS)).checked_sub(frame_zero)? / page;
        Some(u32::try_from(first).ok()?..u32::try_from(end).unwrap_or(u32::MAX))
    }

    /// Number of words of bits that are needed where frames end at `frames_end`.
    pub fn words(page_size: PageSize, frames_end: u64) -> usize {
        if cfg!(loom) {
            return 0;
        }
        let reach = (size_of::<Magazine>() << MagazineIndex::BITS) >> page_size.shift();
        (frames_end.min(reach as u64) as usize).div_ceil(u64::BITS as usize)
    }

    /// Frames that may be carved.
    pub fn frames(&self) -> Range<u32> {
        self.first..self.end
    }

    fn bit(&self, frame: u32) -> (&AtomicU64, u64) {
        let at = frame - self.first;
        (&self.bits[(at / u64::BITS) as usize], 1 << (at % u64::BITS))
    }

    /// Notes a frame that the caller owns, within reach.
    pub fn note(&self, pfn: Pfn) {
        let (cell, bit) = self.bit(pfn.get());
        // Relaxed: see `Tags::are_carved_near`.
        cell.fetch_or(bit, Ordering::Relaxed);
    }

    /// Takes a note back, of a frame that the caller owns and has not cut.
    pub fn forget(&self, pfn: Pfn) {
        let (cell, bit) = self.bit(pfn.get());
        // Relaxed: as in `note`.
        cell.fetch_and(!bit, Ordering::Relaxed);
    }

    /// Whether any of these frames is carved.
    pub fn any(&self, start: Pfn, frames: u32) -> bool {
        let end = u64::from(start.get()) + u64::from(frames);
        // Relaxed: as in `note`.
        (start.get().max(self.first)..end.min(self.end.into()) as u32).any(|frame| {
            let (cell, bit) = self.bit(frame);
            cell.load(Ordering::Relaxed) & bit != 0
        })
    }

    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = Pfn> {
        self.frames().map(Pfn::new).filter(|&pfn| self.any(pfn, 1))
    }
}
