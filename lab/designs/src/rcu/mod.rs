//! Per-CPU lists behind a pointer. A drainer switches the pointer atomically, waits until no
//! operation can use the old lists any more, and takes them ("Remote per-cpu lists drain support",
//! 2022).
//!
//! # Theory
//! A CPU and zone have two sets of lists, as in the series; the pointer is the number of the one
//! in use. The drainer puts an empty set in its place. An operation that began before may still
//! use the old one; *a grace period* is over when none can.
//!
//! * [`Grace::Blocking`]: the series' own. The drainer switches the lists of all CPUs, waits for
//!   one grace period of the kernel's RCU, and drains all that it switched. After the period, an
//!   operation either shows in its CPU's state word or sees the new pointer, because the kernel has
//!   made each thread execute a full barrier. In the kernel the period also covers operations that
//!   had begun, for they run with preemption off; here the drainer waits for those that it finds,
//!   however long that takes. No CPU is interrupted, and no owner does anything for it. It costs
//!   the drainer the period, some 10 ms, however few pages there are.
//! * [`Grace::Membarrier`]: a fence on that CPU, once for all its zones. After it, an operation
//!   either has shown itself in the CPU's state word or sees the new pointer, so the drainer waits
//!   for at most the one operation it finds. The fence interrupts a CPU that runs this process.
//! * [`Grace::Qsbr`]: the owner publishes after each operation which period it has seen. A period
//!   is over for a CPU when its owner has published it, or is offline. No CPU is interrupted and
//!   the drain does not wait: lists whose period goes on are *pending*, counted, and collected by a
//!   later drain. An owner that neither operates nor goes [idle](PageCache::idle) keeps them
//!   pending.
//!
//! # Requests that find no memory wait
//! A request that finds no free page drains all CPUs before it fails, as in the kernel's direct
//! reclaim. With [`Grace::Blocking`] it waits for a grace period in the middle of that: every
//! request on a machine that is out of memory takes some 10 ms longer until it is killed or told
//! `None`. Such a caller must be one that may sleep. The other two wait for one operation at most.
//! While a drain of all zones waits, further ones return at once (`skipped`), so requests that run
//! out of memory meanwhile can fail although pages are on their way.
//!
//! # Sequences
//! An operation here is not one restartable sequence over pointer and list head. Mainline's policy
//! and two-ended lists are more than one word, and a design with lists of another kind would make a
//! comparison of lists, not of drains. The sequence takes the CPU's local lock instead (see
//! `rseq`), which protects the same code as in the other designs.

mod drain;

#[cfg(all(test, loom))]
pub use drain::with_impatient_drainers;

use pagedepot::cpus::Here;
use pagedepot::{CpuId, Mode, Order, Pfn, ZoneId};

use crate::owned_lists::{self, ListCell, OwnedLists};
use crate::owners::{Entry, Owner, OwnerGuard, Owners};
use pagedepot_designs::PageCache;
use pagedepot_designs::census::{Census, Fault};
use pagedepot_designs::counters::Counters;
use pagedepot_designs::lock::Clock;
use pagedepot_designs::pcp::policy::{Policy, Tuning};
use pagedepot_designs::pcp::{Lists, Pcp};
use pagedepot_designs::prim::{AtomicU32, AtomicU64, Mutex, Ordering, fence, lock_mutex};
use pagedepot_designs::report::{Counts, DrainResult, Scope};
use pagedepot_designs::store::Store;
use pagedepot_designs::taking::take_census;
use pagedepot_designs::walk::{self, Grid, Layer, ZoneRequest};

/// The way in which a drainer learns that no operation uses the old lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grace {
    /// The drainer waits for one grace period of the kernel's RCU, for all CPUs.
    Blocking,
    /// The drainer fences the CPU.
    Membarrier,
    /// Owners publish the period that they have seen, and a later drain looks at it.
    Qsbr,
}

/// Per-CPU lists that drainers switch away.
pub struct Rcu<S> {
    store: S,
    policy: Policy,
    grace: Grace,
    owners: Owners,
    cells: Grid<Cell>,
    outside: Counters,
    /// The latest grace period. Starts at 1, because 0 in an owner's word means offline.
    period: AtomicU64,
    /// Switched lists by CPU and zone. The holder of the lock is the one drainer.
    pending: Mutex<Vec<Option<GraceWait>>>,
}

