//! Where a movable page is: one word that its holder and compaction agree upon.
//!
//! | bits | field |
//! |---|---|
//! | 0..=31 | page number |
//! | 32..=61 | accesses in progress |
//! | 62 | compaction copies the page |
//! | 63 | the holder gives the page up |
//!
//! | transition | by |
//! |---|---|
//! | accesses + 1 | a thread that begins one, if neither bit is set |
//! | accesses - 1 | the same thread, later |
//! | copies, from no accesses and neither bit | compaction |
//! | no copies, and perhaps another page | the same compaction |
//! | given up, from no accesses and neither bit | the holder, once |
//!
//! # Invariants
//! 1. While there are accesses, or the page was given up, compaction does not copy it.
//! 2. While it is copied there is no access: a thread that wants one waits until the bit is clear.
//!    Compaction copies for some microseconds, and takes no lock and waits for nothing meanwhile.
//! 3. A page number changes only from copied to not copied. A thread that begins an access acquires
//!    that change, so it finds the copy complete.
//! 4. What an access wrote is in the copy: its end releases, and compaction acquires it.
//!
//! Explored by `tests/loom/movable.rs`.

use crate::prim::{AtomicU64, Ordering, yield_now};

const PAGE: u64 = u32::MAX as u64;
const ACCESS: u64 = 1 << 32;
const COPIED: u64 = 1 << 62;
const GIVEN_UP: u64 = 1 << 63;
const ACCESSES: u64 = COPIED - ACCESS;

/// The word of a movable page.
pub(crate) struct Place(AtomicU64);

/// What compaction finds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Found {
    /// The page was copied or is being used.
    Busy,
    /// It was given up, or lies elsewhere.
    Elsewhere,
    /// It is compaction's to copy.
    Ours,
}

impl Place {
    pub fn new(page: u32) -> Self {
        Place(AtomicU64::new(page.into()))
    }

    /// Begins an access, after waiting for a copy to end; returns the page.
    ///
    /// # Panics
    /// With 2^30 accesses at once.
    pub fn begin_access(&self) -> u32 {
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            if word & COPIED != 0 {
                yield_now();
                word = self.0.load(Ordering::Relaxed);
                continue;
            }
            debug_assert!(word & GIVEN_UP == 0, "a page is given up once, by its holder");
            assert!(word & ACCESSES != ACCESSES, "2^30 accesses to a page at once");
            // Acquire: pairs with the Release in `end_copy` (invariant 3).
            let next = word + ACCESS;
            match self.0.compare_exchange_weak(word, next, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return (word & PAGE) as u32,
                Err(now) => word = now,
            }
        }
    }

    /// Ends an access.
    pub fn end_access(&self) {
        // Release: pairs with the Acquire in `begin_copy` and `give_up` (invariant 4).
        self.0.fetch_sub(ACCESS, Ordering::Release);
    }

    /// The page, at this moment.
    pub fn page(&self) -> u32 {
        (self.0.load(Ordering::Relaxed) & PAGE) as u32
    }

    /// Begins a copy of the page, if it is this one and not in use.
    pub fn begin_copy(&self, page: u32) -> Found {
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            if word & GIVEN_UP != 0 || word & PAGE != u64::from(page) {
                return Found::Elsewhere;
            }
            if word & (ACCESSES | COPIED) != 0 {
                return Found::Busy;
            }
            // Acquire: pairs with the Release in `end_access` (invariant 4).
            let next = word | COPIED;
            match self.0.compare_exchange_weak(word, next, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Found::Ours,
                Err(now) => word = now,
            }
        }
    }

    /// Ends a copy; the page is this one from now on.
    pub fn end_copy(&self, page: u32) {
        // Release: pairs with the Acquire in `begin_access` and `give_up` (invariant 3). A plain
        // store: all others only read while the bit is set.
        self.0.store(page.into(), Ordering::Release);
    }

    /// Gives the page up for good, after waiting for a copy to end; returns it. The caller is the
    /// holder, and there is no access.
    pub fn give_up(&self) -> u32 {
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            if word & COPIED != 0 {
                yield_now();
                word = self.0.load(Ordering::Relaxed);
                continue;
            }
            // Acquire: as in `begin_access` and `begin_copy`.
            let next = word | GIVEN_UP;
            match self.0.compare_exchange_weak(word, next, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return (word & PAGE) as u32,
                Err(now) => word = now,
            }
        }
    }
}
