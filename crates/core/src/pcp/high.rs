//! The limit on a CPU's cache: `high`, how it grows and shrinks, and how much of it a CPU has that
//! only frees. What a CPU does to stay below it is in `spill.rs`.
//!
//! # Another policy
//! Users choose a `HighPolicy` (`zone/state.rs`), which makes the bounds of `high`. This module
//! says when `high` moves between them.
//!
//! # A CPU that only frees
//! The receiver of a network stream frees what its sender allocates on another CPU. No request
//! comes to the receiver's cache: the sender gets memory that is in no processor cache, while warm
//! pages lie on the receiver's shelf. Mainline looks at every free (`free_frozen_page_commit` in
//! `mm/page_alloc.c`). Here a CPU moves full magazines, so the rule counts magazines: those that
//! its fronts push out, and those that come back to them.
//!
//! The rule is in use: [`Config::free_high`](crate::Config) is mainline's unless an embedder
//! changes it. The other rules and limits of the thread that asked about it ("netperf -18.0%
//! regression", 2022) are for comparison, in `pagedepot-designs`.
//!
//! Only orders 1 to 3 are regarded, as in mainline. Order 0 is what exiting processes free in large
//! batches, to be allocated again soon; and of larger blocks frees alone fill few magazines.

use crate::frame::Order;
use crate::sync::prim::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use crate::zone::CacheLimits;

/// Milliseconds between decays, on the coarse clock (the kernel's vmstat interval).
const DECAY_INTERVAL_MS: u64 = 1000;
/// Pages that a CPU which only frees spills at once, and that a decay may leave above an eighth
/// less: `batch << 5`, the kernel's default scale.
pub const BATCH_SCALE: u32 = 5;

/// The `high` of a CPU in a zone, and the clock by which it decays.
///
/// All of it is Relaxed, by loads and stores: policy alone reads it.
#[derive(Default)]
pub struct High {
    /// Most pages to charge, adapted between the zone's `high_min` and `high_max`.
    pages: AtomicI64,
    /// Times at which the slow path last ran, and at which `high` last decayed, on the coarse
    /// clock.
    active_ms: AtomicU64,
    decayed_ms: AtomicU64,
}

impl High {
    pub fn new(pages: i64) -> Self {
        High { pages: AtomicI64::new(pages), ..High::default() }
    }

    #[inline]
    pub fn get(&self) -> i64 {
        self.pages.load(Ordering::Relaxed)
    }

    /// Most pages to charge, for policies that count parts of it.
    #[inline]
    pub fn pages(&self) -> u64 {
        self.get().max(0) as u64
    }

    pub fn set(&self, pages: i64) {
        self.pages.store(pages, Ordering::Relaxed);
    }

    /// Raises it by a batch or more, so that `needed` pages fit under it, but not above `most`.
    pub fn raise(&self, needed: i64, most: i64, limits: CacheLimits) {
        let raised = (self.get() + limits.batch as i64).max(needed);
        self.set(raised.min(most));
    }

    /// Lowers one that is above `most`, for a CPU that is charged with `charged` pages, so that
    /// what it shelves next is spilled, and more.
    pub fn lower(&self, charged: i64, most: i64, limits: CacheLimits) {
        let now = self.get();
        if now > most {
            self.set(now.min(charged - limits.batch as i64).max(most));
        }
    }

    /// Lowers it towards what is charged, by at most an eighth (`decay_pcp_high` in
    /// `mm/page_alloc.c`).
    pub fn decay(&self, charged: i64, limits: CacheLimits) {
        if !limits.adapts() {
            return;
        }
        let (high, least) = (self.get(), limits.high_min as i64);
        let slack = (limits.batch << BATCH_SCALE) as i64;
        self.set((charged - slack).max(high - high / 8).max(least).min(high.max(least)));
    }

    /// Brings it into new limits.
    pub fn clamp(&self, limits: CacheLimits) {
        self.set(self.get().clamp(limits.high_min as i64, limits.high_max as i64));
    }

    /// Time at which the slow path last ran, in milliseconds of the coarse clock.
    #[inline]
    pub fn active_ms(&self) -> u64 {
        self.active_ms.load(Ordering::Relaxed)
    }

    /// Remembers that the slow path ran. `true`: it is time to decay.
    pub fn note_activity(&self, now_ms: u64) -> bool {
        if self.active_ms() != now_ms {
            self.active_ms.store(now_ms, Ordering::Relaxed);
        }
        let last = self.decayed_ms.load(Ordering::Relaxed);
        let is_due = last == 0 || now_ms.saturating_sub(last) >= DECAY_INTERVAL_MS;
        if is_due {
            self.decayed_ms.store(now_ms, Ordering::Relaxed);
        }
        is_due && last != 0
    }

    /// Whether the slow path has not run for three intervals.
    pub fn is_idle(&self, now_ms: u64) -> bool {
        let idle_before_ms = now_ms.saturating_sub(3 * DECAY_INTERVAL_MS);
        idle_before_ms > 0 && self.active_ms() < idle_before_ms
    }
}

