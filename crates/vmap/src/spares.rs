//! Spare descriptors: those that are neither area nor free range. Anyone takes and puts them,
//! without the space's lock: cutting a row of areas needs one for each, and most are cold in the
//! cache.
//!
//! # The head
//! | bits | field | meaning |
//! |---|---|---|
//! | 0..=23 | index | the top descriptor, 0: none |
//! | 24..=63 | tag | operations so far, modulo 2^40 |
//!
//! Transitions, each a compare-and-swap that adds 1 to the tag: put `top -> first of a list whose
//! last links to top`, take `top -> what the nth from it links to`. A taker follows links that may
//! be stale; the argument why that is harmless is that of the pools (`pool.rs`).
//!
//! A taker is deceived only if it stalls while the tag wraps, and goes on within the one operation
//! in 2^40 that has its tag. With 50 million operations per second, which is more than all CPUs
//! together get out of one cache line, it wraps after 2^40 / 5*10^7 per second = 6 hours. Accepted.
//!
//! Descriptors that were never used are handed out by their number, and not touched before.

use super::area::{AreaIndex, Areas};
use super::{Broken, broken};
use pagedepot::sync::prim::{AtomicU32, AtomicU64, Ordering};

/// Of the unused descriptors, one in so many may be taken in advance.
const SPARED: u32 = 8;
const INDEX: u64 = (1 << AreaIndex::BITS) - 1;

/// All spare descriptors, on cache lines of their own.
#[repr(align(128))]
pub struct Spares {
    /// Those that were used before.
    head: AtomicU64,
    /// The lowest that was never used.
    fresh: AtomicU32,
    /// Descriptors that are not here.
    used: AtomicU32,
}

/// Descriptors that their holder took from the spare ones, or is about to put there, linked.
#[derive(Default)]
pub struct Supply {
    ends: Option<(AreaIndex, AreaIndex)>,
    count: u32,
}

impl Supply {
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Takes one out.
    pub fn pop(&mut self, areas: Areas<'_>) -> Option<AreaIndex> {
        let (first, last) = self.ends?;
        self.ends = areas[first].next().filter(|_| first != last).map(|next| (next, last));
        self.count -= 1;
        Some(first)
    }

    /// Adds one.
    pub fn push(&mut self, areas: Areas<'_>, spare: AreaIndex) {
        areas[spare].set_next(self.ends.map(|(first, _)| first));
        self.ends = Some((spare, self.ends.map_or(spare, |(_, last)| last)));
        self.count += 1;
    }
}

impl Spares {
    pub fn new() -> Self {
        Spares { head: AtomicU64::new(0), fresh: AtomicU32::new(1), used: AtomicU32::new(0) }
    }

    /// Descriptors that were ever used: those behind were never touched.
    pub fn touched(&self) -> usize {
        // Relaxed: statistics, which may miss the latest.
        self.fresh.load(Ordering::Relaxed) as usize
    }

    /// Descriptors that are areas or free ranges, or on their way.
    pub fn used(&self) -> u32 {
        // Relaxed: a sum, as in `take`.
        self.used.load(Ordering::Relaxed)
    }

    /// Takes one.
    pub fn take_one(&self, areas: Areas<'_>) -> Option<AreaIndex> {
        self.take(areas, 1).pop(areas)
    }

    /// Takes up to `count` in advance, but not what others may lack.
    pub fn take_ahead(&self, areas: Areas<'_>, count: u32) -> Supply {
        if count == 0 {
            return Supply::default();
        }
        // Number 0 is nobody.
        let unused = (areas.0.len() as u32 - 1).saturating_sub(self.used());
        self.take(areas, count.min(unused / SPARED))
    }

    /// Takes up to `count`: those that were used before first.
    pub fn take(&self, areas: Areas<'_>, count: u32) -> Supply {
        let mut supply = Supply::default();
        if count == 0 {
            return supply;
        }
        if let Some(used_before) = self.take_used(areas, count) {
            supply = used_before;
        }
        if supply.count < count {
            self.take_fresh(areas, count - supply.count)
                .for_each(|fresh| supply.push(areas, fresh));
        }
        // Relaxed: a sum; what depends on it depends on nothing else.
        self.used.fetch_add(supply.count, Ordering::Relaxed);
        supply
    }

    fn take_used(&self, areas: Areas<'_>, count: u32) -> Option<Supply> {
        // Acquire: pairs with the Release of `put`, so that links read below are at least as new as
        // this head.
        let mut head = self.head.load(Ordering::Acquire);
        loop {
            let first = top(head)?;
            let (mut last, mut taken) = (first, 1);
            let mut rest = areas[first].next();
            while let Some(next) = rest.filter(|_| taken < count) {
                (last, taken, rest) = (next, taken + 1, areas[next].next());
            }
            match self.head.compare_exchange_weak(
                head,
                after(head, rest),
                Ordering::Acquire,
                Ordering::Acquire,
            ) {
                Ok(_) => return Some(Supply { ends: Some((first, last)), count: taken }),
                Err(now) => head = now,
            }
        }
    }

    fn take_fresh(&self, areas: Areas<'_>, count: u32) -> impl Iterator<Item = AreaIndex> + use<> {
        let end = areas.0.len() as u32;
        // Relaxed: who takes a number is the only one who ever took it.
        let taken = self.fresh.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |fresh| {
            (fresh < end).then(|| fresh + count.min(end - fresh))
        });
        let first = taken.unwrap_or(end);
        (first..(first + count.min(end - first))).filter_map(AreaIndex::new)
    }

    /// Puts descriptors that are the caller's, and vacant.
    pub fn put(&self, areas: Areas<'_>, supply: Supply) {
        let Some((first, last)) = supply.ends else { return };
        // Relaxed, as in `take`; before others can take them, or the sum might pass below zero.
        self.used.fetch_sub(supply.count, Ordering::Relaxed);
        // Relaxed: the descriptors are the caller's, and nothing is read through this head.
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            areas[last].set_next(top(head));
            // Release: pairs with the Acquire of `take_used`; publishes the links.
            match self.head.compare_exchange_weak(
                head,
                after(head, Some(first)),
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }
}

fn top(head: u64) -> Option<AreaIndex> {
    AreaIndex::new((head & INDEX) as u32)
}

/// The head after one more operation.
fn after(head: u64, top: Option<AreaIndex>) -> u64 {
    let tag = (head >> AreaIndex::BITS).wrapping_add(u64::from(!broken(Broken::SpareTag)));
    tag << AreaIndex::BITS | u64::from(AreaIndex::number(top))
}
