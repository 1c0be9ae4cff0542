//! Hints about the orders that a pageblock lacks, by which searches pass by pageblocks whose free
//! frames lie scattered.
//!
//! # Vocabulary
//! * *lacks*: a bit per pageblock and order, from 1 to the last below a pageblock's. It says that
//!   frames are free in the pageblock, and that no block of that order is.
//!
//! # Theory
//! A pageblock that lacks an order lacks all above it, so its bits are one bound: the search that
//! finds no block sets the bits from its order on, the free that makes a block clears those up to
//! the block's order. The rule is that of the hints `some` and `whole` (Dekker's pattern, see
//! [`section`](super::section)): the search looks at the words again *after* it has set bits, the
//! free looks at the bits *after* it has changed the words. Of two that race at least one sees the
//! other. A block of several words that several frees make is seen by the last of them.
//!
//! So once all have stopped, a set bit is right. A clear one may be wrong, and costs one look. A
//! set one is wrong only between the search's first and its second look, in which frees put a block
//! there. That search is announced as in flight, as those are that clear `some`: a request that
//! passes the pageblock by at that moment does not take its round for undisturbed.
//!
//! No bit is set while a pageblock is taken from in blocks of one order: its last block leaves it
//! empty, which `some` says. A free then reads one word here and writes none.

use super::bits::{self, HINT_WORDS, PAGEBLOCK_WORDS, WORD_ORDER_MAX};
use crate::frame::Order;
use crate::frame::pageblock::SECTION_PAGEBLOCKS;
use crate::sync::prim::{AtomicU64, Ordering};
use crate::sync::total::HINTS;

/// The highest order that has a bit.
const ORDER_MAX: u32 = Order::PAGEBLOCK.get() - 1;
/// Pageblocks per word. One has a byte: bit `n - 1` is order `n`.
const IN_WORD: usize = 8;
/// Words for the 64 pageblocks of a word of other hints: a cache line.
const LINE_WORDS: usize = (SECTION_PAGEBLOCKS / HINT_WORDS).div_ceil(IN_WORD);
const _: () = assert!(ORDER_MAX <= 8);

/// The bits of order 1 in a word.
const FIRST_BITS: u64 = bits::BYTES;
/// Multiplied by this, the lowest bits of a word's bytes meet in the highest byte, in order.
const GATHER: u64 = 0x0102_0408_1020_4080;

/// The bits of the pageblocks of a section.
pub struct Lacks([[AtomicU64; LINE_WORDS]; HINT_WORDS]);

impl Lacks {
    /// Makes hints of which none is set.
    pub fn new() -> Self {
        let zero = |_| AtomicU64::new(0);
        Lacks(core::array::from_fn(|_| core::array::from_fn(zero)))
    }

    #[inline]
    fn word(&self, pageblock: usize) -> &AtomicU64 {
        &self.0[pageblock / 64][pageblock % 64 / IN_WORD]
    }

    /// Mask of the pageblocks `64 * i ..` that may have a block of `order`.
    #[inline]
    pub fn may_have(&self, i: usize, order: Order) -> u64 {
        if !(1..=ORDER_MAX).contains(&order.get()) {
            return !0;
        }
        let lack = self.0[i].iter().zip((0..).step_by(IN_WORD)).fold(0, |all, (word, at)| {
            // Acquire: pairs with the SeqCst (Release) of `set`. A search that passes a pageblock
            // by sees what the taker of its frames did before.
            let lowest = word.load(Ordering::Acquire) >> (order.get() - 1) & FIRST_BITS;
            all | (lowest.wrapping_mul(GATHER) >> 56) << at
        });
        !lack
    }

    /// Whether a pageblock lacks any order. Call after its words were changed.
    #[inline]
    pub fn any(&self, pageblock: usize) -> bool {
        // SeqCst: pairs with the change in `set`, whose caller looks at the words after.
        self.word(pageblock).load(HINTS.look()) & bits_of(pageblock, 1, ORDER_MAX) != 0
    }

    /// Notes that a pageblock lacks `order`. `true`: it was not noted before, and the caller looks
    /// at the words again.
    pub fn set(&self, pageblock: usize, order: Order) -> bool {
        let (cell, mask) = (self.word(pageblock), bits_of(pageblock, order.get(), ORDER_MAX));
        // Relaxed: bits that are set are right, or their setter looks at the words again.
        if cell.load(Ordering::Relaxed) & mask == mask {
            return false;
        }
        cell.fetch_or(mask, HINTS.change());
        true
    }

    /// Notes that a pageblock with these words has blocks of all orders that they have.
    pub fn clear(&self, pageblock: usize, words: &[u64; PAGEBLOCK_WORDS]) {
        let (cell, mask) = (self.word(pageblock), bits_of(pageblock, 1, largest(words)));
        // Relaxed: the caller has looked by `any`; a search that sets bits later looks at words.
        if cell.load(Ordering::Relaxed) & mask != 0 {
            cell.fetch_and(!mask, HINTS.change());
        }
    }

    /// Whether a pageblock with these words has a block of an order that it is noted to lack.
    /// Never, when all others have stopped.
    pub fn hides(&self, pageblock: usize, words: &[u64; PAGEBLOCK_WORDS]) -> bool {
        let mask = bits_of(pageblock, 1, largest(words));
        self.word(pageblock).load(Ordering::Relaxed) & mask != 0
    }
}

/// The bits of a pageblock for the orders from `first` to `last`.
#[inline]
const fn bits_of(pageblock: usize, first: u32, last: u32) -> u64 {
    let bits = (1 << last) - (1 << (first - 1));
    bits << (pageblock % IN_WORD * 8)
}

/// The largest order below a pageblock's of which these words have a free block; 0 if none has any.
fn largest(words: &[u64; PAGEBLOCK_WORDS]) -> u32 {
    let mut largest = 0;
    for &word in words {
        while let Some(next) = Order::new(largest + 1).filter(|next| next.get() <= WORD_ORDER_MAX)
            && bits::free_blocks(word, next) != 0
        {
            largest += 1;
        }
    }
    let is_free = |order: u32| {
        words
            .chunks(1 << (order - WORD_ORDER_MAX))
            .any(|block| block.iter().all(|&word| word == !0))
    };
    while (WORD_ORDER_MAX..ORDER_MAX).contains(&largest) && is_free(largest + 1) {
        largest += 1;
    }
    largest
}
