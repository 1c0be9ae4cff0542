//! The seam to a store that the embedder has already.
#![allow(unsafe_code, reason = "an implementation of a backing is a promise")]

use super::misuse::DoubleFree;
use crate::frame::{Mobility, Order, Pfn, ZoneId};

/// A block on its way between an allocator and its [`Backing`]. C may fill and read lists of them:
/// ```c
/// struct block { uint32_t pfn; uint8_t order, mobility; uint16_t unused; };
/// ```
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Block {
    pfn: u32,
    order: u8,
    mobility: u8,
    unused: u16,
}

const _: () = assert!(size_of::<Block>() == 8);

impl Block {
    /// The block that lists are filled with at first.
    pub(super) const NONE: Block = Block { pfn: 0, order: 0, mobility: 0, unused: 0 };

    /// The block that begins at `pfn`, in a pageblock that serves `mobility`.
    #[inline]
    pub const fn new(pfn: Pfn, order: Order, mobility: Mobility) -> Self {
        Block { pfn: pfn.get(), order: order.get() as u8, mobility: mobility as u8, unused: 0 }
    }

    /// First frame of the block.
    #[inline]
    pub const fn pfn(self) -> Pfn {
        Pfn::new(self.pfn)
    }

    /// Order of the block; 0 where C wrote one that does not exist.
    #[inline]
    pub const fn order(self) -> Order {
        match Order::new(self.order as u32) {
            Some(order) => order,
            None => Order::BASE,
        }
    }

    /// Mobility that its pageblock serves: 0 unmovable, 1 movable, 2 (and what C wrote beyond)
    /// reclaimable.
    #[inline]
    pub const fn mobility(self) -> Mobility {
        match self.mobility {
            0 => Mobility::Unmovable,
            1 => Mobility::Movable,
            _ => Mobility::Reclaimable,
        }
    }
}

/// The request of an allocator to its [`Backing`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct BackingRequest {
    /// Blocks of this zone.
    pub zone: ZoneId,
    /// Blocks of this order.
    pub order: Order,
    /// Blocks of pageblocks that serve this, if there are such.
    pub mobility: Mobility,
    /// Bits that the caller passed by [`Flags::backing_bits`](crate::Flags::backing_bits); 0 by
    /// default, and for metadata of the allocator's own.
    pub bits: u16,
}

impl BackingRequest {
    /// A request without bits.
    pub const fn new(zone: ZoneId, order: Order, mobility: Mobility) -> Self {
        BackingRequest { zone, order, mobility, bits: 0 }
    }
}

/// Contiguous frames that an allocator asks [`BackingRanges`] for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct RangeRequest {
    /// Frames of this zone.
    pub zone: ZoneId,
    /// Number of frames, at most 2^18.
    pub frames: u32,
    /// The first frame is a multiple of this power of two.
    pub align: u32,
    /// The pageblocks that the range lies in serve this from now on.
    pub mobility: Mobility,
    /// The bits that the caller passed by [`Flags::backing_bits`](crate::Flags::backing_bits); 0 by
    /// default.
    pub bits: u16,
}

