//! Where the per-CPU words lie: one block per CPU, found by its number alone, so that a sequence
//! can compute its address without a table.
//!
//! | bytes of a block | what |
//! |---|---|
//! | 0..8 | the gate |
//! | 8.. | front words, `[context][zone][mobility][class]`: the hot ones share the gate's line |
//! | then, on lines of their own | one [`CpuZone`](super::cpu_zone::CpuZone) per zone: what drainers touch |

use super::magazine::{Class, Magazine, MagazineIndex};
use crate::cpus::{Context, Here};
use crate::frame::{CpuId, Mobility, ZoneId};
use crate::prim::AtomicU64;
use crate::store::section::Tag;

/// A gate that lets its CPU in.
///
/// Zero is closed, so that a gate wiped by `MADV_WIPEONFORK` keeps a forked child out. Any other
/// value is the ticket of the drainer that closed it.
pub const GATE_OPEN: u64 = 1;
/// Word size in the block.
pub const WORD_BYTES: usize = size_of::<AtomicU64>();

/// Byte offset of a front word of the task context from the start of its CPU's block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WordOffset(usize);

impl WordOffset {
    /// Words per zone and context: one mobility more than there are, so that a tag's byte, zone
    /// times four plus mobility, is the row.
    pub const PER_ZONE: usize = Class::COUNT * 4;

    /// The front of `zone`, `class` and `mobility`.
    #[inline]
    pub const fn new(zone: ZoneId, class: Class, mobility: Mobility) -> Self {
        Self::in_row(zone.index() << 2 | mobility.index(), class)
    }

    /// The front of the frames with this tag.
    #[inline]
    pub(crate) const fn of_tag(tag: Tag, class: Class) -> Self {
        Self::in_row(tag.row(), class)
    }

    #[inline]
    const fn in_row(row: usize, class: Class) -> Self {
        WordOffset(WORD_BYTES * (1 + row * Class::COUNT + class as usize))
    }

    /// The offset in bytes.
    #[inline]
    pub const fn bytes(self) -> usize {
        self.0
    }
}

/// The per-CPU blocks and the magazines their words name: what a sequence needs.
pub struct BlockArray {
    /// First block.
    pub blocks: *mut u8,
    /// Bytes from one block to the next.
    pub stride: usize,
    /// CPUs that have a block.
    pub cpus: u32,
    /// Bytes from a task-context word to its interrupt-context twin.
    pub context_stride: usize,
    /// Address of magazine 0 (which does not exist; 1 is the first).
    pub magazines: usize,
}

// SAFETY: the pointers are to memory that the allocator holds for its lifetime and that is only
// accessed atomically.
unsafe impl Send for BlockArray {}
// SAFETY: as above.
unsafe impl Sync for BlockArray {}

impl BlockArray {
    /// The gate of `cpu`.
    ///
    /// # Panics
    /// When `cpu` has no block.
    #[inline]
    pub fn gate(&self, cpu: CpuId) -> &AtomicU64 {
        assert!(cpu.get() < self.cpus);
        // SAFETY: block `cpu` exists and begins with its gate.
        unsafe { &*self.blocks.add(cpu.index() * self.stride).cast::<AtomicU64>() }
    }

    /// The word at `word` of `here`.
    ///
    /// # Panics
    /// When the CPU has no block.
    #[inline]
    pub fn word(&self, here: Here, word: WordOffset) -> &AtomicU64 {
        assert!(here.cpu.get() < self.cpus);
        let context = match here.context {
            Context::Task => 0,
            Context::Interrupt => self.context_stride,
        };
        debug_assert!(word.0 + context < self.stride);
        // SAFETY: the block exists, and a WordOffset is made only from zones the allocator has;
        // with one context `context_stride` is 0.
        unsafe { &*self.blocks.add(here.cpu.index() * self.stride + context + word.0).cast::<AtomicU64>() }
    }

    /// The magazine with this number.
    #[inline]
    pub fn magazine(&self, index: MagazineIndex) -> &Magazine {
        let address = self.magazines + index.get() as usize * size_of::<Magazine>();
        // SAFETY: indices come only from stacks and words, which hold only indices of magazines
        // that exist; their memory is never anything else (see the module `magazine`).
        unsafe { &*core::ptr::with_exposed_provenance::<Magazine>(address) }
    }
}
