//! Layout of the per-CPU words, and of the magazines that they name.
//!
//! ```text
//!         gates: a word per CPU      blocks: one per CPU        magazines
//! +-------+------+------+-----+------+-------------------+-------+-----------+
//! |       | 0    | 1    | ... |      | words | Pcps      | ...   | n, n+1 .. |
//! +-------+------+------+-----+------+-------------------+-------+-----------+
//! ^ base: gates, blocks and magazines are all named relative to this one address
//! ```
//! The offset of the gates avoids 4K aliasing: a processor delays a load when a store to the same
//! offset modulo 4096 bytes is still in its buffer. A CPU that allocates and frees in turn mostly
//! touches the slots at the ends of its magazines, so the gates have the offsets of slots in the
//! middle.
//!
//! An open gate is the offset of its CPU's block. So a sequence needs one address in a register to
//! find the gate and, by it, the words.
//!
//! # Sequences without checks
//! With [`Cpus::FOLLOWS_GATES`](crate::cpus::Cpus::FOLLOWS_GATES) a sequence checks neither its
//! CPU's number nor the state of its gate. It goes where the gate leads and looks at the word
//! there. For this there are [`GATES_ALL`] gates, one for each number of 16 bits. Open gates count
//! from [`REFUSALS_AT`] instead of the base. The lower half of a closed gate is 0, which leads to
//! [`REFUSALS_AT`] itself. There lie gates of numbers that no CPU has; they are 0, and a front word
//! of 0 refuses. A forked child's wiped memory refuses for the same reason.
//!
//! No code writes there. `Cpus::commit` could, because the old word that it compares with may be
//! 0, and so it checks the gate first.
//!
//! A CPU whose fronts are [behind a lock](crate::cpus::Cpus::is_behind_lock) refuses sequences in
//! the same way. Its open gate is [`OPEN_TO_LOCK`], whose lower half is 0. The holder of the lock
//! finds the words by the CPU's number.
//!
//! | bytes of a block | what |
//! |---|---|
//! | 0.. | front words, `[context][zone][kind][order]`, and for each zone words that refuse |
//! | then, on lines of their own | one `Pcp` per zone: what drainers touch |
//!
//! # Magazines
//! A magazine is a fixed array of frames of one zone, order and kind. It has one owner at any
//! time: a front word that names it, a shelf it is linked into, the stack of empties, or the code
//! that took it from one of these. Its memory is type-stable: once a magazine, always a magazine,
//! so a stale index can be read through (the tag of the stack then refuses the stale reader's
//! compare-and-swap).
#![allow(unsafe_code, reason = "finds gates, words and magazines by offset")]

use core::num::NonZeroU32;
use core::ptr::NonNull;

use crate::frame::pageblock::{FRONTS, Tag, WORD_BYTES, WORDS_PER_ZONE};
use crate::frame::{CpuId, Kind, Order, ZoneId};
use crate::sync::model::{IS_LOOM, bound};
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

/// The open gate of a CPU whose fronts are behind a lock. It shows no offset: what follows it finds
/// words that refuse.
pub const OPEN_TO_LOCK: u64 = 1 << 32;

/// Bytes from the base to the first gate.
pub const GATES_AT: usize = 128;
/// Gates where sequences follow them whatever their CPU's number: all numbers of 16 bits. A
/// negative one (a thread without registration) becomes one of the highest, which no CPU has.
/// Loom has 64, or 128 with more orders, because each execution of a model makes them anew.
pub const GATES_ALL: u32 = match (IS_LOOM, Order::CACHED) {
    (false, _) => 1 << 16,
    (true, 1) => 1 << 6,
    (true, _) => 1 << 7,
};
/// CPUs that can have open gates among those; Linux has at most 8192.
pub(crate) const CPUS_FOLLOWED_MAX: u32 = bound(1 << 15, 1 << 2);
/// Offset that closed gates lead to where gates are followed; see the module's text on sequences
/// without checks.
pub const REFUSALS_AT: usize = GATES_AT + CPUS_FOLLOWED_MAX as usize * size_of::<AtomicU64>();
// The words of all zones and contexts are gates of numbers that no CPU has, negative ones included.
const _: () = assert!(
    CPUS_FOLLOWED_MAX as usize + 2 * Tag::ZONES_MAX * WORDS_PER_ZONE < GATES_ALL as usize - 2
);

/// Byte offset of a front word of the task context from the start of its CPU's block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WordOffset(usize);

impl WordOffset {
    /// The front of `zone`, `order` and `kind`, where the allocator has that zone.
    #[inline]
    pub(crate) const fn new(zone: ZoneId, order: Order, kind: Kind) -> Self {
        Self::of_tag(Tag::new(zone, kind), order)
    }

    /// The front of the frames with this tag.
    #[inline]
    pub(crate) const fn of_tag(tag: Tag, order: Order) -> Self {
        WordOffset(tag.fronts_at() + WORD_BYTES * order.index())
    }

