//! Configuration of a [`Vmap`](crate::Vmap), and options of a request.

use core::fmt;
use core::panic::Location;

use crate::metadata::area::AreaIndex;
use crate::units::{Protection, VirtAddr};
use pagedepot::Flags;
use pagedepot::PageSize;

/// Largest number of nodes. With more CPUs, some share a node.
pub const NODES_MAX: u32 = 256;

const _: () = assert!(NODES_MAX <= 1 << 8, "an area has 8 bits for its node");

/// Treatment of the data in frames that stay mapped when their area is freed.
///
/// The next request for that size gets these frames. [`Options::zeroed`] returns zeroes whatever
/// this says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StaleData {
    /// Every `vmalloc` returns zeroes, whether the area was warm, and whatever its protection.
    #[default]
    Zero,
    /// `vfree` overwrites it with this byte, so that a use after free is noticed. Frames fresh from
    /// the page allocator are not overwritten.
    Poison(u8),
    /// The data stays: the next caller sees what the last one left. For callers that trust each
    /// other.
    Keep,
}

/// The thread that purges when enough pages are lazy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PurgeBy {
    /// The thread whose free passes the threshold.
    #[default]
    Caller,
    /// A helper that [`Host::purge_wanted`](crate::Host::purge_wanted) wakes. A thread whose free
    /// finds twice the threshold lazy purges nevertheless.
    Helper,
}

/// Configuration of a [`Vmap`](crate::Vmap). The range of addresses comes from its
/// [`Mapper`](crate::Mapper).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VmapConfig {
    /// Number of CPUs that allocate. Each gets a node, up to 256 nodes.
    pub cpus: u32,
    /// Largest number of areas and free ranges at a time, from 2 to 2^24 - 1. 64 bytes of metadata
    /// each.
    pub areas_max: u32,
    /// A purge begins when this many pages are lazy (freed, not yet unmapped). `None`: 32 MiB for
    /// each bit of the number of CPUs, as in the kernel.
    pub lazy_pages_max: Option<u64>,
    /// Largest number of pages of address space that a node's cold pools keep. `None`: an eighth
    /// of the range shared by all nodes, at most 2^18.
    pub pool_pages_max: Option<u64>,
    /// Largest number of pages of memory that a node's warm pools keep mapped, in areas of up to
    /// 255 pages. `None`: 32 MiB. 0: none.
    pub warm_pages_max: Option<u64>,
    /// Largest number of pages of memory that a node keeps mapped in areas of 256 to 4096 pages, of
    /// 16 sizes at most. `None`: as many as of `warm_pages_max`. 0: none.
    pub large_pages_max: Option<u64>,
    /// Treatment of the data in warm areas.
    pub stale: StaleData,
    /// Flags with which `vmalloc` allocates frames, unless the request has its own.
    pub flags: Flags,
    /// The thread that purges.
    pub purge_by: PurgeBy,
    /// Every byte of the memory for metadata is 0, as fresh from the operating system. The metadata
    /// of parts of the range that are never used then stays untouched. A promise to
    /// [`Vmap::new`](crate::Vmap::new).
    pub metadata_is_zero: bool,
}

impl VmapConfig {
    /// A configuration for this many CPUs and areas, all else at its default.
    pub const fn new(cpus: u32, areas_max: u32) -> Self {
        VmapConfig {
            cpus,
            areas_max,
            lazy_pages_max: None,
            pool_pages_max: None,
            warm_pages_max: None,
            large_pages_max: None,
            stale: StaleData::Zero,
            flags: Flags::MOVABLE,
            purge_by: PurgeBy::Caller,
            metadata_is_zero: false,
        }
    }

    /// Number of nodes: one per CPU, at most 256.
    pub fn nodes(&self) -> u32 {
        self.cpus.clamp(1, NODES_MAX)
    }

    pub(crate) fn lazy_pages_max(&self, page_size: PageSize) -> u64 {
        let bits = u64::from(u32::BITS - self.cpus.leading_zeros()).max(1);
        self.lazy_pages_max.unwrap_or(bits * pages_of(32 << 20, page_size))
    }

    pub(crate) fn pool_pages_max(&self, range_pages: u32) -> u64 {
        let share = u64::from(range_pages) / 8 / u64::from(self.nodes());
        self.pool_pages_max.unwrap_or(share.min(1 << 18))
    }

    pub(crate) fn warm_pages_max(&self, page_size: PageSize) -> u64 {
        self.warm_pages_max.unwrap_or(pages_of(32 << 20, page_size))
    }

    pub(crate) fn large_pages_max(&self, page_size: PageSize) -> u64 {
        self.large_pages_max.unwrap_or_else(|| self.warm_pages_max(page_size))
    }

    pub(crate) fn check(&self) -> Result<(), VmapConfigError> {
        if self.cpus == 0 {
            return Err(VmapConfigError::NoCpus);
        }
        if self.areas_max < 2 || self.areas_max >= 1 << AreaIndex::BITS {
            return Err(VmapConfigError::AreaCount { areas: self.areas_max });
        }
        Ok(())
    }
}

fn pages_of(bytes: u64, page_size: PageSize) -> u64 {
    bytes >> page_size.shift()
}

