//! Pages in flight between layers.

use super::model::{Mutant, is_mutant};
use super::prim::AtomicU64;
use super::total::MOVES;

/// Pages in flight, and the number of moves that have ended.
///
/// | bits | field |
/// |---|---|
/// | 0..=31 | pages in flight: taken from one place and not yet in the next |
/// | 32..=63 | moves ended, modulo 2^32 |
///
/// A request fails for lack of memory only after a scan of the store around which, on every CPU,
/// this word showed nothing in flight and did not change. A page that a scan missed because it
/// moved was in flight when the move began, and the end of the move is counted. Pages that one
/// atomic operation moves between a caller and the store are never in flight; see `reclaim`.
#[derive(Default)]
pub struct InFlight(AtomicU64);

const ONE_MOVE: u64 = 1 << 32;

impl InFlight {
    /// Announces that up to `pages` pages will be in no CPU's and no zone's count until the
    /// returned value is dropped.
    pub fn begin(&self, pages: u64) -> Moving<'_> {
        let pages = if is_mutant(Mutant::Unannounced) { 0 } else { pages };
        // SeqCst: pairs with the SeqCst loads of a scanner, before and after its scan. The scanner
        // sees this before the frames leave their place.
        self.0.fetch_add(pages, MOVES.change());
        Moving { in_flight: self, pages }
    }

    /// The word at this moment.
    pub fn read(&self) -> u64 {
        self.0.load(MOVES.look())
    }

    /// Pages in flight according to a word.
    pub fn in_flight_pages(word: u64) -> u64 {
        word & (ONE_MOVE - 1)
    }

    pub fn new() -> Self {
        InFlight(AtomicU64::new(0))
    }
}

/// Pages in flight until this value is dropped, also when a panic drops it.
pub struct Moving<'f> {
    in_flight: &'f InFlight,
    pages: u64,
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        self.in_flight.0.fetch_add(ONE_MOVE.wrapping_sub(self.pages), MOVES.change());
    }
}