pub(crate) struct Cell {
    /// The pointer: the number of the set that the owner uses.
    current: AtomicU32,
    tuning: Tuning,
    sets: [Lists; 2],
    counters: Counters,
}

/// Lists that were switched away.
struct GraceWait {
    until: GraceCondition,
    since: Clock,
}

/// The condition by which a grace period is over.
#[derive(Clone, Copy, PartialEq, Eq)]
enum GraceCondition {
    /// The period is over.
    Over,
    /// The period has not begun: lists were just switched, or the kernel refused what would begin
    /// it.
    Unbegun,
    /// The period is over when the CPU's state word has another value.
    StateNot(u32),
    /// The period is over when the owner has seen it, or is offline.
    Period(u64),
}

impl ListCell for Cell {
    #[inline]
    fn pcp(&self) -> Pcp<'_> {
        // Acquire: pairs with the Release of the switch; this thread sees the set empty, as its
        // last drainer left it.
        let current = self.current.load(Ordering::Acquire);
        Pcp { lists: &self.sets[current as usize & 1], tuning: &self.tuning }
    }

    #[inline]
    fn counters(&self) -> &Counters {
        &self.counters
    }
}

impl Cell {
    /// The lists that no owner uses: empty, or pending.
    fn old(&self) -> Pcp<'_> {
        // Relaxed: only the one drainer changes it.
        let current = self.current.load(Ordering::Relaxed);
        Pcp { lists: &self.sets[(current as usize & 1) ^ 1], tuning: &self.tuning }
    }

    fn switch(&self) {
        let current = self.current.load(Ordering::Relaxed);
        // Release: pairs with the Acquire in `pcp`. A fence follows, which makes this Dekker's
        // pattern.
        self.current.store(current ^ 1, Ordering::Release);
    }

    fn pages(&self) -> u64 {
        self.sets.iter().map(|set| u64::from(set.pages())).sum()
    }
}

impl GraceCondition {
    fn is_over(self, owner: &Owner) -> bool {
        match self {
            GraceCondition::Over => true,
            GraceCondition::Unbegun => false,
            GraceCondition::StateNot(state) => owner.state() != state,
            GraceCondition::Period(period) => {
                // Acquire: pairs with the Release in `Visit::drop`: the owner's operations on the
                // old lists are over and visible.
                let seen = owner.period.load(Ordering::Acquire);
                seen == 0 || seen >= period
            }
        }
    }
}

/// An operation under way. Its drop publishes the period that it has seen.
pub(crate) struct Visit<'v> {
    owned: OwnerGuard<'v>,
    /// The global period, with [`Grace::Qsbr`].
    period: Option<&'v AtomicU64>,
}

impl Drop for Visit<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(period) = self.period {
            // Acquire: pairs with the Release bump in `begin_period`: the next operation sees the
            // switch that came before it. Release: pairs with the Acquire in
            // `GraceCondition::is_over`.
            self.owned.owner.period.store(period.load(Ordering::Acquire), Ordering::Release);
        }
    }
}

impl<S: Store> Rcu<S> {
    /// Lists over this store.
    pub fn new(store: S, entry: Entry, grace: Grace, policy: Policy) -> Self {
        let zones = store.zones();
        let cells = Grid::new(zones, |zone| Cell {
            current: AtomicU32::new(0),
            tuning: Tuning::new(zones.zone(zone)),
            sets: [Lists::new(), Lists::new()],
            counters: Counters::default(),
        });
        let owners = Owners::new(zones.cpus(), entry, grace != Grace::Qsbr);
        let count = zones.cpus() as usize * zones.count();
        let pending = Mutex::new((0..count).map(|_| None).collect());
        let period = AtomicU64::new(1);
        Rcu { store, policy, grace, owners, cells, outside: Counters::default(), period, pending }
    }

    /// The store.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// The exclusion that callers use: the one asked for, or its replacement on this machine.
    pub fn entry(&self) -> Entry {
        self.owners.entry()
    }

    /// Pages in lists that were switched away and not yet collected.
    pub fn pending_pages(&self) -> u64 {
        self.cells.iter().map(|(_, _, cell)| u64::from(cell.old().lists.pages())).sum()
    }

