//! A trace turned into operations.

use pagedepot::{Mobility, Order};
use pagedepot_designs::Volume;

use super::ticks::Tick;
use pagedepot_trace::Summary;

/// One operation of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// The trace's clock, in milliseconds since its first event.
    Clock { ms: u32 },
    /// Allocate into an empty slot, from the recorded block's zone. `cpu` counts the CPUs of the
    /// plan.
    Alloc { cpu: u16, zone: u8, order: Order, mobility: Mobility, slot: u32 },
    /// Allocate a block of the page cache, which is movable, into an empty slot.
    AllocCache { cpu: u16, zone: u8, order: Order, slot: u32 },
    /// Free and empty a slot.
    Free { cpu: u16, order: Order, slot: u32 },
    /// A free in an interrupt that came while the CPU refilled its lists of `zone`.
    FreeNested { cpu: u16, zone: u8, order: Order, slot: u32 },
    /// Free and empty the slots [`Plan::batch`] names, by one call.
    FreeMany { cpu: u16, first: u32, len: u32 },
    /// Make two blocks of one: the upper half goes to `upper`.
    Halve { order: Order, slot: u32, upper: u32 },
}

/// A trace, ready to run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The name in errors and reports.
    pub name: String,
    /// Summary of the trace.
    pub trace: Summary,
    /// Whether migratetypes are numbered as before Linux 4.4.
    pub old_migratetypes: bool,
    /// The part of it that is replayed.
    pub work: Work,
    /// Counts of the recorded kernel.
    pub kernel: KernelCounts,
    /// The kernel's numbers of the CPUs, ascending; operations name them by their place here.
    pub cpus: Vec<u16>,
    /// Number of CPUs before they were folded.
    pub cpus_recorded: usize,
    /// Whether a zoneinfo told what there was before.
    pub machine_known: bool,
    /// The machine as it was when the recording began, if a zoneinfo tells.
    pub before: InitialState,
    /// Lowest frame of the trace, and one past the highest.
    pub pfn_span: std::ops::Range<u64>,
    /// The operations.
    pub ops: Vec<Op>,
    /// The CPUs' periodic work, in order.
    pub ticks: Vec<Tick>,
    /// Times of the first tick that the recording shows, for each CPU without recorded ticks.
    pub ticks_unseen: Vec<Tick>,
    /// The first ticks of those, where they could be told from what they did.
    pub ticks_fitted: Vec<Tick>,
    /// Values of CPUs' `high` when they spilled.
    pub highs_seen: Vec<HighSeen>,
    /// Time of the last event.
    pub end_ms: u32,
    /// Slots needed.
    pub slots: u32,
    pub(super) batches: Vec<(u32, Order)>,
}

/// The recorded machine's state when the recording began. Empty without a zoneinfo.
#[derive(Clone, Debug, Default)]
pub struct InitialState {
    /// Blocks handed out, as far as the trace frees them.
    pub held: Vec<InitialBlock>,
    /// Pages that CPUs cached.
    pub cached: Vec<InitialList>,
}

/// A block handed out before the recording began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitialBlock {
    pub slot: u32,
    pub zone: u8,
    pub order: Order,
    pub mobility: Mobility,
}

/// The value of a CPU's `high` in a zone when it spilled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HighSeen {
    pub ms: u32,
    /// Counts the CPUs of the plan.
    pub cpu: u16,
    pub zone: u8,
    pub high: u64,
}

/// Blocks on a CPU's list of a zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitialList {
    /// Counts the CPUs of the plan.
    pub cpu: u16,
    pub zone: u8,
    pub order: Order,
    pub mobility: Mobility,
    pub blocks: u32,
}

impl InitialState {
    /// The blocks handed out, and their pages.
    pub fn held_volume(&self) -> Volume {
        let mut volume = Volume::default();
        self.held.iter().for_each(|known| volume.add(known.order));
        volume
    }
}

impl Plan {
    /// The slots of a [`Op::FreeMany`], with the orders of the blocks in them.
    pub fn batch(&self, first: u32, len: u32) -> &[(u32, Order)] {
        &self.batches[first as usize..][..len as usize]
    }

    /// Pages of a zone that the whole trace fits into: as many as lie between its lowest and its
    /// highest frame, and at least twice what it ever holds at once, in whole blocks of the largest
    /// order.
    pub fn zone_pages(&self) -> u64 {
        let span = self.pfn_span.end.saturating_sub(self.pfn_span.start);
        let block = u64::from(Order::MAX.frames());
        // Traces of programs may have frame numbers as far apart as they like.
        let span = span.min(1 << 24);
        span.max(2 * self.work.held_pages_peak).max(64 * block).next_multiple_of(block)
    }
}

/// Numbers by order and mobility.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByOrder(pub [[u64; Mobility::COUNT]; Order::COUNT]);

impl ByOrder {
    /// Counts a block.
    pub fn add(&mut self, order: Order, mobility: Mobility) {
        self.0[order.index()][mobility.index()] += 1;
    }

    /// Blocks in all.
    pub fn blocks(&self) -> u64 {
        self.0.iter().flatten().sum()
    }
}

/// Numbers of what is replayed of a trace, and of what is not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Allocations, by order and mobility.
    pub allocs: ByOrder,
    /// Frees of the trace, by the order freed and the mobility allocated.
    pub frees: ByOrder,
    /// Frees that the recording lacks; replayed, and not among `frees`.
    pub missed_frees: u64,
    /// Frees of blocks allocated before the recording; replayed if a zoneinfo tells the zones.
    pub unknown_frees: u64,
    /// Allocations that failed in the kernel.
    pub failed_allocs: u64,
    /// Events with an order that no kernel has, or a misaligned frame.
    pub implausible: u64,
    /// Events of blocks above order 10, and the largest of their orders.
    pub too_large: u64,
    pub too_large_order_max: u32,
    /// Allocations and frees of frames in no zone of the zoneinfo; replayed in the last one.
    pub outside_zones: u64,
    /// Frees of a part of a block, which was split for it.
    pub split_frees: u64,
    /// Frees of more than what was held there; what was held is freed.
    pub larger_frees: u64,
    /// Frees replayed as part of a batch, and how many batches.
    pub batched_frees: u64,
    pub batches: u64,
    /// Frees on another CPU than the one that allocated.
    pub remote_frees: u64,
    /// Most pages held at once.
    pub held_pages_peak: u64,
    /// Blocks that are held when the trace ends.
    pub held: Volume,
}

/// Counts of the recorded kernel, by its own events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelCounts {
    /// `mm_page_alloc_zone_locked` with `percpu_refill=1`: free lists to a CPU's list.
    pub refilled: Volume,
    /// `mm_page_alloc_zone_locked` with `percpu_refill=0`: free lists straight to the caller.
    pub direct_allocated: Volume,
    /// `mm_page_pcpu_drain`: a CPU's list to the free lists.
    pub spilled: Volume,
}
