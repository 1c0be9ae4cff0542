//! The blocks that the seats hold, by handle: a block may move while its seat is about to free it.
//!
//! A seat knows its blocks by handles, as a program knows its memory by virtual addresses. The
//! word of a handle says which block that is now. The seat that frees a block takes the word; who
//! moves it changes the word by a compare-and-swap. So of a free and a move that meet, one comes
//! first, and the other sees it.
//!
//! Page cache and anonymous memory move, unmovable and reclaimable blocks do not. A frame is a
//! number here: a move changes a word and copies no memory.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use pagedepot::{Mobility, Order, Pfn};
use pagedepot_contiguity::{Move, Mover, Occupant};
use pagedepot_designs::GIB_LOG2;

use super::params::ORDER_MAX;
use pagedepot_cli::design::block::Block;
use pagedepot_cli::harness::lock;

/// The name by which a seat knows a block.
pub type Handle = u32;

/// The table of handles and the blocks they name. A design that moves blocks names them by the
/// numbers of their frames.
#[derive(Debug)]
pub struct Holdings {
    /// Words by handle.
    words: Vec<AtomicU64>,
    /// Handles by frame: one more than the handle of the block that began there last; 0: none did.
    /// Wrong once that block was freed or moved: its word says where it is.
    handles: Vec<AtomicU32>,
    /// First frames of the ranges of 1 GiB that are allocated.
    ranges: Mutex<Vec<u64>>,
    moved_pages: AtomicU64,
}

/// The word of a handle that no block has.
const NONE: u64 = 0;

/// A block, as a word.
fn word(block: usize, order: Order, mobility: Mobility) -> u64 {
    let is_movable = mobility == Mobility::Movable;
    (block as u64 + 1) << 8 | u64::from(order.get()) << 1 | u64::from(is_movable)
}

/// A word, as a block, its order, and whether it is movable.
fn block_of(word: u64) -> Option<(usize, Order, bool)> {
    let block = (word >> 8).checked_sub(1)?;
    Some((block as usize, Order::new((word as u32 & 0xff) >> 1)?, word & 1 == 1))
}

impl Holdings {
    /// Makes empty holdings of a memory of so many pages. There are as many handles.
    pub fn new(pages: u64) -> Self {
        Holdings {
            words: (0..pages).map(|_| AtomicU64::new(NONE)).collect(),
            handles: (0..pages).map(|_| AtomicU32::new(0)).collect(),
            ranges: Mutex::default(),
            moved_pages: AtomicU64::new(0),
        }
    }

    /// Notes a block that begins at this frame, under a handle that has none.
    pub fn hold<B: Block>(
        &self,
        handle: Handle,
        (block, frame): (B, u64),
        order: Order,
        mobility: Mobility,
    ) {
        // Relaxed, and Release for the mover: it reads the word if it finds the handle.
        self.handles[frame as usize].store(handle + 1, Ordering::Relaxed);
        let word = word(block.bits(), order, mobility);
        self.words[handle as usize].store(word, Ordering::Release);
    }

    /// The block of a handle, which will not move any more, to be freed.
    pub fn release<B: Block>(&self, handle: Handle) -> B {
        // Acquire: pairs with the Release in `move_one`.
        let word = self.words[handle as usize].swap(NONE, Ordering::Acquire);
        let (block, ..) = block_of(word).expect("a seat frees what it holds");
        B::from_bits(block)
    }

    /// The block of a handle. Right while nothing moves.
    pub fn block<B: Block>(&self, handle: Handle) -> B {
        let word = self.words[handle as usize].load(Ordering::Relaxed);
        B::from_bits(block_of(word).expect("a seat asks for what it holds").0)
    }

    /// Notes a range of 1 GiB, which does not move.
    pub fn note_range(&self, frame: u64) {
        lock(&self.ranges).push(frame);
    }

    /// Pages moved so far.
    pub fn moved_pages(&self) -> u64 {
        self.moved_pages.load(Ordering::Relaxed)
    }

