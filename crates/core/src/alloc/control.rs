//! Drains on behalf of callers, and callbacks.

use super::allocator::Allocator;
use super::drain::Drains;
use super::handover::Handover;
use crate::cpus::Cpus;
use crate::frame::CpuId;
use crate::pcp::{DrainResult, Mode, Scope};
use crate::reclaim::{Reclaim, TooManyCallbacks};

impl<'m, C: Cpus> Allocator<'m, C> {
    /// Drains the caches in `scope`. CPUs and zones that do not exist have nothing to drain.
    ///
    /// Quiet: O(shelves in scope + pages taken), about 1 us for a CPU with 250 cached pages. May
    /// be called from anywhere, also from interrupt handlers. Full: also a fence per CPU that has
    /// magazines in its fronts, so only from where the environment can fence. Handover: as quiet,
    /// and asks each CPU that is not quiescent; [`drain_handover`](Self::drain_handover) also tells
    /// when they have handed over.
    pub fn drain(&self, scope: Scope, mode: Mode) -> DrainResult {
        Drains(&self.caches).drain(scope, mode)
    }

    /// Drains the caches in `scope` without interrupting a CPU, fronts included: takes shelves and
    /// the fronts of quiescent CPUs, and asks all other CPUs for theirs. The owner hands them over
    /// at its next operation that needs one (at most 2 magazines for each, by one step without
    /// waiting), and caches on. [`Handover`] has what was taken, and tells when the rest has come.
    ///
    /// CPUs that have not handed over after `fence_after_ms` milliseconds are fenced by the next
    /// look, as by a full drain, unless they are isolated. `None`: never. Without a
    /// [clock](crate::cpus::Environment::now_ms) each look counts as a millisecond.
    ///
    /// O(CPUs in scope), besides what a quiet drain does. May be called from anywhere, also from
    /// interrupt handlers; looks after the deadline only from where the environment can fence.
    ///
    /// ```
    /// # use pagedepot::cpus::{CpuLock, Environment, Locked, WhichCpu};
    /// # use pagedepot::{
    /// #     Allocator, Config, CpuId, Flags, FrameRange, NodeId, Order, Pfn, Scope, ZoneConfig,
    /// # };
    /// # struct First;
    /// # impl Environment for First {}
    /// # impl WhichCpu for First {
    /// #     fn cpu(&self) -> Option<CpuId> { Some(CpuId::new(0)) }
    /// # }
    /// # let ranges = [FrameRange::new(Pfn::new(0x100), 1 << 15)];
    /// # let zones = [ZoneConfig {
    /// #     name: "Normal", node: NodeId::new(0), level: 2, ranges: &ranges, watermarks: None,
    /// # }];
    /// # let config = Config::new(1, &zones);
    /// # let locks = [CpuLock::new()];
    /// # type Depot<'m> = Allocator<'m, Locked<'m, First>>;
    /// # let mut metadata = vec![std::mem::MaybeUninit::uninit(); Depot::metadata_bytes(&config)?];
    /// # let depot = Depot::new(&config, &mut metadata, Locked::new(&locks, First))?;
    /// let pfn = depot.alloc(Order::BASE, Flags::default())?;
    /// depot.free(pfn, Order::BASE)?;
    /// let mut handover = depot.drain_handover(Scope::ALL, Some(10));
    /// let at_once = handover.drained();
    /// if !handover.wait(100) {
    ///     println!("{} CPUs have not handed over", handover.drained().pending_cpus);
    /// }
    /// assert!(at_once.taken_pages + handover.drained().taken_pages > 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn drain_handover(&self, scope: Scope, fence_after_ms: Option<u32>) -> Handover<'_, 'm, C> {
        Drains(&self.caches).handover(scope, fence_after_ms)
    }

    /// Drains like [`drain`](Self::drain), and calls `tell` with the result for each CPU.
    pub fn drain_each(
        &self,
        scope: Scope,
        mode: Mode,
        tell: impl FnMut(CpuId, DrainResult),
    ) -> DrainResult {
        Drains(&self.caches).drain_each(scope, mode, tell)
    }

    /// Registers a callback for memory pressure, for the allocator's life.
    ///
    /// # Errors
    /// At most 8 can be registered.
    pub fn register_reclaim(&self, callback: &'m dyn Reclaim) -> Result<(), TooManyCallbacks> {
        self.globals.last_resort.register(callback)
    }
}

/// The last resort alone: with an atomic request one search per round, and none before.
#[cfg(all(loom, test))]
pub(crate) fn last_resort_for_block<C: Cpus>(
    allocator: &Allocator<'_, C>,
    order: crate::frame::Order,
    flags: super::flags::Flags,
) -> Result<crate::frame::Pfn, super::error::AllocError> {
    let caches = &allocator.caches;
    let request = super::request::Request {
        want: super::request::Want::Block(order),
        flags,
        node: caches.node_of(caches.here()),
    };
    allocator.blocks().under_pressure().at_last(request)
}