/// All free frames of the zones, shared by all CPUs: a buddy allocator, say, that a kernel has and
/// keeps. An allocator made [over](crate::Builder::backing) it puts fronts, shelves, gates and
/// drains in front, and keeps no bitmap of its own.
///
/// Each call moves up to 64 blocks: a magazine's 63 and the one that a request waits for.
///
/// # What it should do
/// Requests fail only when they must, and nothing waits for ever, if it does this too:
/// 1. It hands out fewer blocks than asked for only if, at some moment of the call, it had no more:
///    that is how the allocator learns that a zone is empty.
/// 2. It does not call the allocator.
/// 3. It may be called wherever the allocator is: from interrupt handlers, if those allocate or
///    free. A lock in it is then taken with interrupts off. Calls run on the CPU of the caller, or
///    for a drain on the drainer's, several at a time.
///
/// # What the allocator over it does not promise
/// A request that the caches serve waits for no other caller. One that reaches the backing waits as
/// long as the backing does. Other users may take frames from the backing at the same time:
/// watermarks go by the backing's count of free pages, and such frames count as held.
///
/// # Safety
/// The holder of a block uses its memory, and the allocator itself writes to it where it has a
/// [`LinearMap`](crate::LinearMap). So an implementation promises, for all concurrent callers
/// together:
/// 1. *Range.* A block handed out by [`take`](Self::take) is naturally aligned, and all its frames
///    are frames that the configuration (or `add_memory`) gave to the zone asked for.
/// 2. *Exclusivity.* No frame of it is handed out again, by any method and to any user of the
///    backing, before it has been [`put`](Self::put) back by its holder. The allocator puts each
///    frame back once per `take` as long as its own callers free what they hold once; what it
///    reports as doubled must not be handed out twice.
/// 3. *Visibility.* What happened before a frame was put back happens before the call that hands it
///    out again returns: a lock gives that, or a release store that an acquire load reads.
/// 4. `take` returns at most `out.len()`, and has written as many entries.
/// 5. The mobility it returns with a block is a label only: any value keeps these promises.
///
/// The allocator checks 4, and alignment and zone (by aligned runs of 512 frames) of 1, each time,
/// and reports [`Misuse::Backing`](crate::Misuse::Backing) instead of handing such a block out. It
/// cannot check 2 and 3.
pub unsafe trait Backing: Sync {
    /// Takes up to `out.len()` (at most 64) blocks; returns how many it wrote to the front of
    /// `out`. CPUs hand them out in the order in which they lie there.
    ///
    /// Each comes with the mobility that the pageblock around it serves from now on: frames of it
    /// that are freed are cached for requests of that mobility. One that keeps no mobilities apart
    /// returns the one asked for. The order of a block written is not read.
    fn take(&self, request: BackingRequest, out: &mut [Block]) -> usize;

    /// Takes back at most 64 blocks of `zone`, in whatever order of address; they need not be of
    /// the order they were taken with, and their mobility says nothing. Returns which of their
    /// frames were free already, as far as it can tell: these stay free once, and are reported as
    /// [`Misuse`](crate::Misuse::DoubleFree), last, so that this may not panic for their sake.
    fn put(&self, zone: ZoneId, blocks: &[Block]) -> DoubleFree;

    /// Free pages of a zone, for watermarks and reports. Read often, so O(1); exact while no other
    /// call is in progress.
    fn free_pages(&self, zone: ZoneId) -> u64;

    /// Whether a frame is free here now. For checks.
    fn is_free(&self, pfn: Pfn) -> bool;

    /// Free pages of a zone counted by a walk, for [`validate`](crate::Allocator::validate) to
    /// compare with [`free_pages`](Self::free_pages), which it is by default.
    fn count_free(&self, zone: ZoneId) -> u64 {
        self.free_pages(zone)
    }

    /// Frames at given addresses, and more contiguous ones than the largest block has, if it can
    /// find them. By default it cannot: `alloc_at`, and `alloc_contiguous` of more than 1024
    /// frames, fail with [`AllocError::Unsupported`](crate::AllocError::Unsupported).
    fn ranges(&self) -> Option<&dyn BackingRanges> {
        None
    }
}

/// Operations of a [`Backing`] on frames that are no blocks. What was taken comes back by
/// [`Backing::put`] in aligned blocks.
///
/// # Safety
/// Requires what [`Backing`] requires, of ranges: the frames of a range that was taken or claimed
/// are all of the zone, and no frame of it is handed out again, by any method of either trait,
/// before it has been put back.
pub unsafe trait BackingRanges {
    /// Takes the contiguous frames of a request. `None`: at some moment of the call there was no
    /// such run of free frames, wherever it might begin.
    fn take_contiguous(&self, request: RangeRequest) -> Option<Pfn>;

    /// Takes exactly the `frames` frames from `start`, all of `zone`. `false`: not all of them are
    /// free, and nothing was taken.
    fn claim(&self, zone: ZoneId, start: Pfn, frames: u32) -> bool;
}
