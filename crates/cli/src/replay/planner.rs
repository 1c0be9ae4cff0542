//! First pass: which free belongs to which allocation.
//!
//! The kernel fires `mm_page_free` for every block of a batch, then, as each goes to the per-CPU
//! list, `mm_page_free_batched` (`free_unref_folios` in `mm/page_alloc.c`). So the second event
//! frees nothing: it tells which of the frees before it were one call. A batch ends where its CPU's
//! next free follows a batched event.
//!
//! Where the machine's zones are known, a free of a block that the trace does not allocate is of
//! one handed out before the recording began. Its mobility is that of its pageblock, which other
//! events tell.

use std::collections::HashMap;

use pagedepot::{Mobility, Order};
use pagedepot_designs::Volume;

use super::actions::{Action, ActionAt};
use super::highs::Highs;
use super::initial::{Initial, ListKey};
use super::live::{Live, LiveBlock};
use super::plan::{InitialState, KernelCounts, Plan, Work};
use super::schedule;
use super::ticks::{INTERVAL_MS, Ticks};
use super::zone_map::ZoneMap;
use pagedepot_trace::{Event, KernelPfn, Record, Summary, Zoneinfo};

/// The largest order that a kernel is configured for (`ARCH_FORCE_MAX_ORDER`), with room for more.
const KERNEL_ORDER_MAX: u32 = 20;

/// Frame numbers end here: addresses have 64 bits.
const PFN_MAX: u64 = 1 << 52;

/// Makes a plan from records.
#[derive(Default)]
pub struct Planner {
    steps: Vec<ActionAt>,
    /// Sizes of batches, which count from 1.
    batch_sizes: Vec<u32>,
    live: Live,
    /// The CPU that allocated each block.
    home: Vec<u16>,
    batching: HashMap<u16, BatchGuess>,
    work: Work,
    kernel: KernelCounts,
    pfn_span: Option<(u64, u64)>,
    first_ns: Option<u64>,
    now_ms: u32,
    cpu: u16,
    /// The machine before the recording, if known.
    zones: Option<ZoneMap>,
    initial: Initial,
    highs: Highs,
    /// The zone of the last refill of each CPU whose allocation has not yet come.
    refilling: HashMap<u16, u8>,
    ticks: Ticks,
    /// The mobility that pages of each pageblock had, by its number.
    pageblocks: HashMap<u64, Mobility>,
    migratetypes: Migratetypes,
}

/// A CPU's frees that may turn out to be part of a batch.
#[derive(Default)]
struct BatchGuess {
    /// Steps of those frames, by frame.
    recent: HashMap<u64, usize>,
    /// The batch being named, or 0.
    batch: u32,
}

impl Planner {
    /// Makes a planner for a machine with these zones, if they are known.
    pub fn new(before: Option<&Zoneinfo>) -> Self {
        let zones = before.map(ZoneMap::new);
        Planner {
            highs: zones.as_ref().map(Highs::new).unwrap_or_default(),
            zones,
            ..Planner::default()
        }
    }

    /// Ticks that no record tells of, and that a plan has all the same: one per second and CPU.
    pub fn ticks_made_up(&self) -> u64 {
        let seconds = u64::from(self.now_ms / INTERVAL_MS);
        if self.ticks.are_recorded() { 0 } else { seconds * self.cpus().len() as u64 }
    }

