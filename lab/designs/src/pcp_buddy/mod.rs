//! A CPU owns whole pageblocks ("mm: page_alloc: pcp buddy allocator", RFC of April 2026).
//!
//! Johannes Weiner's cover letter names two causes for contention on the zone lock. A purger thread
//! frees what other CPUs allocated, so that one pcp overflows while the others run dry. And a
//! process that exits frees more than a pcp holds, page by page under the lock.
//!
//! # Theory
//! * A refill takes a whole pageblock, and the CPU owns it from then on. It splits the block
//!   outside of the zone lock.
//! * A free goes to the pcp of the CPU that owns the pageblock, whichever CPU frees.
//! * Before blocks return to the store, buddies in the pcp that belong to the CPU's own pageblocks
//!   are merged, from the smallest order up, under the pcp's lock. So fewer and larger blocks go
//!   through the zone lock.
//!
//! A refill has four phases ([`refill`]): free fragments of the CPU's own pageblocks that earlier
//! drains left in the store; whole pageblocks; smaller blocks of the same mobility, as large as
//! what is still wanted; what mainline does. What the last two bring has no owner and never merges
//! in a pcp.
//!
//! # What is known, and what is not
//! The cover letter, the change log and a part of the discussion were read, not the patch. Known
//! from them: ownership, the way of frees, the four phases, the merging from the bottom up, and the
//! list of own pageblocks that have fragments in the store. A summary of the thread has 3 to 4 %
//! less system time of kernel builds on 32 CPUs. Assumed here:
//! * a CPU that frees tries the owner's lock, and goes to the zone lock if it is held, as
//!   mainline's pcps do;
//! * a CPU claims a whole pageblock if that fits below `high_max` and the zone is above its high
//!   watermark; `high` then rises by a pageblock, as it rises by a refill. Smaller machines refill
//!   as mainline does;
//! * what a pcp spills or a drain takes are its largest blocks first;
//! * ownership ends when the whole pageblock is back in the store;
//! * orders 4 to 8 go past the pcp, as in mainline.
//!
//! # Invariants
//! 1. *A pageblock's owner does not change while a frame of it is held or cached.* It is set under
//!    the zone lock when the pageblock is taken out of the store as a whole, and cleared under that
//!    lock when it is whole there again. So a CPU that frees a block reads its owner without a
//!    lock: the write happened before the block was handed out.
//! 2. *A frame's merge mark is set only while its block is in the pcp of the pageblock's owner*,
//!    and only the holder of that pcp's lock writes it. So the owner may look at the mark of any
//!    frame of its pageblocks, wherever that frame is. Another pcp that caches such a frame reads
//!    the mark too, and finds it clear.
//! 3. *A CPU's list of pageblocks with fragments belongs to the zone lock.* A pageblock without an
//!    owner is on none.
//!
//! Locks are taken in one order: the drain mutex, one pcp, the zone.

mod blocks;
mod lists;
mod refill;

use pagedepot::cpus::Here;
use pagedepot::{CpuId, Mobility, Mode, Order, Pfn, ZoneId};

use self::blocks::Blocks;
use self::lists::SplitLists;
use pagedepot_designs::PageCache;
use pagedepot_designs::census::{Census, Fault};
use pagedepot_designs::counters::Counters;
use pagedepot_designs::lock::{LockWaits, SpinGuard, SpinLock};
use pagedepot_designs::pcp::policy::{Policy, Tuning};
use pagedepot_designs::pcp::{ListIndex, PcpContext};
use pagedepot_designs::prim::{Mutex, count};
use pagedepot_designs::report::{Counts, DrainResult, Scope, Volume};
use pagedepot_designs::store::buddy::held::BuddyStore;
use pagedepot_designs::taking::take_census;
use pagedepot_designs::walk::{self, Grid, Layer, ZoneRequest};

/// Per-CPU lists that split and merge the pageblocks which their CPU owns.
pub struct PcpBuddy<S> {
    store: S,
    policy: Policy,
    blocks: Blocks,
    cells: Grid<Cell>,
    outside: Counters,
    draining: Mutex<()>,
}

/// The lock, the lists and their limits fill neighbouring cache lines.
#[repr(C)]
struct Cell {
    lock: SpinLock,
    tuning: Tuning,
    lists: SplitLists,
    counters: Counters,
}

/// The destination of a freed block: a CPU's lists, and whether it may merge there.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Home {
    cpu: CpuId,
    zone: ZoneId,
    is_owned: bool,
}

impl<S: BuddyStore> PcpBuddy<S> {
    /// Lists over this store, whose CPUs own pageblocks.
    pub fn new(store: S, policy: Policy) -> Self {
        Self::with_blocks(store, policy, Order::PAGEBLOCK)
    }

