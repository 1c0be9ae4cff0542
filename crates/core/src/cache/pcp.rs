//! What a CPU keeps for a zone besides its front words: shelves, accounts, counters.
//!
//! Drainers of other CPUs touch these, so they never share a cache line with the front words.

use super::listed::Listed;
use super::magazine::{Class, Magazine};
use super::shelf::{Empties, Shelf};
use crate::frame::{Mobility, NodeId, Order};
#[cfg(all(loom, test))]
use crate::loom_tests::{Mutant, is_mutant};
use crate::prim::{AtomicI64, AtomicU32, AtomicU64, Ordering};
#[cfg(all(shuttle, test))]
use crate::shuttle_tests::{Mutant, is_mutant};

/// Front words per zone and context, and shelves per zone.
pub const FRONTS: usize = Class::COUNT * Mobility::COUNT;

/// A CPU's part in a zone.
///
/// The first line is what a drain of order 0 changes: after one, the owner's next slow path misses
/// it once, and of its own nothing else but the list beside it.
#[repr(C, align(128))]
pub struct Pcp {
    /// Frames on their way between owners.
    pub in_flight: InFlight,
    /// Pages of all magazines that are in this CPU's fronts and shelves, each charged in full.
    pub charged_pages: AtomicI64,
    /// Change of the zone's free count that has not been added to it yet.
    pub free_delta: AtomicI64,
    /// Empty magazines that drains brought back.
    pub returned: Empties,
    /// Full magazines, `[class][mobility]`.
    shelves: [Shelf; FRONTS],
    /// Blocks and pages taken back by drains: on a line that only drainers touch.
    pub drained: Apart<[AtomicU64; 2]>,
    pub accounts: Apart<Accounts>,
    pub counters: Apart<Counters>,
    /// Front words as the clock hand last saw them: a front that has not changed since is cold.
    pub seen: [AtomicU64; FRONTS],
    /// Of the shelves of order 0.
    listed: [Listed; Mobility::COUNT],
}

/// A value on cache lines of its own.
#[repr(C, align(128))]
pub struct Apart<T>(T);

impl<T> Apart<T> {
    pub fn new(value: T) -> Self {
        Apart(value)
    }
}

impl<T> core::ops::Deref for Apart<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// What the owner's slow path keeps.
pub struct Accounts {
    /// Most pages to charge, adapted between the zone's `high_min` and `high_max`.
    pub high_pages: AtomicI64,
    /// When the slow path last ran, and when `high` last decayed, on the coarse clock.
    pub active_ms: AtomicU64,
    pub decayed_ms: AtomicU64,
    /// What the rule for CPUs that only free counts, by class.
    pub free_counts: [AtomicI64; Class::COUNT],
    /// Where the coldest front is looked for next.
    pub clock_hand: AtomicU32,
    /// Where the store is searched next, by mobility: a pageblock's index.
    pub hints: [AtomicU32; Mobility::COUNT],
}

impl Pcp {
    pub fn new(high_pages: i64, hint: u32) -> Self {
        Pcp {
            in_flight: InFlight(AtomicU64::new(0)),
            charged_pages: AtomicI64::new(0),
            free_delta: AtomicI64::new(0),
            returned: Empties::new(),
            shelves: core::array::from_fn(|_| Shelf::new()),
            drained: Apart(core::array::from_fn(|_| AtomicU64::new(0))),
            accounts: Apart(Accounts {
                high_pages: AtomicI64::new(high_pages),
                active_ms: AtomicU64::new(0),
                decayed_ms: AtomicU64::new(0),
                free_counts: core::array::from_fn(|_| AtomicI64::new(0)),
                clock_hand: AtomicU32::new(0),
                hints: core::array::from_fn(|_| AtomicU32::new(hint)),
            }),
            counters: Apart(Counters::new()),
            seen: core::array::from_fn(|_| AtomicU64::new(0)),
            listed: core::array::from_fn(|_| Listed::new()),
        }
    }

    /// The counters, with what drainers count.
    pub fn counts(&self) -> Counts {
        let [drained_blocks, drained_pages] =
            [0, 1].map(|i| self.drained[i].load(Ordering::Relaxed));
        Counts { drained_blocks, drained_pages, ..self.counters.read() }
    }

    /// Counts what a drain took back.
    pub fn count_drained(&self, blocks: u64, frames_per_block: u32) {
        count(&self.drained[0], blocks);
        count(&self.drained[1], blocks * u64::from(frames_per_block));
    }

