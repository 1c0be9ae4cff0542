//! Running a plan.
//!
//! # What is measured
//! The clock is read before and after every group of [`GROUP_OPS`] operations, and the differences
//! are added up. Inside are the allocator's own work and what drives it: the match on the
//! operation, one load or store of a slot, telling the target its CPU, gathering the blocks of a
//! batch, and a 1/1024th of the two clock reads. Nothing is subtracted. Outside are parsing,
//! matching frees with allocations, and asking how many pages are cached.

use std::time::{Duration, Instant};

use pagedepot::{CpuId, Order, Pfn, ZoneId};
use pagedepot_designs::Volume;

use super::look::POINTS;
use super::outcome::{Balance, Outcome, ReplayError};
use super::plan::{Op, Plan};
use super::target::{self, ReplayCounts, ReplayTarget};
use super::ticks::Tick;

/// Operations between two reads of the clock.
pub const GROUP_OPS: usize = 1024;

/// A slot without a block: its allocation failed, or was not yet.
const EMPTY: u32 = u32::MAX;

/// Runs the plan once, then frees what is held and drains the target, which must have every frame
/// again.
///
/// # Errors
/// When frames are lost, or the target runs out of pages.
pub fn run(plan: &Plan, target: &mut impl ReplayTarget) -> Result<Outcome, ReplayError> {
    let mut run = ReplayRun::new(plan, target);
    run.hold()?;
    let before = run.target.counts();
    let (mut elapsed, mut peak) = (Duration::ZERO, 0);
    let groups = plan.ops.len().div_ceil(GROUP_OPS);
    let mut points = POINTS.into_iter().peekable();
    for (nth, group) in plan.ops.chunks(GROUP_OPS).enumerate() {
        while let Some(percent) = points.next_if(|&percent| nth * 100 >= percent as usize * groups)
        {
            run.target.look(percent).map_err(ReplayError::Metadata)?;
        }
        let start = Instant::now();
        for &op in group {
            run.step(op);
        }
        elapsed += start.elapsed();
        peak = peak.max(run.target.cached_pages_total());
    }
    if run.failed > 0 {
        return Err(ReplayError::Failed(run.failed));
    }
    for percent in points {
        run.target.look(percent).map_err(ReplayError::Metadata)?;
    }
    let outcome = run.outcome(&before, elapsed, peak)?;
    run.release()?;
    Ok(outcome)
}

/// Runs the plan and leaves the target as it is then, unchecked. Whenever the trace's clock
/// advances, calls `look` with the target and the time in milliseconds.
///
/// # Errors
/// When the target runs out of pages.
pub fn play<T: ReplayTarget>(
    plan: &Plan,
    target: &mut T,
    mut look: impl FnMut(&T, u32),
) -> Result<(), ReplayError> {
    let mut run = ReplayRun::new(plan, target);
    run.hold()?;
    for &op in &plan.ops {
        run.step(op);
        if let Op::Clock { ms } = op {
            look(run.target, ms);
        }
    }
    if run.failed > 0 { Err(ReplayError::Failed(run.failed)) } else { Ok(()) }
}

/// Runs the plan in memory of which nothing of it is held before, from this time on, and leaves the
/// target as it is then. Frees of blocks from before are left out. Calls `look` with the target and
/// the number of operations done, after each.
///
/// # Errors
/// When the target runs out of pages.
pub fn play_on<T: ReplayTarget>(
    plan: &Plan,
    begins_ms: u64,
    target: &mut T,
    mut look: impl FnMut(&T, usize),
) -> Result<(), ReplayError> {
    let mut run = ReplayRun { begins_ms, ..ReplayRun::new(plan, target) };
    for (nth, &op) in (1..).zip(&plan.ops) {
        run.step(op);
        look(run.target, nth);
    }
    if run.failed > 0 { Err(ReplayError::Failed(run.failed)) } else { Ok(()) }
}

/// A run under way.
struct ReplayRun<'r, T> {
    plan: &'r Plan,
    target: &'r mut T,
    /// The first frame of the block in each slot.
    slots: Vec<u32>,
    /// The blocks of the batch being freed.
    batch: Vec<(Pfn, Order)>,
    /// The ticks to come.
    ticks: &'r [Tick],
    /// Milliseconds of the target's clock when the trace begins.
    begins_ms: u64,
    failed: u64,
}

