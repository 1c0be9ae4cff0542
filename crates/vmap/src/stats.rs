//! What happened, and where everything is.

use super::Vmap;
use super::node::VmapCounts;
use super::pool::Pools;
use super::seams::{Host, Mapper};
use pagedepot::sync::prim::Ordering;

/// A look at the metadata. Each number is exact, but they are not read at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct VmapStats {
    /// Areas allocated so far, from wherever.
    pub allocated_areas: u64,
    /// Those that came from a pool: what was allocated and not carved from the free space.
    pub pool_hits: u64,
    /// Pages of address space that no area covers.
    pub free_pages: u64,
    /// Pages of the largest free range.
    pub largest_free_pages: u32,
    /// Pages of lazy areas.
    pub lazy_pages: u64,
    /// Areas in pools with nothing mapped.
    pub cold_areas: u64,
    /// Pages of them.
    pub cold_pages: u64,
    /// Areas in pools whose frames are still mapped.
    pub warm_areas: u64,
    /// Pages of them.
    pub warm_pages: u64,
    /// Pages that the mapper has lost: [`Mapper::lost_pages`].
    pub lost_pages: u64,
    /// Descriptors in use, for areas and free ranges.
    pub descriptors: u32,
    /// Page tables populated in the range.
    pub tables: u64,
    /// Most there ever were.
    pub tables_max: u64,
    /// Page tables given back so far.
    pub released_tables: u64,
    /// What happened on slow paths.
    pub counts: VmapCounts,
}

impl VmapStats {
    /// Bytes of the page tables populated now, of this size each.
    pub fn table_bytes(&self, bytes_per_table: u64) -> u64 {
        self.tables * bytes_per_table
    }
}

impl<M: Mapper, H: Host> Vmap<'_, M, H> {
    /// Numbers about everything. O(descriptors + nodes), and takes the lock of the free space.
    pub fn stats(&self) -> VmapStats {
        let mut counts = VmapCounts::default();
        let (mut cold, mut warm) = ((0, 0), (0, 0));
        for node in self.metadata.nodes {
            counts += node.counters.read();
            pooled(&node.cold, &mut cold);
            pooled(&node.warm, &mut warm);
        }
        // Each allocation, and each change of a busy area, began a generation.
        let touched = &self.metadata.areas.0[..self.metadata.space.spares.touched()];
        let generations: u64 = touched.iter().map(|area| area.word().generation()).sum();
        let allocated_areas = generations.saturating_sub(counts.changed_areas);
        let tables = &self.metadata.tables;
        VmapStats {
            allocated_areas,
            pool_hits: allocated_areas.saturating_sub(counts.carved_areas),
            free_pages: self.metadata.space.free_pages(),
            largest_free_pages: self.lock_space().tree().largest(),
            lazy_pages: self.lazy_pages(),
            cold_areas: cold.0,
            cold_pages: cold.1,
            warm_areas: warm.0,
            warm_pages: warm.1,
            lost_pages: self.mapper.lost_pages().into(),
            descriptors: self.metadata.space.spares.used(),
            tables: tables.populated.load(Ordering::Relaxed),
            tables_max: tables.populated_max.load(Ordering::Relaxed),
            released_tables: tables.released.load(Ordering::Relaxed),
            counts,
        }
    }

    /// Counters of one node; nodes are numbered from 0.
    pub fn node_counts(&self, node: u32) -> Option<VmapCounts> {
        self.metadata.nodes.get(node as usize).map(|node| node.counters.read())
    }

    /// The next peak of page tables counts from here.
    pub fn reset_tables_max(&self) {
        let tables = &self.metadata.tables;
        tables.populated_max.store(tables.populated.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// Adds the areas in pools, and their pages.
fn pooled(pools: &Pools, sum: &mut (u64, u64)) {
    for (pages, pool) in pools.iter() {
        let areas = u64::from(pool.count());
        *sum = (sum.0 + areas, sum.1 + areas * u64::from(pages));
    }
}
