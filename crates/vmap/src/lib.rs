//! Address space and mappings: contiguous ranges of addresses over scattered frames.
//!
//! # Vocabulary
//! | word | meaning |
//! |---|---|
//! | area | a range of pages with one purpose; *busy*, *lazy* (freed, not yet unmapped) or *pooled* |
//! | free address space | what no area covers |
//! | node | what a CPU's requests touch: pools and a list of lazy areas; one per CPU, at most 128 |
//! | pool | freed areas of one size, 1 to 256 pages, ready for reuse; *cold* (nothing mapped) or *warm* (frames still mapped) |
//! | purge | unmapping all lazy areas at once, with one flush |
//! | guard | pages behind an area that are never mapped |
//! | table | a page table of the lowest level; given back when nothing is mapped through it |
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
//! Nodes, pools by size, lazy areas that go back to the node that allocated them, and pools that
//! decay by a quarter at each purge are the design of "Mitigate a vmap lock contention" (Rezki,
//! linux-mm 2024), which took the kernel from one lock to one per node. On top of it:
//! - an area is found by its address without a tree (`index.rs`), and freed by changing a word;
//! - an area may keep its frames mapped in the pool, so that the next `vmalloc` maps nothing;
//! - pools have a cap, so what they keep is bounded;
//! - a flush names the spans that need it, not their hull;
//! - page tables that a purge leaves empty are given back.
//!
//! | module | what |
//! |---|---|
//! | `area` | descriptors, their states, and why each has one owner |
//! | `index` | from an address to a descriptor |
//! | `pool`, `node` | pools, lazy lists |
//! | `space`, `spares`, `tree`, `lock` | the free address space |
//! | `tables`, `frames` | page tables accounted; which frame is where, and whose |
//! | `alloc`, `map`, `vmalloc` | the requests |
//! | `purge`, `retire` | taking back |
//! | `read`, `stats`, `validate` | looking |
//! | `metadata` | its parts, and where they lie in the caller's memory |
//! | `seams` | [`Mapper`], [`Host`] |
//!
//! # Use
//! ```
//! use pagedepot::cpus::WhichCpu;
//! use pagedepot_vmap::{NullMapper, NoFrames, Options, Span, VirtAddr, Vmap, VmapConfig};
//! use pagedepot::{CpuId, PageSize};
//!
//! struct First;
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

#[cfg(feature = "std")]
extern crate std;

mod alloc;
mod area;
#[cfg(doctest)]
pub mod closed;
mod config;
mod error;
mod frames;
mod index;
#[cfg(feature = "std")]
mod io_error;
mod lock;
#[cfg(all(test, loom))]
mod loom_tests;
mod map;
mod metadata;
mod node;
mod pool;
mod purge;
#[cfg(all(test, not(any(loom, shuttle))))]
mod purge_tests;
mod read;
mod retire;
mod seams;
#[cfg(all(test, shuttle))]
mod shuttle_tests;
mod space;
mod spares;
mod stats;
mod tables;
mod tree;
mod units;
mod validate;
mod vmalloc;

use core::mem::MaybeUninit;

pub use config::{NODES_MAX, Options, PurgeBy, Stale, VmapConfig, VmapConfigError};
pub use error::{Kind, MapError, VfreeError, VmapError};
pub use lock::{Guard, Lock};
pub use node::VmapCounts;
pub use pool::POOL_SIZES;
pub use purge::{FlushSpans, PurgeDepth, Purged};
pub use read::{AreaInfo, AreaState};
pub use seams::{Host, Mapper, MapperCalls, NoFrames, NullMapper};
pub use stats::VmapStats;
pub use units::{Protection, Span, VirtAddr};
pub use validate::{VmapCensus, VmapFault};

use metadata::{Memory, Metadata};
use node::Node;
use pagedepot::Flags;
use pagedepot::PageSize;
use pagedepot::sync::count;
use units::Range;

/// Address space and mappings over a range that its [`Mapper`] has, with metadata in memory that
/// its caller supplies.
///
/// All methods take `&self` and may be called from any number of threads. Warm allocations and
/// frees wait for nobody; the others may take locks. Interrupt and signal handlers, which may have
/// interrupted a holder of one, ask for [`Options::no_wait`] and free by
/// [`vfree_atomic`](Self::vfree_atomic).
///
/// All methods but the constructors are safe, those that free included: they deal in addresses, and
/// write to no frames but those that the host has handed to this vmap. A caller that turns an
/// address into a pointer ensures that no holder of a reference to the vmap frees, resizes or
/// unmaps the memory while the pointer is used.
pub struct Vmap<'m, M, H> {
    mapper: M,
    host: H,
    range: Range,
    metadata: Metadata<'m>,
    lazy_pages_max: u64,
    pool_pages_max: u64,
    warm_pages_max: u64,
    stale: Stale,
    flags: Flags,
    purge_by: PurgeBy,
}

impl<'m, M: Mapper, H: Host> Vmap<'m, M, H> {
    /// Bytes of memory that [`new`](Self::new) needs: 9 for each page of the range, 64 for each
    /// area, 8.5 KiB for each node.
    ///
    /// # Errors
    /// [`VmapConfigError`] for configurations that no memory would serve.
    pub fn metadata_bytes(config: &VmapConfig, mapper: &M) -> Result<usize, VmapConfigError> {
        Metadata::bytes(config, &range_of(mapper)?, M::TABLE_PAGES)
    }