    /// Makes a design like [`new`](Self::new), in which CPUs own aligned blocks of this order, at
    /// most a pageblock: for machines whose pcps are smaller than a pageblock.
    pub fn with_blocks(store: S, policy: Policy, block: Order) -> Self {
        let zones = store.zones();
        let cells = Grid::new(zones, |zone| Cell {
            lock: SpinLock::new(),
            tuning: Tuning::new(zones.zone(zone)),
            lists: SplitLists::new(),
            counters: Counters::default(),
        });
        let blocks = Blocks::new(zones, block.min(Order::PAGEBLOCK));
        PcpBuddy {
            store,
            policy,
            blocks,
            cells,
            outside: Counters::default(),
            draining: Mutex::new(()),
        }
    }

    /// The store.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// The CPU that owns the pageblock of a frame. The caller holds the frame.
    pub fn owner(&self, pfn: Pfn) -> Option<CpuId> {
        self.blocks.owner(pfn)
    }

    #[inline]
    fn at<'a>(&'a self, here: Here, zone: ZoneId, cell: &'a Cell) -> PcpContext<'a, S> {
        PcpContext {
            store: &self.store,
            policy: &self.policy,
            counters: &cell.counters,
            here,
            zone,
        }
    }

    #[inline]
    fn enter<'a>(&self, cell: &'a Cell) -> Option<SpinGuard<'a>> {
        let guard = cell.lock.try_lock();
        if guard.is_none() {
            count(&cell.counters.lock_misses, 1);
        }
        guard
    }

    /// The destination of a block of an order that pcps cache when `here` frees it.
    #[inline]
    fn home(&self, here: Here, zone: ZoneId, pfn: Pfn, order: Order) -> Home {
        let owner = self.blocks.owner(pfn).filter(|_| order <= self.blocks.order());
        Home { cpu: owner.unwrap_or(here.cpu), zone, is_owned: owner.is_some() }
    }

    /// Puts a block into the lists of its home, whose lock is held. Returns the pages to spill.
    #[inline]
    fn put(&self, cell: &Cell, home: Home, (pfn, order): (Pfn, Order), mobility: Mobility) -> u32 {
        let zones = self.store.zones();
        let slot = zones.frames().slot(pfn);
        cell.lists.push_hot(zones.frames(), slot, (order, mobility), home.is_owned);
        let held = cell.lists.pages();
        cell.tuning.on_free(&self.policy, zones.zone(home.zone), order, held)
    }

    /// Spills in chunks, after merging, and drops the lock in between; ends early when another
    /// thread has taken it.
    #[cold]
    fn spill<'a>(&self, at: &PcpContext<'_, S>, cell: &'a Cell, guard: SpinGuard<'a>, pages: u32) {
        let zone = at.store.zones().zone(at.zone);
        cell.lists.merge(at.store.zones().frames(), self.blocks.order());
        let mut held = Some(guard);
        let mut left = pages;
        while let Some(guard) = held {
            let chunk = left.min(Tuning::chunk_pages(at.policy, zone));
            let given = self.return_pages(at, cell, chunk);
            at.counters.spilled.add(given);
            zone.note_freed(at.store.free_pages(at.zone));
            left = left.saturating_sub(given.pages as u32);
            let ends = left == 0 || cell.lists.pages() == 0;
            drop(guard);
            held = if ends { None } else { self.enter(cell) };
        }
    }

    /// Returns at least `pages` pages to the store, the largest blocks first, by one hold of the
    /// zone lock.
    fn return_pages(&self, at: &PcpContext<'_, S>, cell: &Cell, pages: u32) -> Volume {
        let frames = at.store.zones().frames();
        let mut given = Volume::default();
        let held = at.store.buddy().hold(at.zone);
        while given.pages < u64::from(pages) {
            let Some((slot, order)) = cell.lists.pop_largest(frames) else { break };
            self.blocks.give(&held, frames.pfn(slot), order);
            given.add(order);
        }
        given
    }

    fn give_direct(&self, here: Here, zone: ZoneId, pfn: Pfn, order: Order) {
        self.blocks.give(&self.store.buddy().hold(zone), pfn, order);
        self.counters(here, zone).direct_freed.one(order);
    }

    fn drain_cell(&self, here: Here, zone: ZoneId, cell: &Cell) -> u64 {
        let at = self.at(here, zone, cell);
        let chunk = Tuning::drain_chunk_pages(&self.policy, self.store.zones().zone(zone));
        let (mut sum, mut is_merged) = (0, false);
        // A racy look: a drain need not take what an owner caches during it.
        while cell.lists.look_pages() > 0 {
            let _held = cell.lock.lock();
            if !std::mem::replace(&mut is_merged, true) {
                cell.lists.merge(self.store.zones().frames(), self.blocks.order());
            }
            let given = self.return_pages(&at, cell, chunk);
            at.counters.drained.add(given);
            sum += given.pages;
        }
        sum
    }

    fn drain_by(&self, here: Here, scope: Scope) -> DrainResult {
        count(&self.outside.drains, 1);
        self.cells.drain_alone(&self.draining, self.store.zones(), scope, |zone, cell| {
            (self.drain_cell(here, zone, cell), u64::from(cell.lists.look_pages()))
        })
    }
}

