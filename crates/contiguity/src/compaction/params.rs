//! The parameters and the result of a compaction.

use core::fmt;

use pagedepot::seam::NoAccess;
use pagedepot::{Compactions, FrameRange, Mode, Order, ZoneId};

/// The target of a compaction, and its largest cost.
///
/// ```
/// use pagedepot::Mode;
/// use pagedepot_contiguity::Compaction;
///
/// // Ten whole pageblocks, by 10,000 moves at most, without interrupting a CPU.
/// let _ = Compaction::pageblocks(10).moves_max(10_000).drain(Mode::Quiet);
/// // 1 GiB of 4 KiB pages, aligned to its size.
/// let _ = Compaction::range(1 << 18, 1 << 18);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compaction {
    pub(super) target: Target,
    pub(super) moves_max: u64,
    pub(super) looks_max: u64,
    pub(super) drain: Mode,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// Number of whole pageblocks that the zone shall have; `None`: all that can be had.
    Pageblocks(Option<u32>),
    /// A contiguous range.
    Range { frames: u32, align: u32 },
}

impl Compaction {
    const fn new(target: Target) -> Self {
        Compaction { target, moves_max: u64::MAX, looks_max: u64::MAX, drain: Mode::Full }
    }

    /// Compacts until the zone has `count` whole pageblocks, those included that it has already.
    pub const fn pageblocks(count: u32) -> Self {
        Self::new(Target::Pageblocks(Some(count)))
    }

    /// Compacts until no pageblock can be emptied any more.
    pub const fn all() -> Self {
        Self::new(Target::Pageblocks(None))
    }

    /// Compacts for `frames` contiguous frames, the first a multiple of `align` (a power of two).
    /// Both are rounded up to whole pageblocks.
    pub const fn range(frames: u32, align: u32) -> Self {
        Self::new(Target::Range { frames, align })
    }

    /// Compacts for a block of this order.
    pub const fn order(order: Order) -> Self {
        Self::range(order.frames(), order.frames())
    }

    /// Moves at most so many blocks. 0: none. Unlimited unless set.
    #[must_use]
    pub const fn moves_max(self, blocks: u64) -> Self {
        Compaction { moves_max: blocks, ..self }
    }

    /// Looks at most at so many pageblocks, or windows of the range's size, for blocks to move.
    /// Unlimited unless set. (The walks that choose them are O(zone) and not counted: about 1 ms
    /// for 64 GiB, each for 64 candidates.)
    #[must_use]
    pub const fn looks_max(self, sources: u64) -> Self {
        Compaction { looks_max: sources, ..self }
    }

    /// Sets the mode in which caches are drained: for pageblocks once before the first is chosen,
    /// then once for each 8 pageblocks or each window. [`Mode::Full`] unless set. A quiet drain
    /// leaves frames in fronts; their pageblocks cannot be emptied. A handover interrupts no CPU,
    /// and leaves the frames of CPUs that have not answered yet.
    #[must_use]
    pub const fn drain(self, mode: Mode) -> Self {
        Compaction { drain: mode, ..self }
    }
}

/// The reason why a compaction ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CompactEnd {
    /// The target is there. (Other callers may have it before its caller does:
    /// [`Flags::compact`](pagedepot::Flags::compact) takes a range for a request at once.)
    #[default]
    Reached,
    /// All candidates were looked at: the others hold pinned or unknown blocks, or there is no room
    /// for what they hold.
    NothingLeft,
    /// The compaction moved as many blocks, or looked at as many candidates, as the caller allowed.
    Budget,
    /// The zone's free memory outside of what was being emptied fell below its `low` watermark.
    LowMemory,
    /// [`Mover::progress`](crate::Mover::progress) ended it.
    Stopped,
}

