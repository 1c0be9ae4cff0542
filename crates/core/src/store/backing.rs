//! The seams to what lies below the store: to a store that the embedder has already, and to what
//! provides the memory, which is told what of it is free, and asked for it again.
#![allow(unsafe_code, reason = "an implementation of a backing is a promise")]

use super::misuse::DoubleFree;
use crate::frame::{FrameRange, Mobility, Order, Pfn, ZoneId};
use crate::sync::counts;
use crate::sync::late_init::LateInit;
use crate::sync::prim::{AtomicBool, Ordering};
use core::fmt;

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

    /// Operations on words of 64 frames, if it keeps its frames so: then blocks of orders 0 to 6
    /// are taken by these instead of [`take`](Self::take), and lists of them are put back so. By
    /// default it has none.
    fn words(&self) -> Option<&dyn BackingWords> {
        None
    }

    /// Frames at given addresses, and more contiguous ones than the largest block has, if it can
    /// find them. By default it cannot: `alloc_at`, and `alloc_contiguous` of more than 1024
    /// frames, fail with [`AllocError::Unsupported`](crate::AllocError::Unsupported).
    fn ranges(&self) -> Option<&dyn BackingRanges> {
        None
    }
}

/// Operations of a [`Backing`] on blocks of orders 0 to 6, by words: 64 frames from a multiple of
/// 64 on, of which a mask has a bit each. A magazine is a word or two of them where a list would
/// have 63 entries to be written, checked and read.
///
/// # Safety
/// Requires what [`Backing`] requires of blocks.
pub unsafe trait BackingWords {
    /// Takes up to `want` blocks, and passes the first frame of each word that they lie in, and the
    /// bits at which they begin, at least one. All are for the mobility asked for, which labels
    /// their pageblocks. CPUs hand them out from the last word to the first, and from the lowest
    /// bit of each to the highest.
    fn take_words(&self, request: BackingRequest, want: u32, give: &mut dyn FnMut(Pfn, u64));

    /// Takes back the frames at the bits of at most 16 words of `zone`, which [`Backing::take`] may
    /// have given, too; what `take_words` gave may come back by [`Backing::put`]. Returns what that
    /// returns.
    fn put_words(&self, zone: ZoneId, words: &[(Pfn, u64)]) -> DoubleFree;
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

/// The provider of the memory below the allocator, which has a use for free memory: a hypervisor,
/// or the operating system of a program (Linux: `struct page_reporting_dev_info`; HyperAlloc's
/// install and reclaim, EuroSys 2025).
///
/// A device is registered by `pagedepot_contiguity::Reporting::register`, and gets whole
/// pageblocks: aligned runs of 512 frames, 2 MiB of 4 KiB pages.
#[allow(unused_variables, reason = "a default needs none")]
pub trait ReportingDevice: Sync {
    /// Reports ranges of free pageblocks: ascending, apart, at most 32 pageblocks in all. Until
    /// this returns the frames are the device's alone: no request gets one. The device may take the
    /// memory away, so that the contents are lost.
    ///
    /// `false`: the device did not take the report; the frames are free as before. They are offered
    /// again by the next pass.
    ///
    /// It may allocate and free. A panic leaves the frames free and unreported.
    fn report(&self, ranges: &[FrameRange]) -> bool;

    /// Frames of a reported pageblock are about to be handed out, all of which are needed again.
    /// Returns once they can be used. The default is for devices that bring memory back when it is
    /// touched, as Linux does: there is nothing to do.
    ///
    /// `false`: the memory cannot be had now. The pageblock stays reported, and the request goes on
    /// to other memory. Requests pass the pageblock by until one finds nothing else: that one asks
    /// for it once more, so at most twice in all. The device need not tell when it has memory
    /// again: a [look](crate::Allocator::look) that met a refusal is not proven, so that its caller
    /// looks again.
    ///
    /// Called on the slow path of any request, so also from interrupt and signal handlers where
    /// those allocate. It must not call the allocator, and must not panic: frames that the request
    /// has in hand would be lost.
    fn needed(&self, pageblock: FrameRange) -> bool {
        true
    }
}

/// There is a device already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceRegistered;

impl fmt::Display for DeviceRegistered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a reporting device is registered already: let one tell the others")
    }
}

