//! Per-CPU work under spinlocks ("Introduce QPW for per-cpu operations", Leonardo Bras and Marcelo
//! Tosatti; v2 of March 2026, since v4 of May 2026 "per-CPU work", `pw_lock`).
//!
//! Work on a CPU's data is queued for that CPU, because its local lock keeps other CPUs out. On a
//! CPU that runs a real-time task, such work comes at the wrong time. The series replaces the local
//! lock by one that is either a local lock or a spinlock (`qpw_lock`). Where it is a spinlock,
//! `queue_percpu_work_on` takes the CPU's lock and does the work at once, on the caller's CPU, and
//! `flush_percpu_work` has nothing left to wait for.
//!
//! The series converts the LRU caches of `mm/swap.c` and the per-CPU sheaves of SLUB. Mainline's
//! page lists are behind spinlocks since 2022, so here the series is applied to the lists as they
//! were before: those of [`Local`](crate::Local). In the patches one switch is for the whole
//! machine (`qpw=1`, off unless `CONFIG_QPW_DEFAULT`), as in
//! [`NohzConditional`](crate::NohzConditional). Here it is one per CPU, so that only isolated CPUs
//! pay for the lock: `|_| true` is `qpw=1`, `|_| false` is `qpw=0`. Whether later versions choose
//! by CPU was not found.
//!
//! # Theory
//! Which lock a CPU has never changes. Its lists are those of one design, [`Local`] or a [`Spin`]
//! whose owner waits, so each of these excludes other threads from its own lists, and nothing is
//! shared but the store.

use std::sync::Arc;

use pagedepot::cpus::Here;
use pagedepot::{CpuId, Mode, Order, Pfn, ZoneId};

use crate::local::{Local, LocalDrain};
use crate::owners::Entry;
use pagedepot_designs::PageCache;
use pagedepot_designs::census::{Census, Fault};
use pagedepot_designs::counters::Counters;
use pagedepot_designs::lock::LockWaits;
use pagedepot_designs::pcp::policy::Policy;
use pagedepot_designs::report::{Counts, DrainResult, Scope};
use pagedepot_designs::store::Store;
use pagedepot_designs::taking::take_census;
use pagedepot_designs::walk::{self, Layer, ZoneRequest};
use pagedepot_designs::{LockMode, Spin};

/// Per-CPU lists whose lock is, for each CPU, a local lock or a spinlock.
pub struct Qpw<S> {
    local: Local<Arc<S>>,
    spin: Spin<Arc<S>>,
    /// Whether the lock of each CPU that has caches is a spinlock.
    spins: Box<[bool]>,
}

impl<S: Store + Send> Qpw<S> {
    /// Lists over this store. `spins`: whether the lock of a CPU is a spinlock. `entry` and `drain`
    /// are for the others, as in [`Local::new`].
    pub fn new(
        store: S,
        spins: impl Fn(CpuId) -> bool,
        entry: Entry,
        drain: LocalDrain,
        policy: Policy,
    ) -> Self {
        let store = Arc::new(store);
        Qpw {
            spins: store.zones().cpu_ids().map(spins).collect(),
            local: Local::new(Arc::clone(&store), entry, drain, policy),
            spin: Spin::new(store, LockMode::Plain, policy),
        }
    }

    /// The store.
    pub fn store(&self) -> &S {
        self.spin.store()
    }

    /// Whether the lock of a CPU's lists is a spinlock. A CPU without caches takes no lock.
    #[inline]
    pub fn spins(&self, cpu: CpuId) -> bool {
        self.spins.get(cpu.index()).copied().unwrap_or(true)
    }
}

/// Calls a method of the lists that a CPU has.
macro_rules! of_cpu {
    ($self:ident, $cpu:expr, $lists:ident => $call:expr) => {
        if $self.spins($cpu) {
            let $lists = &$self.spin;
            $call
        } else {
            let $lists = &$self.local;
            $call
        }
    };
}

impl<S: Store + Send> Layer for Qpw<S> {
    type Store = Arc<S>;

    #[inline]
    fn store(&self) -> &Arc<S> {
        self.spin.store()
    }

    #[inline]
    fn take_from(&self, here: Here, request: ZoneRequest) -> Option<Pfn> {
        of_cpu!(self, here.cpu, lists => lists.take_from(here, request))
    }

    fn drain_for(&self, here: Here) {
        self.local.drain_for(here);
        self.spin.drain_for(here);
    }

    fn counters(&self, here: Here, zone: ZoneId) -> &Counters {
        of_cpu!(self, here.cpu, lists => lists.counters(here, zone))
    }
}

impl<S: Store + Send> PageCache for Qpw<S> {
    fn name(&self) -> &'static str {
        "qpw"
    }

    walk::walks_zones!();

    #[inline]
    fn free(&self, here: Here, pfn: Pfn, order: Order) {
        of_cpu!(self, here.cpu, lists => lists.free(here, pfn, order));
    }

    fn free_many(&self, here: Here, blocks: &[(Pfn, Order)]) {
        of_cpu!(self, here.cpu, lists => lists.free_many(here, blocks));
    }

    /// The lists of each CPU are empty in one of the two, which then has nothing to do there.
    fn drain(&self, scope: Scope, mode: Mode) -> DrainResult {
        let mut done = self.local.drain(scope, mode);
        done += self.spin.drain(scope, mode);
        done
    }

    fn tick(&self, here: Here) {
        of_cpu!(self, here.cpu, lists => lists.tick(here));
    }

    fn idle(&self, here: Here) {
        of_cpu!(self, here.cpu, lists => lists.idle(here));
    }

    fn counts(&self) -> Counts {
        let (mut sum, spin) = (self.local.counts(), self.spin.counts());
        // Both have the same store, and each drain was counted by both.
        (sum.zone_lock, sum.drains) = (LockWaits::default(), 0);
        sum += spin;
        sum
    }

    fn cached_pages(&self, cpu: CpuId) -> u64 {
        of_cpu!(self, cpu, lists => lists.cached_pages(cpu))
    }

    fn cached_pages_total(&self) -> u64 {
        self.local.cached_pages_total() + self.spin.cached_pages_total()
    }

    fn validate(&mut self) -> Result<Census, Fault> {
        take_census(self.store(), |taking| {
            self.local.check_lists(taking)?;
            self.spin.check_lists(taking)
        })
    }
}
