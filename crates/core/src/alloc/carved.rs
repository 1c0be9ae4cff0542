//! Frames that the allocator cut into magazines, a bit each.
//!
//! `free` must refuse them, or a magazine in use would be handed out, and zeroed. It finds the tag
//! of their pageblock there, which leads the fast path to words that never take anything (see
//! [`Tag`](crate::frame::pageblock::Tag)); the slow path then looks here, one frame at a time. So the
//! frames beside them are freed a little slower, and all others as if there were no such thing.
//!
//! A magazine's number reaches 512 MiB: there are bits for the frames that lie there, at most 16
//! KiB.

use super::layout;
use crate::alloc::config::Config;
use crate::frame::LinearMap;
use crate::frame::Pfn;
use crate::frame::pageblock::PAGEBLOCK_FRAMES;
use crate::front::{Magazine, MagazineIndex};
use crate::sync::prim::{AtomicU32, AtomicU64, Ordering};

/// The bits; see the module.
pub struct Carved<'m> {
    /// Frame numbers that may be carved; none without a linear map.
    first: u32,
    end: u32,
    /// From `first` on.
    bits: &'m [AtomicU64],
    /// A pageblock with frames that are carved and perhaps some that are free, or the first within
    /// reach.
    hint: AtomicU32,
}

impl<'m> Carved<'m> {
    /// No frame is carved yet. `base`: what magazines are numbered from.
    pub fn new(config: &Config<'_>, base: usize, bits: &'m [AtomicU64]) -> Self {
        let (first, end) =
            config.linear_map.and_then(|map| within_reach(config, map, base)).unwrap_or((0, 0));
        let end = end.min(first.saturating_add(bits.len() as u32 * u64::BITS));
        Carved { first, end, bits, hint: AtomicU32::new(first / PAGEBLOCK_FRAMES) }
    }

    /// Frames that may be carved.
    pub fn frames(&self) -> core::ops::Range<u32> {
        self.first..self.end
    }

    /// Where to look first, a pageblock's number.
    pub fn hint(&self) -> u32 {
        self.hint.load(Ordering::Relaxed)
    }

    /// Looks from the first frame on the next time.
    pub fn reset_hint(&self) {
        self.hint.store(self.first / PAGEBLOCK_FRAMES, Ordering::Relaxed);
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
        self.hint.store(pfn.get() / PAGEBLOCK_FRAMES, Ordering::Relaxed);
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

/// The first frame whose magazines have numbers, and the one behind the last.
fn within_reach(config: &Config<'_>, map: LinearMap, base: usize) -> Option<(u32, u32)> {
    let page = config.page_size.bytes();
    let frame_zero = map.address(Pfn::new(0), config.page_size);
    let first = (base + size_of::<Magazine>()).saturating_sub(frame_zero).div_ceil(page);
    let end =
        (base + (size_of::<Magazine>() << MagazineIndex::BITS)).checked_sub(frame_zero)? / page;
    Some((u32::try_from(first).ok()?, u32::try_from(end).unwrap_or(u32::MAX)))
}

/// How many words of bits there are.
pub fn words(config: &Config<'_>) -> usize {
    if cfg!(loom) {
        return 0;
    }
    let reach = (size_of::<Magazine>() << MagazineIndex::BITS) >> config.page_size.shift();
    (layout::frames_end(config).min(reach as u64) as usize).div_ceil(u64::BITS as usize)
}
