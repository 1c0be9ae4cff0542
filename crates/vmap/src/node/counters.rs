//! Counters of a node.

use pagedepot::sync::prim::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Events on slow paths since the vmap was made. Add the counts of nodes by `+=`.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct VmapCounts {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl core::ops::AddAssign for VmapCounts {
            fn add_assign(&mut self, other: VmapCounts) {
                $(self.$name += other.$name;)*
            }
        }

        /// The counters behind [`VmapCounts`].
        pub struct Counters {
            $(pub $name: AtomicU64,)*
        }

        impl Counters {
            pub fn new() -> Self {
                Counters { $($name: AtomicU64::new(0),)* }
            }

            pub fn read(&self) -> VmapCounts {
                VmapCounts { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Areas that requests took from the free address space.
    carved_areas,
    /// Areas taken along from the free address space, for the pool.
    stocked_areas,
    /// Areas that a request of another node took from this node's pool rather than wait for a lock.
    borrowed_areas,
    /// Busy areas resized, or mapped into.
    changed_areas,
    /// Freed areas that became lazy because no pool took them.
    lazy_areas,
    /// Purges run.
    purges,
    /// Batches flushed.
    flushes,
    /// Pages in the spans that flushes named.
    flushed_pages,
    /// Pages in these spans that had been mapped.
    needed_pages,
    /// Spans unmapped.
    unmapped_spans,
    /// Spans that the mapper failed to unmap.
    failed_unmaps,
    /// Areas that purges took from pools.
    decayed_areas,
    /// Freed areas that purges put into pools.
    refilled_areas,
    /// Frames that purges returned.
    returned_frames,
    /// Frames that the page allocator refused to take back.
    misfreed_frames,
    /// Pages zeroed for requests that mapped them, and for those of more than 255 pages. Pages that
    /// were known to be zero do not count.
    zeroed_pages,
    /// Areas that requests had obtained and gave up: to fail, or to try again.
    abandoned_areas,
    /// Requests for areas, and for more memory in one, that failed.
    failures,
}
