//! The front word: everything a CPU needs to know about one front, in one 64-bit store.
//!
//! | bits | field | meaning |
//! |---|---|---|
//! | 0..=7 | rounds | frames in the loaded magazine; [`NO_ROUNDS`] when there is none, which both pop and push treat as "look closer" |
//! | 8..=28 | previous | index of the previous magazine, 0: none |
//! | 29 | previous full | the previous magazine is full (1) or empty (0); never in between (Bonwick & Adams, USENIX 2001) |
//! | 30..=51 | loaded | index of the loaded magazine, 0: none |
//! | 52..=63 | operations | sequences committed since the last fold; its carry sends the owner to the slow path, which folds it |
//!
//! Legal transitions, each one sequence on the owning CPU with the gate open:
//! * pop: `rounds - 1`, `operations + 1`, if `1 <= rounds <= 63` and operations do not carry;
//! * push: `rounds + 1`, `operations + 1`, if `rounds < rounds_max` and operations do not carry;
//! * fold: `operations = 0`;
//! * swap, load, unload: magazines change (slow path, compare-and-store).
//!
//! And one by a drainer whose ticket closes the gate and who has fenced the CPU: to [`EMPTY`].

use super::magazine::MagazineIndex;

/// `rounds` of a front without a loaded magazine.
pub const NO_ROUNDS: u64 = 0xff;
/// A front without magazines.
pub const EMPTY: u64 = NO_ROUNDS;
/// One operation, for the sequence's addition.
pub const ONE_OPERATION: u64 = 1 << OPERATIONS_SHIFT;
/// Right shift that turns a word into the byte offset of its loaded magazine, before masking.
/// A magazine has 256 bytes, so this is the field's position minus 8.
pub const LOADED_OFFSET_SHIFT: u32 = LOADED_SHIFT - 8;
/// Mask for the byte offset of the loaded magazine.
pub const LOADED_OFFSET_MASK: u64 = INDEX_LOADED_MASK << 8;
/// Most rounds any magazine has.
pub const ROUNDS_MAX: u64 = 63;

const PREVIOUS_SHIFT: u32 = 8;
const PREVIOUS_MASK: u64 = (1 << 21) - 1;
const PREVIOUS_FULL: u64 = 1 << 29;
const LOADED_SHIFT: u32 = 30;
const INDEX_LOADED_MASK: u64 = (1 << 22) - 1;
const OPERATIONS_SHIFT: u32 = 52;

/// A front word, unpacked by accessors.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Word(pub u64);

impl Word {
    /// Without magazines.
    pub const EMPTY: Word = Word(EMPTY);

    /// A word without operations: `loaded` with `rounds` frames, and `previous`.
    pub fn new(loaded: MagazineIndex, rounds: u32, previous: Option<(MagazineIndex, bool)>) -> Self {
        debug_assert!(u64::from(rounds) <= ROUNDS_MAX);
        let (previous, full) = previous.map_or((0, 0), |(m, full)| {
            (u64::from(m.get()) << PREVIOUS_SHIFT, if full { PREVIOUS_FULL } else { 0 })
        });
        Word((u64::from(loaded.get()) << LOADED_SHIFT) | previous | full | u64::from(rounds))
    }

    /// The loaded magazine.
    pub fn loaded(self) -> Option<MagazineIndex> {
        MagazineIndex::new(((self.0 >> LOADED_SHIFT) & INDEX_LOADED_MASK) as u32)
    }

    /// The previous magazine and whether it is full.
    pub fn previous(self) -> Option<(MagazineIndex, bool)> {
        let index = MagazineIndex::new(((self.0 >> PREVIOUS_SHIFT) & PREVIOUS_MASK) as u32)?;
        Some((index, self.0 & PREVIOUS_FULL != 0))
    }

    /// Frames in the loaded magazine; 0 without one.
    pub fn rounds(self) -> u32 {
        match self.0 & 0xff {
            NO_ROUNDS => 0,
            rounds => rounds as u32,
        }
    }

    /// Sequences committed since the last fold.
    pub fn operations(self) -> u64 {
        self.0 >> OPERATIONS_SHIFT
    }

    /// Whether one more operation would carry out of the word.
    pub fn operations_full(self) -> bool {
        self.operations() == (1 << (64 - OPERATIONS_SHIFT)) - 1
    }

    /// The same with another count of operations (less than 4096).
    #[must_use]
    pub fn with_operations(self, operations: u64) -> Self {
        Word(self.0 & (ONE_OPERATION - 1) | operations << OPERATIONS_SHIFT)
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
