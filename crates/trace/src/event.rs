//! The events of `include/trace/events/{kmem,vmalloc}.h` that concern allocators.

use std::fmt;

use super::notation::Notation;

/// A page frame number of the recorded kernel, not of an allocator here.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KernelPfn(pub u64);

impl fmt::Debug for KernelPfn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kernel pfn {:#x}", self.0)
    }
}

/// One line of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// The task's name, 15 bytes at most in a kernel; `:-1` or `<...>` when unknown.
    pub comm: &'a str,
    /// The task's id; -1 when unknown.
    pub pid: i32,
    /// The CPU, as the kernel numbers it.
    pub cpu: u16,
    /// Time on the trace's clock, in nanoseconds.
    pub time_ns: u64,
    /// The event itself.
    pub event: Event,
    /// The way in which its line is written.
    pub notation: Notation,
}

/// An event. Sizes and addresses of virtual areas are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "fields have the names that the kernel prints")]
pub enum Event {
    /// A block was allocated; `pfn` is `None` when the allocation failed. `asks_movable`: its flags
    /// (`gfp_flags`) name memory that can be moved. `is_page_cache`: they are those of a page that
    /// is filled from a file, or that a program writes into a file.
    PageAlloc {
        pfn: Option<KernelPfn>,
        order: u32,
        migratetype: u32,
        asks_movable: bool,
        is_page_cache: bool,
    },
    /// A block was freed.
    PageFree { pfn: KernelPfn, order: u32 },
    /// The block, whose [`PageFree`](Event::PageFree) came before, was freed as one of a batch.
    PageFreeBatched { pfn: KernelPfn, order: u32 },
    /// A block left the zone's free lists: into a per-CPU list (`percpu_refill`) or straight to the
    /// caller.
    ZoneLocked { pfn: Option<KernelPfn>, order: u32, migratetype: u32, percpu_refill: bool },
    /// A block went from a per-CPU list back to the zone's free lists.
    PcpuDrain { pfn: KernelPfn, order: u32, migratetype: u32 },
    /// A block was taken from another migratetype's free lists.
    ExtFrag {
        pfn: KernelPfn,
        alloc_order: u32,
        fallback_order: u32,
        alloc_migratetype: u32,
        fallback_migratetype: u32,
        change_ownership: bool,
    },
    /// A CPU began its periodic work (`vmstat_update`); one of many functions that
    /// `workqueue_execute_start` tells of.
    VmstatUpdate,
    /// A virtual area was allocated, or the allocation failed.
    AllocVmapArea { va_start: u64, size: u64, align: u64, vstart: u64, vend: u64, failed: bool },
    /// A virtual area was freed; its flush comes later.
    FreeVmapArea { va_start: u64, nr_lazy: u64, nr_lazy_max: u64 },
    /// The freed areas that waited were flushed.
    PurgeVmapAreas { start: u64, end: u64, num_purged: u64 },
}

impl Event {
    /// The event's kind.
    pub fn kind(&self) -> EventKind {
        match self {
            Event::PageAlloc { .. } => EventKind::PageAlloc,
            Event::PageFree { .. } => EventKind::PageFree,
            Event::PageFreeBatched { .. } => EventKind::PageFreeBatched,
            Event::ZoneLocked { .. } => EventKind::ZoneLocked,
            Event::PcpuDrain { .. } => EventKind::PcpuDrain,
            Event::ExtFrag { .. } => EventKind::ExtFrag,
            Event::VmstatUpdate => EventKind::VmstatUpdate,
            Event::AllocVmapArea { .. } => EventKind::AllocVmapArea,
            Event::FreeVmapArea { .. } => EventKind::FreeVmapArea,
            Event::PurgeVmapAreas { .. } => EventKind::PurgeVmapAreas,
        }
    }
}

/// The kinds of events that this reader knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "as the variants of `Event`")]
pub enum EventKind {
    PageAlloc,
    PageFree,
    PageFreeBatched,
    ZoneLocked,
    PcpuDrain,
    ExtFrag,
    VmstatUpdate,
    AllocVmapArea,
    FreeVmapArea,
    PurgeVmapAreas,
}

impl EventKind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [EventKind; 10] = [
        EventKind::PageAlloc,
        EventKind::PageFree,
        EventKind::PageFreeBatched,
        EventKind::ZoneLocked,
        EventKind::PcpuDrain,
        EventKind::ExtFrag,
        EventKind::VmstatUpdate,
        EventKind::AllocVmapArea,
        EventKind::FreeVmapArea,
        EventKind::PurgeVmapAreas,
    ];

    /// The kernel's name for it, without the subsystem.
    pub const fn name(self) -> &'static str {
        match self {
            EventKind::PageAlloc => "mm_page_alloc",
            EventKind::PageFree => "mm_page_free",
            EventKind::PageFreeBatched => "mm_page_free_batched",
            EventKind::ZoneLocked => "mm_page_alloc_zone_locked",
            EventKind::PcpuDrain => "mm_page_pcpu_drain",
            EventKind::ExtFrag => "mm_page_alloc_extfrag",
            EventKind::VmstatUpdate => "workqueue_execute_start",
            EventKind::AllocVmapArea => "alloc_vmap_area",
            EventKind::FreeVmapArea => "free_vmap_area_noflush",
            EventKind::PurgeVmapAreas => "purge_vmap_area_lazy",
        }
    }

    /// The event of that name, with or without its subsystem (`kmem:`). It may be a name of older
    /// kernels.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::named(name).map(|(kind, _)| kind)
    }

    /// The event of that name, and whether the name is one of older kernels.
    pub(crate) fn named(name: &str) -> Option<(Self, bool)> {
        let name = name.rsplit(':').next().unwrap_or(name);
        match Self::ALL.into_iter().find(|kind| kind.name() == name) {
            Some(kind) => Some((kind, false)),
            None => OLD_NAMES.iter().find(|(old, _)| *old == name).map(|&(_, kind)| (kind, true)),
        }
    }
}

/// Names of kernels before 3.3. There `mm_pagevec_free` told of a free of its own: no event of a
/// single free came before it, as one does before today's `mm_page_free_batched`.
const OLD_NAMES: [(&str, EventKind); 2] =
    [("mm_page_free_direct", EventKind::PageFree), ("mm_pagevec_free", EventKind::PageFree)];

/// Numbers of events by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventCounts([u64; EventKind::ALL.len()]);

impl EventCounts {
    /// Counts an event.
    pub fn add(&mut self, kind: EventKind) {
        self.0[kind as usize] += 1;
    }

    /// Number of events of a kind.
    pub fn get(&self, kind: EventKind) -> u64 {
        self.0[kind as usize]
    }

    /// Number of all events.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}
