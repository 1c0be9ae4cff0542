//! Pages in flight between layers, and callers, as words name them beside what they hold.

use core::num::NonZeroUsize;

use super::model::{Mutant, is_mutant};
use super::prim::{AtomicU64, Ordering};
use super::total::MOVES;

/// Pages in flight, the number of moves that have ended, and a note of who moves.
///
/// | bits | field of the word |
/// |---|---|
/// | 0..=31 | pages in flight: taken from one place and not yet in the next |
/// | 32..=63 | moves ended, modulo 2^32 |
///
/// A request fails for lack of memory only after a scan of the store around which, on every CPU,
/// this word showed nothing in flight and did not change. A page that a scan missed because it
/// moved was in flight when the move began, and the end of the move is counted. Pages that one
/// atomic operation moves between a caller and the store are never in flight; see `reclaim`.
///
/// | bits | field of the note |
/// |---|---|
/// | 0..=31 | pages that this caller has in flight |
/// | 32..=59 | the caller; 0: none |
///
/// *A request does not sleep for its own thread.* A signal handler may interrupt a move, and
/// request pages. While it runs, that move cannot end. By the note the request tells its own
/// thread's pages from [those of others](InFlight::others_pages). The note proves nothing: a
/// request that finds all pages in flight noted as its own fails as *unproven*, as it would after
/// sleeping for them in vain.
///
/// *The note costs a move no atomic operation.* One caller is noted at a time, by a load and a
/// store. What handlers do in between, they have undone when they return. Of two threads that begin
/// at once on one CPU, and of those that begin beside a noted one, one is not noted: its handlers
/// then sleep as beside another caller's pages, for a bounded time (`reclaim`).
///
/// *No note outlives its move*, without an order between threads. Each changes the note only where
/// it finds none, or its own. At the end of its move it finds its own note, and removes it, with
/// whatever another thread has written over it since it looked. Or it finds that of another thread,
/// which came over its own; then the last thread of which a note came finds that one, and removes
/// it.
#[derive(Default)]
pub struct InFlight {
    word: AtomicU64,
    note: AtomicU64,
}

const ONE_MOVE: u64 = 1 << 32;
const PAGES: u64 = ONE_MOVE - 1;

impl InFlight {
    /// Announces that up to `pages` pages will be in no CPU's and no zone's count until the
    /// returned value is dropped, by this caller.
    #[inline]
    pub fn begin(&self, pages: u64, caller: Caller) -> InFlightGuard<'_> {
        let pages = if is_mutant(Mutant::Unannounced) { 0 } else { pages };
        // Before the word: a handler in between finds a note of pages that are not in flight yet,
        // and takes so many of another caller for its own.
        let note = self.note(caller, pages);
        // SeqCst: pairs with the SeqCst loads of a scanner, before and after its scan. The scanner
        // sees this before the frames leave their place.
        self.word.fetch_add(pages, MOVES.change());
        InFlightGuard { in_flight: self, pages, note }
    }

    /// The word at this moment.
    pub fn read(&self) -> u64 {
        self.word.load(MOVES.look())
    }

    /// Pages in flight according to a word.
    pub fn in_flight_pages(word: u64) -> u64 {
        word & PAGES
    }

    /// Pages in flight according to a word that was just read, but for those that are noted as this
    /// caller's.
    pub fn others_pages(&self, word: u64, caller: Caller) -> u64 {
        // Relaxed, here and below: a caller asks about notes of its own thread.
        let note = self.note.load(Ordering::Relaxed);
        let own = if caller.has_name() && noted(note) == caller { note & PAGES } else { 0 };
        Self::in_flight_pages(word).saturating_sub(own)
    }

    /// Adds pages to the note of this caller, unless another one is noted. Returns the note of
    /// these pages alone; 0 if they are not noted.
    #[inline]
    fn note(&self, caller: Caller, pages: u64) -> u64 {
        if !caller.has_name() {
            return 0;
        }
        let own = caller.bits() << 32 | pages & PAGES;
        match self.note.load(Ordering::Relaxed) {
            0 => {
                self.note.store(own, Ordering::Relaxed);
                own
            }
            note => self.note_beside(note, own),
        }
    }

    /// Adds a caller's note to one that is there, of its own.
    #[cold]
    #[inline(never)]
    fn note_beside(&self, note: u64, own: u64) -> u64 {
        if noted(note) != noted(own) && !is_mutant(Mutant::NotesBeside) {
            return 0;
        }
        let pages = (note & PAGES) + (own & PAGES);
        self.note.store(own & !PAGES | pages & PAGES, Ordering::Relaxed);
        own
    }

    /// Takes a caller's note out of one that may be there, of more pages or of another caller.
    #[cold]
    #[inline(never)]
    fn forget_beside(&self, note: u64, own: u64) {
        if noted(note) == noted(own) {
            let (pages, own_pages) = (note & PAGES, own & PAGES);
            let rest = if pages > own_pages { note - own_pages } else { 0 };
            self.note.store(rest, Ordering::Relaxed);
        }
    }

    /// Whether a caller is noted.
    #[cfg(shuttle)]
    pub fn is_noted(&self) -> bool {
        self.note.load(Ordering::Relaxed) != 0
    }
}

