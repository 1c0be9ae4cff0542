//! An architecture without sequences: nothing here is ever called, because `Area::find` finds none.

use pagedepot::cpus::Here;
use pagedepot::cpus::implement::{BlockArray, WordOffset};

use super::{Area, NO_FRAME};

pub const HAS_SEQUENCES: bool = false;

pub fn cpu_id(_area: Area) -> u32 {
    u32::MAX
}

pub fn pop(_area: Area, _blocks: &BlockArray, _word: WordOffset) -> u64 {
    NO_FRAME
}

pub fn push(
    _area: Area,
    _blocks: &BlockArray,
    _word: WordOffset,
    _rounds_max: u32,
    _frame: u32,
) -> bool {
    false
}

pub fn compare_store(
    _area: Area,
    _blocks: &BlockArray,
    _here: Here,
    _word: WordOffset,
    _old: u64,
    _new: u64,
) -> bool {
    false
}
