//! The compactor as the relief of an allocator's requests.

use super::compact_request;
use super::compactor::Compactor;
use super::confine;
use crate::alloc::Allocator;
use crate::alloc::flags::Flags;
use crate::alloc::hooks::Hooks;
use crate::alloc::relief::{MoverRegistered, Relief};
use crate::alloc::walk::Request;
use crate::cpus::Cpus;
use crate::frame::{Order, Pfn};

impl<'m> Compactor<'m> {
    /// Registers this compactor for an allocator's requests with
    /// [`Flags::compact`](crate::Flags::compact), for the allocator's life. One request at a time
    /// calls the mover, from the slow path of a request that may reclaim, on the thread of that
    /// request: the mover must not wait for a lock that callers hold while they make such requests.
    ///
    /// # Errors
    /// [`MoverRegistered`]: the allocator has a compactor, or another call registers one at this
    /// moment.
    pub fn register<C: Cpus>(
        &'m self,
        allocator: &Allocator<'m, C>,
    ) -> Result<(), MoverRegistered> {
        allocator.globals.relief.register(self)
    }
}

impl<C: Cpus> Relief<C> for Compactor<'_> {
    fn before_mixing(&self, hooks: &Hooks<'_, '_, C>, order: Order, flags: Flags) -> Option<Pfn> {
        confine::alloc(self, hooks, order, flags)
    }

    fn before_failing(&self, hooks: &Hooks<'_, '_, C>, request: Request) -> Option<Pfn> {
        compact_request::make_room(self, hooks, request)
    }
}
