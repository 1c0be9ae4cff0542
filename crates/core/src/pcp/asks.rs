//! Asks: how a drain knows that a CPU's fronts have been taken since it asked for them.
//!
//! # Theory
//! `front/gate.rs` argues which code may touch a CPU's words, and when. Here is how a drain knows
//! that its ask was answered. Each such drain has a number. A CPU has two: `asked`, the highest
//! number of a drain that asked it, and `answered`. The holder of the CPU's gate that may touch its
//! words (its owner, a handover that finds it quiescent, a full drain, a disabler) reads `asked`,
//! takes the fronts, writes that number to `answered`, and reopens. So:
//!
//! 1. *`answered >= n` means that all that lay in the fronts when drain n asked has been taken*,
//!    and is on the CPU's stack of what was handed over, in the store, or in a drainer's hands: the
//!    number was written to `asked` before the holder read it, and it took the fronts after that.
//! 2. *Each look of a drain makes up for what went wrong before*: while its number is not answered
//!    it asks again where the gate is open (a holder came in between that had read `asked` too
//!    early, or could not fence). A drain remembers nothing of a CPU. Two drains that ask are
//!    answered by one handover.
//! 3. *A sleeper misses no answer.* It adds itself to `waiters`, then looks at `answered`. A holder
//!    writes `answered`, then looks at `waiters` (Dekker): either the sleeper sees the answer, or
//!    the holder changes the word that it sleeps on. A CPU that becomes quiescent changes no
//!    word, so sleepers look again at least every 32 ms.
//!
//! A CPU without magazines outside its stacks of empties has nothing to hand over and is not asked.
//!
//! What a handover costs its owner, at most: one claim; per zone and context 66 words read twice,
//! or 33 where nothing is avoided (88 and 44 where movable requests are kept apart); per front with
//! magazines 2 links; per zone with pages 5 atomic operations; and a refill afterwards.

use crate::sync::counts;
use crate::sync::prim::{AtomicU32, AtomicU64, Ordering};
use crate::sync::total::ASKS;

/// Messages between drains that ask for a CPU's fronts and those that take them.
#[derive(Default)]
pub struct Asks {
    /// The last ask.
    asked: AtomicU64,
    /// The last ask that was answered: the fronts were taken after it.
    answered: AtomicU64,
    pub counts: HandoverCells,
}

impl Asks {
    /// The ask that a holder answers by what it takes from now on; `None`: all are answered.
    pub fn open(&self) -> Option<u64> {
        // SeqCst: after the claim or the closing, see `gate::ask`.
        let asked = self.asked.load(ASKS.look());
        // Relaxed: the holder of the gate alone writes it.
        (self.answered.load(Ordering::Relaxed) != asked).then_some(asked)
    }

    /// Answers it. For the holder of the gate, after the fronts were taken.
    pub fn answer(&self, ask: u64) {
        // SeqCst: Release pairs with the load in `is_answered`; SeqCst see 3.
        self.answered.store(ask, ASKS.change());
        ASKS.fence();
    }

    pub fn is_answered(&self, number: u64) -> bool {
        self.answered.load(ASKS.look()) >= number
    }

    /// Notes an ask; `true`: it is new.
    pub fn note(&self, number: u64) -> bool {
        // SeqCst: before the gate is closed, see `gate::ask`. The load keeps the line shared when a
        // drain looks again.
        self.asked.load(ASKS.look()) < number
            && self.asked.fetch_max(number, ASKS.change()) < number
    }
}

/// Callers that sleep until CPUs have handed over.
#[derive(Default)]
pub struct Sleepers {
    /// CPUs that were taken while there were sleepers; wraps around. Sleepers sleep on it.
    ended: AtomicU32,
    /// Callers that sleep, or are about to.
    waiters: AtomicU32,
}

impl Sleepers {
    /// The caller is about to sleep, until the value is dropped.
    pub fn begin(&self) -> SleepGuard<'_> {
        // SeqCst: see 3.
        self.waiters.fetch_add(1, ASKS.change());
        ASKS.fence();
        SleepGuard(self)
    }

    /// Ends an answer, once the holder has reopened its gate; returns the word to wake sleepers by,
    /// if there are any.
    pub fn end(&self) -> Option<&AtomicU32> {
        // SeqCst: see 3. The answer and the reopening came before.
        if self.waiters.load(ASKS.look()) == 0 {
            return None;
        }
        // Release: pairs with the Acquire in `SleepGuard::seen`.
        self.ended.fetch_add(1, Ordering::Release);
        Some(&self.ended)
    }
}

/// A caller that sleeps; see [`Sleepers::begin`].
pub struct SleepGuard<'s>(&'s Sleepers);

impl<'s> SleepGuard<'s> {
    /// The word to sleep on, and its value: to be read before the caller looks for answers.
    pub fn seen(&self) -> (&'s AtomicU32, u32) {
        (&self.0.ended, self.0.ended.load(Ordering::Acquire))
    }
}

impl Drop for SleepGuard<'_> {
    fn drop(&mut self) {
        // Relaxed: a holder that still sees it makes a needless call to wake.
        self.0.waiters.fetch_sub(1, Ordering::Relaxed);
    }
}

counts! {
    /// Counts of a CPU's asks. Sums over CPUs by `+=`.
    HandoverCounts of HandoverCells {
        /// Drains that asked for its fronts.
        asked,
        /// Times that it handed them over itself.
        handed,
        /// Times that a drain that had asked took them, because the CPU was quiescent.
        quiescent,
        /// Times that a drain that had asked fenced the CPU, at its deadline.
        escalated,
        /// Pages that it handed over itself.
        handed_pages,
    }
}
