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
use serde::Serialize;

use super::plan::{Op, Plan};
use super::target::{Census, ReplayCounts, ReplayTarget, Volume};
use super::ticks::Tick;

/// Operations between two reads of the clock.
pub const GROUP_OPS: usize = 1024;

/// A slot without a block: its allocation failed, or was not yet.
const EMPTY: u32 = u32::MAX;

/// What a run found wrong.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    #[error("the replay does not balance: {0}; the allocator's counters or its caches are wrong")]
    Unbalanced(Balance),
    #[error(
        "two runs of one plan ended differently: {0:?} and {1:?}; the allocator is not deterministic"
    )]
    Different(Box<ReplayCounts>, Box<ReplayCounts>),
    #[error("{lost} frames lost at the end of the replay: {census:?}, {held} pages held")]
    LostFrames { lost: i64, census: Census, held: u64 },
    #[error(
        "{missing} of {managed} frames did not come back after everything was freed and drained"
    )]
    NotAllReturned { missing: i64, managed: u64 },
    #[error("{0}")]
    Metadata(String),
    #[error(
        "no room for {0} blocks held before the recording: is the zoneinfo that of the trace's machine?"
    )]
    NoRoom(usize),
    #[error(
        "the allocator failed {0} allocations: has the zoneinfo all zones of the trace's machine?"
    )]
    Failed(u64),
}

impl ReplayError {
    /// Whether it is the machine that was set up, not the allocator, that is at fault.
    pub fn is_of_the_machine(&self) -> bool {
        matches!(self, ReplayError::NoRoom(_) | ReplayError::Failed(_))
    }
}

/// One run of a plan.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Allocations and frees replayed: what the time is divided by. A batch counts each of its
    /// blocks.
    pub events: u64,
    /// See the module's "What is measured".
    #[serde(skip)]
    pub elapsed_ns: u64,
    /// Blocks allocated and freed.
    pub allocated: Volume,
    pub freed: Volume,
    /// Pages handed out when the trace ended.
    pub held_pages: u64,
    /// What the target's caches did during the run.
    pub counts: ReplayCounts,
    /// Pages in and out of the caches.
    pub balance: Balance,
    /// Most pages cached at once, of those seen between groups of operations.
    pub cached_pages_peak: u64,
    /// Where the frames were when the trace ended.
    pub census: Census,
    /// Frames that were then neither free, nor cached, nor held, nor the allocator's own.
    pub lost_frames: i64,
}

impl Outcome {
    /// Nanoseconds per event.
    pub fn event_ns(&self) -> f64 {
        self.elapsed_ns as f64 / self.events.max(1) as f64
    }

    /// The outcome, if what came to the CPUs and left them explains what they cache.
    ///
    /// # Errors
    /// When it does not.
    pub fn balanced(self) -> Result<Self, ReplayError> {
        if self.balance.holds() { Ok(self) } else { Err(ReplayError::Unbalanced(self.balance)) }
    }

    /// The outcome, if the same happened as in `other`, block by block.
    ///
    /// # Errors
    /// When something else did.
    pub fn same_as(self, other: &Outcome) -> Result<Self, ReplayError> {
        if self.counts.blocks() == other.counts.blocks()
            && self.counts.cached_pages == other.counts.cached_pages
        {
            return Ok(self);
        }
        Err(ReplayError::Different(Box::new(self.counts), Box::new(other.counts.clone())))
    }
}

/// Pages that came to the CPUs and left them. What went past the caches is in both `refilled` and
/// `allocated`, or in both `freed` and `spilled`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Balance {
    pub before: u64,
    pub refilled: u64,
    pub spilled: u64,
    pub freed: u64,
    pub allocated: u64,
    pub after: u64,
}

impl Balance {
    /// Whether what is cached is what came in less what went out.
    pub fn holds(&self) -> bool {
        let incoming = u128::from(self.before) + u128::from(self.refilled) + u128::from(self.freed);
        let outgoing =
            u128::from(self.spilled) + u128::from(self.allocated) + u128::from(self.after);
        incoming == outgoing
    }
}

