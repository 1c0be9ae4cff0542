//! The trait that a caller of compaction implements: finding the block around a frame, and moving
//! it.

use core::ops::ControlFlow;

use pagedepot::{Order, Pfn};

use super::params::CompactResult;

/// The holder of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occupant {
    /// A block that the mover can move, if it is asked to.
    Movable {
        /// First frame of the block.
        first: Pfn,
        /// The order that it was allocated with, or was split to. A contiguous range is frames of
        /// order 0, if each can be moved by itself.
        order: Order,
    },
    /// A block that stays where it is. The pageblock is then left as it is, at no further cost.
    Pinned,
    /// The mover knows of no block there. The frame may be cached, or on its way back; or it is
    /// another holder's. The pageblock is left as it is if a drain does not free the frame.
    Unknown,
}

/// A block to be moved: see [`Mover::move_blocks`].
#[derive(Debug)]
pub struct Move {
    from: Pfn,
    to: Pfn,
    order: Order,
    outcome: Outcome,
}

/// The outcome of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The mover did not say anything: as pinned.
    Undecided,
    Moved,
    Pinned,
    Gone,
}

impl Move {
    pub(super) fn new(from: Pfn, to: Pfn, order: Order) -> Self {
        Move { from, to, order, outcome: Outcome::Undecided }
    }

    pub(super) fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// First frame of the block as it is held now.
    pub fn from(&self) -> Pfn {
        self.from
    }

    /// First frame of a free block of the same order, allocated for this move.
    pub fn to(&self) -> Pfn {
        self.to
    }

    /// The order of both.
    pub fn order(&self) -> Order {
        self.order
    }

    /// The block was moved: the caller holds [`to`](Self::to) from now on, and gives
    /// [`from`](Self::from) up, which compaction frees.
    pub fn moved(&mut self) {
        self.outcome = Outcome::Moved;
    }

    /// The block stays where it is, and `to` goes back. This is what a move is that the mover says
    /// nothing about.
    pub fn pinned(&mut self) {
        self.outcome = Outcome::Pinned;
    }

    /// The block was freed meanwhile, or belongs to another holder now: `to` goes back, and `from`
    /// is left alone.
    pub fn gone(&mut self) {
        self.outcome = Outcome::Gone;
    }
}

/// A holder of blocks that can move them: a kernel with page tables, a program with a table of
/// handles.
///
/// # Contract
/// The allocator never touches a block's memory, so these methods are safe; what they say is
/// believed as [`Allocator::free`](pagedepot::Allocator::free) believes its caller.
/// 1. A move is [`moved`](Move::moved) only if the caller held `from` with this order at that
///    moment, has copied its contents to `to`, and leads all references there. From then on `from`
///    is compaction's: no other code frees it, or reads or writes it. Where old translations may
///    linger (a TLB), they were flushed first.
/// 2. A holder that frees its blocks beside compaction decides by one atomic step, or under a
///    lock, which of the two happens: the move, or the free. If it was the free, the move is
///    [`gone`](Move::gone).
/// 3. A panic out of [`move_blocks`](Self::move_blocks) is a return at that moment: what is marked
///    as moved is, and all else is not. So mark each move when its references are updated.
///
/// All calls come on the thread of the caller that compacts. They may allocate and free blocks,
/// frames of the same range too. A request of theirs never compacts by the registered mover while a
/// request runs it already. Requests know nothing of
/// [`Contiguity::compact`](crate::Contiguity::compact), beside which others are to compact: a mover
/// that is registered and passed to it, too, asks for memory without
/// [`Flags::compact`](pagedepot::Flags::compact), or bears to be entered again.
///
/// Pageblocks that are being emptied serve no request, as with Linux's `alloc_contig_range`. Other
/// callers' requests that find nothing else sleep until they are emptied, 126 ms at most. The
/// mover's own would wait for themselves: they fail at once, [exhausted]. A mover that needs memory
/// takes it beforehand.
///
/// [exhausted]: pagedepot::AllocError::Exhausted
pub trait Mover {
    /// Returns the holder of `frame`, which is not free. O(1) is best: it is asked for each held
    /// block of a pageblock, three times. Called without any lock of the allocator's.
    fn occupant(&self, frame: Pfn) -> Occupant;

    /// Moves blocks, at most 16 at a time, so that one flush of translations may serve them all.
    /// Meanwhile the free frames around them serve no requests: keep it short. If free memory
    /// runs low, compaction stops after this call.
    fn move_blocks(&self, moves: &mut [Move]);

    /// Called after each pageblock or window that was looked at, with what was done so far. `Break`
    /// ends the compaction; what was moved stays moved.
    fn progress(&self, so_far: &CompactResult) -> ControlFlow<()> {
        let _ = so_far;
        ControlFlow::Continue(())
    }
}
