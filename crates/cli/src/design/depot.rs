//! This project's design, through the interface that programs use.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use std::time::{Duration, Instant};

use pagedepot::{CpuId, Evacuation, Flags, Mobility, Mode, Order, Pfn, Scope, ZoneId};
use pagedepot_contiguity::{Compaction, Contiguity, Mover};
use pagedepot_designs::{
    AsBacking, Buddy, Counts, DrainResult, FreeMap, GIB_LOG2, Setup, Store as _, Volume,
};
use pagedepot_linux::{Depot, Handover};

use super::allocator::{Allocator, free_gathered, nothing_held, order};
use super::demand::{Demand, page_bytes};
use super::variant::Store;
use crate::failure::Failure;
use crate::names::Design;

/// A depot as an allocator to measure. `CACHED`: with per-CPU caches. `HEALS`: with pageblocks that
/// evacuate.
pub struct DepotAllocator<const CACHED: bool = true, const HEALS: bool = true> {
    depot: Depot,
    pages: u64,
    /// The store under the depot, if it is not the depot's own bitmap.
    buddy: Option<Arc<AsBacking<Buddy>>>,
    /// Whether a mover was registered.
    moves: bool,
    /// Boxed: nothing in an allocator's own value changes, as in the depot's, so that loops keep
    /// both in registers.
    drained: Box<DrainCounts>,
}

/// Counts of drains, on cache lines of their own, apart from those that owners read.
#[derive(Default)]
#[repr(align(128))]
struct DrainCounts {
    drains: AtomicU64,
    fences: AtomicU64,
    /// Handovers that were complete, and the time from the answer to that.
    collected: AtomicU64,
    collect_ns: AtomicU64,
}

/// Milliseconds after which a handover fences, and for which it is waited for.
const FENCE_AFTER_MS: u32 = 1;
const HANDOVER_MAX: Duration = Duration::from_millis(20);
/// Spins between two looks.
const LOOK_SPINS: u32 = 8;

/// A buddy store of the one zone that the depot will have.
fn buddy(demand: &Demand, pages: u64) -> Result<Buddy, Failure> {
    let pages = u32::try_from(pages).map_err(|_| failed(format!("{pages} pages are too many")))?;
    Buddy::new(&Setup::single(demand.cpus.len() as u32, pages)).map_err(failed)
}

fn failed(why: impl std::fmt::Display) -> Failure {
    Failure::Run(format!("{}: {why}", Design::Depot))
}

impl<const CACHED: bool, const HEALS: bool> Allocator for DepotAllocator<CACHED, HEALS> {
    const DESIGN: Design = match (CACHED, HEALS) {
        (true, true) => Design::Depot,
        (true, false) => Design::DepotStill,
        (false, _) => Design::DepotUncached,
    };
    const DRAINS: &'static [Mode] = &[Mode::Quiet, Mode::Full, Mode::Handover];
    const RANGES: bool = true;
    const COMPACTS: bool = true;
    type Block = Pfn;

    fn new(demand: &Demand) -> Result<Self, Failure> {
        let pages = demand.pages();
        let free_high = demand.variant.free_high_limit().into();
        let mut builder =
            Depot::builder(pages as usize * page_bytes()).free_high(free_high).caches(CACHED);
        if !HEALS {
            builder = builder.evacuation(Evacuation::Off);
        }
        if let Some(cpu) = demand.isolated {
            builder = builder.isolated_cpus([cpu].into_iter().collect());
        }
        let buddy = match demand.variant.store_of(Design::Depot) {
            Store::Bitmap => None,
            // SAFETY: a buddy allocator hands out each block of its zone once, under a lock, and
            // the depot alone takes and gives blocks of this one.
            Store::Buddy => Some(Arc::new(unsafe { AsBacking::new(buddy(demand, pages)?) })),
        };
        let depot = match buddy.clone() {
            Some(buddy) => builder.build_over(|_| buddy),
            None => builder.build(),
        };
        let (depot, drained) = (depot.map_err(failed)?, Box::default());
        Ok(DepotAllocator { depot, pages, buddy, moves: false, drained })
    }

    #[inline]
    fn alloc<const ORDER: u32>(&self) -> Option<Pfn> {
        self.depot.raw().alloc(const { order::<ORDER>() }, Flags::default()).ok()
    }

