//! What designs tell: drains, counters, where the pages are, and what is wrong.

use std::fmt;
use std::ops::AddAssign;

use pagedepot::{CpuId, Order, Pfn, ZoneId};

use crate::lock::LockWaits;
use crate::pcp::Lists;
use crate::prim::{AtomicU64, Ordering, count};
use crate::store::Store;
use crate::zones::Zones;

/// A number of blocks and of the pages in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Volume {
    /// Blocks.
    pub blocks: u64,
    /// Pages in them.
    pub pages: u64,
}

impl Volume {
    /// Adds a block.
    #[inline]
    pub fn add(&mut self, order: Order) {
        self.blocks += 1;
        self.pages += u64::from(order.frames());
    }
}

impl AddAssign for Volume {
    fn add_assign(&mut self, other: Volume) {
        self.blocks += other.blocks;
        self.pages += other.pages;
    }
}

/// Whose caches a drain takes. `ALL` is the kernel's drain without a zone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// One CPU's; `None`: every CPU's.
    pub cpu: Option<CpuId>,
    /// One zone's; `None`: every zone's, those without memory included.
    pub zone: Option<ZoneId>,
}

impl Scope {
    /// Everybody's.
    pub const ALL: Scope = Scope { cpu: None, zone: None };

    /// Those of one CPU.
    pub const fn cpu(cpu: CpuId) -> Self {
        Scope { cpu: Some(cpu), zone: None }
    }

    /// Those of one zone.
    pub const fn zone(zone: ZoneId) -> Self {
        Scope { cpu: None, zone: Some(zone) }
    }

    /// The zones meant. The loop variable of every drain: the design that dereferenced "the zone"
    /// of a global drain instead crashed on the first machine that ran out of memory
    /// ("Remote per-cpu lists drain support", 2022).
    pub(crate) fn zones(self, zones: &Zones) -> impl Iterator<Item = ZoneId> + use<> {
        zones.ids().filter(move |&id| self.zone.is_none_or(|zone| zone == id))
    }

    pub(crate) fn cpus(self, zones: &Zones) -> impl Iterator<Item = CpuId> + use<> {
        zones.cpu_ids().filter(move |&id| self.cpu.is_none_or(|cpu| cpu == id))
    }
}

/// What a drain did. Sums by `+=`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Drained {
    /// Pages returned to the store by the time the call ended.
    pub taken_pages: u64,
    /// Pages in scope that CPUs cache when the call ends: what owners cached meanwhile, and what
    /// the design leaves to its owner.
    pub left_pages: u64,
    /// Pages in lists that were switched away, still waiting for a grace period to end.
    pub pending_pages: u64,
    /// Pages that this kind of drain does not reach.
    pub unreachable_pages: u64,
    /// CPUs that had to stop what they did for this drain: work run on them, or a fence asked of
    /// the kernel, which interrupts a CPU that runs this process.
    pub interruptions: u64,
    /// Fences among them.
    pub fences: u64,
    /// CPUs that could not be drained now.
    pub busy_cpus: u64,
    /// Drains not done because another was running (mainline: a global drain does not queue up).
    pub skipped: u64,
}

impl AddAssign for Drained {
    fn add_assign(&mut self, other: Drained) {
        self.taken_pages += other.taken_pages;
        self.left_pages += other.left_pages;
        self.pending_pages += other.pending_pages;
        self.unreachable_pages += other.unreachable_pages;
        self.interruptions += other.interruptions;
        self.fences += other.fences;
        self.busy_cpus += other.busy_cpus;
        self.skipped += other.skipped;
    }
}

