//! The summary: which sections a search need not look into.
//!
//! # Vocabulary
//! * *sort*: a kind of pageblock that searches look for, read off its hints: *partial* (`some` and
//!   not `whole`), whole and [*warm*, or *cold*](super::hints), or the first of an aligned pair
//!   of whole ones, which is a block of order 10; a pair is cold if one of the two is.
//! * *mark*: one bit per section and sort. A set mark says that the section may have pageblocks of
//!   that sort, a clear one that it has none.
//!
//! # Theory
//! A mark is to the hints of a section what a hint is to the words of a pageblock, and by the same
//! rule (Dekker's pattern, see [`section`](super::section)) it never stays clear against a search.
//! The caller that changes a hint, so that a pageblock becomes one of a sort, looks at the mark
//! *after* and sets it. The search that clears a mark, because it saw no such pageblock, looks at
//! the hints *after*, and sets it again. A pageblock becomes partial by two hints: the caller that
//! sets `some` looks at `whole` after, the caller that clears `whole` looks at `some` after, so
//! that one of the two sees both. A pair becomes one by two bits of one word: the later of the two
//! changes sees both. How a whole pageblock becomes warm is in [`cold`](super::hints).
//!
//! A mark can be clear for the moment between its clearing and that second look, while a pageblock
//! of the sort is there. Marks therefore only lead to what is found quickly. The last pass of each
//! search follows no marks and reads the hints of all sections, so no search fails because of a
//! mark. A mark that is set without cause costs one look at the section's hints, which clears it.
//!
//! A search thus reads one word per 64 sections and the hints, a cache line of each kind, of the
//! section it is led to, however many blocks are held.

use core::ops::Range;

use crate::sync::model::{Mutant, is_mutant};
use crate::sync::prim::{AtomicU64, Ordering};
use crate::sync::total::HINTS;

/// The sorts of pageblocks that searches look for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sort {
    Partial,
    Warm,
    WarmPair,
    Cold,
    ColdPair,
}

/// The hints of 64 pageblocks.
#[derive(Clone, Copy, Default)]
pub struct Hints {
    pub some: u64,
    /// All frames are free; but for [`Sort::Partial`], in the words or as one.
    pub whole: u64,
    pub cold: u64,
}

/// Mask of the first pageblock of each aligned pair of which both are in `mask`.
#[inline]
pub const fn pairs(mask: u64) -> u64 {
    mask & mask >> 1 & 0x5555_5555_5555_5555
}

impl Sort {
    pub const ALL: [Sort; 5] =
        [Sort::Partial, Sort::Warm, Sort::WarmPair, Sort::Cold, Sort::ColdPair];

    /// Mask of the pageblocks of this sort among 64 with these hints.
    #[inline]
    pub const fn of_hints(self, Hints { some, whole, cold }: Hints) -> u64 {
        match self {
            Sort::Partial => some & !whole,
            Sort::Warm => whole & !cold,
            Sort::Cold => whole & cold,
            Sort::WarmPair => pairs(whole & !cold),
            Sort::ColdPair => pairs(whole) & !pairs(whole & !cold),
        }
    }
}

/// Sections per [`Group`].
const GROUP_SECTIONS: usize = u64::BITS as usize;

/// The marks of 64 sections: a word per sort.
pub struct Group([AtomicU64; Sort::ALL.len()]);

impl Group {
    pub fn new() -> Self {
        Group(core::array::from_fn(|_| AtomicU64::new(0)))
    }
}

/// The marks of all sections.
#[derive(Clone, Copy)]
pub struct Summary<'m> {
    groups: &'m [Group],
}

impl<'m> Summary<'m> {
    /// Number of groups of a summary of so many sections.
    pub const fn groups(sections: usize) -> usize {
        sections.div_ceil(GROUP_SECTIONS)
    }

    pub fn new(groups: &'m [Group]) -> Self {
        Summary { groups }
    }

    /// The marks of the section with this number, which has a group.
    pub fn marks(&self, number: usize) -> Marks<'m> {
        Marks { group: &self.groups[number / GROUP_SECTIONS], bit: 1 << (number % GROUP_SECTIONS) }
    }

    /// The first of these sections that is marked to have pageblocks of `sort`.
    #[inline]
    pub fn next(&self, sort: Sort, sections: Range<usize>) -> Option<usize> {
        self.next_of([sort], sections)
    }

    /// Finds the first of these sections that is marked to have pageblocks of one of the `sorts`.
    #[inline]
    pub fn next_of<const N: usize>(
        &self,
        sorts: [Sort; N],
        sections: Range<usize>,
    ) -> Option<usize> {
        let mut from = sections.start;
        while from < sections.end {
            note_step();
            // Acquire: pairs with the SeqCst (Release) of `Marks::set` and `Marks::clear`.
            let marks = &self.groups.get(from / GROUP_SECTIONS)?.0;
            let word = sorts
                .into_iter()
                .fold(0, |word, sort| word | marks[sort as usize].load(Ordering::Acquire));
            let rest = word >> (from % GROUP_SECTIONS);
            if rest != 0 {
                let number = from + rest.trailing_zeros() as usize;
                return (number < sections.end).then_some(number);
            }
            from += GROUP_SECTIONS - from % GROUP_SECTIONS;
        }
        None
    }
}

/// The marks of one section.
#[derive(Clone, Copy)]
pub struct Marks<'m> {
    group: &'m Group,
    bit: u64,
}

impl Marks<'_> {
    /// Sets the mark of a sort, of which the section has a pageblock now. Call after its hints
    /// changed by one of [`HINTS`] and its fence.
    #[inline]
    pub fn set(&self, sort: Sort) {
        let cell = &self.group.0[sort as usize];
        // SeqCst load: pairs with the SeqCst clear in `clear` (see the theory).
        if cell.load(HINTS.look()) & self.bit == 0 {
            cell.fetch_or(self.bit, HINTS.change());
        }
    }

    /// Sets the marks of the pairs that pageblocks of `mask` are in. Call as [`set`](Self::set).
    #[cold]
    pub fn set_pairs(&self, hints: Hints, mask: u64) {
        let all = pairs(hints.whole) & (mask | mask >> 1);
        if all == 0 {
            return;
        }
        let warm = all & Sort::WarmPair.of_hints(hints);
        if warm != 0 {
            self.set(Sort::WarmPair);
        }
        if warm != all {
            self.set(Sort::ColdPair);
        }
    }

    /// Clears the mark of a sort, unless `has` finds a pageblock of that sort afterwards.
    pub fn clear(&self, sort: Sort, has: impl Fn() -> bool) {
        if !self.is_set(sort) {
            return;
        }
        self.group.0[sort as usize].fetch_and(!self.bit, HINTS.change());
        HINTS.fence();
        if is_mutant(Mutant::ClearsUnseen) {
            return;
        }
        if has() {
            self.set(sort);
        }
    }

    /// Whether the mark of a sort is set now.
    pub fn is_set(&self, sort: Sort) -> bool {
        // Relaxed: of no consequence, `clear` looks again.
        self.group.0[sort as usize].load(Ordering::Relaxed) & self.bit != 0
    }
}

#[cfg(all(test, not(loom)))]
std::thread_local! {
    /// Words of hints and of the summary that searches have read, and pageblocks they have looked
    /// into.
    pub static STEPS: core::cell::Cell<u64> = const { core::cell::Cell::new(0) };
}

/// Counts a step of a search, in unit tests only.
#[inline]
pub fn note_step() {
    #[cfg(all(test, not(loom)))]
    STEPS.set(STEPS.get() + 1);
}
