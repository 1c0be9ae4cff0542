//! A target under a watch, which hears of each block that is handed out and taken back.

use pagedepot::{CpuId, Mobility, Order, Pfn, ZoneId};
use pagedepot_designs::{Census, FreeMap};

use super::plan::InitialBlock;
use super::target::{ReplayCounts, ReplayTarget};

/// The record of what is held.
#[allow(unused_variables, reason = "a default needs none")]
pub trait Watcher {
    /// A block was handed out.
    fn hand_out(&mut self, pfn: Pfn, order: Order, mobility: Mobility);

    /// A block is about to be freed.
    fn take_back(&mut self, pfn: Pfn, order: Order);

    /// Two blocks of order - 1 are about to be made of one.
    fn halve(&mut self, pfn: Pfn, order: Order) {}

    /// The trace's clock has moved on; `cached_pages` counts what all CPUs cache.
    fn set_time(&mut self, now_ms: u64, cached_pages: impl FnOnce() -> u64) {}

    /// Looks when so much of the plan has been run; `map` finds the frames that are free in the
    /// store.
    ///
    /// # Errors
    /// Fails when `map` does.
    fn look(
        &mut self,
        percent: u32,
        map: impl FnOnce() -> Result<FreeMap, String>,
    ) -> Result<(), String> {
        Ok(())
    }

    /// The frames are about to be counted.
    fn begin_census(&mut self) {}
}

/// Passes everything on to `T`, and tells `W` of it.
pub struct WatchedTarget<'t, T, W> {
    target: &'t mut T,
    /// The record.
    pub watch: W,
}

impl<'t, T: ReplayTarget, W: Watcher> WatchedTarget<'t, T, W> {
    /// Watches `target`, from which nothing has been allocated yet.
    pub fn new(target: &'t mut T, watch: W) -> Self {
        WatchedTarget { target, watch }
    }
}

impl<T: ReplayTarget, W: Watcher> ReplayTarget for WatchedTarget<'_, T, W> {
    fn set_time(&mut self, now_ms: u64) {
        self.target.set_time(now_ms);
        self.watch.set_time(now_ms, || self.target.cached_pages_total());
    }

    fn tick(&mut self, cpu: CpuId) {
        self.target.tick(cpu);
    }

    fn hold(&mut self, blocks: &[InitialBlock]) -> Option<Vec<Pfn>> {
        let held = self.target.hold(blocks)?;
        for (&pfn, known) in held.iter().zip(blocks) {
            self.watch.hand_out(pfn, known.order, known.mobility);
        }
        Some(held)
    }

    fn alloc(&mut self, cpu: CpuId, zone: ZoneId, order: Order, mobility: Mobility) -> Option<Pfn> {
        let pfn = self.target.alloc(cpu, zone, order, mobility)?;
        self.watch.hand_out(pfn, order, mobility);
        Some(pfn)
    }

    fn alloc_cache(&mut self, cpu: CpuId, zone: ZoneId, order: Order) -> Option<Pfn> {
        let pfn = self.target.alloc_cache(cpu, zone, order)?;
        self.watch.hand_out(pfn, order, Mobility::Movable);
        Some(pfn)
    }

    fn free(&mut self, cpu: CpuId, pfn: Pfn, order: Order) {
        self.watch.take_back(pfn, order);
        self.target.free(cpu, pfn, order);
    }

    fn free_nested(&mut self, cpu: CpuId, zone: ZoneId, pfn: Pfn, order: Order) {
        self.watch.take_back(pfn, order);
        self.target.free_nested(cpu, zone, pfn, order);
    }

    fn free_many(&mut self, cpu: CpuId, blocks: &[(Pfn, Order)]) {
        for &(pfn, order) in blocks {
            self.watch.take_back(pfn, order);
        }
        self.target.free_many(cpu, blocks);
    }

    fn halve(&mut self, pfn: Pfn, order: Order) {
        self.watch.halve(pfn, order);
        self.target.halve(pfn, order);
    }

    fn counts(&self) -> ReplayCounts {
        self.target.counts()
    }

    fn cached_pages_total(&self) -> u64 {
        self.target.cached_pages_total()
    }

    fn census(&mut self) -> Result<Census, String> {
        self.watch.begin_census();
        self.target.census()
    }

    fn free_map(&self) -> Result<FreeMap, String> {
        self.target.free_map()
    }

    fn look(&mut self, percent: u32) -> Result<(), String> {
        self.watch.look(percent, || self.target.free_map())
    }

    fn drain_all(&mut self) {
        self.target.drain_all();
    }
}
