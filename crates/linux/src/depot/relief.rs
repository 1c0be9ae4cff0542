//! Compaction for requests, which brings blocks to requests that wait.

use std::sync::Arc;

use pagedepot::Pfn;
use pagedepot::seam::{PendingRequest, Relief};
use pagedepot_contiguity::Compactor;

use crate::cpus::linux::LinuxCpus;
use crate::moving::movables::Movables;
use crate::system::first_panic::FirstPanic;
use crate::system::fork_mark::ForkMark;
use crate::waiting::closed_cpus::ClosedCpus;
use crate::waiting::waiters::Waiters;

/// Compacts for requests. The pages that it gathers are more than a request gets: a request that
/// waits for a larger block is told.
pub(crate) struct CompactionRelief {
    pub compactor: Compactor<'static>,
    /// The compactor's mover.
    pub movables: &'static Movables,
    pub waiters: Arc<Waiters<ClosedCpus>>,
    pub fork_mark: ForkMark<'static>,
}

impl CompactionRelief {
    fn telling(
        &self,
        request: &PendingRequest<'_, '_, LinuxCpus<'static>>,
    ) -> Option<TellGuard<'_>> {
        request.may_compact().then(|| TellGuard { relief: self, before: self.movables.moves() })
    }
}

impl Relief<LinuxCpus<'static>> for CompactionRelief {
    fn before_mixing(&self, request: &PendingRequest<'_, '_, LinuxCpus<'static>>) -> Option<Pfn> {
        let _telling = self.telling(request);
        self.compactor.before_mixing(request)
    }

    fn before_failing(&self, request: &PendingRequest<'_, '_, LinuxCpus<'static>>) -> Option<Pfn> {
        let _telling = self.telling(request);
        self.compactor.before_failing(request)
    }
}

/// Tells a request that waits, when another has moved blocks; also when the program's mover
/// panics.
struct TellGuard<'r> {
    relief: &'r CompactionRelief,
    /// The count of moves before those for the request.
    before: u64,
}

impl Drop for TellGuard<'_> {
    fn drop(&mut self) {
        let CompactionRelief { movables, waiters, fork_mark, .. } = self.relief;
        let has_moved = movables.moves() != self.before;
        if has_moved && waiters.are_there() && fork_mark.check().is_ok() {
            // A waker that panics does not cost the request the block that was found for it.
            FirstPanic::default().catch(|| waiters.tell());
        }
    }
}