    /// Takes one record.
    pub fn record(&mut self, record: &Record<'_>) {
        let first_ns = *self.first_ns.get_or_insert(record.time_ns);
        let ms = record.time_ns.saturating_sub(first_ns) / 1_000_000;
        // A trace that is out of order must not turn the clock back.
        self.now_ms = self.now_ms.max(u32::try_from(ms).unwrap_or(u32::MAX));
        self.cpu = record.cpu;
        self.ticks.note(record);
        match record.event {
            Event::PageAlloc { pfn: None, .. } => self.work.failed_allocs += 1,
            Event::PageAlloc {
                pfn: Some(pfn),
                order,
                migratetype,
                asks_movable,
                is_page_cache,
            } => {
                self.migratetypes.note(migratetype, asks_movable);
                let mobility = self.migratetypes.mobility(migratetype);
                if let Some(order) = self.plausible(pfn, order) {
                    self.alloc(pfn.0, order, mobility, is_page_cache);
                }
            }
            Event::PageFree { pfn, order } => {
                if let Some(order) = self.plausible(pfn, order) {
                    self.free(pfn.0, order);
                }
            }
            Event::PageFreeBatched { pfn, .. } => self.name_batched(pfn.0),
            Event::ZoneLocked { pfn, order, migratetype, percpu_refill } => match self.order(order)
            {
                Some(order) if percpu_refill => {
                    self.kernel.refilled.add(order);
                    if let (Some(pfn), Some(mobility)) =
                        (pfn, self.migratetypes.listed(migratetype))
                    {
                        let list = self.list(pfn.0, order, mobility);
                        self.initial.refilled(list, pfn.0);
                        self.highs.came(list);
                        self.refilling.insert(self.cpu, list.zone);
                    }
                }
                Some(order) => self.kernel.direct_allocated.add(order),
                None => {}
            },
            Event::PcpuDrain { pfn, order, migratetype } => {
                if let Some(order) = self.order(order) {
                    self.kernel.spilled.add(order);
                    self.ticks.drained(record);
                    if let Some(mobility) = self.migratetypes.listed(migratetype) {
                        self.pageblocks.insert(pageblock(pfn.0), mobility);
                        let list = self.list(pfn.0, order, mobility);
                        self.initial.left(list, pfn.0);
                        self.highs.returned(list, self.now_ms, record);
                    }
                }
            }
            Event::VmstatUpdate => self.ticks.updated(record),
            Event::ExtFrag { .. }
            | Event::AllocVmapArea { .. }
            | Event::FreeVmapArea { .. }
            | Event::PurgeVmapAreas { .. } => {}
        }
    }

    /// The order as ours. Of others it counts those that kernels have, and those that cannot be.
    fn order(&mut self, order: u32) -> Option<Order> {
        let ours = Order::new(order);
        if ours.is_none() && order <= KERNEL_ORDER_MAX {
            self.work.too_large += 1;
            self.work.too_large_order_max = self.work.too_large_order_max.max(order);
        } else if ours.is_none() {
            self.work.implausible += 1;
        }
        ours
    }

    /// The order of a block as ours, if such a block can be.
    fn plausible(&mut self, KernelPfn(pfn): KernelPfn, order: u32) -> Option<Order> {
        let order = self.order(order)?;
        let frames = u64::from(order.frames());
        if pfn >= PFN_MAX || pfn % frames != 0 {
            self.work.implausible += 1;
            return None;
        }
        if self.zones.as_ref().is_some_and(|zones| zones.zone_of(pfn).is_none()) {
            self.work.outside_zones += 1;
        }
        let (first, end) = self.pfn_span.unwrap_or((pfn, pfn));
        self.pfn_span = Some((first.min(pfn), end.max(pfn + frames)));
        Some(order)
    }

    fn alloc(&mut self, pfn: u64, order: Order, mobility: Mobility, is_page_cache: bool) {
        self.refilling.remove(&self.cpu);
        for base in self.live.overlapping(pfn, order) {
            self.give_up(base);
            self.work.missed_frees += 1;
        }
        let id = self.new_block(self.cpu);
        self.live.insert(pfn, LiveBlock { id, order, mobility });
        let list = self.list(pfn, order, mobility);
        let zone = list.zone;
        self.push(match (mobility, is_page_cache) {
            (Mobility::Movable, true) => Action::AllocCache { id, zone, order },
            _ => Action::Alloc { id, zone, order, mobility },
        });
        self.initial.left(list, pfn);
        self.highs.left(list);
        self.pageblocks.entry(pageblock(pfn)).or_insert(mobility);
        self.work.allocs.add(order, mobility);
        self.work.held_pages_peak = self.work.held_pages_peak.max(self.live.pages());
    }

