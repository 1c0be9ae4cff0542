//! Moves what the seats hold, as a kernel migrates pages, so that ranges of 1 GiB can be had.
//!
//! Page cache and anonymous memory move; unmovable and reclaimable blocks do not. A frame is a
//! number here: a move updates the block's owner and copies no memory.

use std::cell::RefCell;

use pagedepot::{Mobility, Move, Mover, Occupant, Order, Pfn};
use pagedepot_designs::GIB_LOG2;

use super::kinds::{Held, Sized};
use crate::design::Allocator;

/// A held block, where its owner keeps it.
struct Owned<'h, B> {
    block: &'h mut Sized<B>,
    is_movable: bool,
}

/// All held blocks, by frame.
struct Table<'h, B> {
    owned: Vec<Owned<'h, B>>,
    /// Of each frame, one more than the place in `owned` of the block that has it; 0: no block.
    places: Vec<u32>,
    /// First frames of the ranges of 1 GiB that were allocated.
    ranges: Vec<u64>,
}

/// See the module.
pub struct Migration<'h, A: Allocator> {
    allocator: &'h A,
    table: RefCell<Table<'h, A::Block>>,
}

impl<B> Table<'_, B> {
    /// Notes which block has these frames.
    fn note(&mut self, first: u64, order: Order, place: u32) {
        let first = first as usize;
        self.places[first..first + order.frames() as usize].fill(place);
    }
}

impl<'h, A: Allocator> Migration<'h, A> {
    /// Of what these seats hold, in a memory of `pages` pages. O(pages).
    pub fn of(
        allocator: &'h A,
        pages: u64,
        held: impl Iterator<Item = &'h mut Held<A::Block>>,
    ) -> Self {
        let mut table =
            Table { owned: Vec::new(), places: vec![0; pages as usize], ranges: Vec::new() };
        for stock in held.flat_map(|held| &mut held.stocks) {
            let is_movable = stock.kind.mobility == Mobility::Movable;
            for block in stock.blocks_mut() {
                let (first, order) = (allocator.frame(block.0), block.1);
                table.owned.push(Owned { block, is_movable });
                table.note(first, order, table.owned.len() as u32);
            }
        }
        Migration { allocator, table: RefCell::new(table) }
    }

    /// Allocates a range of 1 GiB, after moves if need be. Adds the pages moved to `moved_pages`.
    pub fn alloc_gib(&self, moved_pages: &mut u64) -> Option<A::Block> {
        let (range, moved) = self.allocator.alloc_gib_by_moves(self);
        *moved_pages += moved;
        let range = range?;
        self.table.borrow_mut().ranges.push(self.allocator.frame(range));
        Some(range)
    }
}

impl<A: Allocator> Mover for Migration<'_, A> {
    fn occupant(&self, frame: Pfn) -> Occupant {
        let table = self.table.borrow();
        let number = u64::from(frame.get());
        let place = table.places.get(frame.index()).and_then(|place| place.checked_sub(1));
        let Some(place) = place else {
            let is_in_range = |first: &u64| number >> GIB_LOG2 == first >> GIB_LOG2;
            let is_known = table.ranges.iter().any(is_in_range);
            return if is_known { Occupant::Pinned } else { Occupant::Unknown };
        };
        let owned = &table.owned[place as usize];
        let (block, order) = *owned.block;
        match owned.is_movable {
            true => {
                Occupant::Movable { first: Pfn::new(self.allocator.frame(block) as u32), order }
            }
            false => Occupant::Pinned,
        }
    }

    fn move_blocks(&self, moves: &mut [Move]) {
        let mut table = self.table.borrow_mut();
        for one in moves {
            let place = table.places[one.from().index()];
            table.note(one.from().get().into(), one.order(), 0);
            table.note(one.to().get().into(), one.order(), place);
            table.owned[place as usize - 1].block.0 = self.allocator.block_at(one.to());
            one.moved();
        }
    }
}
