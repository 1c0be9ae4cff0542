//! What an address space asks of a depot and of Linux.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use pagedepot::vmap::Host;
use pagedepot::{AllocError, CpuId, Flags, FreeManyError, NodeId, Order, Pfn, cpus::Unusable};
use rustix::thread::futex;

use crate::depot::Depot;

/// Frames of a [`Depot`]; waiting by futex.
pub struct DepotHost(Arc<Depot>);

impl DepotHost {
    /// Frames of this depot.
    pub fn new(depot: &Arc<Depot>) -> Self {
        DepotHost(depot.clone())
    }
}

impl Host for DepotHost {
    #[inline]
    fn cpu(&self) -> Option<CpuId> {
        Host::cpu(self.0.frames())
    }

    fn alloc_block(&self, order: Order, flags: Flags) -> Result<Pfn, AllocError> {
        self.0.frames().alloc_block(order, flags)
    }

    fn alloc_frames(&self, flags: Flags, out: &mut [Pfn]) -> Result<usize, AllocError> {
        self.0.frames().alloc_frames(flags, out)
    }

    fn free_blocks(&self, blocks: &[(Pfn, Order)]) -> Result<(), FreeManyError> {
        self.0.frames().free_blocks(blocks)
    }

    fn split_block(&self, frame: Pfn, order: Order) -> bool {
        self.0.frames().split_block(frame, order)
    }

    fn check_usable(&self) -> Result<(), Unusable> {
        self.0.frames().check_usable()
    }

    fn note_quarantined(&self, frame: Pfn, pages: i64) {
        Host::note_quarantined(self.0.frames(), frame, pages);
    }

    fn node_of(&self, frame: Pfn) -> NodeId {
        Host::node_of(self.0.frames(), frame)
    }

    /// An error means that the word has changed or a signal came: the caller looks again.
    fn wait(&self, word: &AtomicU32, seen: u32) {
        let _ = futex::wait(word, futex::Flags::PRIVATE, seen, None);
    }

    fn wake_one(&self, word: &AtomicU32) {
        let _ = futex::wake(word, futex::Flags::PRIVATE, 1);
    }

    fn wake_all(&self, word: &AtomicU32) {
        let _ = futex::wake(word, futex::Flags::PRIVATE, i32::MAX as u32);
    }
}