    /// The zone that this CPU is refilling its lists from. Interrupts that came meanwhile are let
    /// in as soon as the zone lock is dropped, when the lists' lock is still held.
    fn refilling(&self) -> Option<u8> {
        self.refilling.get(&self.cpu).copied()
    }

    /// The list that a block on this CPU is from, or goes to.
    fn list(&self, pfn: u64, order: Order, mobility: Mobility) -> ListKey {
        let zone = self.zones.as_ref().map_or(0, |zones| zones.zone_of_or_last(pfn));
        ListKey { cpu: self.cpu, zone, order, mobility }
    }

    fn free(&mut self, pfn: u64, order: Order) {
        self.initial.came(pfn);
        self.highs.came(self.list(pfn, order, Mobility::Movable));
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
        let held = self.give_up(pfn);
        self.work.frees.add(order, held.mobility);
        self.note_free(pfn);
    }

    /// The last step is a free that may turn out to be one of a batch.
    fn note_free(&mut self, pfn: u64) {
        let step = self.steps.len() - 1;
        let batching = self.batching.entry(self.cpu).or_default();
        if batching.batch != 0 {
            // This CPU's last batch was named to its end.
            *batching = BatchGuess::default();
        }
        batching.recent.insert(pfn, step);
    }

    /// Frees what is held of a block that is not held as one.
    fn free_larger(&mut self, pfn: u64, order: Order) {
        let parts = self.live.overlapping(pfn, order);
        let Some(&first) = parts.first() else {
            self.free_unknown(pfn, order);
            return;
        };
        let mobility =
            self.live.covering(first).map_or(Mobility::Movable, |(_, held)| held.mobility);
        for part in parts {
            self.give_up(part);
        }
        self.work.larger_frees += 1;
        self.work.frees.add(order, mobility);
    }

    /// Frees a block that was allocated before the recording, if the machine is known.
    fn free_unknown(&mut self, pfn: u64, order: Order) {
        self.work.unknown_frees += 1;
        let Some(zones) = &self.zones else { return };
        let zone = zones.zone_of_or_last(pfn);
        let id = self.new_block(self.cpu);
        let (mobility, pageblock) = (Mobility::Movable, pageblock(pfn));
        self.push(Action::Known { id, zone, order, mobility, pageblock });
        self.push(Action::Free { id, order, batch: 0, nested: self.refilling() });
        self.note_free(pfn);
    }

