//! Blocks that were taken from one word of the bitmap.

use super::bits::WORD_FRAMES;
use crate::frame::Pfn;

/// Blocks that were found, at least one. Frames are counted from wherever the giver does.
#[derive(Clone, Copy)]
pub struct WordBlocks {
    /// The frame of bit 0.
    base: u32,
    /// The first frames of blocks, a bit each.
    starts: u64,
}

impl WordBlocks {
    /// The blocks that begin at the bits of `starts` in the word whose first frame is `base`.
    #[inline]
    pub fn new(base: u32, starts: u64) -> Self {
        WordBlocks { base, starts }
    }

    /// One block of any order.
    #[inline]
    pub fn one(first: u32) -> Self {
        WordBlocks::new(first, 1)
    }

    /// Returns the same blocks with frames counted from `frames` earlier.
    #[inline]
    pub fn behind(self, frames: u32) -> Self {
        WordBlocks { base: self.base + frames, ..self }
    }

    /// Number of blocks.
    #[inline]
    pub fn blocks(self) -> u32 {
        self.starts.count_ones()
    }

    /// The first frame of the lowest.
    #[inline]
    pub fn lowest(self) -> u32 {
        self.base + self.starts.trailing_zeros()
    }

    /// Writes their first frames to the beginning of `out`, the highest first. Returns how many.
    ///
    /// # Panics
    /// If `out` has no room for them.
    #[inline]
    pub fn write_to(self, out: &mut [Pfn]) -> usize {
        let blocks = self.blocks() as usize;
        let places = &mut out[..blocks];
        let run = self.starts >> (self.starts.trailing_zeros() % WORD_FRAMES);
        if run & run.wrapping_add(1) == 0 {
            // Side by side: no bit need be looked for.
            let frames = self.lowest()..self.lowest() + blocks as u32;
            places.iter_mut().zip(frames.rev()).for_each(|(place, frame)| *place = Pfn::new(frame));
            return blocks;
        }
        // From the lowest to the highest: x86-64 is slow at finding the highest bit.
        let mut starts = self.starts;
        for place in places.iter_mut().rev() {
            // There is a bit: the one that is added spares the look whether there is.
            let bit = (starts | 1 << (WORD_FRAMES - 1)).trailing_zeros();
            starts &= starts.wrapping_sub(1);
            *place = Pfn::new(self.base + bit);
        }
        blocks
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_highest_block_is_written_first() {
        let runs = [1, 1 << 63, !0, !1, !0 >> 1, 0xff00, 7 << 61];
        let scattered = [0x8000_0001_0000_0001, 0x0101_0101_0101_0101, 5, 5 << 61, !2];
        for starts in runs.into_iter().chain(scattered) {
            let found = WordBlocks::new(640, starts).behind(64);
            let mut out = [Pfn::new(0); 65];
            let written = found.write_to(&mut out);
            let frames = (0..64).rev().filter(|bit| starts >> bit & 1 == 1).map(|bit| 704 + bit);
            assert!(out[..written].iter().map(|pfn| pfn.get()).eq(frames), "{starts:#x}");
            assert_eq!((found.blocks() as usize, out[64].get()), (written, 0), "{starts:#x}");
            assert_eq!(found.lowest(), out[written - 1].get());
        }
    }

    #[test]
    #[should_panic = "out of range"]
    fn a_full_word_needs_room() {
        WordBlocks::new(0, !0).write_to(&mut [Pfn::new(0); 63]);
    }
}
