//! A magazine with what it holds, and chains of such.
//!
//! A magazine on a shelf is full, and its shelf says of what class. One that comes from a front may
//! hold any number of rounds. A link of such magazines says both, so that a chain of them is all
//! that a drainer needs.

use crate::frame::Class;
use crate::front::{BlockArray, MagazineIndex};
use crate::sync::prim::AtomicU32;
use crate::sync::stack::Links;

/// A magazine with what it holds, as a link.
///
/// | bits | field |
/// |---|---|
/// | 0..=20 | magazine |
/// | 21..=26 | rounds |
/// | 27..=30 | class |
#[derive(Clone, Copy)]
pub struct Part(u32);

const _: () = assert!(Class::COUNT <= 1 << 4);

impl Part {
    /// Bits it has.
    pub const BITS: u32 = 31;

    pub fn new(magazine: MagazineIndex, class: Class, rounds: u32) -> Self {
        Part(magazine.get() | rounds << MagazineIndex::BITS | (class as u32) << 27)
    }

    fn from_link(link: u32) -> Option<Self> {
        (link != 0).then_some(Part(link))
    }

    pub fn unpack(self) -> (MagazineIndex, Class, u32) {
        let index = MagazineIndex::new(self.0 & ((1 << MagazineIndex::BITS) - 1));
        let class = Class::ALL[(self.0 >> 27) as usize];
        (index.expect("a link names a magazine"), class, self.0 >> MagazineIndex::BITS & 0x3f)
    }

    /// Pages in it.
    pub fn pages(self) -> u64 {
        let (_, class, rounds) = self.unpack();
        u64::from(rounds * class.block_frames())
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
    fn every_field_of_a_part_comes_back() {
        let last = (1 << MagazineIndex::BITS) - 1;
        for index in
            [1, 2, last / 2, last - 1, last].map(|index| MagazineIndex::new(index).unwrap())
        {
            for class in Class::ALL {
                for rounds in 0..=63 {
                    let part = Part::new(index, class, rounds);
                    assert_eq!(part.unpack(), (index, class, rounds));
                    assert!(part.0 >> Part::BITS == 0);
                    assert_eq!(part.pages(), u64::from(rounds * class.block_frames()));
                    assert_eq!(
                        Part::from_link(part.0).map(Part::unpack),
                        Some((index, class, rounds))
                    );
                }
            }
        }
        assert!(Part::from_link(0).is_none());
    }
}
