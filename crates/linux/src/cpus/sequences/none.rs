//! An architecture without sequences: `Area::find` finds no area, so nothing here is ever called.

use pagedepot::Pfn;
use pagedepot::cpus::Here;
use pagedepot::cpus::implement::{BlockArray, SlotMove, WordOffset};

use pagedepot_rseq::Area;

use super::NO_FRAME;

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

pub fn take_many(
    _area: Area,
    _blocks: &BlockArray,
    _here: Here,
    _word: WordOffset,
    _batch: &SlotMove,
    _out: &mut [Pfn],
) -> bool {
    false
}

pub fn put_many(
    _area: Area,
    _blocks: &BlockArray,
    _here: Here,
    _word: WordOffset,
    _batch: &SlotMove,
    _frames: &[Pfn],
) -> bool {
    false
}

pub fn claim_gate(_area: Area, _blocks: &BlockArray, _here: Here, _old: u64, _new: u64) -> bool {
    false
}