/// An error of a configuration from which no [`Vmap`](crate::Vmap) can be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum VmapConfigError {
    /// `cpus` is 0.
    NoCpus,
    /// Fewer than 2 areas, or 2^24 and more.
    AreaCount {
        /// The number configured.
        areas: u32,
    },
    /// The mapper's range is empty, has more than 2^32 - 16 pages, begins at address 0 or inside a
    /// page, or ends behind the last address.
    BadRange {
        /// Start of the range.
        start: VirtAddr,
        /// Size of the range in pages.
        pages: u32,
    },
    /// [`Mapper::table_pages`](crate::Mapper::table_pages) is not a power of two up to 2^15.
    BadTables {
        /// Pages that a table maps.
        pages: u32,
    },
    /// The metadata is larger than the address space.
    TooLarge,
    /// The memory for the metadata is too small.
    TooLittleMetadata {
        /// Bytes needed, as returned by `metadata_bytes`.
        needed: usize,
        /// Bytes supplied.
        given: usize,
    },
}

impl fmt::Display for VmapConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            VmapConfigError::NoCpus => {
                f.write_str("no CPUs: set VmapConfig::cpus to the number of possible CPUs")
            }
            VmapConfigError::AreaCount { areas } => {
                write!(f, "areas_max is {areas}: it goes from 2 to {}", (1 << AreaIndex::BITS) - 1)
            }
            VmapConfigError::BadRange { start, pages } => write!(
                f,
                "a range of {pages} pages at {start} cannot be managed: it must begin at a page \
                 boundary above 0, and have 1 to {} pages below the last address",
                u32::MAX - 15
            ),
            VmapConfigError::BadTables { pages } => {
                write!(f, "{pages} pages per table: a power of two up to 2^15 is needed")
            }
            VmapConfigError::TooLarge => f.write_str(
                "the metadata is larger than the address space: lower areas_max, or \
                    use a smaller range",
            ),
            VmapConfigError::TooLittleMetadata { needed, given } => {
                write!(
                    f,
                    "{given} bytes of metadata given, {needed} needed: ask Vmap::metadata_bytes"
                )
            }
        }
    }
}

impl core::error::Error for VmapConfigError {}

/// Options of a request. Default: any address, page-aligned, one guard page behind the area, mapped
/// for reading and writing, allowed to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    pub(crate) align: usize,
    pub(crate) window: Option<(VirtAddr, VirtAddr)>,
    pub(crate) guard: u8,
    pub(crate) protection: Protection,
    pub(crate) flags: Option<Flags>,
    pub(crate) no_wait: bool,
    pub(crate) zeroed: bool,
    pub(crate) caller: Option<&'static Location<'static>>,
}

impl Options {
    /// The default options.
    pub const DEFAULT: Options = Options {
        align: 1,
        window: None,
        guard: 1,
        protection: Protection::READ_WRITE,
        flags: None,
        no_wait: false,
        zeroed: false,
        caller: None,
    };

    /// Aligns the start to `bytes`, a power of two.
    #[inline]
    #[must_use]
    pub const fn align(self, bytes: usize) -> Self {
        Options { align: bytes, ..self }
    }

    /// Places the area with its guard entirely in `start..end`, whole pages of the range. Such
    /// requests bypass the pools.
    #[inline]
    #[must_use]
    pub const fn window(self, start: VirtAddr, end: VirtAddr) -> Self {
        Options { window: Some((start, end)), ..self }
    }

    /// Keeps this many pages behind the area unmapped.
    #[inline]
    #[must_use]
    pub const fn guard_pages(self, pages: u8) -> Self {
        Options { guard: pages, ..self }
    }

    /// Sets which accesses the mapping allows.
    #[inline]
    #[must_use]
    pub const fn protection(self, protection: Protection) -> Self {
        Options { protection, ..self }
    }

    /// Sets the flags for allocating frames. Such requests get no warm area.
    #[inline]
    #[must_use]
    pub const fn flags(self, flags: Flags) -> Self {
        Options { flags: Some(flags), ..self }
    }

    /// Makes the request fail where it would wait for a lock or a purge, or run reclaim callbacks:
    /// for interrupt and signal handlers.
    #[inline]
    #[must_use]
    pub const fn no_wait(self) -> Self {
        Options { no_wait: true, ..self }
    }

    /// Sets the line that listings name for the area, in place of the line of the call: for code
    /// that is called by a library and allocates for a line that it was made at.
    #[inline]
    #[must_use]
    pub const fn caller(self, line: &'static Location<'static>) -> Self {
        Options { caller: Some(line), ..self }
    }

    /// The line that listings name for the area.
    #[inline]
    #[track_caller]
    pub(crate) fn line(&self) -> &'static Location<'static> {
        match self.caller {
            Some(line) => line,
            None => Location::caller(),
        }
    }

    /// Zeroes new memory, whatever [`VmapConfig::stale`] and the protection say. This concerns
    /// [`vmalloc`](crate::Vmap::vmalloc) and [`vrealloc`](crate::Vmap::vrealloc): frames of the
    /// caller are never written.
    #[inline]
    #[must_use]
    pub const fn zeroed(self) -> Self {
        Options { zeroed: true, ..self }
    }

    /// Whether an area whose frames stayed mapped can serve the request.
    #[inline]
    pub(crate) fn takes_warm(&self) -> bool {
        self.flags.is_none()
            && self.guard == 1
            && self.protection.bits() == Protection::READ_WRITE.bits()
    }
}

impl Default for Options {
    fn default() -> Self {
        Options::DEFAULT
    }
}
