//! Counters of the designs.

/// Counters of a design, and its present state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VmapCounts {
    /// Areas allocated.
    pub allocated_areas: u64,
    /// Allocated areas that came from a pool.
    pub pool_hits: u64,
    /// Purges that found areas to take.
    pub purges: u64,
    /// Pages in the spans that flushes named.
    pub flushed_pages: u64,
    /// Pages in those spans that had been mapped.
    pub needed_pages: u64,
    /// Page tables of the lowest level that exist.
    pub tables: u64,
    /// Most tables that existed at once since the last
    /// [`reset_tables_max`](super::VmapDesign::reset_tables_max).
    pub tables_max: u64,
    /// Free pages.
    pub free_pages: u64,
    /// Pages freed and not yet purged.
    pub lazy_pages: u64,
    /// Pages in pools.
    pub pooled_pages: u64,
}
