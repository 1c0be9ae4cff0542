//! What clients of `pft` do to have zeroed pages.

use crate::names::Design;

/// One way to have zeroed pages, for one number of clients.
pub trait Client: Sync {
    /// The design that the pages are from.
    fn design(&self) -> Design;

    /// Called by each client before its first run.
    fn enter(&self) {}

    /// Called by each client after its last run.
    fn leave(&self) {}

    /// Touches pages until memory or this client's `share` is used up, then frees them. Returns
    /// how many there were.
    fn run(&self, client: usize, share: u32) -> u64;

    /// See [`Contender::drain_all`](crate::harness::Contender::drain_all).
    fn drain_all(&self) {}

    /// See [`Contender::check`](crate::harness::Contender::check).
    fn check(&mut self) -> Result<(), String> {
        Ok(())
    }
}
