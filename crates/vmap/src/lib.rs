//! Address space and mappings: contiguous ranges of addresses over scattered frames.
//!
//! # Vocabulary
//! | word | meaning |
//! |---|---|
//! | area | a range of pages that one request allocated; *busy*, *lazy* (freed, not yet unmapped) or *pooled* |
//! | free address space | the pages that no area covers |
//! | node | what a CPU's requests touch: pools and a list of lazy areas; one per CPU, at most 256 |
//! | pool | freed areas of one size, ready for reuse; *cold* (nothing mapped, up to 256 pages) or *warm* (frames still mapped, up to 4097) |
//! | purge | unmapping all lazy areas at once, with one flush |
//! | guard | pages behind an area that are never mapped |
//! | table | a page table of the lowest level; given back when nothing is mapped through it |
//! | alias | a place at which frames are mapped that another area owns: a move left it behind |
//!
//! # How it works
//! ```text
//!  vmalloc, alloc, vmap                         vfree, free, vunmap
//!        |                                             |
//!   pool of this node <------------------------ pool of the allocating node
//!        | empty    ^ stock   ^ refill                 | full, or something to unmap
//!   free address space        |                 lazy list of that node
//!        | none          purge: unmap, one flush, give back tables and frames, a quarter of each pool
//!   purge, try again     <-----+------------------------+
//! ```
//! These are the design of "Mitigate a vmap lock contention" (Rezki, linux-mm 2024), which took the
//! kernel from one lock to one per node: nodes, pools by size, lazy areas that return to the node
//! that allocated them, pools that decay by a quarter at each purge. On top of it:
//! - an address leads to its area without a tree (`metadata/index.rs`), and a free changes one
//!   word;
//! - an area may keep its frames mapped in the pool, so that the next `vmalloc` maps nothing;
//! - pools have a cap, so the memory that they keep is bounded;
//! - a flush names the spans that need it, not their hull;
//! - a purge gives back page tables that it leaves empty.
//!
//! # Modules
//! Each owns its state, and uses only modules above it in this table.
//!
//! | module | what |
//! |---|---|
//! | `metadata` | descriptors of areas, the index that leads to them, the frame at each page |
//! | `seams` | [`Mapper`], [`Host`], [`NullMapper`], [`NoFrames`] |
//! | `lock` | a lock whose waiters may sleep |
//! | `undo` | what a request gives back that an error or a panic ends |
//! | `node` | pools, lazy lists, counters |
//! | `space` | the free address space: tree of free ranges, spare descriptors |
//! | `map` | page tables, frames that areas own, mapping and filling |
//! | `state` | what requests and purges work on: all of the above |
//! | `purge` | taking back; `purge/retire` unmaps |
//! | `addresses`, `memory`, `resize` | the requests |
//! | `view`, `stats`, `validate` | looking |
//! | `layout` | where the metadata lies |
//! | `vmap` | [`Vmap`]: every request, delegated |
//!
//! Unsafe code is in `metadata/arena`, `metadata/caller`, `seams`, `map`, `map/own` and
//! `purge/retire`; each says why at its top.
//!
//! # Use
//! ```
//! use pagedepot::cpus::{Environment, WhichCpu};
//! use pagedepot_vmap::{NullMapper, NoFrames, Options, Span, VirtAddr, Vmap, VmapConfig};
//! use pagedepot::{CpuId, PageSize};
//!
//! struct First;
//! impl Environment for First {}
//! impl WhichCpu for First {
//!     fn cpu(&self) -> Option<CpuId> { Some(CpuId::new(0)) }
//! }
//!
//! // 1 GiB of addresses, and metadata only: nothing is mapped.
//! let span = Span::new(VirtAddr::new(0x4000_0000), 1 << 18);
//! let mapper = NullMapper::new(span, PageSize::Kib4);
//! let config = VmapConfig::new(1, 1000);
//! let bytes = Vmap::<NullMapper, NoFrames<First>>::metadata_bytes(&config, &mapper)?;
//! let mut metadata = vec![std::mem::MaybeUninit::uninit(); bytes];
//! // SAFETY: the mapper reaches no frames, the host has none, and no other vmap uses the mapper.
//! let vmap = unsafe { Vmap::new(&config, &mut metadata, mapper, NoFrames(First)) }?;
//!
//! let addr = vmap.alloc(5, Options::default())?;
//! assert_eq!(vmap.find(addr.add(4 * 4096)).unwrap().span.start, addr);
//! vmap.free(addr)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![cfg_attr(not(test), no_std)]
#![deny(unsafe_code)]

#[cfg(feature = "std")]
extern crate std;

mod addresses;
#[cfg(doctest)]
pub mod closed;
mod config;
mod error;
#[cfg(feature = "std")]
mod io_error;
mod kind;
mod layout;
mod lock;
#[cfg(all(test, loom))]
mod loom_tests;
mod map;
mod memory;
mod metadata;
mod model;
mod node;
mod purge;
#[cfg(all(test, not(any(loom, shuttle))))]
mod purge_tests;
mod resize;
#[cfg(all(test, not(any(loom, shuttle))))]
mod room_tests;
mod seams;
#[cfg(all(test, shuttle))]
mod shuttle_tests;
mod space;
mod state;
mod stats;
mod undo;
mod units;
mod validate;
mod view;
mod vmap;

pub use config::{NODES_MAX, Options, PurgeBy, StaleData, VmapConfig, VmapConfigError};
pub use error::{MapError, VfreeError, VmapError};
pub use kind::Kind;
pub use lock::{Lock, LockGuard};
pub use node::counters::VmapCounts;
pub use node::large::LARGE_PAGES_MAX;
pub use node::pool::POOL_SIZES;
pub use purge::{PurgeDepth, PurgeResult};
pub use seams::flush::FlushSpans;
pub use seams::host::Host;
pub use seams::mapper::Mapper;
pub use seams::null::{MapperCalls, NoFrames, NullMapper};
pub use seams::written::WrittenParts;
pub use stats::VmapStats;
pub use units::{Protection, Span, VirtAddr};
pub use validate::{VmapCensus, VmapFault};
pub use view::{AreaInfo, AreaState, ListedArea};
pub use vmap::Vmap;

/// The README's program, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
