//! Errors of address-space requests. Each fits a register pair, so that the fast path returns it
//! without touching memory.

use core::fmt;

use pagedepot::AllocError;
use pagedepot::cpus::Unusable;

/// Why a request for address space, or for memory mapped into it, was not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum VmapError {
    /// Zero pages, or more than the managed range has.
    BadSize,
    /// An alignment that is no power of two.
    BadAlign,
    /// A window that lies outside the managed range, or an address that is not at a page boundary.
    BadWindow,
    /// No free range is large enough, though everything freed was taken back.
    NoSpace,
    /// All area descriptors are in use.
    NoAreas,
    /// Somebody is there already.
    Occupied,
    /// The request may not wait, and would have had to.
    WouldWait,
    /// No busy area of the kind needed begins at that address.
    NotAllocated,
    /// Pages at that place of the area are mapped already, or lie beyond its end.
    BadOffset,
    /// A frame number that cannot be kept: the very last one.
    BadFrame,
    /// The page allocator had no frames.
    Frames(AllocError),
    /// The mapper refused.
    Map(MapError),
}

impl fmt::Display for VmapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            VmapError::BadSize => "sizes go from 1 page to as many as the managed range has, guard pages included",
            VmapError::BadAlign => "the alignment is in bytes and must be a power of two",
            VmapError::BadWindow => "the address or window is not made of whole pages of the managed range",
            VmapError::NoSpace => {
                "no free range is large enough: free areas, ask for a smaller size or alignment, or manage a larger range"
            }
            VmapError::NoAreas => "all area descriptors are in use: free areas, or raise VmapConfig::areas_max",
            VmapError::Occupied => "part of the range is in use (Vmap::find tells by whom)",
            VmapError::WouldWait => "somebody holds the free address space: try again, or allow the request to wait",
            VmapError::NotAllocated => "no busy area of that kind begins there: was it freed before?",
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

/// Why an area was not freed. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum VfreeError {
    /// The address is not in the managed range.
    OutOfRange,
    /// No busy area begins there.
    NotAllocated,
    /// An area of another kind begins there.
    WrongKind(Kind),
    /// This process is a fork of the one that made it all.
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
                write!(f, "the area there is freed by {}", kind.freed_by())
            }
            VfreeError::Forked => f.write_str(
                "this process is a fork of the one that allocated the area: leave it to that one",
            ),
        }
    }
}

impl core::error::Error for VfreeError {}

/// Why a [`Mapper`](super::Mapper) could not do what it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MapError {
    /// No memory for page tables.
    NoTables,
    /// The limit on mappings, the system's or the mapper's own, is reached.
    TooManyMappings {
        /// The limit.
        limit: u32,
    },
    /// The system refused with this code.
    Refused(i32),
    /// The addresses are another's by now: see [`Mapper::lost_pages`](super::Mapper::lost_pages).
    Lost,
}

impl fmt::Display for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MapError::NoTables => f.write_str("out of memory for page tables: free some pages"),
            MapError::TooManyMappings { limit } => write!(
                f,
                "the limit of {limit} mappings is reached: free or purge, allocate memory in longer runs, or raise the limit (on Linux vm.max_map_count)"
            ),
            MapError::Refused(code) => write!(f, "the system refused the mapping (error {code})"),
            MapError::Lost => f.write_str(
                "the addresses were lost to another mapping when a system call failed: free the area, and allocate another",
            ),
        }
    }
}

impl core::error::Error for MapError {}

/// What an area is for, and so how it is freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Address space alone.
    Address = 0,
    /// Frames of the caller's are mapped in it.
    Vmap = 1,
    /// Frames of its own are mapped in it.
    Vmalloc = 2,
    /// A short-lived mapping of the caller's frames.
    Ram = 3,
    /// Nothing: addresses that the mapper has lost, kept from being used again.
    Lost = 4,
}

impl Kind {
    pub(super) const fn from_bits(bits: u64) -> Self {
        match bits {
            0 => Kind::Address,
            1 => Kind::Vmap,
            2 => Kind::Vmalloc,
            3 => Kind::Ram,
            _ => Kind::Lost,
        }
    }

    /// The method that frees such an area.
    pub const fn freed_by(self) -> &'static str {
        match self {
            Kind::Address => "free",
            Kind::Vmap => "vunmap",
            Kind::Vmalloc => "vfree",
            Kind::Ram => "vm_unmap_ram",
            Kind::Lost => "nothing: its addresses are lost",
        }
    }

    /// Its name in a listing, as in `/proc/vmallocinfo`.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Address => "area",
            Kind::Vmap => "vmap",
            Kind::Vmalloc => "vmalloc",
            Kind::Ram => "vm_map_ram",
            Kind::Lost => "lost",
        }
    }
}
