//! This project's design, as programs use it.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use pagedepot::{CpuId, Flags, Mobility, Mode, Order, Pfn, Scope};
use pagedepot_designs::{Counts, Drained, FreeHigh, FreeHighLimit, FreeHighWatch, Volume};
use pagedepot_linux::Depot;

use super::allocator::{Allocator, WithAllocator, nothing_held};
use super::{Demand, Design, PAGE_BYTES, Subject, order};
use crate::failure::Failure;
use crate::harness::cpus;

/// See the module. `WATCHED`: with a policy for CPUs that only free high orders.
pub struct DepotSubject<const WATCHED: bool> {
    depot: Depot,
    watch: FreeHighWatch,
    /// Boxed: nothing in a subject's own value changes, as in the depot's, so that loops keep both
    /// in registers.
    drained: Box<DrainCounts>,
}

#[derive(Default)]
struct DrainCounts {
    drains: AtomicU64,
    fences: AtomicU64,
}

/// Makes a depot of so many pages, and does `with` it what there is to do.
///
/// # Errors
/// When its memory cannot be had.
pub fn make<W: WithAllocator>(demand: &Demand, pages: u64, with: W) -> Result<W::Output, Failure> {
    let policy = demand.variant.free_high(FreeHighLimit::High);
    if policy.limit == FreeHighLimit::High {
        return Ok(with.with(DepotSubject::<false>::new(demand, pages, policy)?));
    }
    Ok(with.with(DepotSubject::<true>::new(demand, pages, policy)?))
}

impl<const WATCHED: bool> DepotSubject<WATCHED> {
    fn new(demand: &Demand, pages: u64, policy: FreeHigh) -> Result<Self, Failure> {
        let depot = Depot::new(pages as usize * PAGE_BYTES)
            .map_err(|e| Failure::Run(format!("{}: {e}", Design::Depot)))?;
        let highest = demand.cpus.iter().map(|cpu| cpu.get()).max().unwrap_or(0);
        let watch = FreeHighWatch::new(policy, highest + 1);
        Ok(DepotSubject { depot, watch, drained: Box::default() })
    }

    #[inline]
    fn note_alloc(&self) {
        if WATCHED {
            self.watch.note_alloc(cpus::pinned_to());
        }
    }

    #[inline]
    fn note_free(&self, order: Order) {
        if WATCHED && self.watch.note_free(cpus::pinned_to(), order) {
            self.look(cpus::pinned_to());
        }
    }

    #[cold]
    fn look(&self, cpu: CpuId) {
        for zone in self.depot.zone_ids() {
            let Some((limits, high)) = self.depot.cache_limits(zone, cpu) else { continue };
            let held = self.depot.cpu_stats(cpu, zone).map_or(0, |stats| stats.cached_pages());
            if self.watch.must_drain(cpu, limits, high, held) {
                self.depot.drain(Scope::cpu(cpu).in_zone(zone), Mode::Quiet);
            }
        }
    }
}

impl<const WATCHED: bool> Subject for DepotSubject<WATCHED> {
    const DESIGN: Design = Design::Depot;
    type Block = Pfn;

    #[inline]
    fn alloc<const ORDER: u32>(&self) -> Option<Pfn> {
        self.note_alloc();
        self.depot.alloc(const { order::<ORDER>() }, Flags::default()).ok()
    }

    #[inline]
    fn free<const ORDER: u32>(&self, block: Pfn) {
        self.free_block(block, const { order::<ORDER>() });
    }

    fn drain_all(&self) {
        self.drain(None, Mode::Quiet);
    }

    fn check(&mut self) -> Result<(), String> {
        let census = self.depot.validate().map_err(|fault| fault.to_string())?;
        nothing_held(census.managed_pages, census.free_pages + census.cached_pages + census.carved_pages)
    }
}

impl<const WATCHED: bool> Allocator for DepotSubject<WATCHED> {
    const DRAINS_FULLY: bool = true;

    #[inline]
    fn alloc_block(&self, order: Order, mobility: Mobility) -> Option<Pfn> {
        self.note_alloc();
        self.depot.alloc(order, Flags::new(mobility)).ok()
    }

    #[inline]
    fn free_block(&self, block: Pfn, order: Order) {
        // SAFETY: got by `alloc` with the same order, and freed once; nobody uses its memory.
        if unsafe { self.depot.free(block, order) }.is_err() {
            refused(block);
        }
        self.note_free(order);
    }

    fn free_many(&self, blocks: &[(Pfn, Order)]) {
        // SAFETY: as in `free_block`, for each.
        if let Err(error) = unsafe { self.depot.free_many(blocks) } {
            panic!("{}: {error}", Design::Depot);
        }
        if WATCHED {
            blocks.iter().for_each(|&(_, order)| self.note_free(order));
        }
    }

    fn halve(&self, block: Pfn, order: Order) {
        let half = Order::new(order.get() - 1).expect("blocks of more than a page are halved");
        if let Err(error) = self.depot.split(block, order, half) {
            panic!("{}: {block}, order {order}: {error}", Design::Depot);
        }
    }

    fn zeroed(&self) -> Option<Pfn> {
        self.note_alloc();
        self.depot.alloc(Order::BASE, Flags::default().zeroed()).ok()
    }

    #[inline]
    fn address(&self, block: Pfn) -> NonNull<u8> {
        self.depot.address(block)
    }

    fn drain(&self, cpu: Option<CpuId>, mode: Mode) -> Drained {
        let done = self.depot.drain(cpu.map_or(Scope::ALL, Scope::cpu), mode);
        self.drained.drains.fetch_add(1, Ordering::Relaxed);
        self.drained.fences.fetch_add(done.fences, Ordering::Relaxed);
        let mut drained = Drained::default();
        drained.taken_pages = done.taken_pages;
        drained.left_pages = done.left_pages + done.in_flight_pages;
        drained.unreachable_pages = done.unreachable_pages;
        (drained.fences, drained.interruptions) = (done.fences, done.fences);
        drained.busy_cpus = done.busy_cpus + done.spared_cpus;
        drained
    }

    fn counts(&self) -> Counts {
        let mut sum = Counts::default();
        for stats in self.depot.zone_ids().filter_map(|zone| self.depot.zone_stats(zone)) {
            let counts = stats.counts;
            sum.refills += counts.refills;
            sum.refilled += Volume { blocks: counts.refilled_blocks, pages: counts.refilled_pages };
            sum.spilled += Volume { blocks: counts.spilled_blocks, pages: counts.spilled_pages };
            sum.drained += Volume { blocks: counts.drained_blocks, pages: counts.drained_pages };
            sum.lock_misses += counts.lost_races;
            sum.failures += counts.failures;
        }
        sum.drains = self.drained.drains.load(Ordering::Relaxed);
        sum.interruptions = self.drained.fences.load(Ordering::Relaxed);
        sum
    }
}

#[cold]
#[inline(never)]
fn refused(block: Pfn) -> ! {
    panic!("{} refused to free {block:?}: it lost track of it", Design::Depot)
}
