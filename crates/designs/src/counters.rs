//! The cells behind [`Counts`].

use pagedepot::Order;

use crate::prim::{HintU64, Ordering, count};
use crate::report::{Counts, Volume};

/// One set per CPU and zone. Only slow paths count here.
#[derive(Default)]
pub struct Counters {
    pub refills: HintU64,
    pub refilled: VolumeCounter,
    pub spilled: VolumeCounter,
    pub drained: VolumeCounter,
    pub direct_allocated: VolumeCounter,
    pub direct_freed: VolumeCounter,
    pub lock_misses: HintU64,
    pub drains: HintU64,
    pub interruptions: HintU64,
    pub collected: HintU64,
    pub collect_ns: HintU64,
    pub collect_ns_max: HintU64,
    pub failures: HintU64,
}

#[derive(Default)]
pub struct VolumeCounter {
    blocks: HintU64,
    pages: HintU64,
}

impl VolumeCounter {
    pub fn add(&self, volume: Volume) {
        count(&self.blocks, volume.blocks);
        count(&self.pages, volume.pages);
    }

    pub fn one(&self, order: Order) {
        count(&self.blocks, 1);
        count(&self.pages, u64::from(order.frames()));
    }

    fn read(&self) -> Volume {
        Volume {
            blocks: self.blocks.load(Ordering::Relaxed),
            pages: self.pages.load(Ordering::Relaxed),
        }
    }
}

impl Counters {
    pub fn note_collected(&self, ns: u64) {
        count(&self.collected, 1);
        count(&self.collect_ns, ns);
        self.collect_ns_max.fetch_max(ns, Ordering::Relaxed);
    }

    /// Adds another set's counts. No thread may use that set any more.
    pub fn absorb(&self, other: &Counters) {
        let mut sum = Counts::default();
        other.add_to(&mut sum);
        count(&self.refills, sum.refills);
        self.refilled.add(sum.refilled);
        self.spilled.add(sum.spilled);
        self.drained.add(sum.drained);
        self.direct_allocated.add(sum.direct_allocated);
        self.direct_freed.add(sum.direct_freed);
        count(&self.lock_misses, sum.lock_misses);
    }

    /// A number that changes with every move between caches and store.
    pub fn activity(&self) -> u32 {
        let read = |cell: &HintU64| cell.load(Ordering::Relaxed);
        (read(&self.refills) + read(&self.spilled.blocks)) as u32
    }

    /// Adds this set to a sum.
    pub fn add_to(&self, sum: &mut Counts) {
        let read = |cell: &HintU64| cell.load(Ordering::Relaxed);
        sum.refills += read(&self.refills);
        sum.refilled += self.refilled.read();
        sum.spilled += self.spilled.read();
        sum.drained += self.drained.read();
        sum.direct_allocated += self.direct_allocated.read();
        sum.direct_freed += self.direct_freed.read();
        sum.lock_misses += read(&self.lock_misses);
        sum.drains += read(&self.drains);
        sum.interruptions += read(&self.interruptions);
        sum.collected += read(&self.collected);
        sum.collect_ns += read(&self.collect_ns);
        sum.collect_ns_max = sum.collect_ns_max.max(read(&self.collect_ns_max));
        sum.failures += read(&self.failures);
    }
}
