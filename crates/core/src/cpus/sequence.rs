//! The sequences in Rust, for implementations whose exclusion holds for a whole function.

use crate::front::word::Word;
use crate::front::{BlockArray, Here, WordOffset, is_open};
use crate::sync::prim::Ordering;

/// Whether `here` has a block and its gate is open.
#[inline]
fn may_enter(blocks: &BlockArray, here: Here) -> bool {
    // Acquire: pairs with the Release of `Closed::drop`; a sequence that sees the gate open
    // also sees the empty words its last drainer left.
    here.cpu.get() < blocks.cpus && is_open(blocks.gate(here.cpu).load(Ordering::Acquire))
}

#[inline]
pub fn pop(blocks: &BlockArray, here: Here, offset: WordOffset) -> Option<u32> {
    if !may_enter(blocks, here) {
        return None;
    }
    let cell = blocks.word(here, offset);
    let (loaded, slot, next) = Word(cell.load(Ordering::Relaxed)).popped()?;
    let frame = blocks.magazine(loaded).slots[slot as usize].load(Ordering::Relaxed);
    cell.store(next.0, Ordering::Release);
    Some(frame)
}

#[inline]
pub fn push(
    blocks: &BlockArray,
    here: Here,
    offset: WordOffset,
    rounds_max: u32,
    frame: u32,
) -> bool {
    if !may_enter(blocks, here) {
        return false;
    }
    let cell = blocks.word(here, offset);
    let Some((loaded, slot, next)) = Word(cell.load(Ordering::Relaxed)).pushed(rounds_max) else {
        return false;
    };
    blocks.magazine(loaded).slots[slot as usize].store(frame, Ordering::Relaxed);
    // Release: pairs with the fence of a full drain and orders the slot before the word.
    cell.store(next.0, Ordering::Release);
    true
}

pub fn compare_store(
    blocks: &BlockArray,
    here: Here,
    offset: WordOffset,
    old: u64,
    new: u64,
) -> bool {
    if !may_enter(blocks, here) {
        return false;
    }
    let cell = blocks.word(here, offset);
    if cell.load(Ordering::Relaxed) != old {
        return false;
    }
    cell.store(new, Ordering::Release);
    true
}

/// See [`Cpus::claim_gate`](super::Cpus::claim_gate).
pub fn claim_gate(blocks: &BlockArray, here: Here, old: u64, new: u64) -> bool {
    // SeqCst: the claim is ordered after what the asker noted before it closed the gate.
    here.cpu.get() < blocks.cpus
        && blocks
            .gate(here.cpu)
            .compare_exchange(old, new, Ordering::SeqCst, Ordering::Relaxed)
            .is_ok()
}