    #[inline]
    fn free<const ORDER: u32>(&self, block: Pfn) {
        self.free_block(block, const { order::<ORDER>() });
    }

    #[inline]
    fn alloc_block(&self, order: Order, mobility: Mobility) -> Option<Pfn> {
        let flags = Flags::new(mobility);
        let flags = if self.moves { flags.compact() } else { flags };
        self.depot.raw().alloc(order, flags).ok()
    }

    #[inline]
    fn free_block(&self, block: Pfn, order: Order) {
        // SAFETY: `alloc` returned it with the same order; the workload frees it once, and no
        // longer uses its memory.
        if unsafe { self.depot.raw().free(block, order) }.is_err() {
            refused(block);
        }
    }

    fn free_many(&self, blocks: &[(Pfn, Order)]) {
        // SAFETY: as in `free_block`, for each.
        if let Err(error) = unsafe { self.depot.raw().free_mixed(blocks) } {
            panic!("{}: {error}", Design::Depot);
        }
    }

    fn free_pages(&self, pages: &mut Vec<Pfn>) {
        free_gathered(self, pages);
    }

    fn alloc_batch(&self, pages: &mut [Pfn]) -> bool {
        let mut got = 0;
        while got < pages.len() {
            match self.depot.raw().alloc_many(Order::BASE, Flags::default(), &mut pages[got..]) {
                Ok(more) => got += more,
                Err(_) => {
                    self.free_batch(&pages[..got]);
                    return false;
                }
            }
        }
        true
    }

    fn free_batch(&self, pages: &[Pfn]) {
        // SAFETY: as in `free_block`, for each.
        if let Err(error) = unsafe { self.depot.raw().free_many(Order::BASE, pages) } {
            panic!("{}: {error}", Design::Depot);
        }
    }

    fn halve(&self, block: Pfn, order: Order) {
        let half = Order::new(order.get() - 1).expect("blocks of more than a page are halved");
        // SAFETY: the caller holds the block, by its number.
        if let Err(error) = unsafe { self.depot.raw().split(block, order, half) } {
            panic!("{}: {block}, order {order}: {error}", Design::Depot);
        }
    }

    fn zeroed(&self) -> Option<Pfn> {
        self.depot.raw().alloc(Order::BASE, Flags::default().zeroed()).ok()
    }

    #[inline]
    fn address(&self, block: Pfn) -> NonNull<u8> {
        self.depot.raw().address(block)
    }

    fn drain(&self, cpu: Option<CpuId>, mode: Mode) -> Option<DrainResult> {
        let scope = cpu.map_or(Scope::ALL, Scope::cpu);
        let mut pending_pages = 0;
        let done = match mode {
            Mode::Quiet | Mode::Full => self.depot.drain(scope, mode),
            Mode::Handover => {
                let mut handover = self.depot.drain_handover(scope, Some(FENCE_AFTER_MS));
                pending_pages = handover.drained().pending_pages;
                self.await_handover(&mut handover);
                handover.drained()
            }
        };
        self.drained.drains.fetch_add(1, Ordering::Relaxed);
        self.drained.fences.fetch_add(done.fences, Ordering::Relaxed);
        let mut drained = DrainResult::default();
        drained.taken_pages = done.taken_pages;
        drained.left_pages = done.left_pages + done.in_flight_pages;
        drained.pending_pages = pending_pages;
        drained.unreachable_pages = done.unreachable_pages + done.pending_pages;
        (drained.fences, drained.interruptions) = (done.fences, done.fences);
        drained.busy_cpus = done.busy_cpus + done.isolated_cpus + done.pending_cpus;
        Some(drained)
    }

    fn alloc_gib(&self) -> Option<Pfn> {
        self.depot.raw().alloc_contiguous(1 << GIB_LOG2, 1 << GIB_LOG2, Flags::default()).ok()
    }

    fn alloc_gib_by_moves(&self, mover: &dyn Mover) -> (Option<Pfn>, u64) {
        if let Some(range) = self.alloc_gib() {
            return (Some(range), 0);
        }
        // SAFETY: compaction frees only what the mover says was moved, and the workload uses no
        // memory of its blocks.
        let allocator = unsafe { self.depot.raw().allocator() };
        let rules = Compaction::range(1 << GIB_LOG2, 1 << GIB_LOG2);
        let moved_pages = allocator
            .compact(ZoneId::new(0), rules, mover)
            .map_or(0, |compacted| compacted.moved_pages);
        (self.alloc_gib(), moved_pages)
    }