impl<'r, T: ReplayTarget> ReplayRun<'r, T> {
    fn new(plan: &'r Plan, target: &'r mut T) -> Self {
        let slots = vec![EMPTY; plan.slots as usize];
        let (batch, ticks) = (Vec::new(), &plan.ticks[..]);
        ReplayRun { plan, target, slots, batch, ticks, begins_ms: 0, failed: 0 }
    }

    /// Allocates what was handed out before the recording began.
    fn hold(&mut self) -> Result<(), ReplayError> {
        let blocks = &self.plan.before.held;
        let held = self.target.hold(blocks).ok_or(ReplayError::NoRoom(blocks.len()))?;
        for (known, pfn) in blocks.iter().zip(held) {
            self.slots[known.slot as usize] = pfn.get();
        }
        Ok(())
    }

    #[inline]
    fn step(&mut self, op: Op) {
        match op {
            Op::Alloc { cpu, zone, order, mobility, slot } => {
                let zone = ZoneId::new(zone.into());
                match self.target.alloc(CpuId::new(cpu.into()), zone, order, mobility) {
                    Some(pfn) => self.slots[slot as usize] = pfn.get(),
                    None => self.failed += 1,
                }
            }
            Op::AllocCache { cpu, zone, order, slot } => {
                let zone = ZoneId::new(zone.into());
                match self.target.alloc_cache(CpuId::new(cpu.into()), zone, order) {
                    Some(pfn) => self.slots[slot as usize] = pfn.get(),
                    None => self.failed += 1,
                }
            }
            Op::Free { cpu, order, slot } => {
                if let Some(pfn) = self.empty(slot) {
                    self.target.free(CpuId::new(cpu.into()), pfn, order);
                }
            }
            Op::FreeNested { cpu, zone, order, slot } => {
                if let Some(pfn) = self.empty(slot) {
                    self.target.free_nested(
                        CpuId::new(cpu.into()),
                        ZoneId::new(zone.into()),
                        pfn,
                        order,
                    );
                }
            }
            Op::FreeMany { cpu, first, len } => self.free_many(CpuId::new(cpu.into()), first, len),
            Op::Halve { order, slot, upper } => self.halve(order, slot, upper),
            Op::Clock { ms } => self.clock(ms),
        }
    }

    /// Sets the target's clock, and does the ticks that are due.
    #[cold]
    fn clock(&mut self, ms: u32) {
        self.target.set_time(self.begins_ms + u64::from(ms));
        while let Some(tick) = self.ticks.first().filter(|tick| tick.ms <= ms) {
            self.target.tick(CpuId::new(tick.cpu.into()));
            self.ticks = &self.ticks[1..];
        }
    }

    /// Empties a slot.
    #[inline]
    fn empty(&mut self, slot: u32) -> Option<Pfn> {
        let frame = std::mem::replace(&mut self.slots[slot as usize], EMPTY);
        (frame != EMPTY).then(|| Pfn::new(frame))
    }

    fn free_many(&mut self, cpu: CpuId, first: u32, len: u32) {
        self.batch.clear();
        for &(slot, order) in self.plan.batch(first, len) {
            if let Some(pfn) = self.empty(slot) {
                self.batch.push((pfn, order));
            }
        }
        self.target.free_many(cpu, &self.batch);
    }

    #[cold]
    fn halve(&mut self, order: Order, slot: u32, upper: u32) {
        let frame = self.slots[slot as usize];
        if frame != EMPTY {
            self.target.halve(Pfn::new(frame), order);
            self.slots[upper as usize] = frame + order.frames() / 2;
        }
    }

