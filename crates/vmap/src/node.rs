//! Nodes: what a CPU's allocations and frees touch, apart from other CPUs'.

use super::pool::{LazyList, Pools};
use pagedepot::sync::prim::AtomicU64;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// What happened on the slow paths; sums over nodes by `+=`.
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

        /// The cells behind [`VmapCounts`].
        pub struct Counters {
            $(pub $name: AtomicU64,)*
        }

        impl Counters {
            pub fn new() -> Self {
                Counters { $($name: AtomicU64::new(0),)* }
            }

            pub fn read(&self) -> VmapCounts {
                VmapCounts { $($name: self.$name.load(pagedepot::sync::prim::Ordering::Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Areas taken from the free address space for a request.
    carved_areas,
    /// Areas taken with them, for the pool.
    stocked_areas,
    /// Areas that another node took from a pool rather than wait for a lock.
    borrowed_areas,
    /// Busy areas that were resized or mapped into.
    changed_areas,
    /// Areas freed that no pool took at once.
    lazy_areas,
    /// Purges run.
    purges,
    /// Batches flushed.
    flushes,
    /// Pages in the spans that flushes named.
    flushed_pages,
    /// Pages in them that had been mapped.
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
    /// Frames that the page allocator would not take back.
    misfreed_frames,
    /// Requests that failed.
    failures,
}

/// A node.
#[repr(align(128))]
pub struct Node {
    /// Areas with nothing mapped.
    pub cold: Pools,
    /// Areas whose frames stayed mapped.
    pub warm: Pools,
    pub lazy: LazyList,
    pub counters: Counters,
}

impl Node {
    pub fn new() -> Self {
        Node {
            cold: Pools::new(),
            warm: Pools::new(),
            lazy: LazyList::new(),
            counters: Counters::new(),
        }
    }
}