impl core::error::Error for DeviceRegistered {}

counts! {
    /// Counts of pageblocks that were reported and needed again.
    ReportCounts of ReportCells {
        /// Reported now.
        reported,
        /// Reported since construction.
        reports,
        /// Needed again since construction.
        needed,
        /// Number of times that [`ReportingDevice::needed`] said `false`.
        refused,
    }
}

/// The device, once there is one, and what was reported to it.
#[derive(Default)]
pub struct Reports<'m> {
    device: LateInit<&'m dyn ReportingDevice>,
    /// Relaxed: statistics, all but `reported` (see [`is_any`](Self::is_any)). For a moment more
    /// pageblocks count as reported than have the bit.
    counts: ReportCells,
    /// Whether a section has refused pageblocks.
    has_refusals: AtomicBool,
}

impl<'m> Reports<'m> {
    /// Registers the device, for the allocator's life.
    ///
    /// # Errors
    /// [`DeviceRegistered`].
    pub fn register(&self, device: &'m dyn ReportingDevice) -> Result<(), DeviceRegistered> {
        self.device.init(|| Ok::<_, ()>(device)).map(drop).map_err(|_| DeviceRegistered)
    }

    /// The device, if there is one.
    pub fn device(&self) -> Option<&'m dyn ReportingDevice> {
        self.device.get().copied()
    }

    /// Whether a pageblock is reported now.
    ///
    /// Acquire: pairs with the Release in `need`. A search that looks for no reported pageblock,
    /// since the last one was woken, sees that its frames are in flight, or where they are now. One
    /// that must see a report has seen the end of the pass as an ended move.
    #[inline]
    pub(super) fn is_any(&self) -> bool {
        self.counts.reported.load(Ordering::Acquire) > 0
    }

    /// Counts a pageblock that is about to get its bit.
    pub(super) fn count_report(&self) {
        self.counts.reported.fetch_add(1, Ordering::Relaxed);
        self.counts.reports.fetch_add(1, Ordering::Relaxed);
    }

    /// Asks for a pageblock whose bit the caller has cleared; `false`: the device refused.
    pub(super) fn need(&self, pageblock: FrameRange) -> bool {
        let is_here = self.device().is_none_or(|device| device.needed(pageblock));
        if is_here {
            // Release: pairs with the Acquire in `is_any`.
            self.counts.reported.fetch_sub(1, Ordering::Release);
            self.counts.needed.fetch_add(1, Ordering::Relaxed);
        } else {
            self.counts.refused.fetch_add(1, Ordering::Relaxed);
        }
        is_here
    }

    /// Notes that a section has a refused pageblock. Call after its bit was set.
    pub(super) fn note_refusal(&self) {
        // Release: pairs with the Acquire in `take_refusals`, whose caller clears the bit.
        self.has_refusals.store(true, Ordering::Release);
    }

    /// Whether a pageblock is reported now that the device may refuse, as it has refused one.
    pub fn may_be_refused(&self) -> bool {
        // Relaxed: a refusal that a search has met, by its own question or by the mark of a move
        // that has ended, was counted before.
        self.is_any() && self.counts.refused.load(Ordering::Relaxed) > 0
    }

    /// Whether a section may have refused pageblocks, all of which the caller forgets.
    pub(super) fn take_refusals(&self) -> bool {
        // Relaxed: a caller that misses a refusal beside it may count as the earlier one. Acquire:
        // pairs with the Release in `note_refusal`.
        self.has_refusals.load(Ordering::Relaxed)
            && self.has_refusals.swap(false, Ordering::Acquire)
    }

    /// Counts of pageblocks reported and needed again.
    pub fn counts(&self) -> ReportCounts {
        self.counts.read()
    }
}
