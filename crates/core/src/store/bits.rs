//! Arithmetic on one word of the bitmap: a set bit is a free frame. Pure functions, tested
//! exhaustively. [`WordBlocks`] are blocks that were taken from one word.

use crate::frame::pageblock::{PAGEBLOCK_FRAMES, SECTION_PAGEBLOCKS};
use crate::frame::{Order, Pfn};

/// Frames per word.
pub const WORD_FRAMES: u32 = u64::BITS;

/// Words per pageblock.
pub const PAGEBLOCK_WORDS: usize = (PAGEBLOCK_FRAMES / WORD_FRAMES) as usize;

/// Words per section that have a bit for each pageblock.
pub const HINT_WORDS: usize = SECTION_PAGEBLOCKS.div_ceil(64);

/// The orders whose blocks fit into one word.
pub const WORD_ORDER_MAX: u32 = 6;

/// The lowest bit of each byte.
pub const BYTES: u64 = 0x0101_0101_0101_0101;
/// The highest bit of each byte.
const HIGH_BITS: u64 = BYTES * 0x80;

/// Bits where a block of order `n` may begin.
const ALIGNED: [u64; 7] = [
    !0,
    0x5555_5555_5555_5555,
    0x1111_1111_1111_1111,
    BYTES,
    0x0001_0001_0001_0001,
    0x0000_0001_0000_0001,
    1,
];

/// The bits of one block of `order` (at most 6) that begins at bit 0.
#[inline]
pub const fn block_mask(order: Order) -> u64 {
    debug_assert!(order.get() <= WORD_ORDER_MAX);
    if order.get() >= WORD_ORDER_MAX { !0 } else { (1 << order.frames()) - 1 }
}

/// The first bits of all free blocks of `order` (at most 6) in `word`.
#[inline]
pub const fn free_blocks(word: u64, order: Order) -> u64 {
    debug_assert!(order.get() <= WORD_ORDER_MAX);
    if order.get() == WORD_ORDER_MAX {
        return (word == !0) as u64;
    }
    let mut runs = word;
    let mut n = 0;
    // After step n, a bit is set where 2^(n+1) free frames begin.
    while n < order.get() {
        runs &= runs >> (1 << n);
        n += 1;
    }
    runs & ALIGNED[order.index()]
}

/// The free frames of `word` that lie in no free block of `order` (at most 6).
#[inline]
pub const fn outside(word: u64, order: Order) -> u64 {
    word & !expand(free_blocks(word, order), order)
}

/// The bits where `count` (1 to 64) free frames in a row begin, all of them in `word`.
#[inline]
pub const fn runs(word: u64, count: u32) -> u64 {
    debug_assert!(count >= 1 && count <= WORD_FRAMES);
    let (mut runs, mut length) = (word, 1);
    while length < count {
        let more = if length < count - length { length } else { count - length };
        runs &= runs >> more;
        length += more;
    }
    runs
}

/// The bits of multiples of `align` (a power of two) in a word whose first frame is `base`.
#[inline]
pub const fn multiples(base: u64, align: u64) -> u64 {
    debug_assert!(align.is_power_of_two() && base.is_multiple_of(WORD_FRAMES as u64));
    if align <= WORD_FRAMES as u64 {
        ALIGNED[align.trailing_zeros() as usize]
    } else {
        (base & (align - 1) == 0) as u64
    }
}

/// All bits of the blocks of `order` that begin at the bits of `starts`.
#[inline]
pub const fn expand(starts: u64, order: Order) -> u64 {
    // The blocks do not overlap, so the product never carries from one into the next.
    starts.wrapping_mul(block_mask(order))
}

/// `starts` without its lowest bits beyond the highest `count`.
#[inline]
pub const fn highest(starts: u64, count: u32) -> u64 {
    if count >= WORD_FRAMES || count > 0 && starts & starts.wrapping_sub(1) == 0 {
        return starts;
    }
    if count == 1 {
        // Counting bits is not one instruction on the oldest x86-64.
        return 1 << (63 - starts.leading_zeros());
    }
    let sums = byte_sums(starts);
    let surplus = (sums >> 56).saturating_sub(count as u64);
    // Bit 7 of each byte up to which nothing is kept. No byte borrows: none is above 64.
    let dropped = (((surplus * BYTES) | HIGH_BITS) - sums) & HIGH_BITS;
    let from = (!dropped & HIGH_BITS).trailing_zeros() & !7;
    if from >= WORD_FRAMES {
        return 0;
    }
    let mut kept = starts >> from << from;
    let mut rest = surplus - (sums << 8 >> from & 0xff);
    while rest > 0 {
        kept &= kept - 1;
        rest -= 1;
    }
    kept
}

/// Number of set bits in each byte of a word and the bytes below it. With them a bit is found by
/// its rank in a few operations (Vigna, "Broadword Implementation of Rank/Select Queries", 2008);
/// one after the other they would be up to 64.
const fn byte_sums(word: u64) -> u64 {
    let pairs = word - ((word >> 1) & (BYTES * 0x55));
    let fours = (pairs & (BYTES * 0x33)) + ((pairs >> 2) & (BYTES * 0x33));
    ((fours + (fours >> 4)) & (BYTES * 0x0f)).wrapping_mul(BYTES)
}

