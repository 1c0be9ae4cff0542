//! The answers of a monitor to requests that rang.
//!
//! # Invariants
//! 1. A request that rang sleeps until an answer that was given after it looked. It reads the
//!    number of answers before it rings, and sleeps only while the number is the same. So an answer
//!    to the ring is never slept through. (It may be woken by the answer to an earlier ring at its
//!    depot, and then has what that one freed.)
//! 2. A request that sees an answer's number finds what the answer freed.
//! 3. No request sleeps for longer than [`WAIT_MAX`]. A callback may wait for a lock that the
//!    request holds.
//! 4. The end of a monitor, or of its limit, is no answer: a request may have rung for another
//!    monitor, or may have to. It rings again, and looks for pages if there is no monitor to ring
//!    for.
//! 5. A monitor answers the requests of those depots alone where it was rung for before it began:
//!    all pages that it frees may be of these. A request notes the monitor, and then rings. The
//!    monitor takes the note after it was woken. So it finds the note, unless a later request of
//!    the depot has rung for another monitor: then that one's answer is for both.
//!
//! Explored by `tests/loom/answers.rs`.

use std::time::Duration;

use crate::system::prim::{
    AtomicU32, AtomicU64, Mutant, Ordering, is_mutant, now_ms, wait, wake_all,
};

/// The longest that a request waits for an answer.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(1);
/// Milliseconds after an answer that freed nothing in which no request rings.
const CALM_MS: u64 = 20;
/// Milliseconds for which a request waits for a lock that another one has waited for in vain.
const HELD_MS: u32 = 20;
/// The place of [`Answers::freed_pages`] after the end of a monitor.
const ENDED: u64 = u64::MAX;

/// The outcome of an attempt to ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ring {
    /// A monitor will answer.
    Rung,
    /// There is no monitor to ring for.
    NoMonitor,
    /// A thread that sets a ceiling had the lock all the time.
    Held,
}

#[derive(Default)]
pub(crate) struct Answers {
    /// Answers so far. Requests sleep on this word.
    count: AtomicU32,
    /// Id of the thread that was last rung for, until it begins to answer; or 0.
    rung: AtomicU32,
    /// Pages that the last answer freed, or [`ENDED`].
    freed_pages: AtomicU64,
    /// Time of the last answer if it freed nothing, in milliseconds of [`now_ms`] plus 1; or 0.
    vain_ms: AtomicU64,
    /// Time until which requests wait for [`HELD_MS`] alone for a thread that sets a ceiling, in
    /// milliseconds of [`now_ms`]: one waited in vain.
    held_end_ms: AtomicU64,
}

impl Answers {
    /// Notes the thread that a request is about to wake.
    pub fn note_ring(&self, thread: u32) {
        // Release: pairs with the Acquire in `take_ring`, which may come before the ring itself. An
        // exchange: the thread that takes a later request's note is ordered after this one, too.
        self.rung.swap(thread, Ordering::Release);
    }

    /// Whether a request has rung for this thread, which begins to answer.
    pub fn take_ring(&self, thread: u32) -> bool {
        // Acquire: pairs with the Release in `note_ring`; the answer comes after the request.
        let taken = self.rung.compare_exchange(thread, 0, Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok() || is_mutant(Mutant::AnswersUnrung)
    }

    /// Tells the requests that wait how many pages were freed for them.
    pub fn give(&self, freed_pages: u64) {
        let vain_ms = if freed_pages == 0 { now_ms() + 1 } else { 0 };
        // Relaxed: a request that reads an older value rings once more, or once less.
        self.vain_ms.store(vain_ms, Ordering::Relaxed);
        self.wake(freed_pages);
    }

    /// Has the requests that wait ring again: a monitor has ended, or has no ceiling any more.
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

    /// Whether the last answer came lately and freed nothing. Then the next would not, either.
    pub fn was_in_vain(&self) -> bool {
        // Relaxed: see `give`.
        let vain_ms = self.vain_ms.load(Ordering::Relaxed);
        vain_ms != 0 && (now_ms() + 1).saturating_sub(vain_ms) < CALM_MS
    }

    /// Rings, and returns how many pages the next answer freed. 0: no monitor was rung for, or none
    /// answered in time. `ring` gets the time that it may take, which counts.
    pub fn after(&self, ring: impl Fn(Duration) -> Ring) -> u64 {
        let end_ms = now_ms() + WAIT_MAX.as_millis() as u64;
        let left_ms = || end_ms.saturating_sub(now_ms()) as u32;
        let mut has_ended = false;
        loop {
            // Relaxed: the count alone; the note of the ring orders it before the answer.
            let seen = self.count.load(Ordering::Relaxed);
            // Relaxed, and below: with an older value a request waits longer once, or less long.
            let is_held = now_ms() < self.held_end_ms.load(Ordering::Relaxed);
            let limit_ms = if is_held { HELD_MS.min(left_ms()) } else { left_ms() };
            if limit_ms == 0 {
                return 0;
            }
            match ring(Duration::from_millis(limit_ms.into())) {
                Ring::Rung => self.held_end_ms.store(0, Ordering::Relaxed),
                // The end may have lifted a ceiling: a page at least.
                Ring::NoMonitor => return has_ended.into(),
                Ring::Held => {
                    // Perhaps for the next request, too.
                    let end_ms = now_ms() + WAIT_MAX.as_millis() as u64;
                    self.held_end_ms.store(end_ms, Ordering::Relaxed);
                    return 0;
                }
            }
            if !self.is_given(seen, left_ms) {
                return 0;
            }
            // Relaxed: published by the count.
            match self.freed_pages.load(Ordering::Relaxed) {
                ENDED => has_ended = true,
                freed_pages => return freed_pages,
            }
        }
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// A lock that is held for long is waited for once, and not by each request that rings; one
    /// that is free again is waited for as before.
    #[test]
    fn a_lock_that_stays_held_is_waited_for_once() {
        let answers = Answers::default();
        let held_end_ms = || answers.held_end_ms.load(Ordering::Relaxed);
        let after = |outcome| {
            let held_end_ms = held_end_ms();
            answers.after(|limit| {
                // A thread that was stopped for a second waits again.
                let is_short = limit.as_millis() <= HELD_MS.into();
                assert!(is_short == (held_end_ms > 0) || now_ms() >= held_end_ms, "{limit:?}");
                if outcome == Ring::Rung {
                    answers.give(7);
                }
                outcome
            })
        };
        assert_eq!((after(Ring::NoMonitor), held_end_ms()), (0, 0));
        assert_eq!(after(Ring::Held), 0);
        let noted_ms = held_end_ms();
        assert!(noted_ms > 0);
        assert_eq!((after(Ring::NoMonitor), held_end_ms()), (0, noted_ms), "no lock was met");
        assert_eq!((after(Ring::Rung), held_end_ms()), (7, 0));
        assert_eq!((after(Ring::Rung), held_end_ms()), (7, 0));
        assert!(!answers.was_in_vain(), "each answer freed pages");
    }
}