/// What a design did since it was made. Each number is exact, but they are not read at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Times caches were filled from the store.
    pub refills: u64,
    /// Moved from the store to caches, what the causing request got included.
    pub refilled: Volume,
    /// Moved from caches to the store because there were too many, or they had idled.
    pub spilled: Volume,
    /// Moved from caches to the store by drains.
    pub drained: Volume,
    /// From the store to the caller, past the caches.
    pub direct_allocated: Volume,
    /// From the caller to the store, past the caches.
    pub direct_freed: Volume,
    /// Operations that found their caches' lock held, and went past it.
    pub lock_misses: u64,
    /// Waits for locks of caches.
    pub cache_lock: LockWaits,
    /// Waits for the zone locks.
    pub zone_lock: LockWaits,
    /// Drains asked for.
    pub drains: u64,
    /// Times a drain stopped a CPU.
    pub interruptions: u64,
    /// Grace periods that ended with their pages collected.
    pub collected: u64,
    /// From switching lists to collecting them, in nanoseconds, over all of these.
    pub collect_ns: u64,
    /// The longest of them.
    pub collect_ns_max: u64,
    /// Requests that failed.
    pub failures: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.refills += other.refills;
        self.refilled += other.refilled;
        self.spilled += other.spilled;
        self.drained += other.drained;
        self.direct_allocated += other.direct_allocated;
        self.direct_freed += other.direct_freed;
        self.lock_misses += other.lock_misses;
        self.cache_lock += other.cache_lock;
        self.zone_lock += other.zone_lock;
        self.drains += other.drains;
        self.interruptions += other.interruptions;
        self.collected += other.collected;
        self.collect_ns += other.collect_ns;
        self.collect_ns_max = self.collect_ns_max.max(other.collect_ns_max);
        self.failures += other.failures;
    }
}

/// Where all frames are, in pages. Callers hold the rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Census {
    /// Given to the design.
    pub managed_pages: u64,
    /// Free in the store.
    pub free_pages: u64,
    /// In caches.
    pub cached_pages: u64,
    /// Switched away, waiting for a grace period.
    pub pending_pages: u64,
    /// Taken by the design for its own books.
    pub overhead_pages: u64,
}

impl Census {
    /// What callers must be holding.
    pub fn held_pages(&self) -> u64 {
        self.managed_pages - self.free_pages - self.cached_pages - self.pending_pages - self.overhead_pages
    }
}

/// What is wrong with a design's books.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// A frame is in two places.
    Doubled {
        /// The frame.
        pfn: Pfn,
    },
    /// A frame is in a list of another zone or order than its own.
    Misplaced {
        /// The frame.
        pfn: Pfn,
    },
    /// Two free buddies were not merged.
    Unmerged {
        /// The lower one.
        pfn: Pfn,
    },
    /// A counter disagrees with what it counts.
    Count {
        /// What is counted.
        what: &'static str,
        /// By the counter.
        counted: u64,
        /// By a walk.
        found: u64,
    },
    /// The bitmap store's, or our own allocator's.
    Allocator(pagedepot::Fault),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Allocator(fault) => fault.fmt(f),
            fault => write!(f, "the design's books are inconsistent: {fault:?}"),
        }
    }
}

impl std::error::Error for Fault {}

impl From<pagedepot::Fault> for Fault {
    fn from(fault: pagedepot::Fault) -> Self {
        Fault::Allocator(fault)
    }
}

/// Compares a counter with what was found.
pub(crate) fn agree(what: &'static str, counted: u64, found: u64) -> Result<(), Fault> {
    if counted == found { Ok(()) } else { Err(Fault::Count { what, counted, found }) }
}

/// The cells behind [`Counts`], one set per CPU. What only slow paths count.
#[derive(Default)]
pub(crate) struct Counters {
    pub refills: AtomicU64,
    pub refilled: VolumeCounter,
    pub spilled: VolumeCounter,
    pub drained: VolumeCounter,
    pub direct_allocated: VolumeCounter,
    pub direct_freed: VolumeCounter,
    pub lock_misses: AtomicU64,
    pub drains: AtomicU64,
    pub interruptions: AtomicU64,
    pub collected: AtomicU64,
    pub collect_ns: AtomicU64,
    pub collect_ns_max: AtomicU64,
    pub failures: AtomicU64,
}

#[derive(Default)]
pub(crate) struct VolumeCounter {
    blocks: AtomicU64,
    pages: AtomicU64,
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
        Volume { blocks: self.blocks.load(Ordering::Relaxed), pages: self.pages.load(Ordering::Relaxed) }
    }
}

impl Counters {
    pub fn note_collected(&self, ns: u64) {
        count(&self.collected, 1);
        count(&self.collect_ns, ns);
        self.collect_ns_max.fetch_max(ns, Ordering::Relaxed);
    }

    /// Adds what another set counted, which nobody counts on any more.
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