    /// Pages out of a quiet drain's reach, at most: magazines in fronts and in hands, in full.
    pub fn unshelved_pages(&self) -> u64 {
        (self.charged_pages.load(Ordering::Relaxed).max(0) as u64)
            .saturating_sub(self.shelved_pages())
    }

    #[inline]
    pub fn shelf(&self, class: Class, mobility: Mobility) -> &Shelf {
        &self.shelves[class as usize * Mobility::COUNT + mobility.index()]
    }

    /// Which magazines are on a shelf; order 0 alone has long shelves of small blocks.
    #[inline]
    pub fn listed(&self, class: Class, mobility: Mobility) -> Option<&Listed> {
        // No protocol reads it; to a model each access would be two executions.
        (class == Class::Order0 && !cfg!(loom)).then(|| &self.listed[mobility.index()])
    }

    /// All shelves with their class and mobility.
    pub fn shelves(&self) -> impl Iterator<Item = (Class, Mobility, &Shelf)> {
        Class::ALL
            .into_iter()
            .flat_map(|class| Mobility::ALL.into_iter().map(move |mobility| (class, mobility)))
            .map(|(class, mobility)| (class, mobility, self.shelf(class, mobility)))
    }

    /// Pages on all shelves.
    pub fn shelved_pages(&self) -> u64 {
        self.shelves()
            .map(|(class, _, shelf)| u64::from(shelf.count()) * u64::from(class.magazine_frames()))
            .sum()
    }
}

/// What a CPU keeps for all zones.
#[repr(C, align(128))]
pub struct CpuShared {
    pub empties: Empties,
    pub node: NodeId,
    /// By the level a request states, the zone to try first; [`NO_ZONE`]: none will do.
    pub first_zones: [u8; LEVELS],
}

/// Levels a request can state: 0 to 14, and any.
pub const LEVELS: usize = 16;
/// No zone.
pub const NO_ZONE: u8 = u8::MAX;

impl CpuShared {
    pub fn new(node: NodeId, first_zones: [u8; LEVELS]) -> Self {
        CpuShared { empties: Empties::new(), node, first_zones }
    }
}

const _: () = assert!(align_of::<Magazine>() <= align_of::<Pcp>());
#[cfg(not(loom))]
const _: () =
    assert!(core::mem::offset_of!(Pcp, shelves) + Mobility::COUNT * size_of::<Shelf>() <= 64);

/// How many pages are on their way, and how often some have been returned to the store.
///
/// | bits | field |
/// |---|---|
/// | 0..=31 | pages in flight: taken from one place and not yet in the next |
/// | 32..=63 | moves ended, modulo 2^32 |
///
/// A request fails for lack of memory only if it scanned the store while, on every CPU, this word
/// had nothing in flight before and the same value after: a page that moved behind the scan's back
/// was in flight when the move began and is counted when it ended. What one atomic operation moves
/// between a caller and the store is never in flight; see [`pressure`](crate::alloc).
pub struct InFlight(AtomicU64);

const ONE_MOVE: u64 = 1 << 32;

impl InFlight {
    /// Announces that up to `pages` pages will be in nobody's metadata until the value is dropped.
    pub fn begin(&self, pages: u64) -> Moving<'_> {
        #[cfg(all(any(loom, shuttle), test))]
        let pages = if is_mutant(Mutant::Unannounced) { 0 } else { pages };
        // SeqCst: before the frames leave their place, in the eyes of a scanner that reads this
        // word SeqCst before and after its scan.
        self.0.fetch_add(pages, Ordering::SeqCst);
        Moving { in_flight: self, pages }
    }

    /// The word now.
    pub fn read(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    /// Pages in flight according to a word.
    pub fn in_flight_pages(word: u64) -> u64 {
        word & (ONE_MOVE - 1)
    }

    pub fn new() -> Self {
        InFlight(AtomicU64::new(0))
    }
}

/// Pages in flight; ended by dropping, also when a panic unwinds.
pub struct Moving<'f> {
    in_flight: &'f InFlight,
    pages: u64,
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        self.in_flight.0.fetch_add(ONE_MOVE.wrapping_sub(self.pages), Ordering::SeqCst);
    }
}

/// Cells of [`Blocks`]; a model has fewer of them to read.
const BLOCK_CELLS: usize = if cfg!(loom) { 1 } else { Order::COUNT };

