//! Pools of large warm areas: memory of more than [`POOL_SIZES`] pages that stays mapped for the
//! next request of its size.
//!
//! There are too many sizes for a pool of each, and a program uses few. So a node has
//! [`LARGE_SIZES`] pools, each of which serves one size while its limit is above 0. A size that
//! finds no pool takes one whose limit is 0. If the budget is used up, memory of other sizes makes
//! way ([`LargePools::evict`]): what was freed last is the likeliest to be requested next.
//!
//! # Argument
//! A pool's size, its limit and the charge change only under `busy`, which no thread waits for: a
//! thread that finds it set does without, and its area becomes lazy. So they agree always, and a
//! signal handler above a thread that has set it cannot hang. Pushes and pops need no such right. A
//! pusher that looked up a pool before it changed its size puts an area of the old size there. So
//! a popper compares the size of the top area, which does not change while it is the top.

use crate::metadata::area::{AreaIndex, Areas};
use crate::model;
use crate::node::pool::{COUNT_MAX, POOL_SIZES, Pool};
use pagedepot::sync::prim::{AtomicU32, AtomicU64, Ordering};

/// Largest warm area that is kept, in pages with guard: 16 MiB of 4 KiB pages.
pub const LARGE_PAGES_MAX: u32 = 4096 + 1;
/// Number of sizes that are kept at a time.
const LARGE_SIZES: usize = model::scaled(16, 2) as usize;

/// A pool, and the size of its areas in pages with guard; 0: of none yet.
struct SizedPool {
    pages: AtomicU32,
    pool: Pool,
}

/// All pools of a node for large warm areas.
pub struct LargePools {
    sizes: [SizedPool; LARGE_SIZES],
    /// Sum over the pools of limit * size; at most the budget.
    charged_pages: AtomicU64,
    /// 1: a thread changes sizes, limits or the charge.
    busy: AtomicU32,
    /// The pool from which the last area was evicted; plus `LARGE_SIZES` while it is being emptied.
    hand: AtomicU32,
}

/// The right to change sizes, limits and the charge. Dropping it gives the right up.
struct ChangeRight<'a>(&'a LargePools);

impl Drop for ChangeRight<'_> {
    fn drop(&mut self) {
        // Release: pairs with the Acquire in `change`.
        self.0.busy.store(0, Ordering::Release);
    }
}

impl SizedPool {
    fn pages(&self) -> u32 {
        // Relaxed: a hint, but for a thread that has the right to change it.
        self.pages.load(Ordering::Relaxed)
    }
}

impl LargePools {
    pub fn new() -> Self {
        LargePools {
            sizes: core::array::from_fn(|_| SizedPool {
                pages: AtomicU32::new(0),
                pool: Pool::new(),
            }),
            charged_pages: AtomicU64::new(0),
            busy: AtomicU32::new(0),
            hand: AtomicU32::new(0),
        }
    }

    /// Whether areas of `pages` pages are for these pools.
    pub fn has_size(pages: u32) -> bool {
        (POOL_SIZES + 1..=LARGE_PAGES_MAX).contains(&pages)
    }

