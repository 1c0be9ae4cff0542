//! What a [`Vmap`](super::Vmap) is made from, and what a request may ask for.

use core::fmt;

use super::area::AreaIndex;
use super::units::{Protection, VirtAddr};
use pagedepot::Flags;
use pagedepot::PageSize;

/// Most nodes; CPUs beyond share.
pub const NODES_MAX: u32 = 128;

/// What becomes of the data in frames that stay mapped when their area is freed.
///
/// Such frames go to the next caller who asks for that size. Whatever the option,
/// [`Options::zeroed`] gives zeroes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stale {
    /// Every `vmalloc` returns zeroes, warm or not, writable or not.
    #[default]
    Zero,
    /// Overwritten with this byte when freed, so that use after free shows. Fresh frames are not
    /// touched.
    Poison(u8),
    /// Nothing: the next caller sees what the last one left. For callers who trust each other.
    Keep,
}

/// Who purges when enough is lazy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PurgeBy {
    /// The one whose free passes the threshold.
    #[default]
    Caller,
    /// Somebody else, whom [`Host::purge_wanted`](super::Host::purge_wanted) tells. A caller who
    /// finds twice the threshold lazy helps all the same.
    Helper,
}

/// Everything a [`Vmap`](super::Vmap) is made from, but for the range, which its
/// [`Mapper`](super::Mapper) has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VmapConfig {
    /// CPUs that allocate: as many nodes are made, at most 128.
    pub cpus: u32,
    /// Most areas and free ranges at a time, below 2^24. 64 bytes each.
    pub areas_max: u32,
    /// Freed pages that wait for a purge before one begins. `None`: 32 MiB for each bit of the
    /// number of CPUs, as in the kernel.
    pub lazy_pages_max: Option<u64>,
    /// Most pages of address space that a node's pools keep. `None`: an eighth of the range
    /// shared by all nodes, at most 2^18.
    pub pool_pages_max: Option<u64>,
    /// Most pages of memory that a node's pools keep mapped. `None`: 32 MiB. 0: none.
    pub warm_pages_max: Option<u64>,
    /// What becomes of data in them.
    pub stale: Stale,
    /// How `vmalloc` asks for frames when the request does not say.
    pub flags: Flags,
    /// Who purges.
    pub purge_by: PurgeBy,
}

impl VmapConfig {
    /// For this many CPUs and areas, with everything else at its default.
    pub const fn new(cpus: u32, areas_max: u32) -> Self {
        VmapConfig {
            cpus,
            areas_max,
            lazy_pages_max: None,
            pool_pages_max: None,
            warm_pages_max: None,
            stale: Stale::Zero,
            flags: Flags::MOVABLE,
            purge_by: PurgeBy::Caller,
        }
    }

    /// Nodes: one per CPU, at most 128.
    pub fn nodes(&self) -> u32 {
        self.cpus.clamp(1, NODES_MAX)
    }

    pub(super) fn lazy_pages_max(&self, page_size: PageSize) -> u64 {
        let bits = u64::from(u32::BITS - self.cpus.leading_zeros()).max(1);
        self.lazy_pages_max.unwrap_or(bits * pages_of(32 << 20, page_size))
    }

    pub(super) fn pool_pages_max(&self, range_pages: u32) -> u64 {
        let share = u64::from(range_pages) / 8 / u64::from(self.nodes());
        self.pool_pages_max.unwrap_or(share.min(1 << 18))
    }

    pub(super) fn warm_pages_max(&self, page_size: PageSize) -> u64 {
        self.warm_pages_max.unwrap_or(pages_of(32 << 20, page_size))
    }

    pub(super) fn check(&self) -> Result<(), VmapConfigError> {
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

/// Why a [`Vmap`](super::Vmap) could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum VmapConfigError {
    /// `cpus` is 0.
    NoCpus,
    /// Fewer than 2 areas, or 2^24 and more.
    AreaCount {
        /// How many were asked for.
        areas: u32,
    },
    /// The mapper's range is empty, begins at address 0 or inside a page, or passes the last
    /// address.
    BadRange {
        /// Its start.
        start: VirtAddr,
        /// Its pages.
        pages: u32,
    },
    /// The mapper's tables map a number of pages that is no power of two, or above 2^15.
    BadTables {
        /// Pages per table.
        pages: u32,
    },
    /// The metadata would not fit the address space.
    TooLarge,
    /// The memory for the metadata is too small.
    TooLittleMetadata {
        /// Bytes needed, as `metadata_bytes` says.
        needed: usize,
        /// Bytes given.
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
                "{pages} pages from {start} cannot be managed: the range begins at a page other than the first and has pages"
            ),
            VmapConfigError::BadTables { pages } => {
                write!(f, "{pages} pages per table: a power of two up to 2^15 is needed")
            }
            VmapConfigError::TooLarge => {
                f.write_str("the metadata would not fit the address space")
            }
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

/// How to serve a request. The default: anywhere, page-aligned, one guard page behind, read and
/// write, may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    pub(super) align: usize,
    pub(super) window: Option<(VirtAddr, VirtAddr)>,
    pub(super) guard: u8,
    pub(super) protection: Protection,
    pub(super) flags: Option<Flags>,
    pub(super) no_wait: bool,
    pub(super) zeroed: bool,
}

impl Options {
    /// The default.
    pub const DEFAULT: Options = Options {
        align: 1,
        window: None,
        guard: 1,
        protection: Protection::READ_WRITE,
        flags: None,
        no_wait: false,
        zeroed: false,
    };

    /// Aligned to `bytes`, a power of two.
    #[inline]
    #[must_use]
    pub const fn align(self, bytes: usize) -> Self {
        Options { align: bytes, ..self }
    }

    /// Entirely in `start..end`, guard included. Such requests bypass the pools.
    #[inline]
    #[must_use]
    pub const fn window(self, start: VirtAddr, end: VirtAddr) -> Self {
        Options { window: Some((start, end)), ..self }
    }

    /// This many pages behind the area are kept unmapped.
    #[inline]
    #[must_use]
    pub const fn guard_pages(self, pages: u8) -> Self {
        Options { guard: pages, ..self }
    }

    /// What the mapping allows.
    #[inline]
    #[must_use]
    pub const fn protection(self, protection: Protection) -> Self {
        Options { protection, ..self }
    }

    /// How to ask for frames. Such requests get fresh ones.
    #[inline]
    #[must_use]
    pub const fn flags(self, flags: Flags) -> Self {
        Options { flags: Some(flags), ..self }
    }

    /// The request fails rather than wait for a lock or a purge, or call reclaim callbacks.
    #[inline]
    #[must_use]
    pub const fn no_wait(self) -> Self {
        Options { no_wait: true, ..self }
    }

    /// New memory is zeroed, whatever [`VmapConfig::stale`] and the protection say. This concerns
    /// [`vmalloc`](super::Vmap::vmalloc) and [`vrealloc`](super::Vmap::vrealloc); frames of the
    /// caller's are mapped as they are, and never written.
    #[inline]
    #[must_use]
    pub const fn zeroed(self) -> Self {
        Options { zeroed: true, ..self }
    }

    /// Whether frames that stayed mapped will do.
    #[inline]
    pub(super) fn takes_warm(&self) -> bool {
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
