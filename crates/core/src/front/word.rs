//! The front word: everything a CPU needs to know about one front, in one 64-bit store.
//!
//! | bits | field | meaning |
//! |---|---|---|
//! | 0..=7 | rounds | frames in the loaded magazine, times 4: the offset of its next free slot |
//! | 8..=31 | loaded | index of the loaded magazine, 0: none |
//! | 32..=52 | previous | index of the previous magazine, 0: none |
//! | 53 | previous full | the previous magazine is full (1) or empty (0) |
//! | 54..=63 | credit | sequences that may still commit |
//!
//! Magazines have 256 bytes, so bits 0..=31 are the offset of the next free slot from magazine 0,
//! in bytes. The previous magazine is full or empty, never in between (Bonwick & Adams, USENIX
//! 2001). Without credit the owner takes the slow path, which counts the sequences that committed
//! and restores [`CREDIT_MAX`].
//!
//! The word of a front without magazines is 0: a pop finds no rounds, and a push no credit. So a
//! sequence checks two conditions, and needs no third for a missing magazine. Zeroed memory is a
//! front that refuses, as the words behind a closed gate are.
//!
//! Legal transitions, each one sequence on the owning CPU with the gate open:
//! * pop: `rounds - 1`, `credit - 1`, if `rounds > 0` and `credit > 0`;
//! * pop of n blocks at once: `rounds - n`, `credit - n`, if `rounds >= n` and `credit >= n`;
//! * push: `rounds + 1`, `credit - 1`, if `rounds < rounds_max` and `credit > 0`;
//! * batch ([`SlotMove`]): n blocks leave the loaded magazine, and then a full previous one, which
//!   is loaded; or enter the loaded one, and then an empty previous one, which is loaded.
//!   `credit - n`;
//! * fold: `credit = CREDIT_MAX`;
//! * swap, load, unload: magazines change (slow path, compare-and-store).
//!
//! A drainer whose ticket is in the gate, and which has fenced the CPU, stores [`EMPTY`].

use super::magazine::MagazineIndex;

/// A front without magazines.
pub const EMPTY: u64 = 0;
/// One round: the bytes of a slot.
pub const ONE_ROUND: u64 = 4;
/// What a pop adds to a word that has rounds. It carries if, and only if, there was credit.
pub const POP_STEP: u64 = (ONE_CREDIT + ONE_ROUND).wrapping_neg();
/// What a push adds to a word with room. It carries if, and only if, there was credit.
pub const PUSH_STEP: u64 = ONE_CREDIT.wrapping_neg() + ONE_ROUND;
/// Most rounds any magazine has.
pub const ROUNDS_MAX: u64 = 63;

/// The bits of the rounds.
pub const ROUNDS_MASK: u64 = 0xff;
const LOADED_SHIFT: u32 = 8;
const LOADED_MASK: u64 = (1 << 24) - 1;
const PREVIOUS_SHIFT: u32 = 32;
const PREVIOUS_MASK: u64 = (1 << MagazineIndex::BITS) - 1;
const PREVIOUS_FULL: u64 = 1 << 53;
const CREDIT_SHIFT: u32 = 54;
const ONE_CREDIT: u64 = 1 << CREDIT_SHIFT;
/// Sequences between two folds, at most.
pub const CREDIT_MAX: u64 = (1 << (64 - CREDIT_SHIFT)) - 1;

const _: () = assert!(PREVIOUS_SHIFT + MagazineIndex::BITS == 53);
const _: () = assert!(ROUNDS_MAX * ONE_ROUND <= ROUNDS_MASK);

/// A front word, unpacked by accessors.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Word(pub u64);

impl Word {
    /// Without magazines.
    pub const EMPTY: Word = Word(EMPTY);

    /// A word just folded: `loaded` with `rounds` frames, and `previous`.
    #[inline]
    pub fn new(
        loaded: MagazineIndex,
        rounds: u32,
        previous: Option<(MagazineIndex, bool)>,
    ) -> Self {
        debug_assert!(u64::from(rounds) <= ROUNDS_MAX);
        let (previous, full) = previous.map_or((0, 0), |(m, full)| {
            (u64::from(m.get()) << PREVIOUS_SHIFT, if full { PREVIOUS_FULL } else { 0 })
        });
        let rounds = u64::from(rounds) * ONE_ROUND;
        let credit = CREDIT_MAX << CREDIT_SHIFT;
        Word(credit | (u64::from(loaded.get()) << LOADED_SHIFT) | previous | full | rounds)
    }

