//! The front word: everything a CPU needs to know about one front, in one 64-bit store.
//!
//! | bits | field | meaning |
//! |---|---|---|
//! | 0..=7 | rounds | frames in the loaded magazine, times 4: the offset of its next free slot |
//! | 8..=31 | loaded | index of the loaded magazine, 0: none |
//! | 32..=52 | previous | index of the previous magazine, 0: none |
//! | 53..=54 | fill | what the previous magazine holds: see [`Fill`] |
//! | 55..=63 | credit | sequences that may still commit, at most [`CREDIT_MAX`] |
//!
//! Magazines have 256 bytes, so bits 0..=31 are the offset of the next free slot from magazine 0,
//! in bytes. The previous magazine is full or empty (Bonwick & Adams, USENIX 2001), or half full.
//! Without credit the owner takes the slow path, which counts the sequences that committed and
//! restores [`CREDIT_MAX`].
//!
//! # The boundary of two magazines
//! An exchange of a front's magazines is a slow path. It leaves a magazine loaded that is full
//! where blocks were popped, and empty where they were pushed: the next exchange is one block away
//! on the side that the front came from. So a rhythm of few allocations and frees would exchange
//! them at each turn, for as long as it goes on. A pop that has a full magazine loaded restores the
//! credit, which therefore says how many operations there were since the last one: as many as two
//! batches have. If these are so few that a batch fits into half a magazine, the full magazine is
//! divided between the two instead. From there, and after the exchange of a half full magazine, the
//! next exchange is half a magazine away on either side. A rhythm of larger batches keeps whole
//! magazines, which a shelf takes, and has two exchanges in more operations than a magazine has
//! rounds. No rhythm has more than four in as many (`tests/allocator/rhythms.rs`). A long run loads
//! two magazines of the shelf at once, or puts two there (`pcp/shelf.rs`). A fold leaves
//! more operations than two such batches have: none would make a long batch look like a short one.
//!
//! The word of a front without magazines is 0: a pop finds no rounds, and a push no credit. So a
//! sequence checks two conditions, and needs no third for a missing magazine. Zeroed memory is a
//! front that refuses, as the words behind a closed gate are.
//!
//! Legal transitions, each one sequence on the owning CPU with the gate open:
//! * pop: `rounds - 1`, `credit - 1`, if `rounds > 0` and `credit > 0`;
//! * pop of n blocks at once: `rounds - n`, `credit - n`, if `rounds >= n` and `credit >= n`;
//! * push: `rounds + 1`, `credit - 1`, if `rounds < rounds_max` and `credit > 0`;
//! * batch ([`SlotMove`]): n blocks leave the loaded magazine, and then the previous one, if that
//!   has some, which is loaded; or enter the loaded one, and then the previous one, if that has
//!   room, which is loaded. `credit - n`;
//! * fold: `credit = CREDIT_MAX - OPERATIONS_FOLDED`, and one less if a push does it;
//! * exchange, divide, load, unload: magazines change (slow path, compare-and-store).
//!
//! A drainer whose ticket is in the gate, and which has fenced the CPU, stores [`EMPTY`].

use super::block::MagazineIndex;
use crate::sync::model::bound;

/// A front without magazines.
pub const EMPTY: u64 = 0;
/// One round: the bytes of a slot.
pub const ONE_ROUND: u64 = 4;
/// The number that a pop adds to a word with rounds. It carries if, and only if, there was credit.
pub const POP_STEP: u64 = (ONE_CREDIT + ONE_ROUND).wrapping_neg();
/// The number that a push adds to a word with room. It carries if, and only if, there was credit.
pub const PUSH_STEP: u64 = ONE_CREDIT.wrapping_neg() + ONE_ROUND;
/// Most rounds any magazine has.
pub const ROUNDS_MAX: u64 = 63;

/// The bits of the rounds.
pub const ROUNDS_MASK: u64 = 0xff;
const LOADED_SHIFT: u32 = 8;
const LOADED_MASK: u64 = (1 << 24) - 1;
const PREVIOUS_SHIFT: u32 = 32;
const PREVIOUS_MASK: u64 = (1 << MagazineIndex::BITS) - 1;
const FILL_SHIFT: u32 = 53;
const CREDIT_SHIFT: u32 = 55;
const ONE_CREDIT: u64 = 1 << CREDIT_SHIFT;
/// Sequences between two folds, at most. An even number: a program that allocates and frees in turn
/// then comes to all folds by allocations, whose way to a fold is the shorter one, and which move
/// the hand ([`evacuation`](crate::evacuation)) there.
pub const CREDIT_MAX: u64 = (1 << (64 - CREDIT_SHIFT)) - 2;
/// Operations that a fold leaves in a word; even, as [`CREDIT_MAX`] is.
const OPERATIONS_FOLDED: u64 = ROUNDS_MAX + 3;

