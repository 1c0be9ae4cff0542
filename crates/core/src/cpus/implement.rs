//! The items that an implementation of [`Cpus`](crate::cpus::Cpus) needs to write its sequences by
//! hand.
//!
//! **Exempt from semantic versioning**: names, layouts and values here change with any version, as
//! the sequences change with them. Embedders that need no sequences of their own implement
//! [`Processor`](crate::cpus::Processor) or [`WhichCpu`](crate::cpus::WhichCpu) instead.
//!
//! A [`BlockArray`] reaches an implementation as an argument of the methods of `Cpus`, with
//! [`WordOffset`]s of the zones that the allocator has. To reach gates, words and magazines with
//! them is unsafe: a word decides which memory the next sequence writes to.
//!
//! # Sequences in C
//! [`Fronts::pop`](crate::Fronts::pop) and [`Fronts::push`](crate::Fronts::push) are a few
//! instructions, which a kernel in another language may want inline. `base` is
//! [`Allocator::fronts_at`](crate::Allocator::fronts_at), and `front` what
//! [`FrontHandle::to_bits`](crate::FrontHandle::to_bits) says. [`GATES_AT`], [`POP_STEP`] and
//! [`PUSH_STEP`] are constants: have the other language's compared with them when the kernel
//! starts. Its sequences run under the guard that those two functions ask for. The acquire pairs
//! with the release by which a drainer opens the gate, the release with the drainer's read of the
//! word after its fence. The word's address is to be in one register (an `asm` without instructions
//! keeps it there): Intel's processors forward the word that a push stored to the next pop in no
//! time only where the address has no index register.
//!
//! ```c
//! uint32_t pop(char *base, uint32_t cpu, uint32_t front)
//! {
//!         int64_t block = load_acquire((int64_t *)(base + GATES_AT) + cpu);
//!
//!         if (block <= 0)
//!                 return NONE;                    /* the gate is closed */
//!         uint64_t *word = (uint64_t *)(base + block + (front >> 16));
//!         __asm__("" : "+r"(word));
//!         uint64_t now = load(word), next = now + POP_STEP;
//!         if (!(uint8_t)now || next >= now)
//!                 return NONE;                    /* no rounds, or no credit */
//!         uint32_t pfn = load((uint32_t *)(base + (uint32_t)now) - 1);
//!         store_release(word, next);
//!         return pfn;
//! }
//!
//! bool push(char *base, uint32_t cpu, uint32_t front, uint32_t pfn)
//! {
//!         ...                                     /* as above, to: */
//!         uint64_t now = load(word), next = now + PUSH_STEP;
//!         if ((uint8_t)now >= (uint8_t)front || next >= now)
//!                 return false;                   /* no room, or no credit */
//!         store((uint32_t *)(base + (uint32_t)now), pfn);
//!         store_release(word, next);
//!         return true;
//! }
//! ```
#![allow(unsafe_code, reason = "gates, words and magazines in the hands of implementations")]

pub use crate::frame::pageblock::WORD_BYTES;
pub use crate::front::word::{Fill, ONE_ROUND, POP_STEP, PUSH_STEP, SlotMove, SlotRun, Word};
pub use crate::front::{
    BlockArray, GATES_ALL, GATES_AT, Magazine, MagazineIndex, REFUSALS_AT, WordOffset, is_open,
};

use crate::frame::{CpuId, Kind, Mobility, Order, ZoneId};
use crate::front::Here;
use crate::sync::prim::AtomicU64;

/// The gate of `cpu`.
///
/// # Panics
/// When `cpu` has no block.
///
/// # Safety
/// The caller is in a method of `Cpus` that got this array, and only loads the gate, or changes it
/// as [`Change::Gate`](crate::cpus::Change::Gate) says.
#[inline]
pub unsafe fn gate(blocks: &BlockArray, cpu: CpuId) -> &AtomicU64 {
    blocks.gate(cpu)
}

/// The word at `word` of `here`.
///
/// # Panics
/// When the CPU has no block.
///
/// # Safety
/// The caller is in a method of `Cpus` that got this array and this offset. It loads the word, and
/// stores to it only as the commit of a sequence: what [`Word::popped`] or [`Word::pushed`] made of
/// the word it loaded, or `new` of a [`Change`](crate::cpus::Change).
#[inline]
pub unsafe fn word(blocks: &BlockArray, here: Here, word: WordOffset) -> &AtomicU64 {
    blocks.word(here, word)
}

/// The word that the gate of the CPU with this number leads to, if it is one that
/// [follows gates](crate::cpus::Cpus::FOLLOWS_GATES), whether that is open or not.
///
/// # Panics
/// When the array's gates are not followed.
///
/// # Safety
/// Requires what [`word`] requires, and a word that is 0 is not stored to.
#[inline]
pub unsafe fn followed(blocks: &BlockArray, number: u32, word: WordOffset) -> &AtomicU64 {
    blocks.followed(number, word)
}

/// The magazine with this number.
///
/// # Safety
/// The number was loaded from a word of this array, as its loaded or previous magazine. In a `push`
/// the caller stores a frame to the slot that [`Word::pushed`] names, and otherwise only loads.
#[inline]
pub unsafe fn magazine(blocks: &BlockArray, index: MagazineIndex) -> &Magazine {
    blocks.magazine(index)
}

/// The offset of the front of `zone`, `order` and `mobility`, for tests of sequences.
///
/// # Safety
/// It is used with arrays alone whose blocks have words of that zone.
pub const unsafe fn word_offset(zone: ZoneId, order: Order, mobility: Mobility) -> WordOffset {
    WordOffset::new(zone, order, Kind::of(mobility))
}

/// The parts of a [`BlockArray`], for tests of sequences.
#[derive(Clone, Copy, Debug)]
pub struct Parts {
    /// The address that offsets count from: a multiple of a magazine's size. Gates are at
    /// [`GATES_AT`].
    pub base: *mut u8,
    /// Whether gates are followed.
    pub follows_gates: bool,
    /// Bytes from the base to the first block.
    pub blocks_at: usize,
    /// Bytes from one block to the next.
    pub stride: usize,
    /// CPUs that have a block.
    pub cpus: u32,
}

/// Makes an array with one context, for tests of sequences.
///
/// # Safety
/// While the array is used: the gates of its CPUs (of all numbers of 16 bits if they are followed),
/// its blocks, and the magazines that its words name, are mapped at these offsets, initialised,
/// accessed atomically, and of exposed provenance. Gates are 0, or what [`open_gate`] returns.
pub unsafe fn block_array(parts: Parts) -> BlockArray {
    let Parts { base, follows_gates, blocks_at, stride, cpus } = parts;
    let gates_from = if follows_gates { REFUSALS_AT } else { 0 };
    BlockArray { base, gates_from, blocks_at, stride, cpus, context_stride: 0 }
}

/// The value of the gate of `cpu` when it is open, for tests of sequences.
pub fn open_gate(blocks: &BlockArray, cpu: CpuId) -> u64 {
    blocks.open_gate(cpu)
}
