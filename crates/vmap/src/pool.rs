//! Pools: stacks of freed areas of one size, ready to be allocated again without a look at the
//! free address space. And lazy lists: freed areas that a purge has to unmap first.
//!
//! # The head of a pool
//! | bits | field | meaning |
//! |---|---|---|
//! | 0..=23 | index | the top area, 0: none |
//! | 24..=35 | count | areas in the pool |
//! | 36..=63 | tag | operations so far, modulo 2^28 |
//!
//! Transitions, each a compare-and-swap that adds 1 to the tag: push `(top, n) -> (a, n + k)`, pop
//! `(a, n) -> (next of a, n - 1)`, take-all `(a, n) -> (none, 0)`. The argument is that of the
//! shelf (`cache/shelf.rs`): descriptors are type-stable, a stale link is read but never believed,
//! because the tag has moved.
//!
//! A popper is deceived only if it stalls while the tag wraps, and goes on when the tag, the top
//! and the count are the old ones again. All CPUs of a node together get at most 50 million
//! operations per second out of one pool, whose tag then wraps after 2^28 / 5*10^7 per second = 5.4
//! seconds. Only a thread that is stopped from outside stalls that long; it must go on within the
//! one operation in 2^28 that has its tag, in a pool that was under this load, and nothing else,
//! for all of that time. This is the narrowest tag there is; it is accepted, because index and
//! count leave no more bits.
//!
//! # Limits
//! A pool takes at most `limit` areas. Limits start at 0 and grow where areas are freed, as long as
//! the limits of all the node's pools, in pages, stay within the node's budget, and no pool has
//! more of it than is left for others: whatever sizes came first, there is room for one more. A
//! purge that takes a quarter of a pool's areas takes as much from its limit. So the hot path
//! compares two numbers it has at hand, and memory kept for reuse is bounded without being counted
//! at each operation. The thread's design has no cap.

use super::area::{AreaIndex, Areas};
use super::{Broken, broken};
use pagedepot::sync::prim::{AtomicU32, AtomicU64, Ordering};

/// Largest area that has a pool, in pages, guard included (`MAX_VA_SIZE_PAGES` in `mm/vmalloc.c`).
pub const POOL_SIZES: u32 = if cfg!(loom) { 3 } else { 256 };
/// Most areas in one pool.
const COUNT_MAX: u32 = (1 << COUNT_BITS) - 1;
const COUNT_BITS: u32 = 12;
/// Most areas that a pool is stocked with at a time.
const STOCK_AREAS: u32 = 64;
/// Most pages of them.
const STOCK_PAGES: u32 = 512;
/// Where the tag begins.
const TAG_SHIFT: u32 = AreaIndex::BITS + COUNT_BITS;

#[derive(Clone, Copy)]
struct Head(u64);

impl Head {
    #[inline]
    fn top(self) -> Option<AreaIndex> {
        AreaIndex::new((self.0 & ((1 << AreaIndex::BITS) - 1)) as u32)
    }

    #[inline]
    fn count(self) -> u32 {
        (self.0 >> AreaIndex::BITS & u64::from(COUNT_MAX)) as u32
    }

    /// The head after one more operation.
    #[inline]
    fn next(self, top: Option<AreaIndex>, count: u32) -> u64 {
        let tag = (self.0 >> TAG_SHIFT).wrapping_add(u64::from(!broken(Broken::PoolTag)));
        tag << TAG_SHIFT | u64::from(count) << AreaIndex::BITS | u64::from(AreaIndex::number(top))
    }
}

/// Areas of one size.
pub struct Pool {
    head: AtomicU64,
    limit: AtomicU32,
}

impl Pool {
    pub fn new() -> Self {
        Pool { head: AtomicU64::new(0), limit: AtomicU32::new(0) }
    }

    pub fn count(&self) -> u32 {
        Head(self.head.load(Ordering::Relaxed)).count()
    }

    pub fn limit(&self) -> u32 {
        self.limit.load(Ordering::Relaxed)
    }

    /// The top area, for a walk while nobody else is there.
    pub fn peek(&self) -> Option<AreaIndex> {
        Head(self.head.load(Ordering::Acquire)).top()
    }

    /// Takes the top area, if `fits` says so of it.
    #[inline]
    pub fn pop(&self, areas: Areas<'_>, fits: impl Fn(AreaIndex) -> bool) -> Option<AreaIndex> {
        // Acquire: pairs with the Release of `push`, so that the link read below is at least as
        // new as this head, and the popper sees the area's fields.
        let mut head = self.head.load(Ordering::Acquire);
        loop {
            let old = Head(head);
            let top = old.top()?;
            if !fits(top) {
                return None;
            }
            let new = old.next(areas[top].next(), old.count().saturating_sub(1));
            match self.head.compare_exchange_weak(head, new, Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => return Some(top),
                Err(now) => head = now,
            }
        }
    }

    /// Puts an area the caller owns on top; `false`: the pool is full.
    #[inline]
    pub fn push(&self, areas: Areas<'_>, area: AreaIndex) -> bool {
        self.push_list(areas, area, area, 1)
    }