const _: () = assert!(PREVIOUS_SHIFT + MagazineIndex::BITS == 53);
const _: () = assert!(ROUNDS_MAX * ONE_ROUND <= ROUNDS_MASK);

/// The contents of a front's previous magazine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Fill {
    /// Nothing.
    Empty = 0,
    /// Half of what it has room for, rounded down.
    Half = 1,
    /// A full magazine.
    Full = 2,
}

impl Fill {
    /// The rounds of a magazine that has room for `rounds_max`.
    #[inline]
    pub const fn rounds(self, rounds_max: u32) -> u32 {
        match self {
            Fill::Empty => 0,
            Fill::Half => rounds_max / 2,
            Fill::Full => rounds_max,
        }
    }
}

/// A front word, unpacked by accessors.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Word(pub u64);

impl Word {
    /// The word of a front without magazines.
    pub const EMPTY: Word = Word(EMPTY);

    /// A word without operations: `loaded` with `rounds` frames, and `previous`.
    #[inline]
    pub fn new(
        loaded: MagazineIndex,
        rounds: u32,
        previous: Option<(MagazineIndex, Fill)>,
    ) -> Self {
        debug_assert!(u64::from(rounds) <= ROUNDS_MAX);
        let previous = previous.map_or(0, |(magazine, fill)| {
            u64::from(magazine.get()) << PREVIOUS_SHIFT | (fill as u64) << FILL_SHIFT
        });
        let rounds = u64::from(rounds) * ONE_ROUND;
        let credit = CREDIT_MAX << CREDIT_SHIFT;
        Word(credit | (u64::from(loaded.get()) << LOADED_SHIFT) | previous | rounds)
    }

    /// The loaded magazine.
    pub fn loaded(self) -> Option<MagazineIndex> {
        MagazineIndex::new((self.0 >> LOADED_SHIFT & LOADED_MASK) as u32)
    }

    /// The previous magazine and what it holds.
    pub fn previous(self) -> Option<(MagazineIndex, Fill)> {
        let index = MagazineIndex::new((self.0 >> PREVIOUS_SHIFT & PREVIOUS_MASK) as u32)?;
        let fill = match self.0 >> FILL_SHIFT & 3 {
            0 => Fill::Empty,
            1 => Fill::Half,
            _ => Fill::Full,
        };
        Some((index, fill))
    }

    /// Frames in the loaded magazine; 0 without one.
    pub fn rounds(self) -> u32 {
        ((self.0 & ROUNDS_MASK) / ONE_ROUND) as u32
    }

    /// Sequences committed that are not counted elsewhere.
    pub fn operations(self) -> u64 {
        if self.loaded().is_some() { CREDIT_MAX - self.credit() } else { 0 }
    }

    fn credit(self) -> u64 {
        self.0 >> CREDIT_SHIFT
    }

    /// Whether no sequence may commit before a fold.
    pub fn operations_full(self) -> bool {
        self.operations() == CREDIT_MAX
    }

    /// This word with credit for more operations; its caller counts those that it no longer shows.
    pub fn folded(self) -> Self {
        self.with_operations(OPERATIONS_FOLDED)
    }

    /// This word like [`folded`](Self::folded), by a push. One operation more is left: a program
    /// that frees first and then allocates, in turn, comes to its next folds by allocations.
    pub fn folded_by_push(self) -> Self {
        self.with_operations(OPERATIONS_FOLDED + 1)
    }

    /// This word with another count of operations, at most `CREDIT_MAX`. A front without
    /// magazines counts none and stays as it is.
    #[must_use]
    pub fn with_operations(self, operations: u64) -> Self {
        match self.loaded() {
            Some(_) => Word(self.0 & (ONE_CREDIT - 1) | (CREDIT_MAX - operations) << CREDIT_SHIFT),
            None => self,
        }
    }

