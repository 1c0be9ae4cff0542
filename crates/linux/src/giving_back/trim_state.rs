//! One caller trims; requests that run short wait for the pages it has taken.
//!
//! # Invariants
//! 1. At most one caller trims: `is_running`.
//! 2. A request that finds no page because a trim took it finds `taken_pages` raised: the trimmer
//!    raises it before the claim. The claim is the store's, a read-modify-write that releases, and
//!    a request that found nothing has acquired it.
//! 3. A request that has waited finds all the pages that were taken when it began: the trimmer
//!    returns them before it clears `taken_pages`.
//! 4. No waiter sleeps forever: it sleeps only while `taken_pages` is what it read, and the trimmer
//!    wakes all waiters after clearing it. A trimmer that is stopped delays a waiter by
//!    [`WAIT_MS_MAX`].
//! 5. A thread never waits for its own trim: `trimmer` names the thread.
//!
//! Explored by `tests/loom/trimming.rs`.

use crate::system::prim::{
    AtomicBool, AtomicU32, AtomicU64, Ordering, now_ms, thread_id, wait, wake_all,
};

/// The longest that a request waits for a chunk. A trimmer that is stopped must not stop others.
const WAIT_MS_MAX: u64 = 1000;
/// Milliseconds after a request ran short during which no trim takes pages.
const CALM_MS: u64 = 20;

/// The state that trims and requests share.
#[derive(Default)]
pub(crate) struct TrimState {
    is_running: AtomicBool,
    /// Id of the thread that trims. 0: no thread trims, or the trimmer has not stored its id yet.
    trimmer: AtomicU32,
    /// Pages that the trimmer holds now. Waiters sleep on this word.
    taken_pages: AtomicU32,
    /// Time at which a request last ran short, in milliseconds of [`now_ms`] plus 1; 0: never.
    short_ms: AtomicU64,
    /// Bytes that were present in pageblocks which reports gave back. The caller with the right to
    /// trim changes it.
    reported_bytes: AtomicU64,
}

/// The right to trim. Dropping it gives the right up, also when the trim panics.
pub(crate) struct Trimming<'s>(&'s TrimState);

impl TrimState {
    /// Takes the right to trim. `None`: another caller has it.
    pub fn begin(&self) -> Option<Trimming<'_>> {
        // Acquire: pairs with the Release in `Trimming::drop`.
        if self.is_running.swap(true, Ordering::Acquire) {
            return None;
        }
        // Relaxed: only a signal handler of this thread compares it.
        self.trimmer.store(thread_id(), Ordering::Relaxed);
        Some(Trimming(self))
    }

    /// Waits until the trimmer has returned the pages that it holds. Returns how many those were: 0
    /// if there were none, or if it did not return them in time.
    pub fn wait_for_pages(&self) -> u32 {
        self.note_short();
        // Acquire: pairs with the Release in `Trimming::returned`.
        let taken_pages = self.taken_pages.load(Ordering::Acquire);
        // Relaxed: a thread reads what it stored itself, or what came later.
        if taken_pages == 0 || self.trimmer.load(Ordering::Relaxed) == thread_id() {
            return 0;
        }
        let end_ms = now_ms() + WAIT_MS_MAX;
        loop {
            // Acquire: as above.
            let seen = self.taken_pages.load(Ordering::Acquire);
            let left_ms = end_ms.saturating_sub(now_ms());
            if seen == 0 || left_ms == 0 {
                self.note_short();
                return if seen == 0 { taken_pages } else { 0 };
            }
            wait(&self.taken_pages, seen, left_ms as u32);
        }
    }

    /// Counts bytes that a report gave back.
    pub fn count_reported(&self, bytes: u64) {
        // Relaxed: a count publishes nothing, and its reader has the right to trim as its writer.
        self.reported_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn note_short(&self) {
        // Relaxed: see `Trimming::is_unwelcome`.
        self.short_ms.store(now_ms() + 1, Ordering::Relaxed);
    }
}

impl Trimming<'_> {
    /// Whether a request ran short lately. Then free pages are left to it.
    pub fn is_unwelcome(&self) -> bool {
        // Relaxed: a trimmer that sees it late takes one more chunk, which is waited for.
        let short_ms = self.0.short_ms.load(Ordering::Relaxed);
        short_ms != 0 && (now_ms() + 1).saturating_sub(short_ms) < CALM_MS
    }

    /// Bytes that reports gave back so far.
    pub fn reported_bytes(&self) -> u64 {
        // Relaxed: see `count_reported`.
        self.0.reported_bytes.load(Ordering::Relaxed)
    }

    /// Takes `pages` pages by `claim`. Returns whether that succeeded.
    pub fn take(&self, pages: u32, claim: impl FnOnce() -> bool) -> bool {
        // Raised first, so that a request which finds nothing afterwards knows why. Relaxed: the
        // claim publishes it (invariant 2).
        self.0.taken_pages.fetch_add(pages, Ordering::Relaxed);
        let is_taken = claim();
        if !is_taken {
            self.0.taken_pages.fetch_sub(pages, Ordering::Relaxed);
        }
        is_taken
    }

    /// Says that all pages taken are in the store again, and wakes the waiters.
    pub fn returned(&self) {
        // Release: pairs with the Acquire in `wait_for_pages`.
        self.0.taken_pages.store(0, Ordering::Release);
        wake_all(&self.0.taken_pages);
    }
}

impl Drop for Trimming<'_> {
    fn drop(&mut self) {
        // Relaxed: this thread's own count. A panic in a pass has left it, whose pages are back.
        if self.0.taken_pages.load(Ordering::Relaxed) != 0 {
            self.returned();
        }
        // Relaxed: as in `begin`.
        self.0.trimmer.store(0, Ordering::Relaxed);
        // Release: pairs with the Acquire in `begin`.
        self.0.is_running.store(false, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// A trim that ends by a panic leaves no pages for requests to wait for.
    #[test]
    fn the_right_ends_with_its_pages() {
        let state = TrimState::default();
        let trimming = state.begin().unwrap();
        assert!(trimming.take(3, || true));
        drop(trimming);
        assert_eq!(state.taken_pages.load(Ordering::Relaxed), 0);
        assert!(state.begin().is_some(), "the right comes back");
    }
}
