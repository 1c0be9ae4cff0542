//! Requests that only try: for kernels that choose the zone, watch the watermarks and reclaim
//! themselves.

use super::allocator::Allocator;
use super::error::{FreeError, Refusal};
use super::flags::Flags;
use crate::cpus::Cpus;
use crate::frame::{Mobility, Order, Pfn};

impl<C: Cpus> Allocator<'_, C> {
    /// Allocates a block if this CPU's caches have one, or a zone has one at the first look, down
    /// to the `min` watermark, or below it with [`Flags::atomic`].
    ///
    /// Where [`alloc`](Self::alloc) would go on to reclaim, to wait for blocks in flight and to
    /// drain other CPUs, this returns `None`. A caller that has its own ways of making room, as
    /// Linux has, asks this.
    ///
    /// Costs what [`alloc`](Self::alloc) costs past its first sequence, which this leaves to a
    /// caller that pops from its [front](Self::fronts) itself: a look at the shelf, or a refill.
    #[cold]
    #[inline(never)]
    pub fn try_alloc(&self, order: Order, flags: Flags) -> Option<Pfn> {
        self.blocks().attempt(order, flags)
    }

    /// Allocates a block without reclaim, as [`alloc`](Self::alloc) with
    /// [`Flags::no_reclaim`] does, for a caller that sleeps until a block is freed: an error says
    /// whether it may sleep ([`Refusal::is_proven`]), and counts as no failed request.
    ///
    /// Such a caller is to hear of every free. It has the caches of all CPUs
    /// [disabled](crate::CpuCaches::disable), so that every free comes to the store.
    ///
    /// # Errors
    /// [`Refusal`].
    #[cold]
    #[inline(never)]
    pub fn look(&self, order: Order, flags: Flags) -> Result<Pfn, Refusal> {
        self.blocks().look(order, flags.no_reclaim())
    }

    /// Frees a block as [`free`](Self::free) does, but caches it for requests of `mobility`,
    /// whatever the mobility that its pageblock had when the allocator last saw it: for frames of a
    /// [`Backing`](crate::Backing), whose owner changes the types of pageblocks itself.
    ///
    /// # Errors
    /// Fails like `free`.
    #[cold]
    #[inline(never)]
    pub fn free_as(&self, pfn: Pfn, order: Order, mobility: Mobility) -> Result<(), FreeError> {
        self.blocks().free_as(pfn, order, mobility)
    }
}
