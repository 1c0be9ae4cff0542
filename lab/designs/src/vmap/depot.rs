//! `depot`: pagedepot's vmap, as one design among the others.

use pagedepot::Pfn;
use pagedepot_vmap::{Host, Mapper, Options, PurgeDepth, VfreeError, VirtAddr, Vmap, VmapError};

use super::{VmapCounts, VmapDesign};

/// A [`Vmap`] behind the trait.
pub struct Depot<'m, M, H> {
    vmap: Vmap<'m, M, H>,
}

impl<'m, M: Mapper, H: Host> Depot<'m, M, H> {
    /// A vmap as it is.
    pub fn new(vmap: Vmap<'m, M, H>) -> Self {
        Depot { vmap }
    }

    /// The vmap.
    pub fn vmap(&self) -> &Vmap<'m, M, H> {
        &self.vmap
    }
}

impl<M: Mapper, H: Host> VmapDesign for Depot<'_, M, H> {
    fn name(&self) -> &'static str {
        "depot"
    }

    #[inline]
    fn alloc(&self, pages: u32, align: usize) -> Result<VirtAddr, VmapError> {
        self.vmap.alloc(pages, Options::DEFAULT.align(align))
    }

    #[inline]
    fn free(&self, start: VirtAddr) -> Result<(), VfreeError> {
        self.vmap.free(start)
    }

    #[inline]
    fn vmalloc(&self, pages: u32, align: usize) -> Result<VirtAddr, VmapError> {
        self.vmap.vmalloc(pages, Options::DEFAULT.align(align))
    }

    #[inline]
    fn vfree(&self, start: VirtAddr) -> Result<(), VfreeError> {
        self.vmap.vfree(start)
    }

    fn vrealloc(
        &self,
        start: VirtAddr,
        _old: u32,
        new: u32,
        _copy: &dyn Fn(VirtAddr, VirtAddr, u32),
    ) -> Result<VirtAddr, VmapError> {
        self.vmap.vrealloc(start, new, Options::DEFAULT)
    }

    fn map_ram(&self, frames: &[Pfn]) -> Result<VirtAddr, VmapError> {
        self.vmap.vm_map_ram(frames, Options::DEFAULT)
    }

    fn unmap_ram(&self, start: VirtAddr, pages: u32) -> Result<(), VfreeError> {
        self.vmap.vm_unmap_ram(start, pages)
    }

    fn purge(&self) {
        self.vmap.purge(PurgeDepth::Everything);
    }

    fn counts(&self) -> VmapCounts {
        let stats = self.vmap.stats();
        VmapCounts {
            allocated_areas: stats.allocated_areas,
            pool_hits: stats.pool_hits,
            purges: stats.counts.purges,
            flushed_pages: stats.counts.flushed_pages,
            needed_pages: stats.counts.needed_pages,
            tables: stats.tables,
            tables_max: stats.tables_max,
            free_pages: stats.free_pages,
            lazy_pages: stats.lazy_pages,
            pooled_pages: stats.cold_pages + stats.warm_pages,
        }
    }

    fn reset_tables_max(&self) {
        self.vmap.reset_tables_max();
    }

    fn validate(&mut self) -> Result<(), String> {
        self.vmap.validate().map(drop).map_err(|fault| fault.to_string())
    }
}
