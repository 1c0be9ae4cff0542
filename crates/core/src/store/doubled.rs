//! Frames that were freed twice.

use super::bits;
use crate::frame::Pfn;

/// Frames that were given back though they were free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DoubleFree {
    /// The first that was met.
    pub first: Option<Pfn>,
    /// Number of frames.
    pub frames: u32,
}

impl DoubleFree {
    /// No frame.
    pub const NONE: Self = DoubleFree { first: None, frames: 0 };

    /// The doubled frames of `mask` in a word of 64 frames, counted from frame 0.
    #[inline]
    pub fn in_word(word: u32, mask: u64) -> Self {
        if mask == 0 {
            return DoubleFree::NONE;
        }
        let first = Pfn::new(word * bits::WORD_FRAMES + mask.trailing_zeros());
        DoubleFree { first: Some(first), frames: mask.count_ones() }
    }

    /// Adds others, met later.
    #[inline]
    pub fn add(&mut self, other: DoubleFree) {
        if other.frames > 0 {
            self.first = self.first.or(other.first);
            self.frames = self.frames.saturating_add(other.frames);
        }
    }
}
