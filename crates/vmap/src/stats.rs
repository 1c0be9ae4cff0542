//! Numbers for reports.

use crate::lock::Waits;
use crate::node::counters::VmapCounts;
use crate::node::pool::Pool;
use crate::seams::host::Host;
use crate::seams::mapper::Mapper;
use crate::state::VmapState;

/// Numbers about a vmap. Each is exact, but they are not read at the same moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct VmapStats {
    /// Areas allocated so far.
    pub allocated_areas: u64,
    /// Areas that requests took from a pool and not from the free address space. Requests that
    /// failed afterwards count, too.
    pub pool_hits: u64,
    /// Pages of address space that no area covers.
    pub free_pages: u64,
    /// Pages of the largest free range; 0 also if the lock of the free address space did not come
    /// free within a second, as in a signal handler above its holder.
    pub largest_free_pages: u32,
    /// Pages of lazy areas.
    pub lazy_pages: u64,
    /// Areas in pools with nothing mapped.
    pub cold_areas: u64,
    /// Pages of `cold_areas`.
    pub cold_pages: u64,
    /// Areas in pools whose frames are still mapped.
    pub warm_areas: u64,
    /// Pages of `warm_areas`.
    pub warm_pages: u64,
    /// Pages that the mapper has lost: [`Mapper::lost_pages`](crate::Mapper::lost_pages).
    pub lost_pages: u64,
    /// Descriptors in use, for areas and free ranges.
    pub descriptors: u32,
    /// Page tables populated in the range.
    pub tables: u64,
    /// The highest value of `tables` since the vmap was made, or since
    /// [`reset_tables_max`](crate::Vmap::reset_tables_max).
    pub tables_max: u64,
    /// Page tables given back so far.
    pub released_tables: u64,
    /// Events on slow paths, of all nodes.
    pub counts: VmapCounts,
}

/// Numbers about a vmap. O(descriptors + nodes); takes the space's lock.
pub fn stats<M: Mapper, H: Host>(state: &VmapState<'_, M, H>) -> VmapStats {
    let mut counts = VmapCounts::default();
    let (mut cold, mut warm) = ((0, 0), (0, 0));
    for node in state.nodes().iter() {
        counts += node.counters().read();
        add_pooled(node.cold().iter(), &mut cold);
        add_pooled(node.warm().iter(), &mut warm);
        add_pooled(node.large().iter(), &mut warm);
    }
    let space = state.space();
    // Each allocation, and each change of a busy area, began a generation.
    let touched = &state.areas().0[..space.spares().touched()];
    let generations: u64 = touched.iter().map(|area| area.word().generation()).sum();
    let allocated_areas = generations.saturating_sub(counts.changed_areas);
    let tables = state.mappings().tables().counts();
    VmapStats {
        allocated_areas,
        // Each area that was obtained was allocated, or abandoned.
        pool_hits: (allocated_areas + counts.abandoned_areas).saturating_sub(counts.carved_areas),
        free_pages: space.free_pages(),
        largest_free_pages: state
            .lock_space_as(Waits::InBounds)
            .map_or(0, |space| space.tree().largest()),
        lazy_pages: state.nodes().lazy_pages(),
        cold_areas: cold.0,
        cold_pages: cold.1,
        warm_areas: warm.0,
        warm_pages: warm.1,
        lost_pages: state.mappings().mapper().lost_pages().into(),
        descriptors: space.spares().used(),
        tables: tables.populated,
        tables_max: tables.populated_max,
        released_tables: tables.released,
        counts,
    }
}

/// Adds the number of areas in pools, and that of their pages, to `sums`.
fn add_pooled<'p>(pools: impl Iterator<Item = (u32, &'p Pool)>, sums: &mut (u64, u64)) {
    for (pages, pool) in pools {
        let areas = u64::from(pool.count());
        *sums = (sums.0 + areas, sums.1 + areas * u64::from(pages));
    }
}