impl<S: BuddyStore> Layer for PcpBuddy<S> {
    type Store = S;

    #[inline]
    fn store(&self) -> &S {
        &self.store
    }

    #[inline]
    fn take_from(&self, here: Here, request: ZoneRequest) -> Option<Pfn> {
        let ZoneRequest { zone, order, mobility, mark } = request;
        if let (Some(_), Some(cell)) =
            (ListIndex::of(order, mobility), self.cells.get(here.cpu, zone))
            && let Some(_held) = self.enter(cell)
            && let Some(pfn) = self.take(&self.at(here, zone, cell), cell, order, mobility, mark)
        {
            return Some(pfn);
        }
        walk::take_direct(self, here, request)
    }

    fn drain_for(&self, here: Here) {
        self.drain_by(here, Scope::ALL);
    }

    fn counters(&self, here: Here, zone: ZoneId) -> &Counters {
        self.cells.get(here.cpu, zone).map_or(&self.outside, |cell| &cell.counters)
    }
}

impl<S: BuddyStore> PageCache for PcpBuddy<S> {
    fn name(&self) -> &'static str {
        "pcp-buddy"
    }

    walk::walks_zones!();

    #[inline]
    fn free(&self, here: Here, pfn: Pfn, order: Order) {
        self.free_many(here, &[(pfn, order)]);
    }

    /// Keeps the lock over consecutive blocks of one home, as long as nothing has to be spilled.
    fn free_many(&self, here: Here, blocks: &[(Pfn, Order)]) {
        let mut held: Option<(Home, SpinGuard<'_>)> = None;
        for &(pfn, order) in blocks {
            let (zone, mobility) = self.store.zones().place(pfn, order);
            let home = self.home(here, zone, pfn, order);
            let cell = self.cells.get(home.cpu, zone);
            let Some(cell) = cell.filter(|_| ListIndex::of(order, mobility).is_some()) else {
                held = None;
                self.give_direct(here, zone, pfn, order);
                continue;
            };
            // The lock of another home's lists is dropped before this one is taken.
            let same = held.take().filter(|(its, _)| (its.cpu, its.zone) == (home.cpu, zone));
            let Some((_, guard)) = same.or_else(|| Some((home, self.enter(cell)?))) else {
                self.give_direct(here, zone, pfn, order);
                continue;
            };
            match self.put(cell, home, (pfn, order), mobility) {
                0 => held = Some((home, guard)),
                excess => self.spill(&self.at(here, zone, cell), cell, guard, excess),
            }
        }
    }

    fn drain(&self, scope: Scope, _mode: Mode) -> DrainResult {
        self.drain_by(Here::task(CpuId::new(u32::MAX)), scope)
    }

    fn tick(&self, here: Here) {
        let zones = self.store.zones();
        for (zone, cell) in self.cells.of_cpu(here.cpu) {
            let guard = cell.lock.lock();
            let (metadata, held) = (zones.zone(zone), cell.lists.pages());
            let excess = cell.tuning.decay(&self.policy, metadata, held);
            let is_remote = zones.node_of(here.cpu) != metadata.node;
            let activity = cell.counters.activity();
            let idle = cell.tuning.expire(metadata, is_remote, held - excess, activity);
            if excess + idle > 0 {
                self.spill(&self.at(here, zone, cell), cell, guard, excess + idle);
            }
        }
    }

    fn counts(&self) -> Counts {
        let counters = self.cells.iter().map(|(_, _, cell)| &cell.counters).chain([&self.outside]);
        let mut sum = walk::sum_counts(&self.store, counters);
        let mut waits = LockWaits::default();
        self.cells.iter().for_each(|(_, _, cell)| waits += cell.lock.waits());
        sum.cache_lock = waits;
        sum
    }

    fn cached_pages(&self, cpu: CpuId) -> u64 {
        self.cells.of_cpu(cpu).map(|(_, cell)| u64::from(cell.lists.look_pages())).sum()
    }

    fn cached_pages_total(&self) -> u64 {
        self.cells.iter().map(|(_, _, cell)| u64::from(cell.lists.look_pages())).sum()
    }

    fn validate(&mut self) -> Result<Census, Fault> {
        self.blocks.check(self.store.buddy())?;
        take_census(&self.store, |taking| {
            let mut marked = 0;
            for (cpu, zone, cell) in self.cells.iter() {
                marked +=
                    cell.lists.check(zone, |pfn| self.blocks.owner(pfn) == Some(cpu), taking)?;
            }
            lists::check_marks(self.store.zones(), marked)
        })
    }
}
