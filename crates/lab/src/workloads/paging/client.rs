//! What clients do to have pages.

use std::time::Duration;

use crate::names::Design;

/// One way to have zeroed pages, for one number of clients.
pub trait Client: Sync {
    /// The design that the pages are from.
    fn design(&self) -> Design;

    /// Called by each client before its first run.
    fn enter(&self) {}

    /// Called by each client after its last run.
    fn leave(&self) {}

    /// Touches pages until memory or this client's `share` is used up, then gives them back.
    fn run(&self, client: usize, share: u32) -> Had;

    /// See [`Contender::drain_all`](crate::harness::Contender::drain_all).
    fn drain_all(&self) {}

    /// See [`Contender::check`](crate::harness::Contender::check).
    fn check(&mut self) -> Result<(), String> {
        Ok(())
    }
}

/// What a client had.
#[derive(Clone, Copy, Debug)]
pub struct Had {
    pub pages: u64,
    /// Time until all of them were there; giving them back is no part of it.
    pub touching: Duration,
}