    /// Finds a tag's word like [`of_tag`](Self::of_tag), by a branch that expects a movable frame
    /// of the first zone, as most are. Without the branch, the address of the word that a free
    /// loads depends on the tag, the tag's address on the frame, and the frame on the word that the
    /// allocation before loaded: a chain through memory. It makes an allocation with its free twice
    /// as slow on processors that do not predict which store a load gets its value from (decision
    /// 0005). All predict branches.
    #[inline]
    pub(crate) fn expected(tag: Tag, order: Order) -> Self {
        let usual = Self::new(ZoneId::new(0), order, Kind::MOVABLE);
        let word = Self::of_tag(tag, order);
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

/// Returns its argument, and hides that from the compiler. [`black_box`](core::hint::black_box)
/// goes through memory: the compiler moved its store in front of the branch, as the sixth store of
/// a pair of sequences, whose time is enough for five (decision 0004).
#[inline(always)]
pub(crate) fn opaque(mut number: usize) -> usize {
    #[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
    // SAFETY: no instructions.
    unsafe {
        core::arch::asm!(
            "/* {0} */",
            inout(reg) number,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    #[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri))))]
    {
        number = core::hint::black_box(number);
    }
    number
}

/// Returns its argument, in one register and hidden from the compiler, so that the loads and stores
/// through it have no index register. A push stores the word that the next pop loads. Intel's
/// processors since Golden Cove forward it in no time only at an address that is one register and a
/// displacement (decision 0004). Other architectures need nothing of the kind.
#[inline(always)]
#[allow(clippy::pointers_in_nomem_asm_block, reason = "nothing is read or written through it")]
#[cfg_attr(not(all(target_arch = "x86_64", not(miri))), expect(unused_mut, reason = "unchanged"))]
fn without_index(mut address: *mut u8) -> *mut u8 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: no instructions.
    unsafe {
        core::arch::asm!(
            "/* {0} */",
            inout(reg) address,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    address
}

/// The per-CPU blocks and the magazines their words name: what a sequence needs.
///
/// Its methods are safe because this crate alone can call them, with zones, CPUs and magazines of
/// the allocator whose array it is; [`implement`](crate::cpus::implement) has them for others, as
/// unsafe functions.
#[derive(Clone, Copy)]
pub struct BlockArray {
    /// The address that offsets count from, aligned as a magazine; gates are at [`GATES_AT`].
    /// Magazine 0, which does not exist, would lie here.
    pub(crate) base: *mut u8,
    /// The offset that open gates count from: 0, or [`REFUSALS_AT`] where they are followed.
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
    /// The address that all offsets count from; a multiple of a magazine's size.
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

    /// The value of an open gate of `cpu` that lets sequences in.
    pub(crate) fn open_gate(&self, cpu: CpuId) -> u64 {
        (self.block_at(cpu) - self.gates_from) as u64
    }

    /// Bytes from the base to the block of `cpu`.
    pub(crate) fn block_at(&self, cpu: CpuId) -> usize {
        self.blocks_at + cpu.index() * self.stride
    }

    /// The block of `cpu`: its start and its bytes. `None` when it has none.
    pub(crate) fn block(&self, cpu: CpuId) -> Option<(NonNull<u8>, usize)> {
        let start = self.base.wrapping_add(self.block_at(cpu));
        (cpu.get() < self.cpus).then(|| NonNull::new(start)).flatten().zip(Some(self.stride))
    }

    /// The word at `word` from where the gate of CPU `number` leads, whether it is open or not. For
    /// CPUs that [follow gates](crate::cpus::Cpus::FOLLOWS_GATES).
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
            // Acquire: pairs with the Release of `ClosedGate::drop`.
            let offset = gate.load(Ordering::Acquire) as u32;
            &*self.base.add(REFUSALS_AT + offset as usize + word.0).cast::<AtomicU64>()
        }
    }

    /// Whether the words that closed gates lead to are 0, as they must stay. For `validate`.
    pub(crate) fn refuses(&self) -> bool {
        let words = 0..2 * Tag::ZONES_MAX * WORDS_PER_ZONE;
        // SAFETY: gates, as in `followed`. Relaxed: all other callers have stopped.
        let gate = |at| unsafe { &*self.base.add(REFUSALS_AT).cast::<AtomicU64>().add(at) };
        self.gates_from == 0 || words.into_iter().all(|at| gate(at).load(Ordering::Relaxed) == 0)
    }

    /// The word at `word` of `here`.
    ///
    /// # Panics
    /// When the CPU has no block.
    #[inline]
    pub(crate) fn word(&self, here: Here, word: WordOffset) -> &AtomicU64 {
        // SAFETY: a WordOffset is made only from zones the allocator has.
        unsafe { &*self.address(here, word) }
    }

    /// The address of the word at `word` of `here`, for this one and those that lie behind it.
    #[inline]
    fn address(&self, here: Here, word: WordOffset) -> *const AtomicU64 {
        assert!(here.cpu.get() < self.cpus);
        let context = self.context_bytes(here.context);
        debug_assert!(word.0 + context < self.stride);
        // SAFETY: the block exists; with one context `context_stride` is 0.
        unsafe { without_index(self.base.add(self.block_at(here.cpu) + context + word.0)).cast() }
    }

    /// The words of all fronts of `here` in a zone that the allocator has, row by row.
    ///
    /// # Panics
    /// When the CPU has no block.
    pub(crate) fn fronts(&self, here: Here, zone: ZoneId) -> &[AtomicU64; FRONTS] {
        let first = self.address(here, WordOffset::new(zone, Order::BASE, Kind::UNMOVABLE));
        // SAFETY: rows lie side by side, and in each the words of its orders (see the table at
        // `Tag`).
        unsafe { &*first.cast::<[AtomicU64; FRONTS]>() }
    }

    /// Bytes from a word of the task context to its twin of `context`.
    #[inline]
    pub(crate) fn context_bytes(&self, context: Context) -> usize {
        match context {
            Context::Task => 0,
            Context::Interrupt => self.context_stride,
        }
    }

    /// The word `bytes` behind where the gate of `cpu` leads to, if it is open: the block, less
    /// `gates_from`.
    ///
    /// # Safety
    /// The CPU has a block, with a word at that offset less `gates_from`.
    #[inline]
    pub(crate) unsafe fn open_word(&self, cpu: CpuId, bytes: usize) -> Option<&AtomicU64> {
        debug_assert!(cpu.get() < self.cpus && bytes - self.gates_from < self.stride);
        // SAFETY: there is a gate for each CPU, and an open one leads to the CPU's block.
        unsafe {
            let gate = &*self.base.add(GATES_AT).cast::<AtomicU64>().add(cpu.index());
            // Acquire: pairs with the Release of `ClosedGate::drop`; a sequence that sees the gate
            // open also sees the empty words its last drainer left.
            let block = gate.load(Ordering::Acquire);
            let word = || without_index(self.base.add(block as usize + bytes));
            is_open(block).then(|| &*word().cast::<AtomicU64>())
        }
    }

    /// The slot of a magazine, from the lower half of a front word: bytes from magazine 0.
    ///
    /// # Safety
    /// As of a word that has a magazine.
    #[inline]
    pub(crate) unsafe fn slot(&self, bytes: u32) -> &AtomicU32 {
        if IS_LOOM {
            // Loom's atomics are larger than what they stand for.
            let index = MagazineIndex::new(bytes >> 8).expect("a word with rounds or credit");
            return &self.magazine(index).slots[(bytes & 0xff) as usize / 4];
        }
        let address = self.base.addr() + bytes as usize;
        // SAFETY: a slot of a magazine that the word names, by the promise above.
        unsafe { &*core::ptr::with_exposed_provenance::<AtomicU32>(address) }
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

    /// The magazine that a link names, also one of [parts](crate::pcp), which says more above.
    fn index(number: u32) -> Option<MagazineIndex> {
        MagazineIndex::new(number & ((1 << MagazineIndex::BITS) - 1))
    }

    #[inline]
    fn link(&self, index: MagazineIndex) -> &AtomicU32 {
        &self.magazine(index).next
    }
}

/// The kind of code that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Context {
    /// A thread, a process, a system call.
    Task,
    /// The one interrupt handler that may run above it.
    Interrupt,
}

/// A CPU and a context on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Here {
    /// The CPU.
    pub cpu: CpuId,
    /// The context on that CPU.
    pub context: Context,
}

impl Here {
    /// A thread on `cpu`.
    pub const fn task(cpu: CpuId) -> Self {
        Here { cpu, context: Context::Task }
    }
}

/// Rounds of the largest magazine.
pub const SLOTS: usize = bound(63, 2);

/// The number of a magazine. 0 stands for none where numbers are stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MagazineIndex(NonZeroU32);

impl MagazineIndex {
    /// Bits an index has: what the previous field of a front word holds.
    pub const BITS: u32 = 21;

    /// Number `index`; `None` for 0.
    pub const fn new(index: u32) -> Option<Self> {
        match NonZeroU32::new(index) {
            Some(index) => Some(MagazineIndex(index)),
            None => None,
        }
    }

    /// The number.
    pub const fn get(self) -> u32 {
        self.0.get()
    }
}

/// A magazine: slots, and the link of the stack it may be in.
///
/// Slots are relaxed atomics because an owner's sequence may read one that a drainer has just
/// taken; that sequence then never commits.
#[repr(C, align(64))]
pub struct Magazine {
    /// Frames; the first `rounds` of them are meant.
    pub slots: [AtomicU32; SLOTS],
    /// The magazine below in a stack.
    pub next: AtomicU32,
}

const _: () = assert!(IS_LOOM || size_of::<Magazine>() == 256 && align_of::<Magazine>() == 64);

impl Magazine {
    /// An empty magazine.
    pub fn new() -> Self {
        Magazine { slots: core::array::from_fn(|_| AtomicU32::new(0)), next: AtomicU32::new(0) }
    }
}

impl Default for Magazine {
    fn default() -> Self {
        Self::new()
    }
}
