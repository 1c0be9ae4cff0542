//! The subject that a contender measures.

use crate::names::Design;

/// A design as the harness sees it: it can be entered, drained and checked.
///
/// A [`Design`] itself is a subject that needs none of that.
pub trait Subject: Sync {
    /// The design that samples are of.
    fn design(&self) -> Design;

    /// Called by each thread before its first operation.
    fn enter(&self) {}

    /// Called by each thread after its last operation.
    fn leave(&self) {}

    /// Takes back what all CPUs cache, from any thread.
    fn drain_all(&self) {}

    /// Checks, after everything was freed, that no page was lost or handed out twice.
    ///
    /// # Errors
    /// What is wrong.
    fn check(&mut self) -> Result<(), String> {
        Ok(())
    }
}

impl Subject for Design {
    fn design(&self) -> Design {
        *self
    }
}