    fn register_mover(&mut self, mover: Arc<dyn Mover + Send + Sync>) {
        // SAFETY: the workload frees its blocks once, and uses no memory of them.
        unsafe { self.depot.raw().register_mover(mover) }.expect("called once");
        self.moves = true;
    }

    fn free_gib(&self, range: Pfn) {
        // SAFETY: `alloc_gib` returned it; the workload frees it once, and uses no memory of it.
        if unsafe { self.depot.raw().free_contiguous(range, 1 << GIB_LOG2) }.is_err() {
            refused(range);
        }
    }

    fn frame(&self, block: Pfn) -> u64 {
        block.get().into()
    }

    fn free_map(&self) -> Result<Option<FreeMap>, String> {
        let raw = self.depot.raw();
        Ok(Some(FreeMap::by_frame(0, self.pages, |pfn| raw.is_free(pfn))))
    }

    fn counts(&self) -> Option<Counts> {
        let mut sum = Counts::default();
        for stats in self.depot.zone_ids().filter_map(|zone| self.depot.zone_stats(zone)) {
            let counts = stats.counts;
            sum.refills += counts.refills;
            sum.refilled += Volume { blocks: counts.refilled_blocks, pages: counts.refilled_pages };
            sum.spilled += Volume { blocks: counts.spilled_blocks, pages: counts.spilled_pages };
            sum.drained += Volume { blocks: counts.drained_blocks, pages: counts.drained_pages };
            sum.direct_allocated +=
                Volume { blocks: counts.direct_allocs, pages: counts.direct_alloc_pages };
            sum.direct_freed +=
                Volume { blocks: counts.direct_frees, pages: counts.direct_free_pages };
            sum.lock_misses += counts.lost_races;
            sum.failures += counts.failures;
        }
        if let Some(buddy) = &self.buddy {
            sum.zone_lock = buddy.store().lock_waits();
        }
        sum.drains = self.drained.drains.load(Ordering::Relaxed);
        sum.collected = self.drained.collected.load(Ordering::Relaxed);
        sum.collect_ns = self.drained.collect_ns.load(Ordering::Relaxed);
        sum.interruptions = self.drained.fences.load(Ordering::Relaxed);
        Some(sum)
    }

    fn check(&mut self) -> Result<(), String> {
        let census = self.depot.validate().map_err(|fault| fault.to_string())?;
        nothing_held(
            census.managed_pages,
            census.free_pages + census.cached_pages + census.carved_pages,
        )
    }
}

impl<const CACHED: bool, const HEALS: bool> DepotAllocator<CACHED, HEALS> {
    /// Looks until it is complete, without sleep: the interrupt that wakes a sleeper would be
    /// counted.
    fn await_handover(&self, handover: &mut Handover<'_>) {
        let begin = Instant::now();
        while !handover.poll() {
            if begin.elapsed() > HANDOVER_MAX {
                return;
            }
            (0..LOOK_SPINS).for_each(|_| std::hint::spin_loop());
        }
        let ns = begin.elapsed().as_nanos() as u64;
        self.drained.collected.fetch_add(1, Ordering::Relaxed);
        self.drained.collect_ns.fetch_add(ns, Ordering::Relaxed);
    }
}

#[cold]
#[inline(never)]
fn refused(block: Pfn) -> ! {
    panic!("{} refused to free {block:?}: it lost track of it", Design::Depot)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_past_the_caches_are_counted_with_their_pages() {
        let demand =
            Demand { memory_pages: Some(1 << 14), cpus: vec![CpuId::new(0)], ..Demand::default() };
        let depot = DepotAllocator::<false>::new(&demand).unwrap();
        let blocks: Vec<Pfn> = (0..10).map(|_| depot.alloc::<3>().unwrap()).collect();
        blocks.into_iter().for_each(|block| depot.free::<3>(block));
        let counts = depot.counts().unwrap();
        let moved = Volume { blocks: 10, pages: 80 };
        assert_eq!((counts.direct_allocated, counts.direct_freed), (moved, moved));
    }
}