    /// Makes a vmap over the mapper's range, all free, with its metadata in `memory`. Writes all of
    /// the memory it needs.
    ///
    /// # Errors
    /// [`VmapConfigError`]; too little memory is one.
    ///
    /// # Safety
    /// What the two traits cannot promise for the pair:
    /// 1. A frame number means the same memory to `host` and to `mapper`.
    /// 2. Frames that `host` has handed to this vmap are freed and split by this vmap alone, and
    ///    accessed by the users of its memory alone.
    /// 3. `mapper` maps for this vmap alone.
    pub unsafe fn new(
        config: &VmapConfig,
        memory: &'m mut [MaybeUninit<u8>],
        mapper: M,
        host: H,
    ) -> Result<Self, VmapConfigError> {
        Self::build(config, memory, Memory::Any, mapper, host)
    }

    /// As [`new`](Self::new), in memory that is known to be zero, fresh from the system for
    /// example: metadata for parts of the range that are not used are not touched.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    ///
    /// # Safety
    /// As for [`new`](Self::new), and every byte of `memory` is 0.
    pub unsafe fn new_zeroed(
        config: &VmapConfig,
        memory: &'m mut [MaybeUninit<u8>],
        mapper: M,
        host: H,
    ) -> Result<Self, VmapConfigError> {
        Self::build(config, memory, Memory::Zeroed, mapper, host)
    }

    fn build(
        config: &VmapConfig,
        memory: &'m mut [MaybeUninit<u8>],
        known: Memory,
        mapper: M,
        host: H,
    ) -> Result<Self, VmapConfigError> {
        let range = range_of(&mapper)?;
        let metadata = Metadata::new(config, &range, M::TABLE_PAGES, memory, known)?;
        let vmap = Vmap {
            mapper,
            host,
            range,
            metadata,
            lazy_pages_max: config.lazy_pages_max(range.page_size),
            pool_pages_max: config.pool_pages_max(range.pages),
            warm_pages_max: config.warm_pages_max(range.page_size),
            stale: config.stale,
            flags: config.flags,
            purge_by: config.purge_by,
        };
        vmap.lock_space().open(range.pages);
        Ok(vmap)
    }

    /// The mapper.
    pub fn mapper(&self) -> &M {
        &self.mapper
    }

    /// The host.
    pub fn host(&self) -> &H {
        &self.host
    }

    /// The size of a page.
    pub fn page_size(&self) -> PageSize {
        self.range.page_size
    }

    /// The managed range.
    pub fn span(&self) -> Span {
        Span::new(self.range.base, self.range.pages)
    }

    /// This CPU's node, and its number.
    #[inline]
    fn node_here(&self) -> (u32, &'m Node) {
        let nodes = self.metadata.nodes;
        let cpu = self.host.cpu().map_or(0, |cpu| cpu.get());
        // A division costs as much as the rest of a warm allocation.
        let number = if (cpu as usize) < nodes.len() { cpu } else { cpu % nodes.len() as u32 };
        (number, &nodes[number as usize])
    }

    fn space_under<'l>(&'l self, guard: Guard<'l, H>) -> space::Locked<'l, 'm, H> {
        self.metadata.space.under(self.metadata.areas, self.metadata.index, guard)
    }

    fn lock_space(&self) -> space::Locked<'_, 'm, H> {
        self.space_under(self.metadata.space.lock.lock(&self.host))
    }

    /// As [`lock_space`](Self::lock_space), after one who waits for it:
    /// [`Lock::lock_behind`](lock::Lock::lock_behind).
    fn lock_space_behind(&self) -> space::Locked<'_, 'm, H> {
        self.space_under(self.metadata.space.lock.lock_behind(&self.host))
    }

    /// As [`lock_space`](Self::lock_space), in bounds:
    /// [`Lock::lock_within`](lock::Lock::lock_within).
    fn lock_space_within(&self) -> Option<space::Locked<'_, 'm, H>> {
        Some(self.space_under(self.metadata.space.lock.lock_within(&self.host)?))
    }

    fn try_lock_space(&self) -> Option<space::Locked<'_, 'm, H>> {
        Some(self.space_under(self.metadata.space.lock.try_lock(&self.host)?))
    }
}

/// Parts of the protocols that a model may leave out, to show that it would notice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(not(all(test, any(loom, shuttle))), allow(dead_code, reason = "named by models only"))]
pub(crate) enum Broken {
    /// Pools' heads have no tags.
    PoolTag,
    /// The head of the spare descriptors has no tag.
    SpareTag,
    /// Whoever maps does not wait for tables that are being given back.
    TableLock,
    /// Readers do not look at the word a second time.
    SecondLook,
    /// Their second look may come before they have read the frame.
    EarlyLook,
    /// A purge collects a node's lazy list before its pools.
    PoolsFirst,
    /// What could not be unmapped does not enter its tables again.
    Reenter,
}

/// Whether a model has left it out.
#[inline(always)]
fn broken(part: Broken) -> bool {
    #[cfg(all(test, loom))]
    return loom_tests::is_broken(part);
    #[cfg(all(test, shuttle))]
    return shuttle_tests::is_broken(part);
    #[cfg(not(all(test, any(loom, shuttle))))]
    {
        let _ = part;
        false
    }
}

fn range_of<M: Mapper>(mapper: &M) -> Result<Range, VmapConfigError> {
    let (span, page_size, tables) = (mapper.span(), mapper.page_size(), M::TABLE_PAGES);
    let Span { start, pages } = span;
    let bytes = (pages as usize).checked_mul(page_size.bytes());
    let fits = bytes.is_some_and(|bytes| start.get().checked_add(bytes).is_some());
    if pages == 0 || start.get() == 0 || start.get() % page_size.bytes() != 0 || !fits {
        return Err(VmapConfigError::BadRange { start, pages });
    }
    if !tables.is_power_of_two() || tables > 1 << 15 {
        return Err(VmapConfigError::BadTables { pages: tables });
    }
    Ok(Range { base: start, pages, page_size })
}

/// The README's program, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
