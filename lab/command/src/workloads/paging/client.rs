//! The ways in which clients get pages.

use std::time::Duration;

use pagedepot_cli::harness::Subject;

/// One way to have zeroed pages, for one number of clients.
pub trait Client: Sync {
    /// The source of the pages.
    fn subject(&self) -> &dyn Subject;

    /// The subject of a design that owns itself, as
    /// [`Contender::owned_subject`](pagedepot_cli::harness::Contender::owned_subject) has it.
    fn owned_subject(&mut self) -> Option<&mut dyn Subject> {
        None
    }

    /// Touches pages until memory or this client's `share` is used up, then gives them back.
    fn run(&self, client: usize, share: u32) -> ClientResult;
}

/// The pages and times of a client.
#[derive(Clone, Copy, Debug)]
pub struct ClientResult {
    pub pages: u64,
    /// Time until all of them were there; giving them back is no part of it.
    pub touching: Duration,
}
