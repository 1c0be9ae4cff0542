//! The compactor as the relief of an allocator's requests.

use pagedepot::cpus::Cpus;
use pagedepot::seam::{PendingRequest, Relief, register_relief};
use pagedepot::{Allocator, Pfn};

use super::compact_request;
use super::compactor::{Compactor, MoverRegistered};
use super::confine;

impl<'m> Compactor<'m> {
    /// Registers this compactor for an allocator's requests with
    /// [`Flags::compact`](pagedepot::Flags::compact), for the allocator's life. One request at a
    /// time calls the mover, from the slow path of a request that may reclaim, on the thread of
    /// that request: the mover must not wait for a lock that callers hold while they make such
    /// requests.
    ///
    /// # Errors
    /// [`MoverRegistered`]: the allocator has a compactor, or another call registers one at this
    /// moment.
    pub fn register<C: Cpus>(
        &'m self,
        allocator: &Allocator<'m, C>,
    ) -> Result<(), MoverRegistered> {
        register_relief(allocator, self).then_some(()).ok_or(MoverRegistered)
    }
}

impl<C: Cpus> Relief<C> for Compactor<'_> {
    fn before_mixing(&self, request: &PendingRequest<'_, '_, C>) -> Option<Pfn> {
        confine::alloc(self, request)
    }

    fn before_failing(&self, request: &PendingRequest<'_, '_, C>) -> Option<Pfn> {
        compact_request::make_room(self, request)
    }
}