    /// Halves the block at `base` until the part at `pfn` has `order`, as `split_page` and the
    /// freeing of tail pages in the kernel do.
    fn split(&mut self, mut base: u64, pfn: u64, order: Order) {
        let mut held = self.live.remove(base).expect("the caller found it");
        while held.order > order {
            let half = Order::new(held.order.get() - 1).expect("greater than another order");
            let upper =
                LiveBlock { id: self.new_block(self.home[held.id as usize]), order: half, ..held };
            let lower = LiveBlock { order: half, ..held };
            self.push(Action::Halve { id: held.id, order: held.order, upper: upper.id });
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
    fn give_up(&mut self, base: u64) -> LiveBlock {
        let held = self.live.remove(base).expect("the caller found it");
        if self.home[held.id as usize] != self.cpu {
            self.work.remote_frees += 1;
        }
        self.push(Action::Free {
            id: held.id,
            order: held.order,
            batch: 0,
            nested: self.refilling(),
        });
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
        if let Action::Free { batch, .. } = &mut self.steps[step].action {
            *batch = batching.batch;
            self.batch_sizes[batching.batch as usize - 1] += 1;
        }
    }

    fn new_block(&mut self, home: u16) -> u32 {
        self.home.push(home);
        u32::try_from(self.home.len() - 1).expect("a trace has fewer than 2^32 allocations")
    }

    fn push(&mut self, action: Action) {
        self.steps.push(ActionAt { action, cpu: self.cpu, ms: self.now_ms });
    }

    /// The plan.
    pub fn finish(mut self, trace: Summary, name: String) -> Plan {
        self.work.held = Volume { blocks: self.live.blocks(), pages: self.live.pages() };
        let (start, end) = self.pfn_span.unwrap_or((0, 0));
        for &size in self.batch_sizes.iter().filter(|&&size| size > 1) {
            self.work.batches += 1;
            self.work.batched_frees += u64::from(size);
        }
        for timed in &mut self.steps {
            if let Action::Known { mobility, pageblock, .. } = &mut timed.action {
                *mobility = self.pageblocks.get(pageblock).copied().unwrap_or(*mobility);
            }
        }
        let cpus = self.cpus();
        let schedule = schedule::schedule(&self.steps, &self.batch_sizes, &cpus);
        let machine_known = self.zones.is_some();
        let cached = self.zones.map_or_else(Vec::new, |zones| self.initial.finish(&cpus, &zones));
        Plan {
            name,
            trace,
            old_migratetypes: self.migratetypes == Migratetypes::Old,
            work: self.work,
            kernel: self.kernel,
            ticks: self.ticks.finish(&cpus, self.now_ms),
            ticks_unseen: self.ticks.unseen(&cpus),
            ticks_fitted: Vec::new(),
            highs_seen: if machine_known { self.highs.finish(&cpus) } else { Vec::new() },
            end_ms: self.now_ms,
            cpus_recorded: cpus.len(),
            cpus,
            machine_known,
            before: InitialState { held: schedule.known, cached },
            pfn_span: start..end,
            ops: schedule.ops,
            slots: schedule.slots,
            batches: schedule.batches,
        }
    }

    /// The CPUs that do something, and those whose caches are known.
    fn cpus(&self) -> Vec<u16> {
        let known = self.zones.iter().flat_map(ZoneMap::cpus);
        let mut cpus: Vec<u16> = self.steps.iter().map(|timed| timed.cpu).chain(known).collect();
        cpus.sort_unstable();
        cpus.dedup();
        cpus
    }
}

/// The kernel's number of a frame's pageblock.
fn pageblock(pfn: u64) -> u64 {
    pfn / u64::from(Order::PAGEBLOCK.frames())
}

/// The recorded kernel's numbers for migratetypes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Migratetypes {
    /// Today's numbers, until the trace tells.
    #[default]
    Untold,
    /// Numbers since Linux 4.4: movable is 1, reclaimable 2.
    New,
    /// Numbers before: reclaimable is 1, movable 2.
    Old,
}

impl Migratetypes {
    /// An allocation. The first that asks for movable memory tells.
    fn note(&mut self, migratetype: u32, asks_movable: bool) {
        match migratetype {
            1 if asks_movable && *self == Migratetypes::Untold => *self = Migratetypes::New,
            2 if asks_movable && *self == Migratetypes::Untold => *self = Migratetypes::Old,
            _ => {}
        }
    }

    /// The mobility of a per-CPU list; there are none for other migratetypes.
    fn listed(self, migratetype: u32) -> Option<Mobility> {
        (migratetype < Mobility::COUNT as u32).then(|| self.mobility(migratetype))
    }

    /// The kernel has more migratetypes than we have mobilities. Only the first three can be asked
    /// for; the others say where a block was found: in the reserve for atomic requests (3), in
    /// memory set aside for devices, which only movable pages may borrow (CMA), or isolated.
    fn mobility(self, migratetype: u32) -> Mobility {
        match (migratetype, self) {
            (0 | 3, _) => Mobility::Unmovable,
            (2, Migratetypes::New | Migratetypes::Untold) | (1, Migratetypes::Old) => {
                Mobility::Reclaimable
            }
            _ => Mobility::Movable,
        }
    }
}
