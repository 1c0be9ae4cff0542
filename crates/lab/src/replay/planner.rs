//! First pass: which free belongs to which allocation.
//!
//! The kernel fires `mm_page_free` for every block of a batch, then, as each goes to the per-CPU
//! list, `mm_page_free_batched` (`free_unref_folios` in `mm/page_alloc.c`). So the second event
//! frees nothing: it tells which of the frees before it were one call. A batch ends where its CPU's
//! next free follows a batched event.

use std::collections::HashMap;

use pagedepot::{Mobility, Order};

use super::live::{Held, Live};
use super::plan::{KernelCounts, Plan, Work};
use super::schedule;
use crate::trace::{Event, KernelPfn, Record, Summary};

/// Frame numbers end here: addresses have 64 bits.
const PFN_MAX: u64 = 1 << 52;

/// An operation on a block, by the number of the allocation it came from.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    Alloc {
        id: u32,
        order: Order,
        mobility: Mobility,
    },
    /// `batch` counts from 1; 0 is a free on its own.
    Free {
        id: u32,
        order: Order,
        batch: u32,
    },
    Halve {
        id: u32,
        order: Order,
        upper: u32,
    },
}

/// A step, where and when.
#[derive(Clone, Copy, Debug)]
pub struct Timed {
    pub step: Step,
    /// The kernel's number.
    pub cpu: u16,
    pub ms: u32,
}

/// Makes a plan from records.
#[derive(Default)]
pub struct Planner {
    steps: Vec<Timed>,
    /// Sizes of batches, which count from 1.
    batch_sizes: Vec<u32>,
    live: Live,
    /// The CPU that allocated each block.
    home: Vec<u16>,
    batching: HashMap<u16, Batching>,
    work: Work,
    kernel: KernelCounts,
    pfn_span: Option<(u64, u64)>,
    first_ns: Option<u64>,
    now_ms: u32,
    cpu: u16,
}

/// A CPU's frees that may turn out to be part of a batch.
#[derive(Default)]
struct Batching {
    /// Their steps, by frame.
    recent: HashMap<u64, usize>,
    /// The batch being named, or 0.
    batch: u32,
}

impl Planner {
    /// Takes one record.
    pub fn record(&mut self, record: &Record<'_>) {
        let first_ns = *self.first_ns.get_or_insert(record.time_ns);
        let ms = record.time_ns.saturating_sub(first_ns) / 1_000_000;
        // A trace that is out of order must not turn the clock back.
        self.now_ms = self.now_ms.max(u32::try_from(ms).unwrap_or(u32::MAX));
        self.cpu = record.cpu;
        match record.event {
            Event::PageAlloc { pfn: None, .. } => self.work.failed_allocs += 1,
            Event::PageAlloc { pfn: Some(pfn), order, migratetype } => match self.plausible(pfn, order) {
                Some(order) => self.alloc(pfn.0, order, mobility(migratetype)),
                None => self.work.implausible += 1,
            },
            Event::PageFree { pfn, order } => match self.plausible(pfn, order) {
                Some(order) => self.free(pfn.0, order),
                None => self.work.implausible += 1,
            },
            Event::PageFreeBatched { pfn, .. } => self.name_batched(pfn.0),
            Event::ZoneLocked { order, percpu_refill, .. } => match Order::new(order) {
                Some(order) if percpu_refill => self.kernel.refilled.add(order),
                Some(order) => self.kernel.direct_allocated.add(order),
                None => self.work.implausible += 1,
            },
            Event::PcpuDrain { order, .. } => match Order::new(order) {
                Some(order) => self.kernel.spilled.add(order),
                None => self.work.implausible += 1,
            },
            Event::ExtFrag { .. }
            | Event::AllocVmapArea { .. }
            | Event::FreeVmapArea { .. }
            | Event::PurgeVmapAreas { .. } => {}
        }
    }

    /// The order as ours, if such a block can be.
    fn plausible(&mut self, KernelPfn(pfn): KernelPfn, order: u32) -> Option<Order> {
        let order = Order::new(order)?;
        let frames = u64::from(order.frames());
        if pfn >= PFN_MAX || pfn % frames != 0 {
            return None;
        }
        let (first, end) = self.pfn_span.unwrap_or((pfn, pfn));
        self.pfn_span = Some((first.min(pfn), end.max(pfn + frames)));
        Some(order)
    }

    fn alloc(&mut self, pfn: u64, order: Order, mobility: Mobility) {
        for base in self.live.overlapping(pfn, order) {
            self.give_up(base);
            self.work.missed_frees += 1;
        }
        let id = self.new_block(self.cpu);
        self.live.insert(pfn, Held { id, order, mobility });
        self.push(Step::Alloc { id, order, mobility });
        self.work.allocs.add(order, mobility);
        self.work.held_pages_peak = self.work.held_pages_peak.max(self.live.pages());
    }