    /// The result of the run when the trace has ended.
    fn outcome(
        &mut self,
        before: &ReplayCounts,
        elapsed: Duration,
        peak: u64,
    ) -> Result<Outcome, ReplayError> {
        let (allocated, freed) = planned(self.plan);
        let counts = since(self.target.counts(), before);
        let census = self.target.census().map_err(ReplayError::Metadata)?;
        let balance = Balance {
            before: before.cached_pages.iter().sum(),
            refilled: counts.refilled.pages,
            spilled: counts.spilled.pages,
            freed: freed.pages,
            allocated: allocated.pages,
            after: counts.cached_pages.iter().sum(),
        };
        let held = self.plan.before.held_volume().pages + allocated.pages - freed.pages;
        let found = census.free_pages + census.cached_pages + census.overhead_pages + held;
        let lost_frames = census.managed_pages as i64 - found as i64;
        if lost_frames != 0 {
            return Err(ReplayError::LostFrames { lost: lost_frames, census, held });
        }
        Ok(Outcome {
            events: allocated.blocks + freed.blocks,
            elapsed_ns: elapsed.as_nanos() as u64,
            cached_pages_peak: peak.max(balance.after),
            allocated,
            freed,
            held_pages: held,
            looks: Vec::new(),
            counts,
            balance,
            census,
            lost_frames,
        })
    }

    /// Frees what is held and takes back what is cached: then all frames must be in the store.
    fn release(&mut self) -> Result<(), ReplayError> {
        for (slot, order) in held_slots(self.plan) {
            if let Some(pfn) = self.empty(slot) {
                self.target.free(CpuId::new(0), pfn, order);
            }
        }
        self.target.drain_all();
        let census = self.target.census().map_err(ReplayError::Metadata)?;
        let missing =
            census.managed_pages as i64 - (census.free_pages + census.overhead_pages) as i64;
        match missing {
            0 => Ok(()),
            missing => Err(ReplayError::NotAllReturned { missing, managed: census.managed_pages }),
        }
    }
}

/// The volumes that a run without failures allocates and frees.
fn planned(plan: &Plan) -> (Volume, Volume) {
    let (mut allocated, mut freed) = (Volume::default(), Volume::default());
    for &op in &plan.ops {
        match op {
            Op::Alloc { order, .. } | Op::AllocCache { order, .. } => allocated.add(order),
            Op::Free { order, .. } | Op::FreeNested { order, .. } => freed.add(order),
            Op::FreeMany { first, len, .. } => {
                plan.batch(first, len).iter().for_each(|&(_, order)| freed.add(order));
            }
            Op::Clock { .. } | Op::Halve { .. } => {}
        }
    }
    (allocated, freed)
}

/// The slots with a block in them when the trace ends, and its order.
fn held_slots(plan: &Plan) -> Vec<(u32, Order)> {
    let mut orders = vec![None; plan.slots as usize];
    plan.before.held.iter().for_each(|known| orders[known.slot as usize] = Some(known.order));
    for &op in &plan.ops {
        match op {
            Op::Alloc { order, slot, .. } | Op::AllocCache { order, slot, .. } => {
                orders[slot as usize] = Some(order);
            }
            Op::Free { slot, .. } | Op::FreeNested { slot, .. } => orders[slot as usize] = None,
            Op::FreeMany { first, len, .. } => {
                plan.batch(first, len).iter().for_each(|&(slot, _)| orders[slot as usize] = None);
            }
            Op::Halve { order, slot, upper } => {
                let half = Order::new(order.get() - 1);
                (orders[slot as usize], orders[upper as usize]) = (half, half);
            }
            Op::Clock { .. } => {}
        }
    }
    (0..).zip(orders).filter_map(|(slot, order)| Some((slot, order?))).collect()
}

/// The counts after `before`; `cached_pages` is a level, not a count.
fn since(now: ReplayCounts, before: &ReplayCounts) -> ReplayCounts {
    ReplayCounts {
        hits: now.hits - before.hits,
        shelf_hits: now.shelf_hits - before.shelf_hits,
        refilled: target::since(now.refilled, before.refilled),
        spilled: target::since(now.spilled, before.spilled),
        drained: target::since(now.drained, before.drained),
        direct_allocated: target::since(now.direct_allocated, before.direct_allocated),
        direct_freed: target::since(now.direct_freed, before.direct_freed),
        cached_pages: now.cached_pages,
    }
}
