//! Per-CPU lists that only their owner touches; a drain asks the owner. The baseline of the
//! remote-drain threads (mainline until 2022).
//!
//! The kernel queues work on each CPU and waits: the work preempts what runs there. In user space
//! either the owner does the work at its next operation ([`LocalDrain::Owner`]), or the drainer
//! moves to that CPU, which preempts the owner, and does it there ([`LocalDrain::Helper`]). Both
//! interrupt a CPU's work, and both are counted as interruptions.

use pagedepot::cpus::Here;
use pagedepot::{CpuId, Mode, Order, Pfn, ZoneId};

use crate::owned_lists::{self, ListCell, OwnedLists};
use crate::owners::{Entry, OwnerGuard, Owners};
use pagedepot_designs::PageCache;
use pagedepot_designs::census::{Census, Fault};
use pagedepot_designs::counters::Counters;
use pagedepot_designs::pcp::policy::{Policy, Tuning};
use pagedepot_designs::pcp::{Lists, Pcp};
use pagedepot_designs::prim::{Ordering, count};
use pagedepot_designs::report::{Counts, DrainResult, Scope};
use pagedepot_designs::store::Store;
use pagedepot_designs::taking::{CensusWalk, take_census};
use pagedepot_designs::walk::{self, Grid, Layer, ZoneRequest};

/// The thread that executes a drain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LocalDrain {
    /// The owner, at its next operation; until then the pages are left. An idle owner may never
    /// operate again.
    Owner,
    /// The drainer, on the owner's CPU.
    #[default]
    Helper,
}

/// Per-CPU lists that only their owners touch.
pub struct Local<S> {
    store: S,
    policy: Policy,
    drain: LocalDrain,
    owners: Owners,
    cells: Grid<Cell>,
    outside: Counters,
}

pub(crate) struct Cell {
    tuning: Tuning,
    lists: Lists,
    counters: Counters,
}

impl ListCell for Cell {
    #[inline]
    fn pcp(&self) -> Pcp<'_> {
        Pcp { lists: &self.lists, tuning: &self.tuning }
    }

    #[inline]
    fn counters(&self) -> &Counters {
        &self.counters
    }
}

/// Number of times that a helper yields to the owner that it preempted in the middle of an
/// operation.
const HELPER_YIELDS: u32 = 10_000;

impl<S: Store> Local<S> {
    /// Lists over this store.
    pub fn new(store: S, entry: Entry, drain: LocalDrain, policy: Policy) -> Self {
        let zones = store.zones();
        let cells = Grid::new(zones, |zone| Cell {
            tuning: Tuning::new(zones.zone(zone)),
            lists: Lists::new(),
            counters: Counters::default(),
        });
        let owners = Owners::new(zones.cpus(), entry, false);
        Local { store, policy, drain, owners, cells, outside: Counters::default() }
    }

    /// The store.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// The exclusion that callers use: the one asked for, or its replacement on this machine.
    pub fn entry(&self) -> Entry {
        self.owners.entry()
    }

    #[cold]
    fn do_work(&self, here: Here, owned: &OwnerGuard<'_>) {
        // Relaxed: the word itself is all that drainers pass on.
        let work = owned.owner.work.swap(0, Ordering::Relaxed);
        if let Some(cell) = self.cells.get(here.cpu, ZoneId::new(work.trailing_zeros())) {
            count(&cell.counters.interruptions, 1);
        }
        for (zone, cell) in
            self.cells.of_cpu(here.cpu).filter(|(zone, _)| work >> zone.get() & 1 == 1)
        {
            cell.pcp().drain(&self.at(here, zone, cell));
        }
    }

    /// Drains a CPU that the caller owns.
    fn drain_own(&self, here: Here, scope: Scope) -> u64 {
        let zones = self.store.zones();
        self.cells
            .within(zones, Scope { cpu: Some(here.cpu), ..scope })
            .map(|(_, zone, cell)| cell.pcp().drain(&self.at(here, zone, cell)))
            .sum()
    }

    /// Drains a CPU while no thread acts as any CPU.
    pub(crate) fn drain_exclusive(&self, cpu: CpuId) -> u64 {
        self.drain_own(Here::task(cpu), Scope::ALL)
    }

    /// Drains all CPUs in scope but `own`.
    fn drain_others(&self, own: Option<CpuId>, scope: Scope) -> DrainResult {
        let mut done = DrainResult::default();
        for cpu in scope.cpus(self.store.zones()).filter(|&cpu| own != Some(cpu)) {
            done += self.drain_cpu(cpu, Scope { cpu: Some(cpu), ..scope });
        }
        done
    }

