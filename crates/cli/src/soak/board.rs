//! Counts and messages that the processes of a storm share beside the segment. Both outlive any of
//! them.

use std::os::fd::OwnedFd;
use std::panic;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pagedepot_linux::shared::SentPage;
use rustix::pipe::{PipeFlags, pipe_with};

use super::options::PROCESSES_MAX;
use crate::failure::Failure;
use crate::harness::fork::Shared;

/// A kind of step of a process, which is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Join,
    Leave,
    Allocate,
    Bulk,
    Free,
    Short,
    Send,
    Claim,
    TakeBack,
    TooLate,
    Drain,
    Recover,
    Bury,
    Recovered,
    Grow,
    Shrink,
    Limit,
}

impl Action {
    /// All of them, and what their counts are called.
    pub const ALL: [(Action, &'static str); 17] = [
        (Action::Join, "processes that joined"),
        (Action::Leave, "processes that left by themselves"),
        (Action::Allocate, "blocks allocated"),
        (Action::Bulk, "batches and runs allocated"),
        (Action::Free, "blocks freed"),
        (Action::Short, "requests that found no memory"),
        (Action::Send, "pages sent"),
        (Action::Claim, "pages claimed by another process"),
        (Action::TakeBack, "pages claimed by their sender"),
        (Action::TooLate, "messages whose page was gone"),
        (Action::Drain, "drains"),
        (Action::Recover, "looks for dead processes"),
        (Action::Bury, "dead processes that a survivor found"),
        (Action::Recovered, "pages taken back from them"),
        (Action::Grow, "times the segment was grown"),
        (Action::Shrink, "times it was shrunk"),
        (Action::Limit, "times a process set its ceiling"),
    ];

    /// Whether processes that are not killed are sure to count it before long.
    pub fn is_sure(self) -> bool {
        use Action::{Bury, Leave, Recovered, Short, TooLate};
        !matches!(self, Leave | Short | TooLate | Bury | Recovered)
    }
}

/// Progress of the process in a seat.
struct Trail {
    /// Number of steps begun, above [`ACTION_BITS`] with the action of the last.
    step: AtomicU64,
    /// Number of requests that found memory.
    requests: AtomicU64,
}

/// Bits of an action in a trail.
const ACTION_BITS: u32 = 8;

impl Trail {
    const fn new() -> Self {
        Trail { step: AtomicU64::new(0), requests: AtomicU64::new(0) }
    }
}

/// The board. All of its counts are Relaxed: a keeper that reads them to judge a process has waited
/// for its end.
pub struct Board {
    counts: Shared<[AtomicU64; Action::ALL.len()]>,
    /// Progress of processes, by seat.
    trails: Shared<[Trail; PROCESSES_MAX as usize]>,
    /// Panics of processes.
    panics: Arc<Shared<AtomicU64>>,
    /// Messages on their way; a process that is killed with one in its hands loses it.
    mail: (OwnedFd, OwnedFd),
}

impl Board {
    /// Makes an empty board.
    ///
    /// # Errors
    /// When the system refuses memory or a pipe.
    pub fn new() -> Result<Self, Failure> {
        let refused = |error: std::io::Error| Failure::Run(format!("soak: {error}"));
        let counts = Shared::new([const { AtomicU64::new(0) }; Action::ALL.len()]);
        let trails = Shared::new([const { Trail::new() }; PROCESSES_MAX as usize]);
        let panics = Shared::new(AtomicU64::new(0));
        let mail = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC);
        Ok(Board {
            counts: counts.map_err(refused)?,
            trails: trails.map_err(refused)?,
            panics: Arc::new(panics.map_err(refused)?),
            mail: mail.map_err(|errno| refused(errno.into()))?,
        })
    }

    /// Counts the panics of this process from now on, each before it is told of and before any
    /// value is dropped: a process that is killed in between has panicked all the same.
    pub fn count_panics(&self) {
        let (panics, tell) = (Arc::clone(&self.panics), panic::take_hook());
        panic::set_hook(Box::new(move |panic| {
            panics.fetch_add(1, Ordering::Relaxed);
            tell(panic);
        }));
    }

    /// Number of panics so far.
    pub fn panics(&self) -> u64 {
        self.panics.load(Ordering::Relaxed)
    }

    /// Counts something that was done.
    pub fn add(&self, action: Action, times: u64) {
        self.counts[action as usize].fetch_add(times, Ordering::Relaxed);
    }

    /// Number of times that it was done.
    pub fn count(&self, action: Action) -> u64 {
        self.counts[action as usize].load(Ordering::Relaxed)
    }

    /// Notes the step that the process in a seat begins.
    pub fn begin(&self, seat: usize, action: Action) {
        let step = &self.trails[seat].step;
        // Its process alone writes it.
        let begun = (step.load(Ordering::Relaxed) >> ACTION_BITS) + 1;
        step.store(begun << ACTION_BITS | action as u64, Ordering::Relaxed);
    }

    /// Counts a request of the process in a seat that found memory.
    pub fn serve(&self, seat: usize, action: Action) {
        self.add(action, 1);
        self.trails[seat].requests.fetch_add(1, Ordering::Relaxed);
    }

    /// Number of steps that the process in a seat has begun, and the name of the last one's count.
    pub fn steps(&self, seat: usize) -> (u64, &'static str) {
        let step = self.trails[seat].step.load(Ordering::Relaxed);
        let action = (step & ((1 << ACTION_BITS) - 1)) as usize;
        (step >> ACTION_BITS, Action::ALL[action].1)
    }

    /// Number of requests of the process in a seat that found memory.
    pub fn requests(&self, seat: usize) -> u64 {
        self.trails[seat].requests.load(Ordering::Relaxed)
    }

    /// Posts a message; `false`: there is no room.
    pub fn post(&self, page: SentPage) -> bool {
        // So few bytes are written at once or not at all.
        rustix::io::write(&self.mail.1, &page.to_bits().to_ne_bytes()) == Ok(16)
    }

    /// Takes the oldest message, if there is one.
    pub fn take(&self) -> Option<SentPage> {
        let mut bytes = [0; 16];
        let read = rustix::io::read(&self.mail.0, &mut bytes);
        (read == Ok(16)).then(|| SentPage::from_bits(u128::from_ne_bytes(bytes)))
    }
}
