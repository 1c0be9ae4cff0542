//! Errors of requests. Each fits a pair of registers, so the fast path returns it without a store
//! to memory.

use core::fmt;

use crate::kind::Kind;
use pagedepot::AllocError;
use pagedepot::cpus::Unusable;

/// The reason why a request for address space, or for memory mapped into it, was not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum VmapError {
    /// The size is zero, or larger than the managed range.
    BadSize,
    /// The alignment is not a power of two.
    BadAlign,
    /// The window or address lies outside of the managed range, or not at page boundaries.
    BadWindow,
    /// No free range is large enough, also after a purge of everything freed.
    NoSpace,
    /// All area descriptors are in use.
    NoAreas,
    /// Part of the pages requested belongs to a busy area.
    Occupied,
    /// The request would have had to wait, which its options forbid.
    WouldWait,
    /// No busy area of the right kind begins at that address.
    NotAllocated,
    /// The pages of the area are mapped already, or lie behind its end.
    BadOffset,
    /// The frame number is 2^32 - 1, which the metadata cannot hold.
    BadFrame,
    /// The page allocator had no frames.
    Frames(AllocError),
    /// The mapper failed.
    Map(MapError),
}

impl fmt::Display for VmapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            VmapError::BadSize => {
                "the size with guard pages must be between 1 page and that of \
                the managed range"
            }
            VmapError::BadAlign => "the alignment in bytes must be a power of two",
            VmapError::BadWindow => {
                "the address or window must consist of whole pages of the \
                managed range"
            }
            VmapError::NoSpace => {
                "no free range is large enough: free areas, ask for a smaller size or alignment, \
                 or manage a larger range"
            }
            VmapError::NoAreas => {
                "all area descriptors are in use: free areas, or raise \
                VmapConfig::areas_max"
            }
            VmapError::Occupied => "part of the range is in use: Vmap::find tells by which area",
            VmapError::WouldWait => {
                "the free address space or a page table is locked: try again, \
                or allow the request to wait"
            }
            VmapError::NotAllocated => {
                "no busy area of that kind begins there: was it freed \
                before?"
            }
            VmapError::BadOffset => "the pages are mapped already, or lie beyond the area's end",
            VmapError::BadFrame => "frame number 2^32 - 1 cannot be mapped",
            VmapError::Frames(error) => return error.fmt(f),
            VmapError::Map(error) => return error.fmt(f),
        })
    }
}

impl core::error::Error for VmapError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            VmapError::Frames(error) => Some(error),
            VmapError::Map(error) => Some(error),
            _ => None,
        }
    }
}

impl From<AllocError> for VmapError {
    fn from(error: AllocError) -> Self {
        VmapError::Frames(error)
    }
}

impl From<Unusable> for VmapError {
    fn from(why: Unusable) -> Self {
        VmapError::Frames(why.into())
    }
}

impl From<MapError> for VmapError {
    fn from(error: MapError) -> Self {
        VmapError::Map(error)
    }
}

/// The reason why an area was not freed. The call has changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum VfreeError {
    /// The address is not in the managed range.
    OutOfRange,
    /// No busy area begins there.
    NotAllocated,
    /// An area of another kind begins there.
    WrongKind(Kind),
    /// This process is a fork of the one that allocated the area.
    Forked,
}

impl fmt::Display for VfreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            VfreeError::OutOfRange => f.write_str("the address is not in the managed range"),
            VfreeError::NotAllocated => f.write_str(
                "no busy area begins there: was it freed before, or is this an address inside one?",
            ),
            VfreeError::WrongKind(kind) => {
                write!(f, "another method frees the area there: {}", kind.freed_by())
            }
            VfreeError::Forked => f.write_str(
                "this process is a fork of the one that allocated the area: leave it to that one",
            ),
        }
    }
}

impl core::error::Error for VfreeError {}

/// The reason why a call of a [`Mapper`](crate::Mapper) failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MapError {
    /// No memory for page tables.
    NoTables,
    /// The limit on mappings is reached: that of the system, or the mapper's own.
    TooManyMappings {
        /// The limit.
        limit: u32,
    },
    /// The frames at hand lie so scattered that the memory takes more mappings than are left.
    /// Nothing was mapped.
    TooScattered {
        /// Mappings that the memory takes: the number of its runs of consecutive frames.
        needed: u32,
    },
    /// The system refused the mapping with this error code.
    Refused(i32),
    /// Another mapping has the addresses by now: see
    /// [`Mapper::lost_pages`](crate::Mapper::lost_pages).
    Lost,
}

/// Linux's code for a mapping that would lock more memory than the process may.
const EAGAIN: i32 = 11;

impl fmt::Display for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MapError::NoTables => f.write_str("out of memory for page tables: free some pages"),
            MapError::TooManyMappings { limit } => write!(
                f,
                "the limit of {limit} mappings is reached: free or purge, allocate memory in \
                 longer runs, or raise the limit (on Linux vm.max_map_count)"
            ),
            MapError::Refused(EAGAIN) => f.write_str(
                "the system refused the mapping for the memory that is locked already (EAGAIN): \
                 raise `ulimit -l`, or call mlockall without MCL_FUTURE",
            ),
            MapError::TooScattered { needed } => write!(
                f,
                "the free frames are so scattered that the memory takes {needed} mappings, more \
                 than are left of the limit: ask for less, free or purge, free frames that lie \
                 together, or raise the limit (on Linux vm.max_map_count)"
            ),
            MapError::Refused(code) => write!(f, "the system refused the mapping (error {code})"),
            MapError::Lost => f.write_str(
                "the addresses were lost to another mapping when a system call failed: free the \
                 area, and allocate another",
            ),
        }
    }
}

impl core::error::Error for MapError {}
