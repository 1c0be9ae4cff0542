//! Obstacles that keep a range of frames from being taken: the question that a request for frames
//! at a given address leaves open.

use core::fmt;

use pagedepot::cpus::Cpus;
use pagedepot::seam::{PAGEBLOCK_FRAMES, PageblockIndex, PageblockState, ZoneAccess};
use pagedepot::{Allocator, CpuId, FrameRange, Pfn, ZoneId};

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
    /// The frames are free and [reported](crate::Reporting), and the device has refused of late to
    /// give the memory back.
    Refused {
        /// The first frame of the range in an aligned run of 512 frames that was refused.
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
            Obstacle::Refused { first } => {
                write!(f, "the reporting device refuses to give back the memory at frame {first}")
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

/// Implements [`Contiguity::obstacle`](crate::Contiguity::obstacle).
pub fn obstacle<C: Cpus>(allocator: &Allocator<'_, C>, range: FrameRange) -> Option<Obstacle> {
    // A fork has no memory at all.
    let first_zone = ZoneAccess::of(allocator, ZoneId::new(0)).ok();
    let Some(any) = first_zone else { return Some(Obstacle::NoMemory { first: range.start }) };
    let zone = match zone_of(any, range) {
        Ok(id) => ZoneAccess::of(allocator, id).ok()?,
        Err(obstacle) => return Some(obstacle),
    };
    if let Some((first, pages)) = carved_in(zone, range) {
        return Some(Obstacle::Carved { first, pages });
    }
    let Some((first, pages)) = missing_in(zone, range) else { return refused_in(zone, range) };
    Some(Obstacle::InUse { first, pages, cached_by: zone.caching_cpu(first) })
}

/// The zone of a range that has memory throughout. Any zone of the allocator can tell.
fn zone_of<C: Cpus>(any: ZoneAccess<'_, '_, C>, range: FrameRange) -> Result<ZoneId, Obstacle> {
    let mut zone = None;
    // No frames, and frames beyond the last number, are without memory.
    let end = range.end().min(1 << 32);
    let numbered = FrameRange::new(range.start, (end - u64::from(range.start.get())) as u32);
    for pageblock in numbered.pageblocks().map(PageblockIndex) {
        let first = pageblock.first().max(range.start);
        let of_this = match any.state(pageblock) {
            PageblockState::Absent => return Err(Obstacle::NoMemory { first }),
            PageblockState::Isolated => return Err(Obstacle::Isolated { first }),
            PageblockState::Carved(zone) | PageblockState::Serving(zone) => zone,
        };
        if *zone.get_or_insert(of_this) != of_this {
            return Err(Obstacle::OtherZone { first, zone: of_this });
        }
    }
    match zone {
        Some(zone) if range.frames > 0 && range.end() == end => Ok(zone),
        _ => Err(Obstacle::NoMemory { first: range.start }),
    }
}

/// The first carved frame of a range, and how many there are.
pub(super) fn carved_in<C: Cpus>(
    zone: ZoneAccess<'_, '_, C>,
    range: FrameRange,
) -> Option<(Pfn, u64)> {
    if !zone.are_carved(range) {
        return None;
    }
    let mut all = frames(range).filter(|&pfn| zone.are_carved(FrameRange::new(pfn, 1)));
    let first = all.next()?;
    Some((first, 1 + all.count() as u64))
}

/// The first frame of a range that is not free in the store, and how many there are.
pub(super) fn missing_in<C: Cpus>(
    zone: ZoneAccess<'_, '_, C>,
    range: FrameRange,
) -> Option<(Pfn, u64)> {
    let mut missing = None;
    for pageblock in range.pageblocks().map(PageblockIndex) {
        if zone.count_free(pageblock) == PAGEBLOCK_FRAMES {
            continue;
        }
        let start = pageblock.first().max(range.start);
        let end =
            (u64::from(pageblock.first().get()) + u64::from(PAGEBLOCK_FRAMES)).min(range.end());
        let part = FrameRange::new(start, (end - u64::from(start.get())) as u32);
        for pfn in frames(part).filter(|&pfn| !zone.is_free(pfn)) {
            missing.get_or_insert((pfn, 0)).1 += 1;
        }
    }
    missing
}

/// The obstacle that is left of a range without a [missing](missing_in) frame.
pub(super) fn refused_in<C: Cpus>(
    zone: ZoneAccess<'_, '_, C>,
    range: FrameRange,
) -> Option<Obstacle> {
    let refused = range.pageblocks().map(PageblockIndex).find(|&at| zone.is_refused(at))?;
    Some(Obstacle::Refused { first: refused.first().max(range.start) })
}

fn frames(range: FrameRange) -> impl Iterator<Item = Pfn> {
    (u64::from(range.start.get())..range.end().min(1 << 32)).map(|frame| Pfn::new(frame as u32))
}
