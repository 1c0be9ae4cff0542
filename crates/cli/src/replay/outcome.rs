//! The result of a run of a plan, and the faults that it finds.

use pagedepot_designs::{Census, Volume};

use super::look::Look;
use super::target::ReplayCounts;

/// A fault that a run found.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    #[error("the replay does not balance: {0}; the allocator's counters or its caches are wrong")]
    Unbalanced(Balance),
    #[error(
        "two runs of one plan ended differently: {0:?} and {1:?}; the allocator is not \
         deterministic"
    )]
    Different(Box<ReplayCounts>, Box<ReplayCounts>),
    #[error("{lost} frames lost at the end of the replay: {census:?}, {held} pages held")]
    LostFrames { lost: i64, census: Census, held: u64 },
    #[error(
        "{missing} of {managed} frames did not come back after everything was freed and drained"
    )]
    NotAllReturned { missing: i64, managed: u64 },
    #[error("{0}")]
    Metadata(String),
    #[error(
        "no room for {0} blocks held before the recording: is the zoneinfo that of the trace's \
         machine?"
    )]
    NoRoom(usize),
    #[error(
        "the allocator failed {0} allocations: has the zoneinfo all zones of the trace's machine?"
    )]
    Failed(u64),
}

impl ReplayError {
    /// Whether it is the machine that was set up, not the allocator, that is at fault.
    pub fn is_of_the_machine(&self) -> bool {
        matches!(self, ReplayError::NoRoom(_) | ReplayError::Failed(_))
    }
}

/// One run of a plan.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Allocations and frees replayed: what the time is divided by. A batch counts each of its
    /// blocks.
    pub events: u64,
    /// See "What is measured" in the module `engine`.
    pub elapsed_ns: u64,
    /// Blocks allocated and freed.
    pub allocated: Volume,
    pub freed: Volume,
    /// Pages handed out when the trace ended.
    pub held_pages: u64,
    /// Contiguity of free memory over the run; only of the checked one.
    pub looks: Vec<Look>,
    /// Counts of the target's caches during the run.
    pub counts: ReplayCounts,
    /// Pages in and out of the caches.
    pub balance: Balance,
    /// Most pages cached at once, of those seen between groups of operations.
    pub cached_pages_peak: u64,
    /// The places of the frames when the trace ended.
    pub census: Census,
    /// Frames that were then neither free, nor cached, nor held, nor the allocator's own.
    pub lost_frames: i64,
}

impl Outcome {
    /// Nanoseconds per event.
    pub fn event_ns(&self) -> f64 {
        self.elapsed_ns as f64 / self.events.max(1) as f64
    }

    /// The outcome, if what came to the CPUs and left them explains what they cache.
    ///
    /// # Errors
    /// When it does not.
    pub fn balanced(self) -> Result<Self, ReplayError> {
        if self.balance.holds() { Ok(self) } else { Err(ReplayError::Unbalanced(self.balance)) }
    }

    /// The outcome, if the same happened as in `other`, block by block.
    ///
    /// # Errors
    /// When something else did.
    pub fn same_as(self, other: &Outcome) -> Result<Self, ReplayError> {
        if self.counts.blocks() == other.counts.blocks()
            && self.counts.cached_pages == other.counts.cached_pages
        {
            return Ok(self);
        }
        Err(ReplayError::Different(Box::new(self.counts), Box::new(other.counts.clone())))
    }
}

/// Pages that came to the CPUs and left them. What went past the caches is in both `refilled` and
/// `allocated`, or in both `freed` and `spilled`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Balance {
    pub before: u64,
    pub refilled: u64,
    pub spilled: u64,
    pub freed: u64,
    pub allocated: u64,
    pub after: u64,
}

impl Balance {
    /// Whether what is cached is what came in less what went out.
    pub fn holds(&self) -> bool {
        let incoming = u128::from(self.before) + u128::from(self.refilled) + u128::from(self.freed);
        let outgoing =
            u128::from(self.spilled) + u128::from(self.allocated) + u128::from(self.after);
        incoming == outgoing
    }
}

impl std::fmt::Display for Balance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Balance { before, refilled, spilled, freed, allocated, after } = self;
        let sign = if self.holds() { '=' } else { '≠' };
        write!(
            f,
            "{before} before + {refilled} refilled - {spilled} spilled + {freed} freed - \
             {allocated} allocated {sign} {after} cached"
        )
    }
}