    /// The loaded magazine.
    pub fn loaded(self) -> Option<MagazineIndex> {
        MagazineIndex::new((self.0 >> LOADED_SHIFT & LOADED_MASK) as u32)
    }

    /// The previous magazine and whether it is full.
    pub fn previous(self) -> Option<(MagazineIndex, bool)> {
        let index = MagazineIndex::new((self.0 >> PREVIOUS_SHIFT & PREVIOUS_MASK) as u32)?;
        Some((index, self.0 & PREVIOUS_FULL != 0))
    }

    /// Frames in the loaded magazine; 0 without one.
    pub fn rounds(self) -> u32 {
        ((self.0 & ROUNDS_MASK) / ONE_ROUND) as u32
    }

    /// Sequences committed since the last fold.
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

    /// This word with another count of operations, at most 1023. A front without magazines counts
    /// none and stays as it is.
    #[must_use]
    pub fn with_operations(self, operations: u64) -> Self {
        match self.loaded() {
            Some(_) => Word(self.0 & (ONE_CREDIT - 1) | (CREDIT_MAX - operations) << CREDIT_SHIFT),
            None => self,
        }
    }

    /// This word with its full previous magazine, of `rounds`, loaded in place of an empty one.
    /// `None`: it has none.
    #[inline]
    pub fn with_full_loaded(self, rounds: u32) -> Option<Word> {
        let (loaded, (full, true)) = (self.loaded()?, self.previous()?) else { return None };
        Some(Word::new(full, rounds, Some((loaded, false))))
    }

    /// This word with its empty previous magazine loaded in place of a full one. `None`: it has
    /// none.
    #[inline]
    pub fn with_empty_loaded(self) -> Option<Word> {
        let (loaded, (empty, false)) = (self.loaded()?, self.previous()?) else { return None };
        Some(Word::new(empty, 0, Some((loaded, true))))
    }

    /// The empty previous magazine, and this word without it. `None`: it has none.
    #[inline]
    pub fn without_empty(self) -> Option<(MagazineIndex, Word)> {
        let (loaded, (empty, false)) = (self.loaded()?, self.previous()?) else { return None };
        let rest = Word::new(loaded, self.rounds(), None);
        Some((empty, rest.with_operations(self.operations())))
    }

    /// What a pop makes of this word: the slot it takes from the loaded magazine, and the word to
    /// commit. `None`: the slow path must look.
    #[inline]
    pub fn popped(self) -> Option<(MagazineIndex, u32, Word)> {
        let slot = self.rounds().checked_sub(1)?;
        Some((self.loaded()?, slot, self.step(POP_STEP)?))
    }

    /// How many blocks one sequence can pop: each needs a round, and credit of its own.
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

    /// What a push makes of this word: the slot it fills, and the word to commit.
    #[inline]
    pub fn pushed(self, rounds_max: u32) -> Option<(MagazineIndex, u32, Word)> {
        let slot = self.rounds();
        if slot >= rounds_max {
            return None;
        }
        Some((self.loaded()?, slot, self.step(PUSH_STEP)?))
    }

    /// The change that takes up to `wanted` blocks, the loaded magazine's first. `None`: the slow
    /// path must look.
    #[inline]
    pub fn batch_out(self, wanted: usize, rounds_max: u32) -> Option<SlotMove> {
        let loaded = self.loaded()?;
        let wanted = wanted.min(self.credit() as usize) as u32;
        let first = wanted.min(self.rounds());
        let left = self.rounds() - first;
        let runs = [SlotRun::new(loaded, left, first), SlotRun::NONE];
        let one = Word((self.0 & !ROUNDS_MASK) | (u64::from(left) * ONE_ROUND));
        let (new, runs) = match self.with_full_loaded(rounds_max) {
            Some(_) if first < wanted => {
                let (full, _) = self.previous()?;
                let second = (wanted - first).min(rounds_max);
                let left = rounds_max - second;
                let new = Word::new(full, left, Some((loaded, false)));
                (new, [runs[0], SlotRun::new(full, left, second)])
            }
            _ => (one, runs),
        };
        SlotMove { old: self, new, runs }.counted()
    }