    /// This word, whose loaded magazine is empty, with the previous one loaded in its place, of
    /// `rounds_max` rounds at most; with all credit, if that was full. `None`: it is empty, too, or
    /// there is none.
    #[inline]
    pub fn with_filled_loaded(self, rounds_max: u32) -> Option<Word> {
        let (loaded, (filled, fill)) = (self.loaded()?, self.previous()?);
        let rounds = fill.rounds(rounds_max);
        let operations = if fill == Fill::Full { 0 } else { self.operations() };
        let word = || Word::new(filled, rounds, Some((loaded, Fill::Empty)));
        (rounds > 0).then(|| word().with_operations(operations))
    }

    /// This word, whose loaded magazine is full, with the previous one loaded in its place. `None`:
    /// that is full, too, or there is none.
    #[inline]
    pub fn with_room_loaded(self, rounds_max: u32) -> Option<Word> {
        let (loaded, (other, fill)) = (self.loaded()?, self.previous()?);
        let rounds = fill.rounds(rounds_max);
        let word = || Word::new(other, rounds, Some((loaded, Fill::Full)));
        (rounds < rounds_max).then(|| word().with_operations(self.operations()))
    }

    /// The loaded magazine, which is empty, and the full previous one, if blocks are to be divided
    /// between them: see the module.
    #[inline]
    pub fn divisible(self, rounds_max: u32) -> Option<(MagazineIndex, MagazineIndex)> {
        let (loaded, (full, Fill::Full)) = (self.loaded()?, self.previous()?) else { return None };
        let kept = Fill::Half.rounds(rounds_max);
        // Those of two batches that then fit.
        let soon = bound(2 * (rounds_max - kept), 4);
        (kept > 0 && self.operations() <= u64::from(soon)).then_some((loaded, full))
    }

    /// The empty previous magazine, and this word without it. `None`: it has none.
    #[inline]
    pub fn without_empty(self) -> Option<(MagazineIndex, Word)> {
        let (loaded, (empty, Fill::Empty)) = (self.loaded()?, self.previous()?) else {
            return None;
        };
        let rest = Word::new(loaded, self.rounds(), None);
        Some((empty, rest.with_operations(self.operations())))
    }

    /// Computes a pop: the slot it takes from the loaded magazine, and the word to commit. `None`:
    /// the slow path must look.
    #[inline]
    pub fn popped(self) -> Option<(MagazineIndex, u32, Word)> {
        let slot = self.rounds().checked_sub(1)?;
        Some((self.loaded()?, slot, self.step(POP_STEP)?))
    }

    /// Number of blocks that one sequence can pop: each needs a round, and credit of its own.
    #[inline]
    pub fn poppable(self) -> u32 {
        self.rounds().min(self.credit() as u32)
    }

    /// This word after a pop of `blocks` of its [`poppable`](Self::poppable) ones.
    #[inline]
    #[must_use]
    pub fn popped_many(self, blocks: u32) -> Word {
        debug_assert!(blocks <= self.poppable());
        // No field borrows from the next: rounds and credit have as many.
        Word(self.0 - u64::from(blocks) * (ONE_CREDIT + ONE_ROUND))
    }

    /// Computes a push: the slot it fills, and the word to commit.
    #[inline]
    pub fn pushed(self, rounds_max: u32) -> Option<(MagazineIndex, u32, Word)> {
        let slot = self.rounds();
        if slot >= rounds_max {
            return None;
        }
        Some((self.loaded()?, slot, self.step(PUSH_STEP)?))
    }

    /// The number of blocks that one sequence can push, into both magazines.
    #[inline]
    pub fn room(self, rounds_max: u32) -> u32 {
        let room = (rounds_max * self.magazines()).saturating_sub(self.frames(rounds_max));
        room.min(self.credit() as u32)
    }