/// Bits `from..from + count` of a word, which has all of them.
#[inline]
pub const fn range_mask(from: u32, count: u32) -> u64 {
    debug_assert!(from + count <= WORD_FRAMES);
    if count >= WORD_FRAMES { !0 } else { ((1 << count) - 1) << from }
}

/// The words in which bits `start..end` of many lie, ascending: the number of each, and the bits.
#[inline]
pub fn masks(start: u32, end: u32) -> impl Iterator<Item = (usize, u64)> + Clone {
    let (first, last) = (start / WORD_FRAMES, end.wrapping_sub(1));
    (first..end.div_ceil(WORD_FRAMES)).map(move |word| {
        let from = if word == first { !0 << (start % WORD_FRAMES) } else { !0 };
        let to = if word == last / WORD_FRAMES { !0 >> (!last % WORD_FRAMES) } else { !0 };
        (word as usize, from & to)
    })
}

/// The numbers of the bits that are set, ascending.
pub fn each(mut mask: u64) -> impl Iterator<Item = u32> + Clone {
    core::iter::from_fn(move || {
        let bit = (mask != 0).then(|| mask.trailing_zeros())?;
        mask &= mask - 1;
        Some(bit)
    })
}

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

    fn order(n: u32) -> Order {
        Order::new(n).unwrap()
    }

    /// Computes free blocks as the doc comment says, word by word.
    fn naive_free_blocks(word: u64, n: u32) -> u64 {
        let frames = 1 << n;
        (0..64)
            .step_by(frames)
            .filter(|&at| (at..at + frames).all(|bit| word >> bit & 1 == 1))
            .fold(0, |acc, at| acc | 1 << at)
    }

    /// All 16-bit patterns at all four places, in an empty and in a full word.
    fn words() -> impl Iterator<Item = u64> {
        (0..=0xffffu64).flat_map(|pattern| {
            (0..4).flat_map(move |lane| {
                let shift = lane * 16;
                [pattern << shift, !(0xffff << shift) | pattern << shift]
            })
        })
    }

    #[test]
    fn free_blocks_agrees_with_its_definition() {
        for word in words() {
            for n in 0..=6 {
                assert_eq!(
                    free_blocks(word, order(n)),
                    naive_free_blocks(word, n),
                    "{word:#x} order {n}"
                );
            }
        }
    }

    #[test]
    fn what_lies_outside_of_blocks_and_they_are_all_that_is_free() {
        for word in words() {
            for n in 0..=6 {
                let blocks = naive_free_blocks(word, n);
                let inside = (0..64).filter(|bit| blocks >> (bit >> n << n) & 1 == 1);
                let inside = inside.fold(0, |all, bit| all | 1 << bit);
                assert_eq!(outside(word, order(n)), word & !inside, "{word:#x} order {n}");
            }
        }
    }

    #[test]
    fn expansion_stays_inside_the_free_bits_and_has_the_right_size() {
        for word in words() {
            for n in 0..=6 {
                let starts = free_blocks(word, order(n));
                let all = expand(starts, order(n));
                assert_eq!(all & !word, 0);
                assert_eq!(all.count_ones(), starts.count_ones() << n);
            }
        }
    }

    #[test]
    fn highest_keeps_the_top_bits() {
        for word in words() {
            for count in 0..=64 {
                let kept = highest(word, count);
                assert_eq!(kept & !word, 0);
                assert_eq!(kept.count_ones(), word.count_ones().min(count));
                let dropped = word & !kept;
                assert!(
                    kept == 0
                        || dropped == 0
                        || kept.trailing_zeros() > 63 - dropped.leading_zeros()
                );
            }
        }
    }

    #[test]
    fn runs_agree_with_their_definition() {
        for word in words().step_by(3) {
            for count in [1, 2, 3, 5, 7, 8, 13, 16, 31, 33, 48, 63, 64] {
                let naive = (0..=64 - count)
                    .filter(|&from| word & range_mask(from, count) == range_mask(from, count))
                    .fold(0, |acc, from| acc | 1u64 << from);
                assert_eq!(runs(word, count), naive, "{word:#x}, {count} in a row");
            }
        }
    }

    #[test]
    fn multiples_are_where_they_are() {
        for base in (0..1024).step_by(64) {
            for align in (0..=10).map(|shift| 1u64 << shift) {
                let naive = (0..64)
                    .filter(|at| (base + at) % align == 0)
                    .fold(0, |acc, at| acc | 1u64 << at);
                assert_eq!(multiples(base, align), naive, "multiples of {align} from {base} on");
            }
        }
    }

    #[test]
    fn masks_of_many_words() {
        for (start, end) in [(0, 1), (0, 64), (5, 64), (63, 65), (64, 128), (3, 300), (130, 140)] {
            let bits = masks(start, end).flat_map(|(word, mask)| {
                each(mask).map(move |bit| word as u32 * WORD_FRAMES + bit)
            });
            assert!(bits.eq(start..end), "{start}..{end}");
            assert!(masks(start, end).all(|(_, mask)| mask != 0));
        }
        for none in [0, 5, 64, 130] {
            assert!(masks(none, none).all(|(_, mask)| mask == 0));
        }
    }

    #[test]
    fn range_masks() {
        for from in 0..64 {
            for count in 0..=64 - from {
                let expected = (from..from + count).fold(0u64, |acc, bit| acc | 1 << bit);
                assert_eq!(range_mask(from, count), expected);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod found_tests {
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
