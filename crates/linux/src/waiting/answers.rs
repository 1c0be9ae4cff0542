//! The answers of a monitor to requests that rang.
//!
//! # Invariants
//! 1. A request that rang sleeps until an answer that was given after it looked. It reads the
//!    number of answers before it rings, and sleeps only while the number is the same. So an answer
//!    to the ring is never slept through. (It may be woken by the answer to an earlier ring, and
//!    then has what that one freed.)
//! 2. A request that sees an answer's number finds what the answer freed.
//! 3. No request sleeps for longer than [`WAIT_MAX`]. A callback may wait for a lock that the
//!    request holds.
//!
//! Explored by `tests/loom/answers.rs`.

use std::time::Duration;

use crate::system::prim::{AtomicU32, AtomicU64, Ordering, now_ms, wait, wake_all};

/// The longest that a request waits for an answer.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(1);
/// Milliseconds after an answer that freed nothing in which no request rings.
const CALM_MS: u64 = 20;

#[derive(Default)]
pub(crate) struct Answers {
    /// Answers so far. Requests sleep on this word.
    count: AtomicU32,
    /// Pages that the last answer freed.
    freed_pages: AtomicU64,
    /// Time of the last answer that freed nothing, in milliseconds of [`now_ms`] plus 1; 0: never.
    vain_ms: AtomicU64,
}

impl Answers {
    /// Tells the requests that wait how many pages were freed for them.
    pub fn give(&self, freed_pages: u64) {
        let vain_ms = if freed_pages == 0 { now_ms() + 1 } else { 0 };
        // Relaxed: a request that reads an older value rings once more, or once less.
        self.vain_ms.store(vain_ms, Ordering::Relaxed);
        // Relaxed: published by the count.
        self.freed_pages.store(freed_pages, Ordering::Relaxed);
        // Release: pairs with the Acquire in `after`.
        self.count.fetch_add(1, Ordering::Release);
        wake_all(&self.count);
    }

    /// Whether an answer lately freed nothing. Then the next would not, either.
    pub fn was_in_vain(&self) -> bool {
        // Relaxed: see `give`.
        let vain_ms = self.vain_ms.load(Ordering::Relaxed);
        vain_ms != 0 && (now_ms() + 1).saturating_sub(vain_ms) < CALM_MS
    }

    /// Rings, and returns how many pages the next answer freed: 0 if there was none in time, the
    /// time of `ring` included, or if `ring` failed.
    pub fn after(&self, ring: impl FnOnce() -> bool) -> u64 {
        let end_ms = now_ms() + WAIT_MAX.as_millis() as u64;
        // Relaxed: the count alone; the ring orders it before the answer.
        let seen = self.count.load(Ordering::Relaxed);
        if !ring() {
            return 0;
        }
        loop {
            let left_ms = end_ms.saturating_sub(now_ms());
            // Acquire: pairs with the Release in `give`.
            if self.count.load(Ordering::Acquire) != seen {
                // Relaxed: published by the count.
                return self.freed_pages.load(Ordering::Relaxed);
            }
            if left_ms == 0 {
                return 0;
            }
            wait(&self.count, seen, left_ms as u32);
        }
    }
}
