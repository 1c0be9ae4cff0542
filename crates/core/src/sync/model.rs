//! Changes under a model checker: smaller constants, policies that are left out, and steps that a
//! mutant leaves out.
//!
//! To loom each access of an atomic is one more place to switch threads, and each further round of
//! a loop multiplies the executions. So constants shrink until races need two or three steps
//! ([`bound`]), and what only policies and statistics read is not written at all ([`IS_LOOM`]).
//!
//! A *mutant* is a protocol without one of the steps that its argument rests on. A model of that
//! protocol must fail for the mutant, or the model would see nothing. Code asks [`is_mutant`] where
//! such a step is; outside of models the answer is a constant.

/// Whether loom explores this build. It is asked where production reads or writes what no protocol
/// depends on.
pub const IS_LOOM: bool = cfg!(loom);

/// The value that a constant has in production, or the one that it has in a model of loom.
pub const fn bound<T: Copy>(production: T, model: T) -> T {
    if IS_LOOM { model } else { production }
}

/// A step that is left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutant {
    /// `Cpus::fence` of a model does nothing.
    NoFence,
    /// Beginning a sequence aborts no other sequence on its CPU.
    NoPreemption,
    /// Sequences read their gate before they begin.
    GateReadEarly,
    /// An interrupt handler has a lock front of its own beside its CPU's.
    TwoLocks,
    /// The gate of a CPU behind a lock lets sequences in.
    OpensToAll,
    /// A drainer that has a lock ends doubts that came after it took the lock.
    EndsLaterDoubts,
    /// An interrupt handler uses the fronts of the task it interrupted.
    OneContext,
    /// Changes of the protocol `total::HINTS` may pass its later looks.
    UnorderedHints,
    /// Changes of the protocol `total::SHELVES` may pass its later looks.
    UnorderedShelves,
    /// Changes of the protocol `total::ASKS` may pass its later looks.
    UnorderedAsks,
    /// Changes of the protocol `total::DRIFT_MARK` may pass its later looks.
    UnorderedMark,
    /// In-flight words show no pages in flight.
    Unannounced,
    /// Pages in flight are noted as a caller's beside those of another one.
    NotesBeside,
    /// Blocks that come back by one atomic operation count as no move.
    Uncounted,
    /// A search that has cleared a mark of the summary does not look at the hints again.
    ClearsUnseen,
    /// The taker that clears the `whole` hint leaves it to others to mark the pageblock as partial.
    MarksByOneHint,
    /// A search that has noted that a pageblock lacks an order does not look at the words again.
    LacksUnseen,
    /// The taker that makes a cold pageblock warm does not look whether it is whole by now.
    WarmsUnseen,
    /// Memory is added without being announced as in flight.
    AddsUnannounced,
    /// The loser of a race to add memory leaves the pageblocks that it has claimed.
    LeavesTags,
    /// A value that is made later is published by a relaxed store.
    PublishesRelaxed,
    /// Memory is removed though a frame is missing.
    RemovesHeld,
    /// A claim across sections that finds a frame missing keeps what it has of the sections before.
    KeepsPart,
    /// A CPU is charged with no magazine.
    Uncharged,
    /// A magazine is stolen by looking at the top of another CPU's empties, and left there.
    LeavesStolen,
    /// A refill fills the front's second magazine and leaves it in the word meanwhile.
    FillsUntaken,
    /// Two magazines that a front is to give up are linked while its word still names them.
    LinksEarly,
    /// A front's blocks are divided between magazines that its word still names.
    DividesInPlace,
    /// Compaction frees a block that was gone when it was to be moved.
    FreesGone,
    /// Compaction isolates one pageblock of a block that lies in two.
    LeavesEdge,
    /// Compaction keeps destinations to which nothing was moved.
    KeepsDestination,
    /// A batch copies its blocks once they have left the front.
    CopiesLate,
    /// Operations on a stack leave its tag as it is.
    Untagged,
    /// A gate is claimed wherever the code runs, outside of any sequence.
    ClaimsAnywhere,
    /// A drainer takes what is behind a gate that was asked without a fence or quiescence.
    TakesUnquiet,
    /// An owner answers asks before it takes its fronts.
    AnswersEarly,
    /// The caller that changes whether a pageblock is avoided does not look at its tag again after
    /// it has copied it.
    CopiesOnce,
    /// A pageblock is woken by a look and a store, which are two steps.
    WakesTwice,
    /// The device is asked again for what it has just refused.
    ForgetsRefusals,
    /// Entire pageblocks are taken by a look and a store, which are two steps.
    TakesTwice,
    /// The caller that puts a pageblock as entire does not set the mark that leads there.
    EntireUnmarked,
    /// A pass gives pageblocks up before the device has taken the report.
    ReportsLate,
    /// A caller that says that a zone is above its drift mark does not read the count again.
    LooksOnce,
    /// A caller that removes a claim to say so makes no new version.
    ClaimsAlike,
    /// A report of taken pages forgets them before it subtracts them above.
    ForgetsFirst,
    /// A sum reads a level only after those below it.
    SumsOnce,
}

// Loom and shuttle run all threads of a model on the test's own thread.
#[cfg(any(loom, shuttle))]
std::thread_local! {
    static MUTANT: core::cell::Cell<Option<Mutant>> = const { core::cell::Cell::new(None) };
}

/// Makes the models of this test thread leave out a step.
#[cfg(any(loom, shuttle))]
pub fn set_mutant(mutant: Mutant) {
    MUTANT.set(Some(mutant));
}

/// Whether the code that asks is to leave out this step: `false` outside of models.
#[inline(always)]
pub fn is_mutant(mutant: Mutant) -> bool {
    #[cfg(any(loom, shuttle))]
    return MUTANT.get() == Some(mutant);
    #[cfg(all(feature = "simulated", not(any(loom, shuttle))))]
    return pagedepot_sim_machine::mutant::get() == Some(mutant as u8);
    #[cfg(not(any(loom, shuttle, feature = "simulated")))]
    {
        let _ = mutant;
        false
    }
}