/// Blocks by order: one operation counts a block and its pages.
pub struct Blocks([AtomicU64; BLOCK_CELLS]);

impl Blocks {
    fn new() -> Self {
        Blocks(core::array::from_fn(|_| AtomicU64::new(0)))
    }

    /// Counts one block that left the store.
    #[inline]
    pub fn count_out(&self, order: Order) {
        count(&self.0[order.index() % BLOCK_CELLS], 1);
    }

    /// Counts one block that came back to the store, which is also a move (see [`InFlight`]). Call
    /// when it is there and the zone's free pages say so.
    #[inline]
    pub fn count_back(&self, order: Order) {
        #[cfg(all(any(loom, shuttle), test))]
        if is_mutant(Mutant::Uncounted) {
            return;
        }
        // SeqCst: as the end of a move in the in_flight.
        self.0[order.index() % BLOCK_CELLS].fetch_add(1, Ordering::SeqCst);
    }

    /// How often some came back.
    pub fn moves(&self) -> u64 {
        self.0.iter().fold(0, |sum, cell| sum.wrapping_add(cell.load(Ordering::SeqCst)))
    }

    fn blocks_and_pages(&self) -> (u64, u64) {
        let counts = || self.0.iter().map(|cell| cell.load(Ordering::Relaxed));
        (counts().sum(), (0..).zip(counts()).map(|(order, blocks)| blocks << order).sum())
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Counters of a CPU and zone, or a sum of them. Statistics: each is exact, but they are
        /// not read at one moment.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Counts {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl core::ops::AddAssign for Counts {
            fn add_assign(&mut self, other: Counts) {
                $(self.$name += other.$name;)*
            }
        }

        /// The cells behind [`Counts`]. In this order: refills and spills count on one line.
        #[repr(C)]
        pub struct Counters {
            $(pub $name: AtomicU64,)*
            /// Single blocks allocated past the caches, besides `direct_allocs` and their pages.
            pub blocks_out: Blocks,
            /// Single blocks freed past the caches, besides `direct_frees` and their pages.
            pub blocks_back: Blocks,
        }

        impl Counters {
            pub fn new() -> Self {
                Counters {
                    blocks_out: Blocks::new(),
                    blocks_back: Blocks::new(),
                    $($name: AtomicU64::new(0),)*
                }
            }

            pub fn read(&self) -> Counts {
                let mut counts = Counts { $($name: self.$name.load(Ordering::Relaxed),)* };
                let [out, back] = [&self.blocks_out, &self.blocks_back].map(Blocks::blocks_and_pages);
                counts.direct_allocs += out.0;
                counts.direct_alloc_pages += out.1;
                counts.direct_frees += back.0;
                counts.direct_free_pages += back.1;
                counts
            }
        }
    };
}

counters! {
    /// Allocations and frees served by the fronts alone.
    hits,
    /// Allocations served by a full magazine from the CPU's shelf.
    shelf_hits,
    /// Magazines filled from the store.
    refills,
    /// Blocks moved from the store to the CPU: into magazines, or to the request that caused it.
    refilled_blocks,
    /// Pages in them.
    refilled_pages,
    /// Magazines emptied into the store because the CPU was above `high`, or decayed.
    spills,
    /// Blocks moved from the CPU to the store, drains not included.
    spilled_blocks,
    /// Pages in them.
    spilled_pages,
    /// Blocks taken back by drains.
    drained_blocks,
    /// Pages in them.
    drained_pages,
    /// Blocks allocated from the store directly: uncached orders, closed gates, nested interrupts.
    direct_allocs,
    /// Pages in them, and in contiguous ranges.
    direct_alloc_pages,
    /// Blocks freed to the store directly.
    direct_frees,
    /// Pages in them, and in contiguous ranges.
    direct_free_pages,
    /// Sequences that found another word than they had read (a preemption, a drain) and retried.
    lost_races,
    /// Pages freed on another CPU than the one that got them; counted with `track_owner` only.
    remote_freed_pages,
    /// Requests that failed, those for ranges and for frames at given addresses included.
    failures,
}

/// Adds to a counter.
#[inline]
pub fn count(cell: &AtomicU64, n: u64) {
    // No protocol reads counters; to a model each would be one more place to switch threads.
    if cfg!(loom) {
        return;
    }
    // Relaxed: a statistic.
    cell.fetch_add(n, Ordering::Relaxed);
}
