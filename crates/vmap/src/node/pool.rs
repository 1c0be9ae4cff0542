//! Pools: stacks of freed areas of one size, ready to be allocated again without a search of the
//! free address space.
//!
//! A pool is one of the core's stacks, whose head has 24 bits of index, 12 of count and 28 of tag;
//! the argument is in `sync/stack.rs` there. Descriptors stay descriptors, so a popper may read a
//! stale link.
//!
//! A popper is deceived only if it stalls while the tag wraps, and goes on when the tag, the top
//! and the count have their old values again. All CPUs of a node together get at most 50 million
//! operations per second out of one pool, whose tag then wraps after 2^28 / 5*10^7 s = 5.4 s. Only
//! a thread that is stopped from outside stalls that long. It must go on within the one operation
//! in 2^28 that has its tag, and the pool must have been under that load for all of the time. This
//! is the narrowest tag of this crate; it is accepted because index and count leave no more bits.
//!
//! # Limits
//! A pool takes at most `limit` areas. Limits start at 0 and grow when areas are freed, under two
//! conditions:
//! * The limits of all of the node's pools, in pages, stay within the node's budget.
//! * No pool has more of the budget than is left for the others. So there is room for one more
//!   size, whatever sizes came first.
//!
//! A purge that takes a quarter of a pool's areas takes as much from its limit. The hot path
//! compares two numbers that it has loaded anyway, so the memory kept for reuse is bounded without
//! a count at each operation. The design of the linux-mm thread has no cap.

use crate::metadata::area::{AreaIndex, Areas};
use crate::model;
use pagedepot::sync::prim::{AtomicU32, AtomicU64, Ordering};
use pagedepot::sync::stack::Stack;

/// Largest area that has a pool, in pages with guard (`MAX_VA_SIZE_PAGES` in `mm/vmalloc.c`).
pub const POOL_SIZES: u32 = model::scaled(256, 3);
const COUNT_BITS: u32 = 12;
/// Largest number of areas in one pool.
pub const COUNT_MAX: u32 = Stack::<{ AreaIndex::BITS }, COUNT_BITS>::COUNT_MAX;
/// Largest number of areas that a pool is stocked with at a time.
const STOCK_AREAS: u32 = 64;
/// Largest number of pages that a pool is stocked with at a time.
const STOCK_PAGES: u32 = 512;

/// Areas of one size.
pub struct Pool {
    areas: Stack<{ AreaIndex::BITS }, COUNT_BITS>,
    limit: AtomicU32,
}

impl Pool {
    pub fn new() -> Self {
        Pool { areas: Stack::default(), limit: AtomicU32::new(0) }
    }

    pub fn count(&self) -> u32 {
        self.areas.count()
    }

    pub fn limit(&self) -> u32 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Sets the limit; returns `true`. For pools whose limit one thread at a time changes.
    pub fn set_limit(&self, limit: u32) -> bool {
        debug_assert!(limit <= COUNT_MAX);
        self.limit.store(limit.min(COUNT_MAX), Ordering::Relaxed);
        true
    }

    /// The top area. For a walk while no other thread uses the pool.
    pub fn peek(&self, areas: Areas<'_>) -> Option<AreaIndex> {
        self.areas.peek(&areas)
    }

    /// Takes the top area, if there is one and it `fits`.
    #[inline]
    pub fn pop(&self, areas: Areas<'_>, fits: impl Fn(AreaIndex) -> bool) -> Option<AreaIndex> {
        self.areas.pop_if(&areas, fits)
    }

    /// Puts an area that the caller owns on top; `false`: the pool is full.
    #[inline]
    pub fn push(&self, areas: Areas<'_>, area: AreaIndex) -> bool {
        self.push_list(areas, area, area, 1)
    }