    fn held_in(&self, scope: Scope) -> u64 {
        self.cells
            .within(self.store.zones(), scope)
            .map(|(_, _, cell)| u64::from(cell.lists.pages()))
            .sum()
    }

    fn drain_cpu(&self, cpu: CpuId, scope: Scope) -> DrainResult {
        let mut done = DrainResult::default();
        // A racy look, as in mainline: CPUs without pages are not interrupted.
        if self.held_in(scope) > 0 {
            match self.drain {
                LocalDrain::Owner => self.ask(cpu, scope),
                LocalDrain::Helper => match self.help(Here::task(cpu), scope) {
                    Some(pages) => {
                        done.taken_pages = pages;
                        done.interruptions = 1;
                        count(&self.outside.interruptions, 1);
                    }
                    None => done.busy_cpus = 1,
                },
            }
        }
        done.left_pages = self.held_in(scope);
        done
    }

    fn ask(&self, cpu: CpuId, scope: Scope) {
        let Some(owner) = self.owners.get(cpu) else { return };
        let work = scope.zones(self.store.zones()).fold(0, |bits, zone| bits | 1 << zone.get());
        owner.work.fetch_or(work, Ordering::Relaxed);
    }

    /// Moves to a CPU and drains it there. `None`: the thread may not run there, or the operation
    /// that it found under way did not end.
    fn help(&self, there: Here, scope: Scope) -> Option<u64> {
        self.on_cpu(there.cpu, || {
            for _ in 0..HELPER_YIELDS {
                if let Some(_owned) = self.owners.try_enter(there.cpu) {
                    return Some(self.drain_own(there, scope));
                }
                pagedepot_designs::prim::yield_now();
            }
            None
        })?
    }

    /// Makes this thread run on `cpu`; with [`Entry::Pretend`] it is every CPU, so it need not
    /// move.
    fn on_cpu<R>(&self, cpu: CpuId, work: impl FnOnce() -> R) -> Option<R> {
        #[cfg(not(loom))]
        if self.entry() != Entry::Pretend {
            return pagedepot_designs::host::on_cpu(cpu, work);
        }
        let _ = cpu;
        Some(work())
    }
}

impl<S: Store> Local<S> {
    /// Passes all lists to a census. No other thread may run.
    pub(crate) fn check_lists(&self, taking: &mut CensusWalk<'_>) -> Result<(), Fault> {
        self.cells.iter().try_for_each(|(_, zone, cell)| taking.cached(zone, &cell.lists))
    }
}

impl<S: Store> Layer for Local<S> {
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
        if let Some(_owned) = self.enter(here) {
            self.drain_own(here, Scope::ALL);
        }
        self.drain_others(Some(here.cpu), Scope::ALL);
    }

    fn counters(&self, here: Here, zone: ZoneId) -> &Counters {
        self.cells.get(here.cpu, zone).map_or(&self.outside, |cell| &cell.counters)
    }
}

impl<S: Store> OwnedLists for Local<S> {
    type Cell = Cell;
    type Operation<'d>
        = OwnerGuard<'d>
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

    /// Begins an operation as a CPU, and first does the work that drainers asked its owner for.
    #[inline]
    fn enter(&self, here: Here) -> Option<OwnerGuard<'_>> {
        let owned = self.owners.try_enter(here.cpu)?;
        // Relaxed: work that is seen late is done late; `do_work` acquires.
        if owned.owner.work.load(Ordering::Relaxed) != 0 {
            self.do_work(here, &owned);
        }
        Some(owned)
    }
}

impl<S: Store> PageCache for Local<S> {
    fn name(&self) -> &'static str {
        "local"
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
        count(&self.outside.drains, 1);
        self.drain_others(None, scope)
    }

    fn tick(&self, here: Here) {
        owned_lists::tick(self, here);
    }

    fn idle(&self, here: Here) {
        drop(self.enter(here));
    }

    fn counts(&self) -> Counts {
        let counters = self.cells.iter().map(|(_, _, cell)| &cell.counters).chain([&self.outside]);
        walk::sum_counts(&self.store, counters)
    }

    fn cached_pages(&self, cpu: CpuId) -> u64 {
        self.held_in(Scope::cpu(cpu))
    }

    fn cached_pages_total(&self) -> u64 {
        self.held_in(Scope::ALL)
    }

    fn validate(&mut self) -> Result<Census, Fault> {
        take_census(&self.store, |taking| self.check_lists(taking))
    }
}