    /// Changes with every move between caches and store.
    pub fn activity(&self) -> u32 {
        let read = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        (read(&self.refills) + read(&self.spilled.blocks)) as u32
    }

    /// Adds these to a sum.
    pub fn add_to(&self, sum: &mut Counts) {
        let read = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
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

/// A census under way.
pub(crate) struct Taking<'z> {
    seen: Seen,
    zones: &'z Zones,
    census: Census,
}

impl Taking<'_> {
    /// Counts cached lists.
    pub fn cached(&mut self, zone: ZoneId, lists: &Lists) -> Result<(), Fault> {
        self.census.cached_pages += lists.check(self.zones, zone, &mut self.seen)?;
        Ok(())
    }

    /// Counts lists that wait for a grace period.
    pub fn pending(&mut self, zone: ZoneId, lists: &Lists) -> Result<(), Fault> {
        self.census.pending_pages += lists.check(self.zones, zone, &mut self.seen)?;
        Ok(())
    }

    /// Counts one cached block.
    pub fn cached_block(&mut self, zone: ZoneId, pfn: Pfn, order: Order) -> Result<(), Fault> {
        self.census.cached_pages += u64::from(order.frames());
        self.seen.mark(self.zones, zone, pfn, order)
    }
}

/// Which frames have been seen by a validation.
pub(crate) struct Seen {
    words: Vec<u64>,
    base: u32,
}

impl Seen {
    pub fn new(zones: &Zones) -> Self {
        let ranges =
            || zones.ids().flat_map(|id| zones.zone(id).ranges.clone()).filter(|range| range.frames > 0);
        let base = ranges().map(|range| range.start.get()).min().unwrap_or(0);
        let end = ranges().map(|range| range.end()).max().unwrap_or(0);
        Seen { words: vec![0; end.saturating_sub(u64::from(base)).div_ceil(64) as usize], base }
    }

    /// Checks a store and, by `caches`, what lies before it; counts all frames. `caches` marks what
    /// it finds and adds it to the census.
    ///
    /// # Errors
    /// The first fault found.
    pub fn census<S: Store>(
        store: &S,
        caches: impl FnOnce(&mut Taking<'_>) -> Result<(), Fault>,
    ) -> Result<Census, Fault> {
        let zones = store.zones();
        let mut taking = Taking { seen: Seen::new(zones), zones, census: Census::default() };
        let mut free_pages = 0;
        let overhead_pages = store.check(&mut |zone, pfn, order| {
            free_pages += u64::from(order.frames());
            taking.seen.mark(zones, zone, pfn, order)
        })?;
        taking.census.free_pages = free_pages;
        taking.census.overhead_pages = overhead_pages;
        taking.census.managed_pages = zones.ids().map(|zone| zones.zone(zone).managed_pages).sum();
        caches(&mut taking)?;
        Ok(taking.census)
    }

    /// Marks a block of a zone.
    ///
    /// # Errors
    /// When one of its frames was seen before, or is not the zone's, or the block is not aligned.
    pub fn mark(&mut self, zones: &Zones, zone: ZoneId, pfn: Pfn, order: Order) -> Result<(), Fault> {
        let end = u64::from(pfn.get()) + u64::from(order.frames());
        let inside = |range: &pagedepot::FrameRange| range.start <= pfn && end <= range.end();
        if !pfn.is_aligned(order) || !covered(&zones.zone(zone).ranges, pfn, end, inside) {
            return Err(Fault::Misplaced { pfn });
        }
        for frame in (0..order.frames()).map(|i| pfn.add(i)) {
            let at = (frame.get() - self.base) as usize;
            if self.words[at / 64] >> (at % 64) & 1 == 1 {
                return Err(Fault::Doubled { pfn: frame });
            }
            self.words[at / 64] |= 1 << (at % 64);
        }
        Ok(())
    }
}

/// Whether a block lies in one range, or in several that touch.
fn covered(
    ranges: &[pagedepot::FrameRange],
    pfn: Pfn,
    end: u64,
    inside: impl Fn(&pagedepot::FrameRange) -> bool,
) -> bool {
    ranges.iter().any(inside)
        || (u64::from(pfn.get())..end)
            .all(|frame| ranges.iter().any(|r| u64::from(r.start.get()) <= frame && frame < r.end()))
}