/// The result of a compaction. Counts of pageblocks, blocks and pages since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CompactResult {
    /// The reason why it ended.
    pub end: CompactEnd,
    /// The range that a compaction for one made. All of it was free when it was left.
    pub range: Option<FrameRange>,
    /// Whole pageblocks of the zone at the end.
    pub whole_pageblocks: u64,
    /// Pageblocks that were emptied.
    pub emptied_pageblocks: u64,
    /// Candidates that were looked at: pageblocks, or windows.
    pub looks: u64,
    /// Blocks moved.
    pub moved_blocks: u64,
    /// Pages in them.
    pub moved_pages: u64,
    /// Blocks that the mover could not move.
    pub pinned_blocks: u64,
    /// Blocks that were freed before they were moved.
    pub gone_blocks: u64,
    /// Held or cached frames that the mover did not know, each the first of its candidate.
    pub unknown_frames: u64,
    /// Moves for which there was no destination.
    pub unplaced_blocks: u64,
}

impl core::ops::AddAssign for CompactResult {
    /// Sums what was done; the end and the range are those of the later one.
    fn add_assign(&mut self, later: CompactResult) {
        self.end = later.end;
        self.range = later.range;
        self.whole_pageblocks += later.whole_pageblocks;
        self.emptied_pageblocks += later.emptied_pageblocks;
        self.looks += later.looks;
        self.moved_blocks += later.moved_blocks;
        self.moved_pages += later.moved_pages;
        self.pinned_blocks += later.pinned_blocks;
        self.gone_blocks += later.gone_blocks;
        self.unknown_frames += later.unknown_frames;
        self.unplaced_blocks += later.unplaced_blocks;
    }
}

impl CompactResult {
    /// The zone's counts of this compaction.
    pub(super) fn counts(&self) -> Compactions {
        let mut counts = Compactions::default();
        counts.compactions = 1;
        counts.compact_reached = u64::from(self.end == CompactEnd::Reached);
        counts.emptied_pageblocks = self.emptied_pageblocks;
        counts.compact_looks = self.looks;
        counts.moved_blocks = self.moved_blocks;
        counts.moved_pages = self.moved_pages;
        counts.pinned_blocks = self.pinned_blocks;
        counts.gone_blocks = self.gone_blocks;
        counts.unplaced_blocks = self.unplaced_blocks;
        counts
    }
}

/// The reason why nothing was compacted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CompactError {
    /// No zone has this number.
    NoSuchZone {
        /// The number.
        zone: u32,
    },
    /// A range of no frames, or an alignment that is no power of two.
    BadRange {
        /// Frames asked for.
        frames: u32,
        /// Alignment asked for.
        align: u32,
    },
    /// More pageblocks than the zone has memory for.
    TooLarge {
        /// Pageblocks asked for.
        wanted: u64,
        /// Whole pageblocks that the zone's memory would make.
        managed: u64,
    },
    /// The [`Backing`](pagedepot::Backing) under this allocator keeps the free frames.
    Unsupported,
    /// This process is a fork of the one that made the allocator.
    Forked,
}

impl fmt::Display for CompactError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            CompactError::NoSuchZone { zone } => write!(
                f,
                "there is no zone {zone}: zones are numbered from 0, as they stand in Config::zones"
            ),
            CompactError::BadRange { frames, align } => write!(
                f,
                "cannot compact for {frames} frames aligned to {align}: ask for at least one \
                 frame, and for a power of two"
            ),
            CompactError::TooLarge { wanted, managed } => write!(
                f,
                "{wanted} pageblocks are asked for, and the zone's memory makes {managed}: ask for \
                 fewer, or use Compaction::all"
            ),
            CompactError::Unsupported => f.write_str(
                "the backing keeps the free frames: compact there, or use the allocator's own \
                 store",
            ),
            CompactError::Forked => f.write_str(
                "this process is a fork of the one that made the allocator, whose pages it does \
                 not own",
            ),
        }
    }
}

impl core::error::Error for CompactError {}

impl CompactError {
    pub(super) fn of(why: NoAccess, zone: ZoneId) -> Self {
        match why {
            NoAccess::Forked => CompactError::Forked,
            NoAccess::NoSuchZone => CompactError::NoSuchZone { zone: zone.get() },
        }
    }
}
