//! Policies for CPUs that only free high orders, beside an allocator whose caches have none.
//!
//! Mainline decides per free. An allocator that moves magazines has nothing to decide then, so it
//! is watched instead: a CPU that only frees high orders gets its shelves drained when they hold
//! more than the limit; its fronts (at most two magazines per order) stay.

use pagedepot::{CacheLimits, CpuId, Order};

use crate::pcp::policy::{FreeHigh, FreeHighLimit, FreeHighRule};
use crate::prim::{Padded, PlainU32};

/// Watches what CPUs free. Each CPU's numbers are its own; callers that act as one CPU at a time
/// each get approximate ones.
pub struct FreeHighWatch {
    policy: FreeHigh,
    /// By CPU; none under a policy that drains nobody.
    cpus: Box<[Padded<Watch>]>,
}

/// What a CPU freed lately.
struct Watch {
    /// Pages freed, halved by each allocation.
    free_count: PlainU32,
    previous_free_was_high_order: PlainU32,
    /// Drains by this rule, halved by each allocation.
    free_factor: PlainU32,
}

/// Pages freed in high orders between two looks at the shelves: a look walks over them.
const LOOK_EVERY_PAGES: u32 = 64;

impl FreeHighWatch {
    /// For CPUs `0..cpus`.
    pub fn new(policy: FreeHigh, cpus: u32) -> Self {
        let watch = || {
            let [free_count, previous_free_was_high_order, free_factor] = [0; 3].map(PlainU32::new);
            Padded(Watch { free_count, previous_free_was_high_order, free_factor })
        };
        let cpus = if policy.limit == FreeHighLimit::High { 0 } else { cpus };
        FreeHighWatch { policy, cpus: (0..cpus).map(|_| watch()).collect() }
    }

    /// `cpu` allocated a block.
    #[inline]
    pub fn note_alloc(&self, cpu: CpuId) {
        if let Some(Padded(watch)) = self.cpus.get(cpu.index()) {
            watch.free_count.set(watch.free_count.get() >> 1);
            watch.free_factor.set(watch.free_factor.get() >> 1);
        }
    }

    /// `cpu` freed a block. `true`: the caller should ask [`must_drain`](Self::must_drain) about
    /// each zone.
    #[inline]
    pub fn note_free(&self, cpu: CpuId, order: Order) -> bool {
        let Some(Padded(watch)) = self.cpus.get(cpu.index()) else { return false };
        let before = watch.free_count.get();
        let now = before.saturating_add(order.frames());
        watch.free_count.set(now);
        let high_order = (1..=3).contains(&order.get());
        let previous = watch.previous_free_was_high_order.get() != 0;
        watch.previous_free_was_high_order.set(u32::from(high_order));
        high_order && previous && before / LOOK_EVERY_PAGES != now / LOOK_EVERY_PAGES
    }

    /// Whether `cpu`, which caches `held` pages of a zone with these limits and this `high`, should
    /// be drained of that zone's.
    pub fn must_drain(&self, cpu: CpuId, limits: CacheLimits, high: u64, held: u64) -> bool {
        let Some(Padded(watch)) = self.cpus.get(cpu.index()) else { return false };
        let free_high = match self.policy.rule {
            FreeHighRule::FreeCount => {
                u64::from(watch.free_count.get()) >= limits.batch + limits.high_min / 2
            }
            FreeHighRule::FreeFactor => watch.free_factor.get() > 0,
        };
        let limit = match self.policy.limit {
            FreeHighLimit::Zero => 0,
            FreeHighLimit::Batch => limits.batch,
            FreeHighLimit::FourBatches => 4 * limits.batch,
            FreeHighLimit::High => high,
        };
        if held >= high {
            watch.free_factor.set((watch.free_factor.get() + 1).min(5));
        }
        free_high && held > limit
    }
}