    /// The change that puts up to `wanted` blocks, or takes them, in the loaded magazine first.
    /// `None`: the slow path must look.
    #[inline]
    pub fn batch<const IS_PUT: bool>(self, wanted: usize, rounds_max: u32) -> Option<SlotMove> {
        let loaded = self.loaded()?;
        let wanted = wanted.min(self.credit() as usize) as u32;
        let room = |rounds| if IS_PUT { rounds_max.saturating_sub(rounds) } else { rounds };
        // The rounds that a magazine then has, and the slots of those that move.
        let part = |magazine, rounds: u32, moved: u32| match IS_PUT {
            true => (rounds + moved, SlotRun::new(magazine, rounds, moved)),
            false => (rounds - moved, SlotRun::new(magazine, rounds - moved, moved)),
        };
        let first = wanted.min(room(self.rounds()));
        let (left, run) = part(loaded, self.rounds(), first);
        let one = Word((self.0 & !ROUNDS_MASK) | (u64::from(left) * ONE_ROUND));
        let other = self.previous().map(|(other, fill)| (other, fill.rounds(rounds_max)));
        let (new, runs) = match other {
            Some((other, rounds)) if first < wanted && room(rounds) > 0 => {
                let (left, second) = part(other, rounds, (wanted - first).min(room(rounds)));
                let fill = if IS_PUT { Fill::Full } else { Fill::Empty };
                (Word::new(other, left, Some((loaded, fill))), [run, second])
            }
            _ => (one, [run, SlotRun::NONE]),
        };
        SlotMove { old: self, new, runs }.counted()
    }

    /// The word after an operation, if there is credit for it.
    #[inline]
    fn step(self, step: u64) -> Option<Word> {
        let (next, had_credit) = self.0.overflowing_add(step);
        had_credit.then_some(Word(next))
    }

    /// Frames this front holds, its magazines having `rounds_max` rounds.
    pub fn frames(self, rounds_max: u32) -> u32 {
        self.rounds() + self.previous().map_or(0, |(_, fill)| fill.rounds(rounds_max))
    }

    /// Magazines installed.
    pub fn magazines(self) -> u32 {
        u32::from(self.loaded().is_some()) + u32::from(self.previous().is_some())
    }
}

/// Neighbouring slots of a magazine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotRun {
    /// The first slot's offset from magazine 0, in bytes.
    pub at: u32,
    /// Number of slots.
    pub count: u32,
}

impl SlotRun {
    const NONE: SlotRun = SlotRun { at: 0, count: 0 };

    fn new(magazine: MagazineIndex, first: u32, count: u32) -> Self {
        SlotRun { at: (magazine.get() << LOADED_SHIFT) + first * ONE_ROUND as u32, count }
    }
}

/// A change of a front word by which several blocks leave or enter the front, and their slots.
#[derive(Clone, Copy)]
pub struct SlotMove {
    /// The word that it changes.
    pub old: Word,
    /// The word to commit.
    pub new: Word,
    /// The slots, in the order of the blocks. The second run may have none.
    pub runs: [SlotRun; 2],
}

impl SlotMove {
    /// Number of blocks.
    #[inline]
    pub fn count(&self) -> usize {
        self.runs.iter().map(|run| run.count as usize).sum()
    }

