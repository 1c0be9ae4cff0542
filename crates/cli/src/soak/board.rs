//! Counts and messages that the processes of a storm share beside the segment. Both outlive any of
//! them.

use std::os::fd::OwnedFd;
use std::panic;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pagedepot_linux::shared::SentPage;
use rustix::pipe::{PipeFlags, pipe_with};

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
}

impl Action {
    /// All of them, and what their counts are called.
    pub const ALL: [(Action, &'static str); 16] = [
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
    ];
}

/// The board. All of its counts are Relaxed: a keeper that reads them to judge a process has waited
/// for its end.
pub struct Board {
    counts: Shared<[AtomicU64; Action::ALL.len()]>,
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
        let panics = Shared::new(AtomicU64::new(0));
        let mail = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC);
        Ok(Board {
            counts: counts.map_err(refused)?,
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
