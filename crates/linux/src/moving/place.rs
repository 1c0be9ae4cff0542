//! The place of a movable block: one word that its holder and compaction agree upon.
//!
//! | bits | field |
//! |---|---|
//! | 0..=31 | number of the first page; without a holder, what [`Table`] links by the word |
//! | 32..=35 | order |
//! | 36..=61 | accesses in progress |
//! | 62 | compaction copies the block |
//! | 63 | there is a holder |
//!
//! | transition | by |
//! |---|---|
//! | no holder, to a holder, a block and one access | the holder, who owns the word before |
//! | accesses + 1, from a holder and no copy | a thread that begins one |
//! | accesses - 1 | the same thread, later |
//! | copies, from a holder, this block, no accesses and no copy | compaction |
//! | no copy, and perhaps another first page | the same compaction |
//! | no holder, from no accesses and no copy | the holder, once |
//!
//! # Invariants
//! 1. While there are accesses, or no holder, compaction does not copy the block.
//! 2. While it is copied there is no access: a thread that wants one waits until the bit is clear.
//!    Between setting and clearing the bit, compaction copies one block, and writes some words. It
//!    takes no lock and calls nothing that waits or allocates, so a thread waits for microseconds,
//!    or until a preempted compaction runs again. A signal handler that interrupted the copy must
//!    not want an access.
//! 3. A first page changes only from copied to not copied. A thread that begins an access acquires
//!    that change, so it finds the copy complete.
//! 4. What an access wrote is in the copy: its end releases, and compaction acquires it.
//! 5. Compaction takes a block by one exchange, which compares page and order together. So it moves
//!    the block that is held at that moment, with its true order, whatever was found at that page
//!    before.
//! 6. A forked child has no thread that copies. It takes a block that was being copied at the fork
//!    for not copied: compaction changes nothing at the old page before the bit is clear, and in a
//!    child nothing is compacted.
//!
//! Explored by `tests/loom/movable.rs`.
//!
//! [`Table`]: crate::moving::table::Table

use crate::system::prim::{AtomicU64, ForkMark, Mutant, Ordering, back_off, is_mutant};

const PAGE: u64 = u32::MAX as u64;
const ORDER_SHIFT: u32 = 32;
const ORDER: u64 = 0xf << ORDER_SHIFT;
const ACCESS: u64 = 1 << 36;
const COPIED: u64 = 1 << 62;
const HELD: u64 = 1 << 63;
const ACCESSES: u64 = COPIED - ACCESS;

/// 2^order pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Extent {
    /// Page number of the first page.
    pub first: u32,
    pub order: u32,
}

impl Extent {
    fn bits(self) -> u64 {
        u64::from(self.first) | u64::from(self.order) << ORDER_SHIFT
    }
}

/// The word of a movable block.
#[derive(Clone, Copy)]
pub(crate) struct Place<'w>(pub &'w AtomicU64);

/// The state in which compaction finds a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PlaceState {
    /// The block is being copied or used, or is pinned.
    Busy,
    /// The block was given up, or another block lies there.
    Elsewhere,
    /// Compaction may copy the block.
    Ours,
}

impl Place<'_> {
    /// Makes it the place of a block, with one access. The caller owns the word and the block.
    pub fn open(self, extent: Extent) {
        // Relaxed: the end of the access publishes it.
        self.0.store(HELD | extent.bits() | ACCESS, Ordering::Relaxed);
    }

    /// Begins an access, after waiting for a copy to end; returns the first page.
    ///
    /// # Panics
    /// With 2^26 accesses at once.
    pub fn begin_access(self, fork_mark: ForkMark) -> u32 {
        let begun = |word: u64| {
            debug_assert!(word & HELD != 0, "its holder has it");
            assert!(word & ACCESSES != ACCESSES, "2^26 accesses to a page at once");
            word + ACCESS
        };
        (self.change(fork_mark, begun) & PAGE) as u32
    }

    /// Changes a word that is not being copied; returns what it was.
    fn change(self, fork_mark: ForkMark, new: impl Fn(u64) -> u64) -> u64 {
        let (mut word, mut rounds) = (self.0.load(Ordering::Relaxed), 0);
        loop {
            // In a child the bit stays set, which nothing looks at (invariant 6).
            let waits = || fork_mark.check().is_ok() || is_mutant(Mutant::WaitsInChild);
            if word & COPIED != 0 && waits() {
                back_off(rounds);
                rounds += 1;
                word = self.0.load(Ordering::Relaxed);
                continue;
            }
            // Acquire: pairs with the Release in `end_copy` (invariant 3).
            let exchanged =
                self.0.compare_exchange_weak(word, new(word), Ordering::Acquire, Ordering::Relaxed);
            match exchanged {
                Ok(_) => return word,
                Err(now) => word = now,
            }
        }
    }

    /// Ends an access.
    pub fn end_access(self) {
        // Release: pairs with the Acquire in `begin_copy` (invariant 4).
        self.0.fetch_sub(ACCESS, Ordering::Release);
    }

    /// The first page, at this moment.
    pub fn page(self) -> u32 {
        (self.0.load(Ordering::Relaxed) & PAGE) as u32
    }

    /// Begins a copy of the block, if it is this one and not in use.
    pub fn begin_copy(self, extent: Extent) -> PlaceState {
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            let differs = (word ^ extent.bits())
                & if is_mutant(Mutant::MovesAnyOrder) { PAGE } else { PAGE | ORDER };
            if word & HELD == 0 || differs != 0 {
                return PlaceState::Elsewhere;
            }
            if word & (ACCESSES | COPIED) != 0 {
                return PlaceState::Busy;
            }
            // Acquire: pairs with the Release in `end_access` (invariant 4).
            let next = word | COPIED;
            match self.0.compare_exchange_weak(word, next, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return PlaceState::Ours,
                Err(now) => word = now,
            }
        }
    }

    /// Ends a copy; the block is this one from now on.
    pub fn end_copy(self, extent: Extent) {
        // Release: pairs with the Acquire in `change` (invariant 3). A plain store: all others only
        // read while the bit is set.
        self.0.store(HELD | extent.bits(), Ordering::Release);
    }

    /// Gives the block up for good, after waiting for a copy to end; returns its first page. The
    /// caller is the holder, and there is no access. It owns the word from then on.
    pub fn give_up(self, fork_mark: ForkMark) -> u32 {
        (self.change(fork_mark, |word| word & PAGE) & PAGE) as u32
    }

    /// The number that a word without a holder links.
    pub fn link(self) -> u32 {
        (self.0.load(Ordering::Relaxed) & PAGE) as u32
    }

    /// Sets the link of a word without a holder, which the caller owns.
    pub fn set_link(self, to: u32) {
        // Relaxed: the list publishes it.
        self.0.store(to.into(), Ordering::Relaxed);
    }
}