    /// The change that puts up to `wanted` blocks, into the loaded magazine first. `None`: the slow
    /// path must look.
    #[inline]
    pub fn batch_in(self, wanted: usize, rounds_max: u32) -> Option<SlotMove> {
        let loaded = self.loaded()?;
        let wanted = wanted.min(self.credit() as usize) as u32;
        let first = wanted.min(rounds_max.saturating_sub(self.rounds()));
        let rounds = self.rounds() + first;
        let runs = [SlotRun::new(loaded, self.rounds(), first), SlotRun::NONE];
        let one = Word((self.0 & !ROUNDS_MASK) | (u64::from(rounds) * ONE_ROUND));
        let (new, runs) = match self.with_empty_loaded() {
            Some(_) if first < wanted => {
                let (empty, _) = self.previous()?;
                let second = (wanted - first).min(rounds_max);
                let new = Word::new(empty, second, Some((loaded, true)));
                (new, [runs[0], SlotRun::new(empty, 0, second)])
            }
            _ => (one, runs),
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
        self.rounds() + if self.previous().is_some_and(|(_, full)| full) { rounds_max } else { 0 }
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
    /// How many slots.
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
    /// How many blocks.
    #[inline]
    pub fn count(&self) -> usize {
        self.runs.iter().map(|run| run.count as usize).sum()
    }

    /// With an operation counted for each block. `None`: there is none.
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

    /// What a word is made of.
    type Fields = (u32, u32, Option<(u32, bool)>, u64);

    /// All words with fields at and around their limits, and all rounds.
    fn words() -> impl Iterator<Item = (Fields, Word)> {
        let indices = [1, 2, 3, INDEX_MAX / 2, INDEX_MAX - 1, INDEX_MAX];
        let previous =
            indices.into_iter().flat_map(|index| [Some((index, false)), Some((index, true))]);
        let previous: Vec<_> = previous.chain([None]).collect();
        indices.into_iter().flat_map(move |loaded| {
            let previous = previous.clone();
            (0..=ROUNDS_MAX as u32).flat_map(move |rounds| {
                previous.clone().into_iter().flat_map(move |previous| {
                    [0, 1, 511, CREDIT_MAX - 1, CREDIT_MAX].map(|operations| {
                        let pair = previous.map(|(index, full)| (magazine(index), full));
                        let word =
                            Word::new(magazine(loaded), rounds, pair).with_operations(operations);
                        ((loaded, rounds, previous, operations), word)
                    })
                })
            })
        })
    }

    fn fields(word: Word) -> Fields {
        let previous = word.previous().map(|(magazine, full)| (magazine.get(), full));
        (word.loaded().unwrap().get(), word.rounds(), previous, word.operations())
    }

    #[test]
    fn every_field_comes_back() {
        for (expected, word) in words() {
            assert_eq!(fields(word), expected);
            let (loaded, rounds, previous, operations) = expected;
            assert_eq!(word.magazines(), 1 + u32::from(previous.is_some()));
            let in_previous = if previous.is_some_and(|(_, full)| full) { 63 } else { 0 };
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
        let previous = word.previous().filter(|&(_, full)| full);
        let in_previous = previous.map_or(0..0, |_| 0..rounds_max);
        let previous = previous.map_or(0, |(magazine, _)| magazine.get() * 256);
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
                    let Some(batch) = word.batch_out(wanted, rounds_max) else {
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
        assert!(Word::EMPTY.batch_out(5, 63).is_none());
    }

    #[test]
    fn a_batch_in_fills_what_is_free() {
        for rounds_max in [1, 7, 63] {
            for word in fronts(rounds_max) {
                for wanted in [0, 1, 2, 8, 63, 64, 126, 200] {
                    let before = blocks_of(word, rounds_max);
                    let room = (rounds_max * word.magazines()) as usize - before.len();
                    let most = wanted.min(CREDIT_MAX as usize - word.operations() as usize);
                    let Some(batch) = word.batch_in(wanted, rounds_max) else {
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
        assert!(Word::EMPTY.batch_in(5, 63).is_none());
    }

    #[test]
    fn an_empty_previous_magazine_can_be_taken_out() {
        for ((loaded, rounds, previous, operations), word) in words() {
            match word.without_empty() {
                Some((empty, rest)) => {
                    assert_eq!(previous, Some((empty.get(), false)));
                    assert_eq!(fields(rest), (loaded, rounds, None, operations));
                }
                None => assert!(previous.is_none_or(|(_, full)| full)),
            }
        }
        assert!(Word::EMPTY.without_empty().is_none());
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