    /// Puts `count` linked areas that the caller owns on top. `false`: the pool has no room for all
    /// of them, and the list ends with `last` as before.
    #[inline]
    pub fn push_list(
        &self,
        areas: Areas<'_>,
        first: AreaIndex,
        last: AreaIndex,
        count: u32,
    ) -> bool {
        // The limit is a policy: one that has just changed may be missed.
        if self.areas.push_chain_within(self.limit(), &areas, first, last, count).is_ok() {
            return true;
        }
        // The caller walks the list.
        areas[last].set_next(None);
        false
    }
}

/// All pools of a node for cold areas, or for warm ones.
pub struct Pools {
    pools: [Pool; POOL_SIZES as usize],
    /// Sum over the pools of limit * size; at most the budget.
    charged_pages: AtomicU64,
}

impl Pools {
    pub fn new() -> Self {
        Pools { pools: core::array::from_fn(|_| Pool::new()), charged_pages: AtomicU64::new(0) }
    }

    /// The pool for areas of `pages` pages with guard; `None`: too large for any.
    #[inline]
    pub fn of(&self, pages: u32) -> Option<&Pool> {
        self.pools.get(pages.wrapping_sub(1) as usize)
    }

    /// All pools, each with the size of its areas in pages.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Pool)> {
        (1..).zip(&self.pools)
    }

    pub fn charged_pages(&self) -> u64 {
        self.charged_pages.load(Ordering::Relaxed)
    }

    /// Raises the limit of the pool for `pages` pages by half, and at least by one area. `false`:
    /// the budget does not allow it.
    #[cold]
    pub fn raise_limit(&self, pages: u32, budget_pages: u64) -> bool {
        let Some(pool) = self.of(pages) else { return false };
        let limit = pool.limit();
        let left = budget_pages.saturating_sub(self.charged_pages());
        let size = u64::from(pages);
        // After the step the pool's own charge is at most what is left for others. The first area
        // is always allowed.
        let fair = left.saturating_sub(u64::from(limit) * size) / (2 * size);
        let room = fair.max(u64::from(limit == 0));
        let step = u64::from((limit / 2).max(1).min(COUNT_MAX - limit)).min(room) as u32;
        let charge = u64::from(step) * size;
        // Relaxed, all: sums that policies read. The charge comes first, so two threads that raise
        // at once stay within the budget. A thread that then finds another limit takes its charge
        // back.
        let charged =
            self.charged_pages.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |charged| {
                (step > 0 && charged + charge <= budget_pages).then_some(charged + charge)
            });
        if charged.is_err() {
            return false;
        }
        if pool
            .limit
            .compare_exchange(limit, limit + step, Ordering::Relaxed, Ordering::Relaxed)
            .is_err()
        {
            self.charged_pages.fetch_sub(charge, Ordering::Relaxed);
        }
        true
    }

    /// Number of areas to take from the free address space in addition, when the pool for `pages`
    /// was empty. It is about the number of areas requested so far. Together they have at most the
    /// pages of a page table, so that the space's lock is not held for long.
    #[cold]
    pub fn stock(&self, pages: u32, budget_pages: u64) -> u32 {
        let Some(pool) = self.of(pages) else { return 0 };
        let (most, limit) = (STOCK_AREAS.min(STOCK_PAGES / pages), pool.limit());
        if limit < most {
            self.raise_limit(pages, budget_pages);
        }
        limit.saturating_sub(pool.count()).min(most)
    }

    /// Lowers the limit of the pool for `pages` by `count` areas.
    pub fn lower_limit(&self, pages: u32, count: u32) {
        let Some(pool) = self.of(pages) else { return };
        let mut limit = pool.limit();
        loop {
            let lower = limit.saturating_sub(count);
            match pool.limit.compare_exchange(limit, lower, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => {
                    let released = u64::from(limit - lower) * u64::from(pages);
                    self.charged_pages.fetch_sub(released, Ordering::Relaxed);
                    return;
                }
                Err(now) => limit = now,
            }
        }
    }
}
