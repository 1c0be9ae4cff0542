//! The calls of a replay to an allocator.

use pagedepot::{CpuId, Mobility, Order, Pfn, ZoneId};
use pagedepot_designs::{Census, FreeMap, Volume};

use super::plan::InitialBlock;

/// An allocator that can act as any CPU.
pub trait ReplayTarget {
    /// The trace's clock, in milliseconds since its first event; never goes back. For caches that
    /// decay.
    fn set_time(&mut self, now_ms: u64) {
        let _ = now_ms;
    }

    /// Does the work of a CPU about once a second by the trace's clock.
    fn tick(&mut self, cpu: CpuId) {
        let _ = cpu;
    }

    /// Hands out blocks before the replay begins, and leaves caches as they are; `None` when there
    /// is no room for them.
    fn hold(&mut self, blocks: &[InitialBlock]) -> Option<Vec<Pfn>>;

    /// Allocates a block on `cpu`, from `zone` if the target knows zones; `None` when there is
    /// none.
    fn alloc(&mut self, cpu: CpuId, zone: ZoneId, order: Order, mobility: Mobility) -> Option<Pfn>;

    /// Allocates a block of the page cache like [`alloc`](Self::alloc): a movable one, if the
    /// target does not keep the page cache apart.
    fn alloc_cache(&mut self, cpu: CpuId, zone: ZoneId, order: Order) -> Option<Pfn> {
        self.alloc(cpu, zone, order, Mobility::Movable)
    }

    /// Frees a block on `cpu`.
    ///
    /// # Panics
    /// When the allocator refuses: the replay frees only what it was given.
    fn free(&mut self, cpu: CpuId, pfn: Pfn, order: Order);

    /// Frees a block in an interrupt that came while `cpu` held the lock of its lists of `zone`.
    ///
    /// # Panics
    /// Panics like [`free`](Self::free).
    fn free_nested(&mut self, cpu: CpuId, zone: ZoneId, pfn: Pfn, order: Order) {
        let _ = zone;
        self.free(cpu, pfn, order);
    }

    /// Frees blocks of several orders on `cpu`, by one call.
    ///
    /// # Panics
    /// Panics like [`free`](Self::free).
    fn free_many(&mut self, cpu: CpuId, blocks: &[(Pfn, Order)]);

    /// Makes two blocks of order - 1 of one that is allocated, to be freed on their own.
    fn halve(&mut self, pfn: Pfn, order: Order);

    /// Counts of the caches since the allocator was made.
    fn counts(&self) -> ReplayCounts;

    /// Pages cached now, by all CPUs. Asked between groups of events, outside the measured time.
    fn cached_pages_total(&self) -> u64;

    /// Counts the frames in each place, one by one.
    ///
    /// # Errors
    /// When the metadata contradict each other, or a frame is in two places.
    fn census(&mut self) -> Result<Census, String>;

    /// The frames that are free in the store; those in caches are not.
    ///
    /// # Errors
    /// What is wrong with the store's metadata.
    fn free_map(&self) -> Result<FreeMap, String>;

    /// Called when so much of the plan has been run, outside the measured time.
    ///
    /// # Errors
    /// Fails like [`free_map`](Self::free_map).
    fn look(&mut self, percent: u32) -> Result<(), String> {
        let _ = percent;
        Ok(())
    }

    /// Takes back everything that the CPUs cache.
    fn drain_all(&mut self);
}

/// The sum of two volumes.
pub fn sum(one: Volume, other: Volume) -> Volume {
    Volume { blocks: one.blocks + other.blocks, pages: one.pages + other.pages }
}

/// The volume after `before`. Saturating: counters that went back are for the balance to find.
pub fn since(now: Volume, before: Volume) -> Volume {
    Volume {
        blocks: now.blocks.saturating_sub(before.blocks),
        pages: now.pages.saturating_sub(before.pages),
    }
}

/// Counts of a target. All but the last only grow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplayCounts {
    /// Allocations and frees served by the CPU's own front.
    pub hits: u64,
    /// Allocations served by a full magazine of the CPU's shelf.
    pub shelf_hits: u64,
    /// Store to CPU: into its caches, or straight to the caller.
    pub refilled: Volume,
    /// CPU to store: from its caches, or straight from the caller.
    pub spilled: Volume,
    /// The part of `spilled` that drains took.
    pub drained: Volume,
    /// The part of `refilled` that went past the caches.
    pub direct_allocated: Volume,
    /// The part of `spilled` that went past the caches.
    pub direct_freed: Volume,
    /// Pages cached now, by CPU.
    pub cached_pages: Vec<u64>,
}

impl ReplayCounts {
    /// All counters of blocks.
    pub fn blocks(&self) -> [u64; 7] {
        let volumes =
            [self.refilled, self.spilled, self.drained, self.direct_allocated, self.direct_freed];
        let [refilled, spilled, drained, allocated, freed] = volumes.map(|volume| volume.blocks);
        [self.hits, self.shelf_hits, refilled, spilled, drained, allocated, freed]
    }
}
