//! Shared by the tests that run over every design of the lab: how each is made.
#![allow(dead_code, reason = "the product's part has more than is used here")]

#[path = "../../../../../crates/designs/tests/pages/common/mod.rs"]
mod product;

use pagedepot::{CpuId, Order};
use pagedepot_designs::{Buddy, PageCache, Policy, Setup};
pub use pagedepot_lab_designs::Entry;
use pagedepot_lab_designs::{
    Grace, Local, LocalDrain, Magazine, MagazineOptions, NohzConditional, PcpBuddy, Qpw, Rcu,
};

pub use product::*;

/// The designs that do the same with the same lists.
pub fn with_lists(setup: &Setup) -> Vec<(&'static str, Box<dyn PageCache>)> {
    let mut designs = product::with_lists(setup);
    designs.extend::<[(_, Box<dyn PageCache>); 5]>([
        ("local", Box::new(local_helper(setup, Entry::Pretend))),
        ("nohz", Box::new(nohz_local(setup, Entry::Lock))),
        ("qpw", Box::new(qpw_mixed(setup, Entry::Pretend))),
        ("rcu_membarrier", Box::new(rcu_membarrier(setup, Entry::Lock))),
        ("rcu_qsbr", Box::new(rcu_qsbr(setup, Entry::Pretend))),
    ]);
    designs
}

pub fn local_owner(setup: &Setup, entry: Entry) -> Local<Buddy> {
    Local::new(buddy(setup), entry, LocalDrain::Owner, Policy::default())
}

pub fn local_helper(setup: &Setup, entry: Entry) -> Local<Buddy> {
    Local::new(buddy(setup), entry, LocalDrain::Helper, Policy::default())
}

pub fn nohz_local(setup: &Setup, entry: Entry) -> NohzConditional<Buddy> {
    NohzConditional::new(buddy(setup), false, entry, LocalDrain::Helper, Policy::default())
}

pub fn nohz_locked(setup: &Setup, entry: Entry) -> NohzConditional<Buddy> {
    NohzConditional::new(buddy(setup), true, entry, LocalDrain::Helper, Policy::default())
}

/// `qpw` with a spinlock on every CPU, on none, on every second one.
pub fn qpw_spinning(setup: &Setup, entry: Entry) -> Qpw<Buddy> {
    qpw(setup, entry, |_| true)
}

pub fn qpw_local(setup: &Setup, entry: Entry) -> Qpw<Buddy> {
    qpw(setup, entry, |_| false)
}

pub fn qpw_mixed(setup: &Setup, entry: Entry) -> Qpw<Buddy> {
    qpw(setup, entry, |cpu| cpu.get() % 2 == 1)
}

fn qpw(setup: &Setup, entry: Entry, spins: fn(CpuId) -> bool) -> Qpw<Buddy> {
    Qpw::new(buddy(setup), spins, entry, LocalDrain::Helper, Policy::default())
}

pub fn pcp_buddy(setup: &Setup, _: Entry) -> PcpBuddy<Buddy> {
    PcpBuddy::new(buddy(setup), Policy::default())
}

/// CPUs own blocks that fit into the small caches of these tests.
pub fn pcp_buddy_small(setup: &Setup, _: Entry) -> PcpBuddy<Buddy> {
    PcpBuddy::with_blocks(buddy(setup), Policy::default(), Order::new(4).unwrap())
}

pub fn rcu_blocking(setup: &Setup, entry: Entry) -> Rcu<Buddy> {
    Rcu::new(buddy(setup), entry, Grace::Blocking, Policy::default())
}

pub fn rcu_membarrier(setup: &Setup, entry: Entry) -> Rcu<Buddy> {
    Rcu::new(buddy(setup), entry, Grace::Membarrier, Policy::default())
}

pub fn rcu_qsbr(setup: &Setup, entry: Entry) -> Rcu<Buddy> {
    Rcu::new(buddy(setup), entry, Grace::Qsbr, Policy::default())
}

pub fn magazine(setup: &Setup, _: Entry) -> Magazine<Buddy> {
    let options =
        MagazineOptions { limit: 100, refill: 40, spill: 16, min_batch: 4, ..Default::default() };
    Magazine::new(buddy(setup), options).unwrap()
}

/// Runs a generic test over every design, as a test of its own each.
macro_rules! over_all_designs {
    ($test:ident) => {
        mod $test {
            use crate::common::{self, over_all_designs};
            over_all_designs!(
                @each $test: local_owner, local_helper, nohz_local, nohz_locked, qpw_spinning,
                qpw_local, qpw_mixed, pcp_buddy, pcp_buddy_small, rcu_blocking, rcu_membarrier,
                rcu_qsbr, magazine
            );
        }
    };
    (@each $test:ident: $($design:ident),*) => {
        $(
            #[test]
            fn $design() {
                super::$test(stringify!($design), common::$design);
            }
        )*
    };
}
pub(crate) use over_all_designs;
