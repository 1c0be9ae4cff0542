//! The list of a shelf's magazines, in one cache line.
//!
//! The magazines of a shelf are linked, each link in a line that the shelf's CPU wrote last: a
//! drainer that follows them waits for one line after the other. With the list it asks for all
//! of them at once (decision 0005). The list is a hint: it may name a magazine that has left.

use crate::front::MagazineIndex;
use crate::sync::prim::{AtomicU32, Ordering};

/// Magazines that are listed; any that lie above them on the shelf are not.
const LENGTH: usize = 16;

/// The list of a shelf, lowest first.
#[repr(C, align(64))]
pub struct ShelfIndex([AtomicU32; LENGTH]);

#[cfg(not(loom))]
const _: () = assert!(size_of::<ShelfIndex>() == 64);

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