    /// The handle and word of the block of this order that begins at a frame.
    fn at(&self, first: usize, order: Order) -> Option<(usize, u64)> {
        let handle = self.handles.get(first)?.load(Ordering::Relaxed).checked_sub(1)? as usize;
        // Acquire: pairs with the Release in `hold`.
        let word = self.words[handle].load(Ordering::Acquire);
        let (block, of_order, _) = block_of(word)?;
        (block == first && of_order == order).then_some((handle, word))
    }

    /// Whether the block was moved; if not, it was freed before.
    fn move_one(&self, one: &Move) -> bool {
        let (from, to) = (one.from().index(), one.to().index());
        let Some((handle, now)) = self.at(from, one.order()) else { return false };
        let moved = word(to, one.order(), Mobility::Movable);
        self.handles[to].store(handle as u32 + 1, Ordering::Relaxed);
        // Release: pairs with the Acquire in `release`.
        self.words[handle]
            .compare_exchange(now, moved, Ordering::Release, Ordering::Relaxed)
            .is_ok()
    }
}

impl Mover for Holdings {
    fn occupant(&self, frame: Pfn) -> Occupant {
        for order in (0..=ORDER_MAX).filter_map(Order::new) {
            let first = frame.get() & !(order.frames() - 1);
            if let Some((_, word)) = self.at(first as usize, order) {
                return match word & 1 == 1 {
                    true => Occupant::Movable { first: Pfn::new(first), order },
                    false => Occupant::Pinned,
                };
            }
        }
        let number = u64::from(frame.get());
        let is_in_range = |first: &u64| number >> GIB_LOG2 == first >> GIB_LOG2;
        if lock(&self.ranges).iter().any(is_in_range) {
            Occupant::Pinned
        } else {
            Occupant::Unknown
        }
    }

    fn move_blocks(&self, moves: &mut [Move]) {
        for one in moves {
            if self.move_one(one) {
                self.moved_pages.fetch_add(one.order().frames().into(), Ordering::Relaxed);
                one.moved();
            } else {
                one.gone();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_found_by_any_of_their_frames() {
        let holdings = Holdings::new(64);
        let four = Order::new(2).unwrap();
        holdings.hold(3, (Pfn::new(8), 8), four, Mobility::Movable);
        holdings.hold(4, (Pfn::new(12), 12), Order::BASE, Mobility::Reclaimable);
        for frame in 8..12 {
            let expected = Occupant::Movable { first: Pfn::new(8), order: four };
            assert_eq!(holdings.occupant(Pfn::new(frame)), expected);
        }
        assert_eq!(holdings.occupant(Pfn::new(12)), Occupant::Pinned);
        assert_eq!(holdings.occupant(Pfn::new(13)), Occupant::Unknown);
        // Freed, and other blocks come there.
        assert_eq!(holdings.release::<Pfn>(3), Pfn::new(8));
        assert_eq!(holdings.occupant(Pfn::new(8)), Occupant::Unknown);
        holdings.hold(3, (Pfn::new(9), 9), Order::BASE, Mobility::Movable);
        assert_eq!(holdings.occupant(Pfn::new(8)), Occupant::Unknown);
        assert_eq!(holdings.block::<Pfn>(3), Pfn::new(9));
        holdings.note_range(0);
        assert_eq!(holdings.occupant(Pfn::new(8)), Occupant::Pinned);
    }

    #[test]
    fn words_keep_blocks_of_every_order() {
        for order in (0..=Order::MAX.get()).filter_map(Order::new) {
            for block in [0, 1, u32::MAX as usize, 1 << 47] {
                assert_eq!(
                    block_of(word(block, order, Mobility::Movable)),
                    Some((block, order, true))
                );
                assert_eq!(
                    block_of(word(block, order, Mobility::Unmovable)),
                    Some((block, order, false))
                );
            }
        }
        assert_eq!(block_of(NONE), None);
    }
}
