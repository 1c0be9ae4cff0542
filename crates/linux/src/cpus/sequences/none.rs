//! An architecture without sequences: `Area::find` finds no area, so nothing here is ever called.

use pagedepot::cpus::Here;
use pagedepot::cpus::implement::{BlockArray, WordOffset};

use pagedepot_rseq::Area;

use super::{FrameCopy, NO_FRAME};

pub fn is_none(_popped: u64) -> bool {
    true
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

/// # Safety
/// Has no preconditions.
pub unsafe fn copy_and_store(
    _area: Area,
    _blocks: &BlockArray,
    _here: Here,
    _word: WordOffset,
    _words: (u64, u64),
    _copies: &[FrameCopy; 3],
) -> bool {
    false
}

pub fn claim_gate(_area: Area, _blocks: &BlockArray, _here: Here, _old: u64, _new: u64) -> bool {
    false
}
