//! Frames, CPU and waiting of an address space, through a depot and Linux.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use pagedepot::{AllocError, CpuId, Flags, FreeManyError, NodeId, Order, Pfn, cpus::Unusable};
use pagedepot_vmap::Host;
use rustix::thread::futex;

use crate::depot::handle::Depot;

/// The callback of `on_purge_wanted`.
#[derive(Clone)]
pub(super) struct PurgeWanted(pub Arc<dyn Fn() + Send + Sync>);

impl fmt::Debug for PurgeWanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PurgeWanted")
    }
}

/// Provides frames of a [`Depot`], and waits by futex.
pub struct DepotHost {
    depot: Depot,
    purge_wanted: Option<PurgeWanted>,
    /// Whether a free wakes a request that waits, under the locks of the vmap. Otherwise the caller
    /// of the vmap does, when these are free.
    wakes: bool,
}

impl DepotHost {
    /// A host over the frames of this depot. Frees by the vmap wake requests that wait, under its
    /// locks: their wakers must not use the vmap.
    pub fn new(depot: &Depot) -> Self {
        DepotHost { wakes: true, ..Self::with(depot, None) }
    }

    pub(super) fn with(depot: &Depot, purge_wanted: Option<PurgeWanted>) -> Self {
        DepotHost { depot: depot.clone(), purge_wanted, wakes: false }
    }
}

// SAFETY: the depot hands a free block to one caller, splits it into single frames, and detects a
// forked child.
unsafe impl Host for DepotHost {
    #[inline]
    fn cpu(&self) -> Option<CpuId> {
        Host::cpu(self.depot.raw().frames())
    }

    fn alloc_block(&self, order: Order, flags: Flags) -> Result<Pfn, AllocError> {
        self.depot.raw().frames().alloc_block(order, flags)
    }

    fn alloc_frames(&self, flags: Flags, out: &mut [Pfn]) -> Result<usize, AllocError> {
        self.depot.raw().frames().alloc_frames(flags, out)
    }

    unsafe fn free_blocks(&self, blocks: &[(Pfn, Order)]) -> Result<(), FreeManyError> {
        let shared = self.depot.shared();
        // Dropped also when a report of misuse panics.
        let _waking = self.wakes.then(|| shared.answering());
        let _bringing = shared.bringing_locked();
        // SAFETY: the caller's promise.
        unsafe { self.depot.raw().frames().free_blocks(blocks) }
    }

    unsafe fn split_block(&self, frame: Pfn, order: Order) -> bool {
        // SAFETY: the caller's promise.
        unsafe { self.depot.raw().frames().split_block(frame, order) }
    }

    fn check_usable(&self) -> Result<(), Unusable> {
        self.depot.raw().frames().check_usable()
    }

    fn add_quarantined(&self, frame: Pfn, pages: i64) {
        Host::add_quarantined(self.depot.raw().frames(), frame, pages);
    }

    fn node_of(&self, frame: Pfn) -> NodeId {
        Host::node_of(self.depot.raw().frames(), frame)
    }

    /// An error means that the word has changed or a signal came: the caller checks again.
    fn wait(&self, word: &AtomicU32, seen: u32) {
        let _ = futex::wait(word, futex::Flags::PRIVATE, seen, None);
    }

    fn wait_at_most(&self, word: &AtomicU32, seen: u32, limit_ms: u32) {
        self.depot.raw().frames().wait_at_most(word, seen, limit_ms);
    }

    #[inline]
    fn caller(&self) -> Option<NonZeroUsize> {
        Host::caller(self.depot.raw().frames())
    }

    fn wake_one(&self, word: &AtomicU32) {
        let _ = futex::wake(word, futex::Flags::PRIVATE, 1);
    }

    fn wake_all(&self, word: &AtomicU32) {
        let _ = futex::wake(word, futex::Flags::PRIVATE, i32::MAX as u32);
    }

    fn purge_wanted(&self) {
        if let Some(PurgeWanted(wake)) = &self.purge_wanted {
            wake();
        }
    }
}
