//! Where the per-CPU words lie.
//!
//! ```text
//!         gates: a word per CPU      blocks: one per CPU        magazines
//! +-------+------+------+-----+------+-------------------+-------+-----------+
//! |       | 0    | 1    | ... |      | words | Pcps      | ...   | n, n+1 .. |
//! +-------+------+------+-----+------+-------------------+-------+-----------+
//! ^ base: gates, blocks and magazines are all named relative to this one address
//! ```
//! Gates lie where a magazine has the slots in its middle. A processor takes a load for one of what
//! it has just stored a multiple of 4096 bytes away, and waits; a CPU that allocates and frees in
//! turn often does so at the ends of its magazines.
//!
//! An open gate is the offset of its CPU's block: a sequence that has read it has found its words,
//! and one address in a register is all it needs to know of an allocator.
//!
//! # Sequences that ask nothing
//! With [`Cpus::FOLLOWS_GATES`](crate::cpus::Cpus::FOLLOWS_GATES) sequences look neither at the
//! bound of their CPU's number nor at the state of its gate: they go where it leads, and find out
//! from the word. For them there are [`GATES_ALL`] gates, one for each number of 16 bits, and open
//! ones count from [`REFUSALS_AT`] instead of the base. The lower half of any other gate is 0,
//! which leads to [`REFUSALS_AT`] itself, where the gates of numbers are that no CPU has: zeroes,
//! and a front word of zero refuses. So does all of a forked child's wiped memory.
//!
//! No code writes there. A sequence that could (it compares a word with one that may be 0)
//! looks at the gate first.
//!
//! | bytes of a block | what |
//! |---|---|
//! | 0.. | front words, `[context][zone][mobility][class]`, and for each zone words that refuse |
//! | then, on lines of their own | one `Pcp` per zone: what drainers touch |
#![allow(unsafe_code, reason = "finds gates, words and magazines by offset")]

use super::here::{Context, Here};
use super::magazine::{Magazine, MagazineIndex};
use crate::frame::Class;
use crate::frame::pageblock::Tag;
use crate::frame::pageblock::WORD_BYTES;
use crate::frame::pageblock::WORDS_PER_ZONE;
use crate::frame::{CpuId, Mobility, ZoneId};
use crate::sync::prim::{AtomicU32, AtomicU64, Ordering};
use crate::sync::stack::Links;

/// Whether a gate with this value lets its CPU in: a positive number, the offset of its block.
///
/// Zero is closed, so that a gate wiped by `MADV_WIPEONFORK` keeps a forked child out; negative
/// values are closed on purpose.
#[inline]
pub const fn is_open(gate: u64) -> bool {
    gate as i64 > 0
}

/// Bytes from the base to the first gate.
pub const GATES_AT: usize = 128;
/// Gates where sequences follow them whatever their CPU's number: all numbers of 16 bits. A
/// negative one (a thread without registration) becomes one of the highest, which no CPU has.
/// Loom has 64, or 128 with more classes, because each execution of a model makes them anew.
pub const GATES_ALL: u32 = match (cfg!(loom), Class::COUNT) {
    (false, _) => 1 << 16,
    (true, 1) => 1 << 6,
    (true, _) => 1 << 7,
};
/// CPUs that can have open gates among those; Linux has at most 8192.
pub(crate) const CPUS_FOLLOWED_MAX: u32 = if cfg!(loom) { 1 << 2 } else { 1 << 15 };
/// Where gates that are followed lead when they are closed; see the module.
pub const REFUSALS_AT: usize = GATES_AT + CPUS_FOLLOWED_MAX as usize * size_of::<AtomicU64>();
// The words of all zones and contexts are gates of numbers that no CPU has, negative ones included.
const _: () = assert!(
    CPUS_FOLLOWED_MAX as usize + 2 * Tag::ZONES_MAX * WORDS_PER_ZONE < GATES_ALL as usize - 2
);

/// Byte offset of a front word of the task context from the start of its CPU's block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WordOffset(usize);

impl WordOffset {
    /// The front of `zone`, `class` and `mobility`, where the allocator has that zone.
    #[inline]
    pub(crate) const fn new(zone: ZoneId, class: Class, mobility: Mobility) -> Self {
        Self::of_tag(Tag::new(zone, mobility), class)
    }

    /// The front of the frames with this tag.
    #[inline]
    pub(crate) const fn of_tag(tag: Tag, class: Class) -> Self {
        WordOffset(tag.fronts_at() + WORD_BYTES * class as usize)
    }

