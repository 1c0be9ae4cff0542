//! Contiguous ranges of addresses over scattered pages: large tables, growable columns, ring
//! buffers, stacks.
//!
//! A [`Vmalloc`] reserves a range of addresses and maps pages of a [`Depot`](crate::Depot) into it.
//! Each `mmap` and `munmap` costs a process-wide lock, a fault per page, and an interrupt to every
//! running CPU. Here a batch costs that once: freed memory stays mapped for the next request of its
//! size, and memory that is no longer wanted is unmapped together.
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
//! # Data of earlier users
//! Memory that stays mapped holds what its last user wrote. By default it is zeroed before the next
//! user gets it; [`stale`](VmallocBuilder::stale) has the other choices.
//!
//! # The limit on mappings
//! Each run of consecutive pages is a mapping. A process may have `vm.max_map_count` mappings
//! (65530 by default). Frames of a request are sorted, so that it takes a mapping per run. When
//! three quarters are in use, requests search harder for long runs. A request whose runs are more
//! than what is left has freed memory unmapped first: in its own address space, and then in all
//! others of the process, unless the limit is its space's own
//! ([`mappings_max`](VmallocBuilder::mappings_max)). Then it fails, before it maps anything, with
//! [`TooScattered`](pagedepot_vmap::MapError::TooScattered): a buffer in a depot whose free pages
//! lie one by one ends at some 220 MiB. With longer runs it ends later in proportion.
//!
//! # Lost addresses
//! Kernels before 6.12 may fail a system call halfway and leave a hole in the range. If another
//! thread has mapped something there, these addresses are lost: they are never used or handed out
//! again, and counted in [`VmapStats::lost_pages`]. The request whose call failed gets its error.
//!
//! # When not to use it
//! For memory that is allocated once and stays, use `mmap`. If sizes differ at every request, or
//! are above 4096 pages, no request finds mapped memory of its size, and each costs a system call
//! per run.

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
mod spaces;

pub use buf::{VmallocBuf, VmallocWriter};
pub use builder::VmallocBuilder;
pub use error::VmallocBuildError;
pub use host::DepotHost;
pub use mapper::LinuxMapper;
pub use space::{ValidateError, Vmalloc};

pub use pagedepot_vmap::{
    AreaInfo, AreaState, Kind, ListedArea, MapError, Options, Protection, PurgeDepth, PurgeResult,
    Span, StaleData, VfreeError, VirtAddr, VmapError, VmapStats,
};

/// The [`Vmap`](pagedepot_vmap::Vmap) under a [`Vmalloc`], over Linux mappings and a depot's
/// frames.
pub type LinuxVmap = pagedepot_vmap::Vmap<'static, LinuxMapper, DepotHost>;