    /// Counts an operation for each block; `None`: the batch has no block.
    #[inline]
    fn counted(mut self) -> Option<Self> {
        let count = self.count() as u64;
        self.new = self.new.with_operations(self.old.operations() + count);
        if self.runs[0].count == 0 {
            self.runs.swap(0, 1);
        }
        (count > 0).then_some(self)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const INDEX_MAX: u32 = (1 << MagazineIndex::BITS) - 1;

    fn magazine(index: u32) -> MagazineIndex {
        MagazineIndex::new(index).unwrap()
    }

    /// The fields of a word.
    type Fields = (u32, u32, Option<(u32, Fill)>, u64);

    /// All words with fields at and around their limits, and all rounds.
    fn words() -> impl Iterator<Item = (Fields, Word)> {
        let indices = [1, 2, 3, INDEX_MAX / 2, INDEX_MAX - 1, INDEX_MAX];
        let previous = indices.into_iter().flat_map(|index| {
            [Fill::Empty, Fill::Half, Fill::Full].map(|fill| Some((index, fill)))
        });
        let previous: Vec<_> = previous.chain([None]).collect();
        indices.into_iter().flat_map(move |loaded| {
            let previous = previous.clone();
            (0..=ROUNDS_MAX as u32).flat_map(move |rounds| {
                previous.clone().into_iter().flat_map(move |previous| {
                    [0, 1, 255, CREDIT_MAX - 1, CREDIT_MAX].map(|operations| {
                        let pair = previous.map(|(index, fill)| (magazine(index), fill));
                        let word =
                            Word::new(magazine(loaded), rounds, pair).with_operations(operations);
                        ((loaded, rounds, previous, operations), word)
                    })
                })
            })
        })
    }

    fn fields(word: Word) -> Fields {
        let previous = word.previous().map(|(magazine, fill)| (magazine.get(), fill));
        (word.loaded().unwrap().get(), word.rounds(), previous, word.operations())
    }

    #[test]
    fn every_field_comes_back() {
        for (expected, word) in words() {
            assert_eq!(fields(word), expected);
            let (loaded, rounds, previous, operations) = expected;
            assert_eq!(word.magazines(), 1 + u32::from(previous.is_some()));
            let in_previous = previous.map_or(0, |(_, fill)| fill.rounds(63));
            assert_eq!(word.frames(63), rounds + in_previous);
            assert_eq!(word.operations_full(), operations == CREDIT_MAX);
            assert_eq!(fields(word.with_operations(7)), (loaded, rounds, previous, 7));
            // What the sequences in assembly compute with: the offset of the next free slot.
            assert_eq!(word.0 as u32, loaded * 256 + rounds * 4);
        }
    }

    #[test]
    fn a_pop_takes_one_round_and_counts_one_operation() {
        for ((loaded, rounds, previous, operations), word) in words() {
            match word.popped() {
                Some((magazine, slot, next)) => {
                    assert_eq!((magazine.get(), slot), (loaded, rounds - 1));
                    assert_eq!(fields(next), (loaded, rounds - 1, previous, operations + 1));
                }
                None => assert!(rounds == 0 || operations == CREDIT_MAX),
            }
        }
    }

    #[test]
    fn a_pop_of_many_is_as_many_pops() {
        for (_, word) in words() {
            let mut popped = word;
            for blocks in 0..=word.poppable() {
                assert!(word.popped_many(blocks) == popped);
                match popped.popped() {
                    Some((_, _, next)) => popped = next,
                    None => assert_eq!(blocks, word.poppable()),
                }
            }
        }
        assert_eq!(Word::EMPTY.poppable(), 0);
    }

    #[test]
    fn a_push_adds_one_round_and_counts_one_operation() {
        for rounds_max in [1, 7, 15, 31, 63] {
            for ((loaded, rounds, previous, operations), word) in words() {
                match word.pushed(rounds_max) {
                    Some((magazine, slot, next)) => {
                        assert!(rounds < rounds_max);
                        assert_eq!((magazine.get(), slot), (loaded, rounds));
                        assert_eq!(fields(next), (loaded, rounds + 1, previous, operations + 1));
                    }
                    None => assert!(rounds >= rounds_max || operations == CREDIT_MAX),
                }
            }
        }
    }

    /// The slots that a front's magazines have blocks in.
    fn blocks_of(word: Word, rounds_max: u32) -> Vec<u32> {
        let loaded = word.loaded().map_or(0, |magazine| magazine.get() * 256);
        let in_previous = 0..word.previous().map_or(0, |(_, fill)| fill.rounds(rounds_max));
        let previous = word.previous().map_or(0, |(magazine, _)| magazine.get() * 256);
        let slots = (0..word.rounds()).map(|slot| loaded + slot * 4);
        slots.chain(in_previous.map(|slot| previous + slot * 4)).collect()
    }

    fn slots_of(batch: &SlotMove) -> Vec<u32> {
        let slots = batch.runs.iter().flat_map(|run| (0..run.count).map(|i| run.at + i * 4));
        slots.collect()
    }

    /// Words as a front can have them: its two magazines differ, and none has too many rounds.
    fn fronts(rounds_max: u32) -> impl Iterator<Item = Word> {
        words().map(|(_, word)| word).filter(move |word| {
            let other = word.previous().map(|(magazine, _)| magazine);
            word.rounds() <= rounds_max && word.loaded() != other
        })
    }

    #[test]
    fn a_batch_out_takes_what_there_is_and_leaves_the_rest() {
        for rounds_max in [1, 7, 63] {
            for word in fronts(rounds_max) {
                for wanted in [0, 1, 2, 8, 63, 64, 126, 200] {
                    let before = blocks_of(word, rounds_max);
                    let most = wanted.min(CREDIT_MAX as usize - word.operations() as usize);
                    let Some(batch) = word.batch::<false>(wanted, rounds_max) else {
                        assert!(before.is_empty() || most == 0);
                        continue;
                    };
                    let taken = slots_of(&batch);
                    assert_eq!(taken.len(), before.len().min(most));
                    assert_eq!(batch.new.operations(), word.operations() + taken.len() as u64);
                    assert_eq!(batch.new.magazines(), word.magazines());
                    let mut all = [taken, blocks_of(batch.new, rounds_max)].concat();
                    all.sort_unstable();
                    let mut before = before;
                    before.sort_unstable();
                    assert_eq!(all, before);
                }
            }
        }
        assert!(Word::EMPTY.batch::<false>(5, 63).is_none());
    }

    #[test]
    fn a_batch_in_fills_what_is_free() {
        for rounds_max in [1, 7, 63] {
            for word in fronts(rounds_max) {
                for wanted in [0, 1, 2, 8, 63, 64, 126, 200] {
                    let before = blocks_of(word, rounds_max);
                    let room = (rounds_max * word.magazines()) as usize - before.len();
                    let most = wanted.min(CREDIT_MAX as usize - word.operations() as usize);
                    assert_eq!(
                        word.room(rounds_max) as usize,
                        room.min(CREDIT_MAX as usize - word.operations() as usize)
                    );
                    let Some(batch) = word.batch::<true>(wanted, rounds_max) else {
                        assert!(room == 0 || most == 0);
                        continue;
                    };
                    let put = slots_of(&batch);
                    assert_eq!(put.len(), room.min(most));
                    assert_eq!(batch.new.operations(), word.operations() + put.len() as u64);
                    assert_eq!(batch.new.magazines(), word.magazines());
                    let mut all = [put, before].concat();
                    all.sort_unstable();
                    let mut after = blocks_of(batch.new, rounds_max);
                    after.sort_unstable();
                    assert_eq!(all, after);
                }
            }
        }
        assert!(Word::EMPTY.batch::<true>(5, 63).is_none());
    }

    #[test]
    fn an_empty_previous_magazine_can_be_taken_out() {
        for ((loaded, rounds, previous, operations), word) in words() {
            match word.without_empty() {
                Some((empty, rest)) => {
                    assert_eq!(previous, Some((empty.get(), Fill::Empty)));
                    assert_eq!(fields(rest), (loaded, rounds, None, operations));
                }
                None => assert!(previous.is_none_or(|(_, fill)| fill != Fill::Empty)),
            }
        }
        assert!(Word::EMPTY.without_empty().is_none());
    }

    #[test]
    fn an_exchange_loads_the_other_magazine_and_keeps_all_blocks() {
        for rounds_max in [1, 2, 7, 63] {
            for ((loaded, rounds, previous, operations), word) in words() {
                let held = |word: Word| word.frames(rounds_max);
                if rounds == 0 {
                    let Some(next) = word.with_filled_loaded(rounds_max) else {
                        assert!(previous.is_none_or(|(_, fill)| fill.rounds(rounds_max) == 0));
                        assert!(word.divisible(rounds_max).is_none());
                        continue;
                    };
                    let (index, fill) = previous.unwrap();
                    let expected = Some((loaded, Fill::Empty));
                    let left = if fill == Fill::Full { 0 } else { operations };
                    assert_eq!(fields(next), (index, fill.rounds(rounds_max), expected, left));
                    assert_eq!(held(next), held(word));
                    assert!(word.folded().divisible(rounds_max).is_none());
                    let soon = operations <= u64::from(rounds_max.next_multiple_of(2));
                    let divides = soon && fill == Fill::Full && rounds_max > 1;
                    let pair = divides.then_some((magazine(loaded), magazine(index)));
                    assert_eq!(word.divisible(rounds_max), pair);
                } else if rounds == rounds_max {
                    let Some(next) = word.with_room_loaded(rounds_max) else {
                        assert!(previous.is_none_or(|(_, fill)| fill == Fill::Full));
                        continue;
                    };
                    let (index, fill) = previous.unwrap();
                    let expected = Some((loaded, Fill::Full));
                    let expected = (index, fill.rounds(rounds_max), expected, operations);
                    assert_eq!(fields(next), expected);
                    assert_eq!(held(next), held(word));
                }
            }
        }
    }

    #[test]
    fn a_front_without_magazines_has_nothing_to_give_and_no_room() {
        let empty = Word::EMPTY;
        assert_eq!(empty.0, 0, "what zeroed memory is");
        assert_eq!((empty.loaded(), empty.previous(), empty.rounds()), (None, None, 0));
        assert_eq!((empty.frames(63), empty.magazines(), empty.operations()), (0, 0, 0));
        assert!(!empty.operations_full() && empty.popped().is_none());
        assert!((1..=63).all(|rounds_max| empty.pushed(rounds_max).is_none()));
        assert!(empty.with_operations(5) == empty);
    }
}
