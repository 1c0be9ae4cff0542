//! The sequences name a front's word by one register and a displacement. A push stores the word
//! that the next pop loads; Intel's processors since Golden Cove forward it in no time only at such
//! an address (`docs/decisions/0004-hot-pair.md`).

use pagedepot::cpus::implement::REFUSALS_AT;

use super::*;

#[path = "../../../../../core/tests/disassembly/mod.rs"]
mod disassembly;

// SAFETY, all: no other symbol of this program has the name.
#[unsafe(no_mangle)]
#[inline(never)]
fn pagedepot_sequence_pop(area: Area, blocks: &BlockArray) -> u64 {
    pop(area, blocks, WORD)
}

#[unsafe(no_mangle)]
#[inline(never)]
fn pagedepot_sequence_push(area: Area, blocks: &BlockArray, frame: u32) -> bool {
    push(area, blocks, WORD, ROUNDS, frame)
}

#[unsafe(no_mangle)]
#[inline(never)]
fn pagedepot_sequence_compare_store(area: Area, blocks: &BlockArray, old: u64, new: u64) -> bool {
    compare_store(area, blocks, Here::task(CpuId::new(0)), WORD, old, new)
}

#[test]
fn a_front_word_has_no_index_register() {
    std::hint::black_box((
        pagedepot_sequence_pop as *const (),
        pagedepot_sequence_push as *const (),
        pagedepot_sequence_compare_store as *const (),
    ));
    // What the word is told by: no other operand has this displacement.
    let displacement = format!("{REFUSALS_AT:#x}]");
    for name in ["pop", "push", "compare_store"] {
        let operands = disassembly::memory_operands(&format!("pagedepot_sequence_{name}"));
        let words: Vec<_> = operands.iter().filter(|at| at.ends_with(&displacement)).collect();
        assert_eq!(words.len(), 2, "{name} loads its word and stores it: {operands:?}");
        assert!(!words.iter().any(|at| disassembly::has_index(at)), "{name}: {words:?}");
    }
}
