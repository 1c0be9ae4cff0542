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
//! 4. The end of a monitor is no answer: a request may have rung for another monitor. It rings
//!    again, and looks for pages if there is no monitor to ring for.
//!
//! Explored by `tests/loom/answers.rs`.

use std::time::Duration;

use crate::system::prim::{AtomicU32, AtomicU64, Ordering, now_ms, wait, wake_all};

/// The longest that a request waits for an answer.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(1);
/// Milliseconds after an answer that freed nothing in which no request rings.
const CALM_MS: u64 = 20;
/// The place of [`Answers::freed_pages`] after the end of a monitor.
const ENDED: u64 = u64::MAX;

#[derive(Default)]
pub(crate) struct Answers {
    /// Answers so far. Requests sleep on this word.
    count: AtomicU32,
    /// Pages that the last answer freed, or [`ENDED`].
    freed_pages: AtomicU64,
    /// Time of the last answer that freed nothing or did not come, in milliseconds of [`now_ms`]
    /// plus 1; 0: never.
    vain_ms: AtomicU64,
}

impl Answers {
    /// Tells the requests that wait how many pages were freed for them.
    pub fn give(&self, freed_pages: u64) {
        self.note_vain(freed_pages == 0);
        self.wake(freed_pages);
    }

    /// Has the requests that wait ring again: a monitor has ended.
    pub fn end(&self) {
        self.wake(ENDED);
    }

    fn wake(&self, freed_pages: u64) {
        // Relaxed: published by the count.
        self.freed_pages.store(freed_pages, Ordering::Relaxed);
        // Release: pairs with the Acquire in `after`.
        self.count.fetch_add(1, Ordering::Release);
        wake_all(&self.count);
    }

    fn note_vain(&self, is_in_vain: bool) {
        let vain_ms = if is_in_vain { now_ms() + 1 } else { 0 };
        // Relaxed: a request that reads an older value rings once more, or once less.
        self.vain_ms.store(vain_ms, Ordering::Relaxed);
    }

    /// Whether an answer lately freed nothing, or did not come. Then the next would not, either.
    pub fn was_in_vain(&self) -> bool {
        // Relaxed: see `note_vain`.
        let vain_ms = self.vain_ms.load(Ordering::Relaxed);
        vain_ms != 0 && (now_ms() + 1).saturating_sub(vain_ms) < CALM_MS
    }

    /// Rings, and returns how many pages the next answer freed: 0 if there was none in time, the
    /// time of `ring` included, which gets what is left of it, or if `ring` failed.
    pub fn after(&self, ring: impl Fn(Duration) -> bool) -> u64 {
        let end_ms = now_ms() + WAIT_MAX.as_millis() as u64;
        let left_ms = || end_ms.saturating_sub(now_ms()) as u32;
        let mut freed_pages = 0;
        loop {
            // Relaxed: the count alone; the ring orders it before the answer.
            let seen = self.count.load(Ordering::Relaxed);
            if !ring(Duration::from_millis(left_ms().into())) || !self.is_given(seen, left_ms) {
                break;
            }
            // Relaxed: published by the count.
            freed_pages = self.freed_pages.load(Ordering::Relaxed);
            if freed_pages != ENDED {
                return freed_pages;
            }
            // The end may have lifted a ceiling: a page at least.
            freed_pages = 1;
        }
        if left_ms() == 0 {
            self.note_vain(true);
        }
        freed_pages
    }

    /// Sleeps until there is an answer after the one that was seen. `false`: no time is left.
    fn is_given(&self, seen: u32, left_ms: impl Fn() -> u32) -> bool {
        loop {
            let left_ms = left_ms();
            // Acquire: pairs with the Release in `wake`.
            if self.count.load(Ordering::Acquire) != seen {
                return true;
            }
            if left_ms == 0 {
                return false;
            }
            wait(&self.count, seen, left_ms);
        }
    }
}