    /// As [`of_tag`](Self::of_tag), by a branch that expects a movable frame of the first zone, as
    /// most are. Computed, the address of the word that a free loads would come from the tag, which
    /// comes from the frame, which comes from what the allocation before it loaded: a chain through
    /// memory, which takes a pair of the two twice as long whenever the processor does not guess
    /// where loads get their values from (decision 0005). Branches are always guessed.
    #[inline]
    pub(crate) fn expected(tag: Tag, class: Class) -> Self {
        let usual = Self::new(ZoneId::new(0), class, Mobility::Movable);
        let word = Self::of_tag(tag, class);
        if word == usual {
            return usual;
        }
        // Out of the way of the usual case.
        core::hint::cold_path();
        // The compiler may not see that both arms are `word`: it would drop the branch.
        WordOffset(opaque(word.0))
    }

    /// The offset in bytes.
    #[inline]
    pub const fn bytes(self) -> usize {
        self.0
    }
}

/// The same number, of which the compiler knows nothing. [`black_box`](core::hint::black_box) goes
/// through memory, and its store was seen to move in front of the branch: one more than the five
/// that a pair of sequences has time for (decision 0004).
#[inline(always)]
fn opaque(mut number: usize) -> usize {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: no instructions.
    unsafe {
        core::arch::asm!("/* {0} */", inout(reg) number, options(pure, nomem, nostack, preserves_flags));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    {
        number = core::hint::black_box(number);
    }
    number
}

/// The per-CPU blocks and the magazines their words name: what a sequence needs.
///
/// Its methods are safe because this crate alone can call them, with zones, CPUs and magazines of
/// the allocator whose array it is; [`implement`](crate::cpus::implement) has them for others, as
/// unsafe functions.
pub struct BlockArray {
    /// What offsets count from, aligned as a magazine; gates are at [`GATES_AT`]. Magazine 0,
    /// which does not exist, would lie here.
    pub(crate) base: *mut u8,
    /// What open gates count from: 0, or [`REFUSALS_AT`] where they are followed.
    pub(crate) gates_from: usize,
    /// Bytes from the base to the first block.
    pub(crate) blocks_at: usize,
    /// Bytes from one block to the next.
    pub(crate) stride: usize,
    /// CPUs that have a block.
    pub(crate) cpus: u32,
    /// Bytes from a task-context word to its interrupt-context twin.
    pub(crate) context_stride: usize,
}

// SAFETY: the pointers are to memory that the allocator holds for its lifetime and that is only
// accessed atomically.
unsafe impl Send for BlockArray {}
// SAFETY: as above.
unsafe impl Sync for BlockArray {}

impl BlockArray {
    /// What all offsets count from; a multiple of a magazine's size.
    #[inline]
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// CPUs that have a block: numbers from this one on have none.
    #[inline]
    pub fn cpus(&self) -> u32 {
        self.cpus
    }

    /// The gate of `cpu`.
    ///
    /// # Panics
    /// When `cpu` has no block.
    #[inline]
    pub(crate) fn gate(&self, cpu: CpuId) -> &AtomicU64 {
        assert!(cpu.get() < self.cpus);
        // SAFETY: there is a gate for each CPU.
        unsafe { &*self.base.add(GATES_AT).cast::<AtomicU64>().add(cpu.index()) }
    }

    /// What the gate of `cpu` shows when it is open.
    pub(crate) fn open_gate(&self, cpu: CpuId) -> u64 {
        (self.block_at(cpu) - self.gates_from) as u64
    }

    /// Bytes from the base to the block of `cpu`.
    pub(crate) fn block_at(&self, cpu: CpuId) -> usize {
        self.blocks_at + cpu.index() * self.stride
    }

    /// The words that the gate of the CPU with this number leads to, if it is one that
    /// [follows gates](crate::cpus::Cpus::FOLLOWS_GATES), and where that is open or not.
    ///
    /// # Panics
    /// When gates are not followed.
    #[inline]
    pub(crate) fn followed(&self, number: u32, word: WordOffset) -> &AtomicU64 {
        assert!(self.gates_from == REFUSALS_AT);
        // SAFETY: there is a gate for each number of 16 bits; its lower half is 0, which leads to
        // other gates, or leads to a block. A WordOffset is made only from zones the allocator has.
        unsafe {
            let gate =
                &*self.base.add(GATES_AT).cast::<AtomicU64>().add((number % GATES_ALL) as usize);
            // Acquire: pairs with the Release of `Closed::drop`.
            let offset = gate.load(Ordering::Acquire) as u32;
            &*self.base.add(REFUSALS_AT + offset as usize + word.0).cast::<AtomicU64>()
        }
    }

    /// Whether the words that closed gates lead to are as they must be: no code writes them.
    pub(crate) fn refuses(&self) -> bool {
        let words = 0..2 * Tag::ZONES_MAX * WORDS_PER_ZONE;
        // SAFETY: gates, as in `followed`.
        let gate = |at| unsafe { &*self.base.add(REFUSALS_AT).cast::<AtomicU64>().add(at) };
        self.gates_from == 0 || words.into_iter().all(|at| gate(at).load(Ordering::Relaxed) == 0)
    }

    /// The word at `word` of `here`.
    ///
    /// # Panics
    /// When the CPU has no block.
    #[inline]
    pub(crate) fn word(&self, here: Here, word: WordOffset) -> &AtomicU64 {
        assert!(here.cpu.get() < self.cpus);
        let context = self.context_bytes(here.context);
        debug_assert!(word.0 + context < self.stride);
        // SAFETY: the block exists, and a WordOffset is made only from zones the allocator has;
        // with one context `context_stride` is 0.
        unsafe { &*self.base.add(self.block_at(here.cpu) + context + word.0).cast::<AtomicU64>() }
    }

    /// Bytes from a word of the task context to its twin of `context`.
    #[inline]
    pub(crate) fn context_bytes(&self, context: Context) -> usize {
        match context {
            Context::Task => 0,
            Context::Interrupt => self.context_stride,
        }
    }

    /// What a sequence needs of `cpu`, if its gate is open: the word `bytes` into the block that the
    /// gate leads to.
    ///
    /// # Safety
    /// Gates are not followed. The CPU has a block, in which there is a word so far.
    #[inline]
    pub(crate) unsafe fn open_word(&self, cpu: CpuId, bytes: usize) -> Option<&AtomicU64> {
        debug_assert!(self.gates_from == 0 && cpu.get() < self.cpus && bytes < self.stride);
        // SAFETY: there is a gate for each CPU, and an open one leads to the CPU's block.
        unsafe {
            let gate = &*self.base.add(GATES_AT).cast::<AtomicU64>().add(cpu.index());
            // Acquire: pairs with the Release of `Closed::drop`; a sequence that sees the gate open
            // also sees the empty words its last drainer left.
            let block = gate.load(Ordering::Acquire);
            is_open(block).then(|| &*self.base.add(block as usize + bytes).cast::<AtomicU64>())
        }
    }

    /// The slot of a magazine, from the lower half of a front word: bytes from magazine 0.
    ///
    /// # Safety
    /// As of a word that has a magazine.
    #[inline]
    pub(crate) unsafe fn slot(&self, bytes: u32) -> &AtomicU32 {
        // Loom's atomics are larger than what they stand for.
        #[cfg(loom)]
        {
            let index = MagazineIndex::new(bytes >> 8).expect("a word with rounds or credit");
            &self.magazine(index).slots[(bytes & 0xff) as usize / 4]
        }
        #[cfg(not(loom))]
        {
            let address = self.base.addr() + bytes as usize;
            // SAFETY: a slot of a magazine that the word names, by the promise above.
            unsafe { &*core::ptr::with_exposed_provenance::<AtomicU32>(address) }
        }
    }

    /// The magazine with this number.
    #[inline]
    pub(crate) fn magazine(&self, index: MagazineIndex) -> &Magazine {
        let address = self.base.addr() + index.get() as usize * size_of::<Magazine>();
        // SAFETY: indices come only from stacks, lists and words, which hold only indices of
        // magazines that exist; their memory is never anything else (see the module
        // `magazine`).
        unsafe { &*core::ptr::with_exposed_provenance::<Magazine>(address) }
    }
}

/// Magazines by their numbers, linked by their `next`.
impl Links for BlockArray {
    type Index = MagazineIndex;

    fn number(index: MagazineIndex) -> u32 {
        index.get()
    }

    fn index(number: u32) -> Option<MagazineIndex> {
        MagazineIndex::new(number)
    }

    #[inline]
    fn link(&self, index: MagazineIndex) -> &AtomicU32 {
        &self.magazine(index).next
    }
}
