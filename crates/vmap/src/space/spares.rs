//! Spare descriptors: those that are neither an area nor a free range.
//!
//! Any thread takes and puts them without the space's lock: to cut a strip into areas takes one for
//! each, and most of them are not in the CPU's cache.
//!
//! Those that were used before are on one of the core's stacks, whose head has 24 bits of index and
//! 40 of tag; the argument is in `sync/stack.rs` there. A taker of several follows links that may
//! be stale. Descriptors stay descriptors, and their links are numbers of descriptors always.
//!
//! A taker is deceived only if it stalls while the tag wraps, and goes on within the one operation
//! in 2^40 that has its tag. At 50 million operations per second, more than all CPUs together get
//! out of one cache line, the tag wraps after 2^40 / 5*10^7 s = 6 hours. Accepted.
//!
//! Descriptors that were never used are handed out by number, and not touched before.

use crate::metadata::area::{AreaIndex, Areas, State};
use pagedepot::sync::prim::{AtomicU32, Ordering};
use pagedepot::sync::stack::{PoppedChain, Stack};

/// One in this many unused descriptors may be taken in advance.
const AHEAD_SHARE: u32 = 8;

/// All spare descriptors, on their own cache lines.
#[repr(align(128))]
pub struct Spares {
    /// The stack of those that were used before.
    used_before: Stack<{ AreaIndex::BITS }, 0>,
    /// The lowest number that was never used.
    fresh: AtomicU32,
    /// Number of descriptors that are not spare.
    used: AtomicU32,
}

/// A list of descriptors that a thread took from the spares, or is about to put there.
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
        Spares { used_before: Stack::default(), fresh: AtomicU32::new(1), used: AtomicU32::new(0) }
    }

    /// Numbers below this were used at some time; the others were never touched.
    pub fn touched(&self) -> usize {
        // Relaxed: a statistic, which may miss the latest.
        self.fresh.load(Ordering::Relaxed) as usize
    }

    /// Number of descriptors that are areas or free ranges, or in a thread's hands.
    pub fn used(&self) -> u32 {
        // Relaxed: a sum, as in `take`.
        self.used.load(Ordering::Relaxed)
    }

    /// Takes one.
    pub fn take_one(&self, areas: Areas<'_>) -> Option<AreaIndex> {
        self.take(areas, 1).pop(areas)
    }

    /// Takes one for later use: held by the caller, covering nothing.
    pub fn reserve(&self, areas: Areas<'_>) -> Option<AreaIndex> {
        let spare = self.take_one(areas)?;
        areas[spare].set_word(areas[spare].word().plain(State::Held));
        Some(spare)
    }

    /// Puts back a descriptor of [`reserve`](Self::reserve).
    pub fn unreserve(&self, areas: Areas<'_>, spare: AreaIndex) {
        areas[spare].set_word(areas[spare].word().plain(State::Vacant));
        self.put_one(areas, spare);
    }

    /// Puts one vacant descriptor that the caller owns.
    pub fn put_one(&self, areas: Areas<'_>, spare: AreaIndex) {
        let mut supply = Supply::default();
        supply.push(areas, spare);
        self.put(areas, supply);
    }

    /// Takes up to `count` in advance, and leaves most of the unused ones to other threads.
    pub fn take_ahead(&self, areas: Areas<'_>, count: u32) -> Supply {
        if count == 0 {
            return Supply::default();
        }
        // Descriptor 0 is never used.
        let unused = (areas.0.len() as u32 - 1).saturating_sub(self.used());
        self.take(areas, count.min(unused / AHEAD_SHARE))
    }

    /// Takes up to `count`, first those that were used before.
    pub fn take(&self, areas: Areas<'_>, count: u32) -> Supply {
        let mut supply = Supply::default();
        if count == 0 {
            return supply;
        }
        if let Some(PoppedChain { first, last, count }) = self.used_before.pop_chain(&areas, count)
        {
            supply = Supply { ends: Some((first, last)), count };
        }
        if supply.count < count {
            self.take_fresh(areas, count - supply.count)
                .for_each(|fresh| supply.push(areas, fresh));
        }
        // Relaxed: a sum that orders nothing.
        self.used.fetch_add(supply.count, Ordering::Relaxed);
        supply
    }

    fn take_fresh(&self, areas: Areas<'_>, count: u32) -> impl Iterator<Item = AreaIndex> + use<> {
        let end = areas.0.len() as u32;
        // Relaxed: each number is taken once.
        let taken = self.fresh.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |fresh| {
            (fresh < end).then(|| fresh + count.min(end - fresh))
        });
        let first = taken.unwrap_or(end);
        (first..(first + count.min(end - first))).filter_map(AreaIndex::new)
    }

    /// Puts vacant descriptors that the caller owns.
    pub fn put(&self, areas: Areas<'_>, supply: Supply) {
        let Some((first, last)) = supply.ends else { return };
        // Relaxed: as in `take`. It comes before others can take them, or the sum might be
        // negative.
        self.used.fetch_sub(supply.count, Ordering::Relaxed);
        let put = self.used_before.push_chain(&areas, first, last, supply.count);
        debug_assert!(put.is_ok(), "what is not counted has no limit");
    }
}