    /// Puts `count` linked areas the caller owns on top; `false`: the pool has no room for all, and
    /// the list ends with `last` as before.
    #[inline]
    pub fn push_list(
        &self,
        areas: Areas<'_>,
        first: AreaIndex,
        last: AreaIndex,
        count: u32,
    ) -> bool {
        // Relaxed: the limit is a policy, the head is verified below.
        let limit = self.limit.load(Ordering::Relaxed);
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            let old = Head(head);
            if old.count() + count > limit {
                // An exchange that failed before has linked the list to areas of others, and the
                // caller still walks it.
                areas[last].set_next(None);
                return false;
            }
            areas[last].set_next(old.top());
            let new = old.next(Some(first), old.count() + count);
            // Release: pairs with the Acquire of `pop`; publishes links and fields.
            match self.head.compare_exchange_weak(head, new, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => head = now,
            }
        }
    }
}

/// A node's pools of one temperature.
pub struct Pools {
    pools: [Pool; POOL_SIZES as usize],
    /// Sum over the pools of limit * size, at most the budget.
    charged_pages: AtomicU64,
}

impl Pools {
    pub fn new() -> Self {
        Pools { pools: core::array::from_fn(|_| Pool::new()), charged_pages: AtomicU64::new(0) }
    }

    /// The pool for areas of `pages` pages, guard included, if there is one.
    #[inline]
    pub fn of(&self, pages: u32) -> Option<&Pool> {
        self.pools.get(pages.wrapping_sub(1) as usize)
    }

    /// All pools with their sizes in pages.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Pool)> {
        (1..).zip(&self.pools)
    }

    pub fn charged_pages(&self) -> u64 {
        self.charged_pages.load(Ordering::Relaxed)
    }

    /// Raises the limit of the pool for `pages`, by half and at least one area, if the budget
    /// allows. `false`: it does not.
    #[cold]
    pub fn raise_limit(&self, pages: u32, budget_pages: u64) -> bool {
        let Some(pool) = self.of(pages) else { return false };
        let limit = pool.limit();
        let left = budget_pages.saturating_sub(self.charged_pages());
        let size = u64::from(pages);
        // Its own charge, after the step, is at most what is left then; but one area may always be.
        let fair = left.saturating_sub(u64::from(limit) * size) / (2 * size);
        let room = fair.max(u64::from(limit == 0));
        let step = u64::from((limit / 2).max(1).min(COUNT_MAX - limit)).min(room) as u32;
        let charge = u64::from(step) * size;
        // Relaxed, all of them: sums that policies read. The charge comes first, so that two that
        // raise at once stay within the budget; one that finds another limit takes it back.
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

    /// Areas to take from the free address space along with one that was not in the pool for
    /// `pages`: as many as were asked for so far, about, until a turn of the space's lock is worth
    /// a table's pages.
    #[cold]
    pub fn stock(&self, pages: u32, budget_pages: u64) -> u32 {
        let Some(pool) = self.of(pages) else { return 0 };
        let (most, limit) = (STOCK_AREAS.min(STOCK_PAGES / pages), pool.limit());
        if limit < most {
            self.raise_limit(pages, budget_pages);
        }
        limit.saturating_sub(pool.count()).min(most)
    }

    /// Takes `count` areas off the limit of the pool for `pages`.
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

/// Areas that wait for a purge. Anyone adds one, a purge takes all; nobody takes one, so a head
/// that comes back to an old value links to what it means, and no tag is needed.
pub struct LazyList {
    head: AtomicU32,
    /// Pages of the areas in it.
    pages: AtomicU64,
}

impl LazyList {
    pub fn new() -> Self {
        LazyList { head: AtomicU32::new(0), pages: AtomicU64::new(0) }
    }

    pub fn pages(&self) -> u64 {
        self.pages.load(Ordering::Relaxed)
    }

    /// The first area, for a walk while nobody else is there.
    pub fn peek(&self) -> Option<AreaIndex> {
        AreaIndex::new(self.head.load(Ordering::Acquire))
    }

    /// Adds an area the caller owns; returns the pages in the list.
    pub fn push(&self, areas: Areas<'_>, area: AreaIndex, pages: u32) -> u64 {
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            areas[area].set_next(AreaIndex::new(head));
            // Release: pairs with the Acquire of `take_all`.
            match self.head.compare_exchange_weak(
                head,
                area.get(),
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => break,
                Err(now) => head = now,
            }
        }
        // Relaxed: a threshold's measure.
        self.pages.fetch_add(u64::from(pages), Ordering::Relaxed).wrapping_add(u64::from(pages))
    }

    /// Takes all areas, linked; the taker subtracts their pages.
    pub fn take_all(&self) -> Option<AreaIndex> {
        // Acquire: pairs with the Release of every `push` so far, which are one release sequence.
        AreaIndex::new(self.head.swap(0, Ordering::Acquire))
    }

    /// Adds to the pages, or takes off.
    pub fn add_pages(&self, pages: i64) {
        // May pass below zero for a moment, when a taker is quicker than a pusher.
        self.pages.fetch_add(pages as u64, Ordering::Relaxed);
    }
}
