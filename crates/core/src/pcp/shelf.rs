//! Shelves and the other stacks of magazines; the theory is in [`stack`](crate::sync::stack).
//!
//! # Index
//! The magazines of a shelf are linked, each link in a line that the shelf's CPU wrote last: a
//! drainer that follows them waits for one line after the other. A [`ShelfIndex`] lists them in one
//! cache line, and the drainer asks for all of them at once (decision 0005). The list is a hint: it
//! may name a magazine that has left.
//!
//! # Parts
//! A magazine on a shelf is full, and its shelf says of what order. One that comes from a front may
//! hold any number of rounds. A link of such magazines ([`Part`]) says both, so that a chain of
//! them is all that a drainer needs.

use crate::frame::Order;
use crate::front::{BlockArray, MagazineIndex};
use crate::sync::model::IS_LOOM;
use crate::sync::prim::{AtomicU32, Ordering};
use crate::sync::stack::{self, Links};

/// Bits of an index in a head.
const INDEX_BITS: u32 = 22;
const _: () = assert!(MagazineIndex::BITS <= INDEX_BITS);

/// A CPU's full magazines of one order and mobility: counted, at most 1023.
pub type Shelf = stack::Stack<INDEX_BITS, 10>;
/// Empty magazines: uncounted, and without a limit.
pub type Empties = stack::Stack<INDEX_BITS, 0>;
/// Magazines that an owner handed over, each named with what it holds: uncounted.
pub type HandedStack = stack::Stack<{ Part::BITS }, 0>;
/// Magazines linked by their `next`, owned by the holder.
pub type Chain = stack::Chain<MagazineIndex>;

/// Magazines that are listed; any that lie above them on the shelf are not.
const LENGTH: usize = 16;

/// The list of a shelf, lowest first.
#[repr(C, align(64))]
pub struct ShelfIndex([AtomicU32; LENGTH]);

const _: () = assert!(IS_LOOM || size_of::<ShelfIndex>() == 64);

impl ShelfIndex {
    pub fn new() -> Self {
        ShelfIndex(core::array::from_fn(|_| AtomicU32::new(0)))
    }

    /// Notes that `magazine` goes on top of `below` others.
    pub fn note(&self, below: u32, magazine: MagazineIndex) {
        if let Some(place) = self.0.get(below as usize) {
            // Relaxed: a hint.
            place.store(magazine.get(), Ordering::Relaxed);
        }
    }

    /// The magazines on a shelf of `count`, highest first.
    pub fn top_down(&self, count: u32) -> impl Iterator<Item = MagazineIndex> {
        let listed = &self.0[..LENGTH.min(count as usize)];
        // Relaxed: a hint.
        listed.iter().rev().filter_map(|place| MagazineIndex::new(place.load(Ordering::Relaxed)))
    }
}

/// A magazine with what it holds, as a link.
///
/// | bits | field |
/// |---|---|
/// | 0..=20 | magazine |
/// | 21..=26 | rounds |
/// | 27..=30 | order |
#[derive(Clone, Copy)]
pub struct Part(u32);

const _: () = assert!(Order::CACHED <= 1 << 4);

impl Part {
    /// Bits it has.
    pub const BITS: u32 = 31;

    pub fn new(magazine: MagazineIndex, order: Order, rounds: u32) -> Self {
        Part(magazine.get() | rounds << MagazineIndex::BITS | order.get() << 27)
    }

    fn from_link(link: u32) -> Option<Self> {
        (link != 0).then_some(Part(link))
    }

    pub fn unpack(self) -> (MagazineIndex, Order, u32) {
        let index = MagazineIndex::new(self.0 & ((1 << MagazineIndex::BITS) - 1));
        let order = Order::at_place((self.0 >> 27) as usize);
        (index.expect("a link names a magazine"), order, self.0 >> MagazineIndex::BITS & 0x3f)
    }

    /// Pages in it.
    pub fn pages(self) -> u64 {
        let (_, order, rounds) = self.unpack();
        u64::from(rounds * order.frames())
    }
}

/// Magazines by their parts, linked by their `next`.
pub struct Parts<'b>(pub &'b BlockArray);

impl Links for Parts<'_> {
    type Index = Part;

    fn number(part: Part) -> u32 {
        part.0
    }

    fn index(number: u32) -> Option<Part> {
        Part::from_link(number)
    }

    fn link(&self, part: Part) -> &AtomicU32 {
        &self.0.magazine(part.unpack().0).next
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_lies_on_a_shelf_is_listed_as_far_as_there_are_places() {
        let magazine = |index| MagazineIndex::new(index).unwrap();
        let listed = ShelfIndex::new();
        let on_shelf_of =
            |count| listed.top_down(count).map(MagazineIndex::get).collect::<Vec<_>>();
        assert!(on_shelf_of(3).is_empty());
        (0..20).for_each(|below| listed.note(below, magazine(100 + below)));
        assert_eq!(on_shelf_of(3), [102, 101, 100]);
        assert_eq!(on_shelf_of(20), Vec::from_iter((100..116).rev()));
        // One popped, another pushed.
        listed.note(2, magazine(7));
        assert_eq!(on_shelf_of(3), [7, 101, 100]);
    }
}

#[cfg(all(test, not(loom)))]
mod part_tests {
    use super::*;

    #[test]
    fn every_field_of_a_part_comes_back() {
        let last = (1 << MagazineIndex::BITS) - 1;
        for index in
            [1, 2, last / 2, last - 1, last].map(|index| MagazineIndex::new(index).unwrap())
        {
            for order in Order::all() {
                for rounds in 0..=63 {
                    let part = Part::new(index, order, rounds);
                    assert_eq!(part.unpack(), (index, order, rounds));
                    assert!(part.0 >> Part::BITS == 0);
                    assert_eq!(part.pages(), u64::from(rounds * order.frames()));
                    assert_eq!(
                        Part::from_link(part.0).map(Part::unpack),
                        Some((index, order, rounds))
                    );
                }
            }
        }
        assert!(Part::from_link(0).is_none());
    }
}