impl std::fmt::Display for Balance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Balance { before, refilled, spilled, freed, allocated, after } = self;
        let sign = if self.holds() { '=' } else { '≠' };
        write!(
            f,
            "{before} before + {refilled} refilled - {spilled} spilled + {freed} freed - {allocated} allocated {sign} {after} cached"
        )
    }
}

/// Runs the plan once, then frees what is held and drains the target, which must have every frame
/// again.
///
/// # Errors
/// When frames are lost, or the target runs out of pages.
pub fn run(plan: &Plan, target: &mut impl ReplayTarget) -> Result<Outcome, ReplayError> {
    let mut run = Run::new(plan, target);
    run.hold()?;
    let before = run.target.counts();
    let (mut elapsed, mut peak) = (Duration::ZERO, 0);
    for group in plan.ops.chunks(GROUP_OPS) {
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
    let outcome = run.outcome(&before, elapsed, peak)?;
    run.release()?;
    Ok(outcome)
}

/// Runs the plan and leaves the target as it is then, unchecked; `look` sees it whenever time went
/// on, with the time in milliseconds.
///
/// # Errors
/// When the target runs out of pages.
pub fn play<T: ReplayTarget>(
    plan: &Plan,
    target: &mut T,
    mut look: impl FnMut(&T, u32),
) -> Result<(), ReplayError> {
    let mut run = Run::new(plan, target);
    run.hold()?;
    for &op in &plan.ops {
        run.step(op);
        if let Op::Clock { ms } = op {
            look(run.target, ms);
        }
    }
    if run.failed > 0 { Err(ReplayError::Failed(run.failed)) } else { Ok(()) }
}

/// A run under way.
struct Run<'r, T> {
    plan: &'r Plan,
    target: &'r mut T,
    /// The first frame of the block in each slot.
    slots: Vec<u32>,
    /// The blocks of the batch being freed.
    batch: Vec<(Pfn, Order)>,
    /// Those to come.
    ticks: &'r [Tick],
    failed: u64,
}

impl<'r, T: ReplayTarget> Run<'r, T> {
    fn new(plan: &'r Plan, target: &'r mut T) -> Self {
        let slots = vec![EMPTY; plan.slots as usize];
        Run { plan, target, slots, batch: Vec::new(), ticks: &plan.ticks, failed: 0 }
    }

    /// Takes what was handed out before the recording began.
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

    /// Time goes on: what is due is done.
    #[cold]
    fn clock(&mut self, ms: u32) {
        self.target.set_time(ms.into());
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

    /// The metadata when the trace has ended.
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
        let found = census.free + census.cached + census.overhead + held;
        let lost_frames = census.managed as i64 - found as i64;
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
        let missing = census.managed as i64 - (census.free + census.overhead) as i64;
        match missing {
            0 => Ok(()),
            missing => Err(ReplayError::NotAllReturned { missing, managed: census.managed }),
        }
    }
}

/// What a run without failures allocates and frees.
fn planned(plan: &Plan) -> (Volume, Volume) {
    let (mut allocated, mut freed) = (Volume::default(), Volume::default());
    for &op in &plan.ops {
        match op {
            Op::Alloc { order, .. } => allocated.add(order),
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
            Op::Alloc { order, slot, .. } => orders[slot as usize] = Some(order),
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

/// What was counted since `before`; `cached_pages` is a level, not a count.
fn since(now: ReplayCounts, before: &ReplayCounts) -> ReplayCounts {
    ReplayCounts {
        hits: now.hits - before.hits,
        shelf_hits: now.shelf_hits - before.shelf_hits,
        refilled: now.refilled - before.refilled,
        spilled: now.spilled - before.spilled,
        drained: now.drained - before.drained,
        direct_allocated: now.direct_allocated - before.direct_allocated,
        direct_freed: now.direct_freed - before.direct_freed,
        cached_pages: now.cached_pages,
    }
}
