//! A bit per page, read and written by any thread.

use std::ops::Range;

use rustix::io::Errno;

use crate::system::prim::{AtomicU64, Ordering, Words};

/// A bit per page, initially zero. Parts that are never touched take no memory.
pub(crate) struct Bits(Words);

impl Bits {
    pub fn new(count: usize) -> Result<Self, Errno> {
        Words::new(count.div_ceil(64)).map(Bits)
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        self.0.get(index)
    }

    pub fn get(&self, bit: usize) -> bool {
        // Acquire: pairs with the AcqRel of `set` and `clear`.
        self.word(bit / 64).load(Ordering::Acquire) >> (bit % 64) & 1 != 0
    }

    /// Whether any of the bits is set.
    pub fn any(&self, bits: Range<usize>) -> bool {
        // Acquire: as in `get`.
        words(bits).any(|(word, mask)| self.word(word).load(Ordering::Acquire) & mask != 0)
    }

    /// Sets bits; returns how many were clear.
    pub fn set(&self, bits: Range<usize>) -> u32 {
        words(bits)
            .map(|(word, mask)| {
                // AcqRel: pairs with that of `clear`, see the argument of `vmalloc::pieces`.
                (mask & !self.word(word).fetch_or(mask, Ordering::AcqRel)).count_ones()
            })
            .sum()
    }

    /// Clears bits; returns how many were set.
    pub fn clear(&self, bits: Range<usize>) -> u32 {
        words(bits)
            .map(|(word, mask)| {
                // AcqRel: pairs with that of `set`.
                (mask & self.word(word).fetch_and(!mask, Ordering::AcqRel)).count_ones()
            })
            .sum()
    }
}

/// The words that contain a range of bits, with a mask of its bits in each.
fn words(bits: Range<usize>) -> impl Iterator<Item = (usize, u64)> {
    // An empty range in the middle of a word lies in no word.
    let end = if bits.is_empty() { bits.start / 64 } else { bits.end.div_ceil(64) };
    (bits.start / 64..end).map(move |word| {
        let from = bits.start.saturating_sub(word * 64);
        let to = (bits.end - word * 64).min(64);
        (word, (u64::MAX >> (64 - (to - from))) << from)
    })
}
