//! Contiguous ranges of addresses over scattered pages: large tables, growable columns, ring
//! buffers, stacks.
//!
//! A [`Vmalloc`] reserves a range of addresses and maps pages of a [`Depot`](crate::Depot) into it.
//! What the kernel's `mmap` and `munmap` do at each call (a process-wide lock, a fault per page, an
//! interrupt to every running CPU) happens here once per batch: freed memory stays mapped for the
//! next request of its size, and what is not wanted any more is unmapped together.
//!
//! ```
//! use pagedepot_linux::{Depot, MemoryKind, Vmalloc};
//!
//! let depot = Depot::builder(64 << 20).memory(MemoryKind::Memfd).build()?;
//! let space = Vmalloc::new(&depot)?;
//! let mut buf = space.buf(64 << 10)?; // 16 pages, zeroed, and a guard page behind
//! buf[..5].copy_from_slice(b"hello");
//! drop(buf); // stays mapped for the next request of this size
//! let purged = space.shrink(); // and now back to the depot
//! assert_eq!(purged.frames, 16);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Data of others
//! Memory that stays mapped holds what its last user left. By default it is zeroed before the
//! next one gets it; [`stale`](VmallocBuilder::stale) has the other choices.
//!
//! # The limit on mappings
//! Each run of consecutive pages is a mapping, and a process may have `vm.max_map_count` of them
//! (65530 as a rule). When three quarters are in use, requests look harder for long runs; when all
//! are, freed memory is unmapped first; then requests fail with
//! [`TooManyMappings`](pagedepot_vmap::MapError::TooManyMappings).
//!
//! # Lost addresses
//! Kernels before 6.12 may fail a system call halfway, and leave a hole in the range. What another
//! thread has mapped there by then is left alone for good: the addresses are lost, never handed out
//! again, and counted in [`VmapStats::lost_pages`]. The request that met the failure gets its
//! error.
//!
//! # When not to use it
//! For memory that is allocated once and stays: `mmap` it. For sizes that differ at every request,
//! or above 255 pages: nothing is found warm then, and a request costs a system call for each run.

mod budget;
mod buf;
mod builder;
#[cfg(doctest)]
pub mod closed;
mod error;
mod host;
mod mapper;
mod pieces;
mod reserved;
#[cfg(test)]
mod reserved_tests;
mod space;

pub use buf::{VmallocBuf, VmallocWriter};
pub use builder::VmallocBuilder;
pub use error::VmallocBuildError;
pub use host::DepotHost;
pub use mapper::LinuxMapper;
pub use space::{ValidateError, Vmalloc};

pub use pagedepot_vmap::{
    AreaInfo, AreaState, Kind, MapError, Options, Protection, PurgeDepth, Purged, Span, Stale,
    VfreeError, VirtAddr, VmapError, VmapStats,
};

/// The address space under a [`Vmalloc`]: a [`Vmap`](pagedepot_vmap::Vmap) over Linux mappings and a depot's frames.
pub type LinuxVmap = pagedepot_vmap::Vmap<'static, LinuxMapper, DepotHost>;
