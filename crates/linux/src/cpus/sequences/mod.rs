//! The sequences of a depot's fronts: pop, push, compare-store and claim, as [`Cpus`] requires
//! them.
//!
//! The crate [`pagedepot_rseq`] explains sequences, and what they require of a thread.
//!
//! [`Cpus`]: pagedepot::cpus::Cpus
//!
//! # Threads without a registration of their own
//! Where a registration was refused, `cpu_id` is negative. The thread's sequences find a closed
//! gate, and it uses the store.
//!
//! # Another architecture
//! Add a file beside `x86_64.rs` and `aarch64.rs` with the same functions, and a line to the
//! selection of `arch` below. Until then the architecture uses a lock per CPU.

#[cfg(all(target_arch = "aarch64", target_endian = "little"))]
#[path = "aarch64.rs"]
mod arch;
#[cfg(target_arch = "x86_64")]
#[path = "x86_64.rs"]
mod arch;
#[cfg(not(any(target_arch = "x86_64", all(target_arch = "aarch64", target_endian = "little"))))]
#[path = "none.rs"]
mod arch;

#[cfg(test)]
mod tests;

use core::sync::atomic::{AtomicBool, Ordering};

use pagedepot::Pfn;
use pagedepot::cpus::implement::{BlockArray, SlotMove, WordOffset};
use pagedepot::cpus::{Change, Here};
use pagedepot_rseq::Area;

pub(crate) use arch::{claim_gate, compare_store, is_none, pop, push};

/// The value that `pop` returns when the caller must take the slow path. No frame has this number:
/// ranges end at 2^32 at most, and an allocator's last section is never complete there.
pub(crate) const NO_FRAME: u64 = u64::MAX;

/// Keeps the object that contains the sequences loaded. `false`: the dynamic linker refused.
///
/// A depot's functions are inlined into their callers. This function cannot see a Rust dynamic
/// library that uses a depot which another object built; the crate's documentation demands that
/// such a library stays loaded.
pub(crate) fn stay_loaded() -> bool {
    static IS_KEPT: AtomicBool = AtomicBool::new(false);
    // Relaxed, both: two threads may do this at once, which is harmless.
    if !IS_KEPT.load(Ordering::Relaxed) {
        let this_code = stay_loaded as fn() -> bool;
        IS_KEPT.store(pagedepot_rseq::keep_loaded(this_code as *const ()), Ordering::Relaxed);
    }
    IS_KEPT.load(Ordering::Relaxed)
}

/// Frames to copy inside a sequence.
#[repr(C)]
pub(crate) struct FrameCopy {
    from: *const u32,
    to: *mut u32,
    count: usize,
}

/// The copies of a batch, with one of nothing as the last. `copy` gives where the slots from the
/// first are copied from and to, of which `done` frames were copied before.
#[inline(always)]
fn copies(batch: &SlotMove, copy: impl Fn(u32, usize) -> (*const u32, *mut u32)) -> [FrameCopy; 3] {
    let [first, second] = batch.runs;
    let copy_of = |at, done, count: u32| {
        let (from, to) = copy(at, done);
        FrameCopy { from, to, count: count as usize }
    };
    [
        copy_of(first.at, 0, first.count),
        copy_of(second.at, first.count as usize, second.count),
        copy_of(0, 0, 0),
    ]
}

/// Implements [`Cpus::commit`](pagedepot::cpus::Cpus::commit).
#[inline(always)]
pub(crate) fn commit(area: Area, blocks: &BlockArray, here: Here, change: Change<'_>) -> bool {
    match change {
        Change::Word { at, old, new } => compare_store(area, blocks, here, at, old, new),
        Change::Take { at, batch, out } => take_many(area, blocks, here, at, batch, out),
        Change::Put { at, batch, frames } => put_many(area, blocks, here, at, batch, frames),
        Change::Gate { old, new } => claim_gate(area, blocks, here, old, new),
    }
}

/// Commits a [`Change::Take`].
///
/// The copy is part of the sequence: after the commit, another thread of this CPU may fill the
/// slots again.
#[inline]
pub(crate) fn take_many(
    area: Area,
    blocks: &BlockArray,
    here: Here,
    word: WordOffset,
    batch: &SlotMove,
    out: &mut [Pfn],
) -> bool {
    assert!(out.len() >= batch.count());
    let out = out.as_mut_ptr().cast::<u32>();
    let copies = copies(batch, |at, done| (slot(blocks, at), out.wrapping_add(done)));
    // SAFETY: all that is stored before the commit is the caller's, and means nothing if it aborts.
    unsafe { arch::copy_and_store(area, blocks, here, word, (batch.old.0, batch.new.0), &copies) }
}

/// Commits a [`Change::Put`].
#[inline]
pub(crate) fn put_many(
    area: Area,
    blocks: &BlockArray,
    here: Here,
    word: WordOffset,
    batch: &SlotMove,
    frames: &[Pfn],
) -> bool {
    assert!(frames.len() >= batch.count());
    let frames = frames.as_ptr().cast::<u32>();
    let copies = copies(batch, |at, done| (frames.wrapping_add(done), slot(blocks, at)));
    // SAFETY: the slots are free in the old word, so they belong to this sequence, and nothing
    // reads them before the commit.
    unsafe { arch::copy_and_store(area, blocks, here, word, (batch.old.0, batch.new.0), &copies) }
}

fn slot(blocks: &BlockArray, at: u32) -> *mut u32 {
    blocks.base().wrapping_add(at as usize).cast()
}