/// The clock of a second chance: finds what was not used since the last look at it.
///
/// Relaxed, loads and stores: of two callers that look at once, an interrupt among them, both may
/// look at the same places, and a wrong guess moves out what is in use.
#[repr(C)]
pub struct Clock<const PLACES: usize> {
    /// The place that is looked at next.
    hand: AtomicU32,
    /// The content of each place when it was looked at last.
    seen: [AtomicU64; PLACES],
}

impl<const PLACES: usize> Clock<PLACES> {
    pub fn new() -> Self {
        Clock { hand: AtomicU32::new(0), seen: core::array::from_fn(|_| AtomicU64::new(0)) }
    }

    pub fn hand(&self) -> usize {
        self.hand.load(Ordering::Relaxed) as usize
    }

    pub fn set_hand(&self, place: usize) {
        self.hand.store(place as u32, Ordering::Relaxed);
    }

    /// Whether a place still holds what it held at the last look; notes it if not.
    pub fn is_cold(&self, place: usize, holds: u64) -> bool {
        let is_cold = self.seen[place].load(Ordering::Relaxed) == holds;
        if !is_cold {
            self.note(place, holds);
        }
        is_cold
    }

    /// Notes what a place holds.
    pub fn note(&self, place: usize, holds: u64) {
        self.seen[place].store(holds, Ordering::Relaxed);
    }
}

/// The limit on an order from 1 to 3 that a CPU only frees, beside the two magazines of a front.
/// The default is mainline's.
///
/// A CPU only frees an order when it has freed `batch + high_min / 2` pages of it more than it
/// allocated (`free_count`). Mainline halves that number at every allocation, of any order. An
/// allocator that moves magazines forgets it, by order, when one comes back, and takes what that
/// brings off later frees, so that a CPU which frees in bursts what it allocated in bursts never
/// gets there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeHigh {
    /// `None`: `high`.
    batches: Option<u32>,
}

impl FreeHigh {
    /// Every CPU caches up to `high`, whatever it frees.
    pub const OFF: Self = FreeHigh { batches: None };
    /// Mainline's rule, the [`default`](Self::default), for constants: the CPU keeps no such pages.
    pub const MAINLINE: Self = Self::batches(0);

    /// Limits the pages to so many times `batch`, and not more than `high`.
    pub const fn batches(batches: u32) -> Self {
        FreeHigh { batches: Some(batches) }
    }

    /// The limit in pages, for a CPU with this `batch` and `high`.
    pub(crate) fn pages(self, batch: u64, high: u64) -> u64 {
        self.batches.map_or(high, |batches| batch.saturating_mul(batches.into()).min(high))
    }
}

impl Default for FreeHigh {
    fn default() -> Self {
        Self::MAINLINE
    }
}

/// Pages that a front moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MovedPages {
    /// Pages that came to the front, from the shelf or the store.
    In(u64),
    /// Pages that left the front.
    Out(u64),
}

/// Whether blocks of this order are counted.
#[inline]
pub fn regards(order: Order) -> bool {
    matches!(order.get(), 1..=3)
}

/// Pages of each order that a CPU freed beyond what it allocated.
///
/// Relaxed, loads and stores: what an interrupt counts in between is lost, from numbers that only
/// policies read.
#[derive(Default)]
pub struct FreeCounts([AtomicI64; Order::CACHED]);

impl FreeCounts {
    /// Counts what a front of this order moved.
    ///
    /// The count ends at the threshold. A magazine that comes back leaves nothing of it: mainline
    /// halves it at each of the allocations that empty one. Below it ends at `-managed`, since no
    /// CPU can still have more to free of what it allocated than the zone has pages.
    pub fn note_moved(&self, order: Order, moved: MovedPages, limits: CacheLimits, managed: u64) {
        let cell = &self.0[order.index()];
        let count = cell.load(Ordering::Relaxed);
        let counted = match moved {
            MovedPages::In(pages) => (count.min(0) - pages as i64).max(-(managed as i64)),
            MovedPages::Out(pages) => (count + pages as i64).min(threshold(limits)),
        };
        cell.store(counted, Ordering::Relaxed);
    }

    /// Whether the CPU only frees blocks of this order.
    pub fn only_frees(&self, order: Order, limits: CacheLimits) -> bool {
        self.0[order.index()].load(Ordering::Relaxed) >= threshold(limits)
    }

    /// Forgets half of what the CPU allocated.
    pub fn decay(&self) {
        for cell in &self.0 {
            let allocated = cell.load(Ordering::Relaxed).min(0);
            cell.fetch_sub(allocated / 2, Ordering::Relaxed);
        }
    }
}

/// Pages freed after which a CPU only frees.
fn threshold(limits: CacheLimits) -> i64 {
    (limits.batch + limits.high_min / 2) as i64
}
