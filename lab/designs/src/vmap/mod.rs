//! The designs for kernel address space that "Mitigate a vmap lock contention" (Rezki, linux-mm
//! 2024) compares, and pagedepot's own. Each is a real implementation behind one trait,
//! [`VmapDesign`], over a [`Mapper`] and a [`Host`](pagedepot_vmap::Host) of pagedepot's.
//!
//! # Vocabulary
//! | word | meaning |
//! |---|---|
//! | area | a range of pages with one purpose, and one guard page behind it: *busy*, *lazy* (freed, not yet flushed) or *pooled* |
//! | free space | what no area covers |
//! | purge | unmapping all lazy areas, with one flush |
//! | hull | the smallest span that contains all that is to be flushed |
//!
//! # Designs
//! | type | free space | busy areas | freed areas | a flush names |
//! |---|---|---|---|---|
//! | [`GlobalLock`] | one tree, one lock | one tree, one lock | one lazy tree, one lock | the hull |
//! | [`Nodes`] | one tree, one lock, behind pools by size of each node | a tree and a lock per node, by address | a lazy tree per node, purged into pools without a cap, which each purge decays by 25% | the hull |
//! | [`Depot`] | pagedepot's: see [`pagedepot_vmap`] | | | what needs it |
//!
//! The first two keep page tables for ever, as the kernel does. Each takes the lowest free range
//! that fits. Both get and map frames by the same code (`area.rs`), so they differ only in which
//! code may touch which list.
//!
//! Three parts of the kernel are missing here, or different:
//! * The kernel has blocks for short-lived mappings, which the thread hopes to remove.
//!   [`map_ram`](VmapDesign::map_ram) works as the kernel would without them.
//! * The kernel has a worker for purges, which preempts the CPU that queued it, and helpers on the
//!   nodes' CPUs. Here a caller that frees runs the purge, unless another caller is running one, or
//!   one worker runs it ([`PurgedBy`]); callers help when they free.
//! * The kernel unmaps and frees frames in `vfree`, before the flush. Here a purge does both unless
//!   [`FramesFreed::AtFree`] says otherwise, because a [`Mapper`] unmaps for one thread at a time,
//!   and no frame may be reached by an old address once it is free.
//!
//! # Page tables
//! The thread's open question is why page tables grew to 350 MiB, 1.2 GiB and 5.4 GiB with 64, 128
//! and 256 test threads. The cause was found later. The worker is one thread among these, so it
//! lags. Until it runs, freed addresses stay lazy, and requests take fresh ones, each with tables
//! that stay. A worker of high priority and a cap for pools bring 267, 665 and 1107 MB to 285, 428
//! and 507 MB (Rezki's follow-up). `tests/vmap/tables.rs` shows both, with [`PurgedBy::Worker`] and
//! [`pool_areas_max`](VmapSetup::pool_areas_max).

mod area;
mod counts;
mod depot;
mod kernel;
mod nodes;
mod one_tree;
mod run;
mod tables;
mod tree;

use pagedepot::Pfn;
use pagedepot_vmap::{Mapper, VfreeError, VirtAddr, VmapError};

pub use counts::VmapCounts;
pub use depot::Depot;
pub use kernel::Kernel;
pub use nodes::NodeTrees;
pub use one_tree::OneTree;

/// One tree, one lock: the kernel before the thread.
pub type GlobalLock<M, H> = Kernel<OneTree, M, H>;
/// The thread's design.
pub type Nodes<M, H> = Kernel<NodeTrees, M, H>;

/// A design for address space and mappings.
pub trait VmapDesign: Sync {
    /// The design's name in reports.
    fn name(&self) -> &'static str;

    /// Allocates `pages` pages of addresses, aligned to `align` bytes, a power of two, and a guard.
    ///
    /// # Errors
    /// [`VmapError`], after a purge of everything freed.
    fn alloc(&self, pages: u32, align: usize) -> Result<VirtAddr, VmapError>;

    /// Frees what [`alloc`](Self::alloc) returned.
    ///
    /// # Errors
    /// [`VfreeError`]; nothing is changed then.
    fn free(&self, start: VirtAddr) -> Result<(), VfreeError>;

    /// Allocates an area like [`alloc`](Self::alloc), with memory. Its contents are undefined, as
    /// in the kernel.
    ///
    /// # Errors
    /// [`VmapError`].
    fn vmalloc(&self, pages: u32, align: usize) -> Result<VirtAddr, VmapError>;