    /// All pools that have a size, each with it.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Pool)> {
        self.sizes.iter().map(|sized| (sized.pages(), &sized.pool)).filter(|&(pages, _)| pages > 0)
    }

    /// Pages that the pools may keep at present.
    pub fn charged_pages(&self) -> u64 {
        self.charged_pages.load(Ordering::Relaxed)
    }

    fn change(&self) -> Option<ChangeRight<'_>> {
        // Acquire: pairs with the Release in `ChangeRight::drop`.
        // Lazily: to drop a `ChangeRight` gives the right up.
        (self.busy.swap(1, Ordering::Acquire) == 0).then(|| ChangeRight(self))
    }

    fn of(&self, pages: u32) -> Option<&SizedPool> {
        self.sizes.iter().find(|sized| sized.pages() == pages)
    }

    /// Takes an area of `pages` pages with guard, if the last one that was freed `fits`.
    pub fn pop(
        &self,
        areas: Areas<'_>,
        pages: u32,
        fits: impl Fn(AreaIndex) -> bool,
    ) -> Option<AreaIndex> {
        let sized = self.of(pages).filter(|_| Self::has_size(pages))?;
        sized.pool.pop(areas, |top| areas[top].pages() == pages && fits(top))
    }

    /// Keeps a freed area of `pages` pages that the caller owns, and that is marked as pooled.
    /// `false`: there is no room, and the caller owns it still.
    pub fn push(&self, areas: Areas<'_>, index: AreaIndex, pages: u32, budget_pages: u64) -> bool {
        let push = || self.of(pages).is_some_and(|sized| sized.pool.push(areas, index));
        Self::has_size(pages) && (push() || self.raise_limit(pages, budget_pages) && push())
    }

    /// Raises the limit of the pool for `pages` pages by one area. `false`: the budget does not
    /// allow it, the pool counts no more areas, all pools have other sizes, or another thread
    /// changes them.
    fn raise_limit(&self, pages: u32, budget_pages: u64) -> bool {
        let Some(_changing) = self.change() else { return false };
        let charged = self.charged_pages() + u64::from(pages);
        let unused =
            || self.sizes.iter().find(|sized| sized.pool.limit() == 0 && sized.pool.count() == 0);
        let Some(sized) = self.of(pages).or_else(unused) else { return false };
        if charged > budget_pages || sized.pool.limit() == COUNT_MAX {
            return false;
        }
        // Relaxed, both: under `busy`.
        sized.pages.store(pages, Ordering::Relaxed);
        self.charged_pages.store(charged, Ordering::Relaxed);
        sized.pool.set_limit(sized.pool.limit() + 1)
    }

    /// Lowers the limit of a pool for `pages` pages by `count` areas, if no other thread changes
    /// the pools.
    pub fn lower_limit(&self, pages: u32, count: u32) {
        let Some(_changing) = self.change() else { return };
        if let Some(sized) = self.of(pages) {
            self.lower(sized, count);
        }
    }

    /// Lowers a limit, under `busy`.
    fn lower(&self, sized: &SizedPool, count: u32) {
        let lower = sized.pool.limit().saturating_sub(count);
        let released = u64::from(sized.pool.limit() - lower) * u64::from(sized.pages());
        // Relaxed: under `busy`.
        self.charged_pages.store(self.charged_pages() - released, Ordering::Relaxed);
        sized.pool.set_limit(lower);
    }

    /// Makes room for an area of `pages` pages: lowers limits of other sizes, in turn, until the
    /// budget has room for it; then, if all pools have other sizes, that of the next pool in turn
    /// until it has none. Stops at the first pool that has an area, and takes it out: the caller
    /// owns it. `None`: there is no more to take.
    pub fn evict(&self, areas: Areas<'_>, pages: u32, budget_pages: u64) -> Option<AreaIndex> {
        let _changing = self.change()?;
        if u64::from(pages) > budget_pages {
            return None;
        }
        let lower_while = |is_full: &dyn Fn() -> bool, at: usize| {
            let sized = &self.sizes[at];
            while is_full() && sized.pages() != pages && sized.pool.limit() > 0 {
                self.lower(sized, 1);
                // An area more than the limit allows, which is one fewer now.
                if sized.pool.count() > sized.pool.limit()
                    && let Some(evicted) = sized.pool.pop(areas, |_| true)
                {
                    return Some(evicted);
                }
            }
            None
        };
        let is_over = || self.charged_pages() + u64::from(pages) > budget_pages;
        // Relaxed, also below: under `busy`.
        let hand = self.hand.load(Ordering::Relaxed) as usize;
        let next = (hand + 1) % LARGE_SIZES;
        let turn = (next..next + LARGE_SIZES).map(|at| at % LARGE_SIZES);
        let evicted = turn.take_while(|_| is_over()).find_map(|at| {
            self.hand.store(at as u32, Ordering::Relaxed);
            lower_while(&is_over, at)
        });
        let lacks_pool =
            || self.of(pages).is_none() && self.sizes.iter().all(|sized| sized.pool.limit() > 0);
        if evicted.is_some() || !lacks_pool() {
            return evicted;
        }
        // All of one pool's, area by area: a size that took a pool lately keeps it for a turn.
        let emptied = if hand < LARGE_SIZES { next } else { hand - LARGE_SIZES };
        self.hand.store((emptied + LARGE_SIZES) as u32, Ordering::Relaxed);
        let evicted = lower_while(&lacks_pool, emptied);
        if !lacks_pool() {
            self.hand.store(emptied as u32, Ordering::Relaxed);
        }
        evicted
    }
}
