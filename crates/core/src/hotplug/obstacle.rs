//! Obstacles that keep a range of frames from being taken: the question that a request for frames
//! at a given address leaves open.

use core::fmt;
use core::ops::ControlFlow;

use crate::alloc::Allocator;
use crate::alloc::cached_blocks::CachedBlocks;
use crate::alloc::hooks::are_carved;
use crate::alloc::isolation::pageblocks;
use crate::cpus::Cpus;
use crate::frame::FrameRange;
use crate::frame::pageblock::{PAGEBLOCK_FRAMES, PageblockIndex};
use crate::frame::{CpuId, Pfn, ZoneId};
use crate::pcp::Caches;

/// The reason why not all frames of a range can be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Obstacle {
    /// The allocator has no memory there.
    NoMemory {
        /// The first frame of the range without memory, as told by aligned runs of 512 frames.
        first: Pfn,
    },
    /// The range begins in one zone and goes on in another.
    OtherZone {
        /// The first frame of the other zone.
        first: Pfn,
        /// The other zone.
        zone: ZoneId,
    },
    /// A caller is adding or removing this memory.
    Isolated {
        /// The first frame of the range in an aligned run of 512 frames that is being changed.
        first: Pfn,
    },
    /// The allocator has cut frames into magazines, and keeps them for good.
    Carved {
        /// The first of them in the range.
        first: Pfn,
        /// Number of pages of the range.
        pages: u64,
    },
    /// Frames are not free: callers hold them, or CPUs cache them.
    InUse {
        /// The first of them in the range.
        first: Pfn,
        /// Number of pages of the range.
        pages: u64,
        /// The CPU that caches `first`; `None`: a caller holds it, or it was never given to the
        /// allocator (a hole of less than 512 frames).
        cached_by: Option<CpuId>,
    },
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Obstacle::NoMemory { first } => {
                write!(f, "the allocator has no memory at frame {first}")
            }
            Obstacle::OtherZone { first, zone } => {
                write!(f, "from frame {first} on the memory is of zone {}", zone.get())
            }
            Obstacle::Isolated { first } => {
                write!(
                    f,
                    "another caller is adding, removing or emptying the memory at frame {first}"
                )
            }
            Obstacle::Carved { first, pages } => write!(
                f,
                "{pages} pages hold the allocator's own magazines, frame {first} first: they stay \
                 for good"
            ),
            Obstacle::InUse { first, pages, cached_by: Some(cpu) } => write!(
                f,
                "{pages} pages are not free; CPU {} caches the first, frame {first}: drain the \
                 caches",
                cpu.get()
            ),
            Obstacle::InUse { first, pages, cached_by: None } => {
                write!(f, "{pages} pages are not free; frame {first} is the first, and allocated")
            }
        }
    }
}

impl core::error::Error for Obstacle {}

impl<C: Cpus> Allocator<'_, C> {
    /// Finds the obstacle that keeps [`alloc_at`](Self::alloc_at) from having these frames at this
    /// moment; `None`: they are free. For messages: beside other callers the answer may be out of
    /// date when it is returned. Waits for no caller; O(frames), and O(pages cached) where the
    /// first frame that is not free might be cached.
    pub fn obstacle(&self, range: FrameRange) -> Option<Obstacle> {
        Obstacles(&self.caches).of(range)
    }
}

/// Looks for them.
pub(super) struct Obstacles<'a, 'm, C>(pub &'a Caches<'m, C>);

impl<C: Cpus> Obstacles<'_, '_, C> {
    fn of(&self, range: FrameRange) -> Option<Obstacle> {
        let zone = match self.zone_obstacle(range) {
            Ok(zone) => zone,
            Err(obstacle) => return Some(obstacle),
        };
        if let Some((first, pages)) = self.carved_in(range) {
            return Some(Obstacle::Carved { first, pages });
        }
        let (first, pages) = self.missing_in(range)?;
        Some(Obstacle::InUse { first, pages, cached_by: self.cached_by(zone, first) })
    }

    /// The zone of a range that has memory throughout.
    fn zone_obstacle(&self, range: FrameRange) -> Result<ZoneId, Obstacle> {
        let mut zone = None;
        // No frames, and frames beyond the last number, are without memory.
        let end = range.end().min(1 << 32);
        for pageblock in pageblocks(range).map(PageblockIndex) {
            let first = pageblock.first().max(range.start);
            let tag = self.0.store.tags().raw(pageblock);
            match zone {
                _ if !tag.is_present() => return Err(Obstacle::NoMemory { first }),
                _ if tag.is_isolated() => return Err(Obstacle::Isolated { first }),
                Some(zone) if zone != tag.zone() => {
                    return Err(Obstacle::OtherZone { first, zone: tag.zone() });
                }
                _ => zone = Some(tag.zone()),
            }
        }
        match zone {
            Some(zone) if range.frames > 0 && range.end() == end => Ok(zone),
            _ => Err(Obstacle::NoMemory { first: range.start }),
        }
    }

    /// The first carved frame of a range, and how many there are.
    pub fn carved_in(&self, range: FrameRange) -> Option<(Pfn, u64)> {
        if !are_carved(self.0, range.start, range.frames) {
            return None;
        }
        let carved = self.0.pcps.carved();
        let mut all = frames(range).filter(|&pfn| carved.any(pfn, 1));
        let first = all.next()?;
        Some((first, 1 + all.count() as u64))
    }

    /// The first frame of a range that is not free in the store, and how many there are.
    pub fn missing_in(&self, range: FrameRange) -> Option<(Pfn, u64)> {
        let mut missing = None;
        for pageblock in pageblocks(range).map(PageblockIndex) {
            if self.is_whole(pageblock) {
                continue;
            }
            let start = pageblock.first().max(range.start);
            let end =
                (u64::from(pageblock.first().get()) + u64::from(PAGEBLOCK_FRAMES)).min(range.end());
            let part = FrameRange::new(start, (end - u64::from(start.get())) as u32);
            for pfn in frames(part).filter(|&pfn| !self.0.store.is_free(pfn)) {
                missing.get_or_insert((pfn, 0)).1 += 1;
            }
        }
        missing
    }

    /// Whether a pageblock is entirely free, where that is quickly seen.
    fn is_whole(&self, pageblock: PageblockIndex) -> bool {
        let section = self.0.store.bitmap().and_then(|bitmap| bitmap.section(pageblock.section()));
        section
            .is_some_and(|section| section.count_free(pageblock.in_section()) == PAGEBLOCK_FRAMES)
    }

    /// The CPU that caches a frame, as far as can be seen from here.
    fn cached_by(&self, zone: ZoneId, pfn: Pfn) -> Option<CpuId> {
        let cached = CachedBlocks(&self.0.pcps);
        self.0.pcps.all_cpus().find(|&cpu| {
            let walk = cached.visit(cpu, zone, |visited| {
                let size = visited.class.block_frames();
                let has_it = |block: Pfn| (0..size).contains(&pfn.get().wrapping_sub(block.get()));
                match cached.frames_of(visited.magazine, visited.rounds).any(has_it) {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                }
            });
            walk.is_break()
        })
    }
}

fn frames(range: FrameRange) -> impl Iterator<Item = Pfn> {
    (u64::from(range.start.get())..range.end().min(1 << 32)).map(|frame| Pfn::new(frame as u32))
}