    /// Frees what [`vmalloc`](Self::vmalloc) or [`vrealloc`](Self::vrealloc) returned.
    ///
    /// # Errors
    /// [`VfreeError`]; nothing is changed then.
    fn vfree(&self, start: VirtAddr) -> Result<(), VfreeError>;

    /// Changes the size of what [`vmalloc`](Self::vmalloc) returned from `old` to `new` pages, and
    /// keeps its contents. A design that cannot grow it in place calls `copy` to copy a number of
    /// pages from the first address to the second.
    ///
    /// # Errors
    /// [`VmapError`]; the memory is unchanged then.
    fn vrealloc(
        &self,
        start: VirtAddr,
        old: u32,
        new: u32,
        copy: &dyn Fn(VirtAddr, VirtAddr, u32),
    ) -> Result<VirtAddr, VmapError>;

    /// Maps the caller's frames for a short time.
    ///
    /// # Errors
    /// [`VmapError`].
    fn map_ram(&self, frames: &[Pfn]) -> Result<VirtAddr, VmapError>;

    /// Unmaps what [`map_ram`](Self::map_ram) mapped. The frames may be reached through it until
    /// the next purge.
    ///
    /// # Errors
    /// [`VfreeError`]; nothing is changed then.
    fn unmap_ram(&self, start: VirtAddr, pages: u32) -> Result<(), VfreeError>;

    /// Purges all that is lazy or pooled, as memory pressure does.
    fn purge(&self);

    /// Runs the purge that frees have queued, as the kernel's worker does when it is scheduled
    /// (`drain_vmap_area_work`). `false`: none was queued. Only designs made for
    /// [`PurgedBy::Worker`] queue one.
    fn work(&self) -> bool {
        false
    }

    /// Gives all pooled areas back to the free space, as the kernel's shrinker does under memory
    /// pressure (`vmap_node_shrink_scan`). Returns the number of areas; 0 in designs without pools.
    fn shrink(&self) -> u64 {
        0
    }

    /// Counters since construction, and the present state.
    fn counts(&self) -> VmapCounts;

    /// Resets the peak of page tables to the number that exist now.
    fn reset_tables_max(&self) {}

    /// Checks that every page is in exactly one place. O(pages). Call it when all other threads
    /// have stopped.
    ///
    /// # Errors
    /// The first fault found.
    fn validate(&mut self) -> Result<(), String>;
}

/// The parameters of a design, besides a mapper and a host.
#[derive(Clone, Copy, Debug)]
pub struct VmapSetup {
    /// Possible CPUs. There are as many nodes, but at most 128.
    pub cpus: u32,
    /// Freed pages at which a purge begins. `None`: 32 MiB for each bit of the number of CPUs.
    pub lazy_pages_max: Option<u64>,
    /// The thread that purges.
    pub purged_by: PurgedBy,
    /// Areas that a pool of a node keeps at most; the rest of what a purge finds goes to the free
    /// space. `None`: any number, as merged. It has no effect without pools.
    pub pool_areas_max: Option<u32>,
    /// The moment at which frames are freed.
    pub frames_freed: FramesFreed,
}

/// The moment at which frames of a freed area are freed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FramesFreed {
    /// A purge frees them, which also unmaps the area, after its flush: no access reaches a free
    /// frame.
    #[default]
    AtPurge,
    /// The free itself, as in the kernel: the caller that frees an area unmaps it and frees its
    /// frames, before any flush. The mapper allows several threads to unmap disjoint spans at once,
    /// and no access reaches a frame through a span that was unmapped.
    AtFree,
}

/// The thread that purges when enough is lazy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PurgedBy {
    /// The caller that frees the page that is one too many, unless another caller is purging.
    #[default]
    Caller,
    /// A worker, as in the kernel: the thread that calls [`VmapDesign::work`]. Until it runs, what
    /// is freed stays lazy, and requests take fresh addresses, whose page tables are kept for ever.
    /// That is why page tables grow with the number of busy threads beside the worker.
    Worker,
}

impl VmapSetup {
    /// Parameters for `cpus` CPUs, otherwise as the kernel has them.
    pub const fn new(cpus: u32) -> Self {
        VmapSetup {
            cpus,
            lazy_pages_max: None,
            purged_by: PurgedBy::Caller,
            pool_areas_max: None,
            frames_freed: FramesFreed::AtPurge,
        }
    }

    fn lazy_pages_max<M: Mapper>(&self, mapper: &M) -> u64 {
        let bits = u64::from(u32::BITS - self.cpus.leading_zeros()).max(1);
        self.lazy_pages_max.unwrap_or(bits * (32 << 20 >> mapper.page_size().shift()))
    }
}