/// The caller that a note names.
fn noted(note: u64) -> Caller {
    Caller::from_bits(note >> 32)
}

/// Pages in flight until this value is dropped, also when a panic drops it.
pub struct InFlightGuard<'f> {
    in_flight: &'f InFlight,
    pages: u64,
    /// The note of the pages; 0 if they are not noted.
    note: u64,
}

impl Drop for InFlightGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        let InFlightGuard { in_flight, pages, note: own } = *self;
        // Before the word, which a load behind it would wait for. What a handler adds meanwhile it
        // takes out again; the note of a thread that comes over this one is lost.
        let note = in_flight.note.load(Ordering::Relaxed);
        in_flight.word.fetch_add(ONE_MOVE.wrapping_sub(pages), MOVES.change());
        if own == 0 {
            return;
        }
        if note == own {
            in_flight.note.store(0, Ordering::Relaxed);
        } else {
            in_flight.forget_beside(note, own);
        }
    }
}

/// The caller that has begun what a word shows: its name by
/// [`Environment::caller`](crate::cpus::Environment::caller), in the 28 bits that such a word has
/// for it.
///
/// Two callers have the same bits once in 2^27. A request then takes the other's pages for those of
/// its own thread, and does not sleep for them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caller(u32);

impl Caller {
    pub const BITS: u32 = 28;
    /// A caller without a name.
    pub const NONE: Caller = Caller(0);

    /// The caller with this name.
    #[inline]
    pub fn of(name: Option<NonZeroUsize>) -> Self {
        // By 2^64 over the golden ratio: names are often addresses that differ in a few bits.
        let spread = |name: NonZeroUsize| {
            (name.get() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - Self::BITS)
        };
        name.map_or(Self::NONE, |name| Caller(spread(name) as u32 | 1))
    }

    /// The caller with these bits.
    #[inline]
    pub fn from_bits(bits: u64) -> Self {
        Caller(bits as u32 & ((1 << Self::BITS) - 1))
    }

    /// The caller's bits; 0 without a name.
    #[inline]
    pub fn bits(self) -> u64 {
        self.0.into()
    }

    /// Whether it has a name.
    #[inline]
    pub fn has_name(self) -> bool {
        self != Self::NONE
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use core::num::NonZeroUsize;

    use super::*;

    fn caller(name: usize) -> Caller {
        Caller::of(NonZeroUsize::new(name))
    }

    /// Pages of others in the eyes of three callers, the last of them without a name.
    fn others(in_flight: &InFlight) -> [u64; 3] {
        [caller(1), caller(2), Caller::NONE]
            .map(|caller| in_flight.others_pages(in_flight.read(), caller))
    }

    #[test]
    fn a_caller_tells_its_own_pages_from_those_of_others() {
        let in_flight = InFlight::default();
        let first = in_flight.begin(63, caller(1));
        assert_eq!(others(&in_flight), [0, 63, 63]);
        // By a handler above the first, and beside it by another caller.
        let above = in_flight.begin(7, caller(1));
        let other = in_flight.begin(5, caller(2));
        assert_eq!(others(&in_flight), [5, 75, 75]);
        drop(above);
        assert_eq!(others(&in_flight), [5, 68, 68]);
        drop((first, other));
        assert_eq!((others(&in_flight), in_flight.note.load(Ordering::Relaxed)), ([0; 3], 0));
    }

    #[test]
    fn what_begins_beside_a_noted_caller_is_not_noted_and_leaves_no_note() {
        let in_flight = InFlight::default();
        let first = in_flight.begin(63, caller(1));
        let second = in_flight.begin(5, caller(2));
        drop(first);
        assert_eq!(others(&in_flight), [5, 5, 5]);
        let third = in_flight.begin(3, caller(2));
        assert_eq!(others(&in_flight), [8, 5, 8]);
        drop(second);
        assert_eq!(others(&in_flight), [3, 0, 3]);
        drop(third);
        assert_eq!((others(&in_flight), in_flight.note.load(Ordering::Relaxed)), ([0; 3], 0));
    }

    #[test]
    fn callers_without_names_are_others() {
        let in_flight = InFlight::default();
        let _moving = in_flight.begin(63, Caller::NONE);
        assert_eq!(others(&in_flight), [63; 3]);
    }

    #[test]
    fn names_that_differ_a_little_are_different_callers() {
        let names = (1..1000).chain((1..1000).map(|thread| thread << 12 | 0x7f12_0000_0740));
        let mut callers: Vec<_> = names.map(|name| caller(name).bits()).collect();
        assert!(callers.iter().all(|&bits| bits != 0 && bits < 1 << Caller::BITS));
        callers.sort_unstable();
        let length = callers.len();
        callers.dedup();
        assert_eq!(callers.len(), length);
    }
}
