//! A page allocator whose per-CPU caches can be taken back without interrupting the CPU.
//!
//! # Vocabulary
//! | word | meaning |
//! |---|---|
//! | frame, [`Pfn`] | one page frame of the base size, and its number |
//! | [`Order`], block | 2^order frames, naturally aligned |
//! | [`Mobility`] | why it was allocated: unmovable, movable, reclaimable |
//! | store | all free frames, shared by all CPUs: a bitmap, no lock; or a [`Backing`] |
//! | zone, node | frames that serve the same requests on one NUMA node |
//! | magazine | a fixed array of blocks of one order and mobility: what moves between layers |
//! | front | the magazines a CPU works with right now: private to it, plain loads and stores |
//! | shelf | a CPU's stack of full magazines: anyone may take it, by one atomic operation |
//! | gate | per CPU: the way to its fronts, or closed |
//! | refill, spill | magazines moving from the store to a CPU, and back |
//! | drain | taking cached pages back; *quiet*: interrupts no CPU, *full*: the fronts too, *handover*: the fronts, from their owners |
//!
//! # The three layers
//! ```text
//!  alloc(order, flags)                 free(pfn, order)    drain(scope, mode)
//!         |                                   |                   |
//!   front (this CPU, plain ops) <------> front (this CPU)         |  full: close gate, fence, take
//!         | empty                             | full              |
//!   shelf (this CPU, lock-free) <------> shelf, up to `high` <----+  quiet: one atomic takes all
//!         | empty                             | above high
//!   store of the zone (bitmap, lock-free; or a backing), watermarks; next zone; pressure; error
//! ```
//! Exclusive access that a remote CPU can break needs an atomic read-modify-write or a fence on the
//! owner's side (Attiya et al., "Laws of Order", POPL 2011). The front avoids both; the shelf pays
//! the atomic once per magazine; so all but a bounded, counted remainder can be taken back without
//! asking the owner.
//!
//! # Use
//! Programs on Linux take `pagedepot-linux`. A kernel implements [`cpus::Processor`] and gives the
//! allocator its memory:
//! ```
//! use pagedepot::cpus::{CpuLock, Environment, LockedCpus, WhichCpu};
//! use pagedepot::{
//!     Allocator, Config, CpuId, Flags, FrameRange, Mode, NodeId, Order, Pfn, Scope, ZoneConfig,
//! };
//!
//! struct First;
//! impl Environment for First {}
//! impl WhichCpu for First {
//!     fn cpu(&self) -> Option<CpuId> { Some(CpuId::new(0)) }
//! }
//!
//! let ranges = [FrameRange::new(Pfn::new(0x100), 1 << 15)];
//! let zones = [ZoneConfig {
//!     name: "Normal", node: NodeId::new(0), level: 2, ranges: &ranges, watermarks: None,
//! }];
//! let config = Config::new(1, &zones);
//! let locks = [CpuLock::new()];
//! type Depot<'m> = Allocator<'m, LockedCpus<'m, First>>;
//! let mut metadata = vec![std::mem::MaybeUninit::uninit(); Depot::metadata_bytes(&config)?];
//! let depot = Depot::new(&config, &mut metadata, LockedCpus::new(&locks, First))?;
//!
//! let pfn = depot.alloc(Order::BASE, Flags::default())?;
//! depot.free(pfn, Order::BASE)?;
//! let drained = depot.drain(Scope::ALL, Mode::Full);
//! assert_eq!(drained.unreachable_pages, 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//! One that has a store of free frames already, such as a buddy allocator, implements [`Backing`]
//! for it and gives it to [`Allocator::builder`].
//!
//! # Features
//! * `std`: `From` the errors of requests for `std::io::Error`. Off by default.
#![cfg_attr(not(any(test, loom)), no_std)]
// The files that need it allow it at their top.
#![deny(unsafe_code)]

#[cfg(not(all(target_pointer_width = "64", target_endian = "little")))]
compile_error!(
    "pagedepot supports 64-bit little-endian processors, such as x86-64, AArch64 and RISC-V: it \
     keeps state in atomics of 64 bits, and is tested on these alone"
);

// Models need its thread-local values.
#[cfg(any(feature = "std", loom, shuttle))]
extern crate std;

mod alloc;
pub mod cpus;
mod evacuation;
mod frame;
mod front;
#[cfg(loom)]
#[allow(missing_docs, unsafe_code, reason = "models implement sequences")]
pub mod loom_tests;
mod pcp;
mod reclaim;
pub mod seam;
#[cfg(all(test, shuttle))]
#[allow(unsafe_code, reason = "models implement sequences")]
mod shuttle_tests;
mod store;
#[doc(hidden)]
pub mod sync;
mod zone;

pub use alloc::add::AddError;
pub use alloc::config::{Config, ConfigError, ZoneConfig};
pub use alloc::error::{AllocError, FreeError, FreeManyError, Refusal};
pub use alloc::flags::{Class, Classes, Flags};
pub use alloc::{
    Allocator, Builder, Census, CpuCaches, CpuStats, Fault, FrontHandle, Fronts, Global, Handover,
    InitError, MetadataUse, Residency, ResidencyCounts, Shortage, ZoneSettings, ZoneShortage,
    ZoneStats,
};
pub use evacuation::Evacuation;
pub use frame::{CpuId, FrameRange, LinearMap, Mobility, NodeId, Order, PageSize, Pfn, ZoneId};
pub use pcp::FreeHigh;
pub use pcp::{DrainResult, HandoverCounts, Mode, Scope};
pub use reclaim::{Pressure, Reclaim, TooManyCallbacks};
pub use store::backing::{Backing, BackingRanges, BackingRequest, BackingWords};
pub use store::backing::{Block, RangeRequest};
pub use store::{DoubleFree, Misuse};
pub use zone::counts::{Compactions, Counts};
pub use zone::{CacheLimits, HighPolicy, Watermarks, ZoneName};

/// The README's program, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;

/// Holes in the safe API that stay closed.
#[cfg(doctest)]
#[doc = include_str!("../tests/closed.md")]
pub struct ForbiddenPrograms;