    /// Collects the pending lists whose grace period is over; switches nothing.
    pub fn collect(&self) -> DrainResult {
        let mut done = DrainResult::default();
        let mut pending = lock_mutex(&self.pending);
        for (cpu, zone, cell) in self.cells.iter() {
            self.collect_cell(&mut pending, cpu, zone, cell, &mut done);
        }
        done.pending_pages = self.pending_pages();
        done
    }

    #[cold]
    fn go_online(&self, owner: &Owner) {
        owner.period.store(self.period.load(Ordering::Acquire), Ordering::Relaxed);
        // Pairs with the fence in `begin_period` (Dekker): either the drainer finds this owner
        // online, or this operation sees the pointer that the drainer switched.
        fence(Ordering::SeqCst);
    }

    fn drain_own(&self, here: Here) {
        let Some(_visit) = self.enter(here) else { return };
        for (zone, cell) in self.cells.of_cpu(here.cpu) {
            cell.pcp().drain(&self.at(here, zone, cell));
        }
    }
}

impl<S: Store> Layer for Rcu<S> {
    type Store = S;

    #[inline]
    fn store(&self) -> &S {
        &self.store
    }

    #[inline]
    fn take_from(&self, here: Here, request: ZoneRequest) -> Option<Pfn> {
        owned_lists::take_from(self, here, request)
    }

    fn drain_for(&self, here: Here) {
        self.drain_own(here);
        self.drain_by(Scope::ALL);
    }

    fn counters(&self, here: Here, zone: ZoneId) -> &Counters {
        self.cells.get(here.cpu, zone).map_or(&self.outside, |cell| &cell.counters)
    }
}

impl<S: Store> OwnedLists for Rcu<S> {
    type Cell = Cell;
    type Operation<'d>
        = Visit<'d>
    where
        S: 'd;

    #[inline]
    fn policy(&self) -> &Policy {
        &self.policy
    }

    #[inline]
    fn cells(&self) -> &Grid<Cell> {
        &self.cells
    }

    #[inline]
    fn enter(&self, here: Here) -> Option<Visit<'_>> {
        let owned = self.owners.try_enter(here.cpu)?;
        if self.grace != Grace::Qsbr {
            return Some(Visit { owned, period: None });
        }
        // Relaxed: only this CPU's operations change it.
        if owned.owner.period.load(Ordering::Relaxed) == 0 {
            self.go_online(owned.owner);
        }
        Some(Visit { owned, period: Some(&self.period) })
    }
}

impl<S: Store> PageCache for Rcu<S> {
    fn name(&self) -> &'static str {
        match self.grace {
            Grace::Blocking => "rcu",
            Grace::Membarrier => "rcu-membarrier",
            Grace::Qsbr => "rcu-qsbr",
        }
    }

    walk::walks_zones!();

    #[inline]
    fn free(&self, here: Here, pfn: Pfn, order: Order) {
        owned_lists::free(self, here, pfn, order);
    }

    fn free_many(&self, here: Here, blocks: &[(Pfn, Order)]) {
        owned_lists::free_many(self, here, blocks);
    }

    fn drain(&self, scope: Scope, _mode: Mode) -> DrainResult {
        self.drain_by(scope)
    }

    fn tick(&self, here: Here) {
        owned_lists::tick(self, here);
    }

    fn idle(&self, here: Here) {
        if self.grace == Grace::Qsbr
            && let Some(owned) = self.owners.try_enter(here.cpu)
        {
            // Release: pairs with the Acquire in `GraceCondition::is_over`.
            owned.owner.period.store(0, Ordering::Release);
        }
    }

    fn counts(&self) -> Counts {
        let counters = self.cells.iter().map(|(_, _, cell)| &cell.counters).chain([&self.outside]);
        walk::sum_counts(&self.store, counters)
    }

    fn cached_pages(&self, cpu: CpuId) -> u64 {
        self.cells.of_cpu(cpu).map(|(_, cell)| cell.pages()).sum()
    }

    fn cached_pages_total(&self) -> u64 {
        self.cells.iter().map(|(_, _, cell)| cell.pages()).sum()
    }

    fn validate(&mut self) -> Result<Census, Fault> {
        take_census(&self.store, |taking| {
            self.cells.iter().try_for_each(|(_, zone, cell)| {
                taking.cached(zone, cell.pcp().lists)?;
                taking.pending(zone, cell.old().lists)
            })
        })
    }
}
