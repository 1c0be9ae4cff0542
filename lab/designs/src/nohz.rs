//! One switch for the whole machine. Lists belong to their owners alone until the machine says that
//! it has isolated CPUs. Then lists lie behind locks on *every* CPU ("first attempt", 2021). The
//! thread rejected it: the locked path would rarely be tested, and all CPUs pay for a few.

use std::sync::Arc;

use pagedepot::cpus::Here;
use pagedepot::{CpuId, Mobility, Mode, Order, Pfn, ZoneId};

use crate::local::{Local, LocalDrain};
use crate::owners::Entry;
use pagedepot_designs::PageCache;
use pagedepot_designs::census::{Census, Fault};
use pagedepot_designs::free_map::FreeMap;
use pagedepot_designs::pcp::policy::Policy;
use pagedepot_designs::report::{Counts, DrainResult, Scope};
use pagedepot_designs::store::Store;
use pagedepot_designs::{LockMode, Spin};

/// [`Local`] or a plain [`Spin`], for all CPUs at once.
pub struct NohzConditional<S> {
    /// Counters from before the last flip of the switch.
    before: Counts,
    lists: Lists<S>,
    entry: Entry,
    drain: LocalDrain,
    policy: Policy,
}

enum Lists<S> {
    Local(Local<Arc<S>>),
    Locked(Spin<Arc<S>>),
}

impl<S: Store + Send> NohzConditional<S> {
    /// Lists over this store. `isolated`: the machine has isolated CPUs, see
    /// [`has_nohz_full`](pagedepot_designs::has_nohz_full()).
    pub fn new(store: S, isolated: bool, entry: Entry, drain: LocalDrain, policy: Policy) -> Self {
        let lists = Lists::new(Arc::new(store), isolated, entry, drain, policy);
        NohzConditional { before: Counts::default(), lists, entry, drain, policy }
    }

    /// The store.
    pub fn store(&self) -> &S {
        match &self.lists {
            Lists::Local(local) => local.store(),
            Lists::Locked(spin) => spin.store(),
        }
    }

    /// Whether lists are locked.
    pub fn is_isolated(&self) -> bool {
        matches!(self.lists, Lists::Locked(_))
    }

    /// Flips the switch. Takes `&mut self`, as the kernel's static branch patches code with all
    /// CPUs stopped. Caches are drained first, and `high` starts anew.
    pub fn set_isolated(&mut self, isolated: bool) {
        if self.is_isolated() == isolated {
            return;
        }
        let store = match &self.lists {
            Lists::Local(local) => {
                for cpu in local.store().zones().cpu_ids() {
                    // No other thread runs, so the drainer may act as each CPU's owner, wherever it
                    // runs.
                    local.drain_exclusive(cpu);
                }
                Arc::clone(local.store())
            }
            Lists::Locked(spin) => {
                spin.drain(Scope::ALL, Mode::Full);
                Arc::clone(spin.store())
            }
        };
        self.before = self.counts();
        self.lists = Lists::new(store, isolated, self.entry, self.drain, self.policy);
    }
}

impl<S: Store + Send> Lists<S> {
    fn new(store: Arc<S>, isolated: bool, entry: Entry, drain: LocalDrain, policy: Policy) -> Self {
        if isolated {
            Lists::Locked(Spin::new(store, LockMode::Plain, policy))
        } else {
            Lists::Local(Local::new(store, entry, drain, policy))
        }
    }
}

/// Calls a method of the lists in use.
macro_rules! either {
    ($self:ident, $lists:ident => $call:expr) => {
        match &$self.lists {
            Lists::Local($lists) => $call,
            Lists::Locked($lists) => $call,
        }
    };
}

impl<S: Store + Send> PageCache for NohzConditional<S> {
    fn name(&self) -> &'static str {
        "nohz-conditional"
    }

    #[inline]
    fn alloc(&self, here: Here, order: Order, mobility: Mobility) -> Option<Pfn> {
        either!(self, lists => lists.alloc(here, order, mobility))
    }

    fn alloc_from(
        &self,
        here: Here,
        zone: ZoneId,
        order: Order,
        mobility: Mobility,
    ) -> Option<Pfn> {
        either!(self, lists => lists.alloc_from(here, zone, order, mobility))
    }

    #[inline]
    fn free(&self, here: Here, pfn: Pfn, order: Order) {
        either!(self, lists => lists.free(here, pfn, order));
    }

    fn free_many(&self, here: Here, blocks: &[(Pfn, Order)]) {
        either!(self, lists => lists.free_many(here, blocks));
    }

    fn drain(&self, scope: Scope, mode: Mode) -> DrainResult {
        either!(self, lists => lists.drain(scope, mode))
    }

    fn tick(&self, here: Here) {
        either!(self, lists => lists.tick(here));
    }

    fn idle(&self, here: Here) {
        either!(self, lists => lists.idle(here));
    }

    fn counts(&self) -> Counts {
        let mut sum = self.before;
        let now = either!(self, lists => lists.counts());
        // The store's waits go on over a flip.
        sum.zone_lock = Default::default();
        sum += now;
        sum
    }

    fn cached_pages(&self, cpu: CpuId) -> u64 {
        either!(self, lists => lists.cached_pages(cpu))
    }

    fn cached_pages_total(&self) -> u64 {
        either!(self, lists => lists.cached_pages_total())
    }

    fn free_pages(&self) -> u64 {
        either!(self, lists => lists.free_pages())
    }

    fn free_map(&self) -> Result<FreeMap, Fault> {
        match &self.lists {
            Lists::Local(lists) => lists.free_map(),
            Lists::Locked(lists) => lists.free_map(),
        }
    }

    fn validate(&mut self) -> Result<Census, Fault> {
        match &mut self.lists {
            Lists::Local(lists) => lists.validate(),
            Lists::Locked(lists) => lists.validate(),
        }
    }
}