    fn free(&mut self, pfn: u64, order: Order) {
        match self.live.covering(pfn) {
            Some((base, held)) if held.order >= order => {
                if held.order > order {
                    self.split(base, pfn, order);
                    self.work.split_frees += 1;
                }
                self.free_exact(pfn, order);
            }
            _ => self.free_larger(pfn, order),
        }
    }

    /// Frees a block that is held as it is.
    fn free_exact(&mut self, pfn: u64, order: Order) {
        let step = self.steps.len();
        let held = self.give_up(pfn);
        self.work.frees.add(order, held.mobility);
        let batching = self.batching.entry(self.cpu).or_default();
        if batching.batch != 0 {
            // This CPU's last batch was named to its end.
            *batching = Batching::default();
        }
        batching.recent.insert(pfn, step);
    }

    /// Frees what is held of a block that is not held as one.
    fn free_larger(&mut self, pfn: u64, order: Order) {
        let parts = self.live.overlapping(pfn, order);
        let Some(&first) = parts.first() else {
            self.work.unknown_frees += 1;
            return;
        };
        let mobility = self.live.covering(first).map_or(Mobility::Movable, |(_, held)| held.mobility);
        for part in parts {
            self.give_up(part);
        }
        self.work.larger_frees += 1;
        self.work.frees.add(order, mobility);
    }

    /// Halves the block at `base` until the part at `pfn` has `order`, as `split_page` and the
    /// freeing of tail pages in the kernel do.
    fn split(&mut self, mut base: u64, pfn: u64, order: Order) {
        let mut held = self.live.remove(base).expect("the caller found it");
        while held.order > order {
            let half = Order::new(held.order.get() - 1).expect("greater than another order");
            let upper = Held { id: self.new_block(self.home[held.id as usize]), order: half, ..held };
            let lower = Held { order: half, ..held };
            self.push(Step::Halve { id: held.id, order: held.order, upper: upper.id });
            let middle = base + u64::from(half.frames());
            if pfn < middle {
                self.live.insert(middle, upper);
                held = lower;
            } else {
                self.live.insert(base, lower);
                (base, held) = (middle, upper);
            }
        }
        self.live.insert(base, held);
    }

    /// Frees the block held at `base`.
    fn give_up(&mut self, base: u64) -> Held {
        let held = self.live.remove(base).expect("the caller found it");
        if self.home[held.id as usize] != self.cpu {
            self.work.remote_frees += 1;
        }
        self.push(Step::Free { id: held.id, order: held.order, batch: 0 });
        held
    }

    /// The free of `pfn` on this CPU was one of a batch.
    fn name_batched(&mut self, pfn: u64) {
        let Some(batching) = self.batching.get_mut(&self.cpu) else { return };
        let Some(step) = batching.recent.remove(&pfn) else { return };
        if batching.batch == 0 {
            self.batch_sizes.push(0);
            batching.batch = self.batch_sizes.len() as u32;
        }
        if let Step::Free { batch, .. } = &mut self.steps[step].step {
            *batch = batching.batch;
            self.batch_sizes[batching.batch as usize - 1] += 1;
        }
    }

    fn new_block(&mut self, home: u16) -> u32 {
        self.home.push(home);
        u32::try_from(self.home.len() - 1).expect("a trace has fewer than 2^32 allocations")
    }

    fn push(&mut self, step: Step) {
        self.steps.push(Timed { step, cpu: self.cpu, ms: self.now_ms });
    }

    /// The plan.
    pub fn finish(mut self, trace: Summary, name: String) -> Plan {
        self.work.held = super::target::Volume { blocks: self.live.blocks(), pages: self.live.pages() };
        let (start, end) = self.pfn_span.unwrap_or((0, 0));
        for &size in self.batch_sizes.iter().filter(|&&size| size > 1) {
            self.work.batches += 1;
            self.work.batched_frees += u64::from(size);
        }
        let schedule = schedule::schedule(&self.steps, &self.batch_sizes);
        Plan {
            name,
            trace,
            work: self.work,
            kernel: self.kernel,
            cpus: schedule.cpus,
            pfn_span: start..end,
            ops: schedule.ops,
            slots: schedule.slots,
            batches: schedule.batches,
        }
    }
}

/// The kernel has more migratetypes than we have mobilities. Only the first three can be asked for;
/// the others say where a block was found: in the reserve for atomic requests (3), in memory set
/// aside for devices, which only movable pages may borrow (CMA), or isolated.
fn mobility(migratetype: u32) -> Mobility {
    match migratetype {
        0 | 3 => Mobility::Unmovable,
        2 => Mobility::Reclaimable,
        _ => Mobility::Movable,
    }
}
