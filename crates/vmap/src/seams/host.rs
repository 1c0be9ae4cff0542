//! The seam to the page allocator, the CPU and the scheduler.

use core::num::NonZeroUsize;

use pagedepot::cpus::{Cpus, Environment, Unusable};
use pagedepot::sync::prim::{AtomicU32, spin_hint};
use pagedepot::sync::spin_while;
use pagedepot::{AllocError, Allocator, CpuId, Flags, FreeManyError, NodeId, Order, Pfn};

/// Supplies frames, the current CPU, and a way to wait.
///
/// # Safety
/// A [`Vmap`](crate::Vmap) writes to the frames of its host, and gives them to its users.
/// 1. What [`alloc_block`](Host::alloc_block) and [`alloc_frames`](Host::alloc_frames) return was
///    free, and is not returned again until it is freed. `alloc_frames` returns the number of
///    elements of `out` that it has written.
/// 2. [`split_block`](Host::split_block) returns `true` only if the frames of the block can be
///    freed one by one from then on.
/// 3. [`check_usable`](Host::check_usable) fails where this process must not write to the frames,
///    as in a forked child.
///
/// # Panics
/// [`alloc_block`](Host::alloc_block), [`alloc_frames`](Host::alloc_frames),
/// [`free_blocks`](Host::free_blocks) after it has freed all blocks, and
/// [`purge_wanted`](Host::purge_wanted) may panic. The panic goes through to the caller of the
/// request or purge, and nothing is lost: what the request had is given back, and the next purge
/// does the rest.
pub unsafe trait Host: Sync {
    /// The CPU that runs this, or any number that spreads callers: a hint.
    fn cpu(&self) -> Option<CpuId>;

    /// Allocates a block, as [`Allocator::alloc`] does.
    ///
    /// # Errors
    /// Fails like [`Allocator::alloc`].
    fn alloc_block(&self, order: Order, flags: Flags) -> Result<Pfn, AllocError>;

    /// Allocates up to `out.len()` single frames, at least one, as [`Allocator::alloc_many`] does.
    ///
    /// # Errors
    /// Fails like [`Allocator::alloc_many`].
    fn alloc_frames(&self, flags: Flags, out: &mut [Pfn]) -> Result<usize, AllocError>;

    /// Frees blocks, as [`Allocator::free_many`] does. Must not wait for a purge: the caller may
    /// hold the lock that purges take.
    ///
    /// # Errors
    /// Fails like [`Allocator::free_many`].
    ///
    /// # Safety
    /// The blocks came from this host, or from [`split_block`](Host::split_block) of such a block.
    /// They belong to the caller, and are not used any more.
    unsafe fn free_blocks(&self, blocks: &[(Pfn, Order)]) -> Result<(), FreeManyError>;

    /// Splits a block into single frames, as [`Allocator::split`]. `false`: it stays whole.
    ///
    /// # Safety
    /// The block came from this host, and belongs to the caller.
    unsafe fn split_block(&self, frame: Pfn, order: Order) -> bool {
        let _ = (frame, order);
        false
    }

    /// Whether this process may serve requests. Only slow paths ask: where the answer is an error,
    /// the metadata must be such that warm paths find nothing, as zeroed metadata is.
    ///
    /// # Errors
    /// The reason, a fork for example.
    fn check_usable(&self) -> Result<(), Unusable> {
        Ok(())
    }

    /// Adds `pages` (may be negative) to the number of pages that are freed but still mapped.
    /// `frame` is the first of them.
    fn add_quarantined(&self, frame: Pfn, pages: i64) {
        let _ = (frame, pages);
    }

    /// The NUMA node of a frame, for reports.
    fn node_of(&self, frame: Pfn) -> NodeId {
        let _ = frame;
        NodeId::new(0)
    }

    /// Waits while `word` is `seen`. May return earlier, also at once: the caller looks again.
    fn wait(&self, word: &AtomicU32, seen: u32) {
        let _ = (word, seen);
        spin_hint();
    }

    /// Waits like [`wait`](Host::wait), for about `limit_ms` milliseconds at most. Reclaim waits
    /// for locks this way. By default it spins for about 10 us.
    fn wait_at_most(&self, word: &AtomicU32, seen: u32, limit_ms: u32) {
        let _ = limit_ms;
        spin_while(word, seen);
    }

    /// A number that identifies the calling thread, as
    /// [`Environment::caller`](pagedepot::cpus::Environment::caller). Without one, reclaim in a
    /// signal handler waits about a second for a lock that its own thread holds before it gives up.
    #[inline]
    fn caller(&self) -> Option<NonZeroUsize> {
        None
    }

    /// Wakes one thread that waits for `word`.
    fn wake_one(&self, word: &AtomicU32) {
        let _ = word;
    }

    /// Wakes all threads that wait for `word`.
    fn wake_all(&self, word: &AtomicU32) {
        let _ = word;
    }

    /// Called when a lock is found taken. The time until [`contention_ends`](Host::contention_ends)
    /// on the same thread is waiting.
    fn contention_begins(&self) {}

    /// Ends a wait that [`contention_begins`](Host::contention_begins) reported.
    fn contention_ends(&self) {}

    /// Called when a purge is due and this thread does not run it, because the configuration leaves
    /// purging to a helper or the caller may not wait. Another thread should call
    /// [`Vmap::purge`](crate::Vmap::purge) soon.
    fn purge_wanted(&self) {}
}

// SAFETY: the allocator gives a free block to one caller, and splits blocks into single frames. It
// frees what any of its callers names: the contract of `Vmap::new` covers that. `check_usable` is
// that of its `Cpus`.
unsafe impl<C: Cpus> Host for Allocator<'_, C> {
    #[inline]
    fn cpu(&self) -> Option<CpuId> {
        self.cpus().here().map(|here| here.cpu)
    }

    fn alloc_block(&self, order: Order, flags: Flags) -> Result<Pfn, AllocError> {
        self.alloc(order, flags)
    }

    fn alloc_frames(&self, flags: Flags, out: &mut [Pfn]) -> Result<usize, AllocError> {
        self.alloc_many(Order::BASE, flags, out)
    }

    unsafe fn free_blocks(&self, blocks: &[(Pfn, Order)]) -> Result<(), FreeManyError> {
        self.free_many(blocks)
    }

    unsafe fn split_block(&self, frame: Pfn, order: Order) -> bool {
        self.split(frame, order, Order::BASE).is_ok()
    }

    fn node_of(&self, frame: Pfn) -> NodeId {
        Allocator::node_of(self, frame).unwrap_or(NodeId::new(0))
    }

    fn check_usable(&self) -> Result<(), Unusable> {
        self.cpus().environment().check_usable()
    }

    fn add_quarantined(&self, frame: Pfn, pages: i64) {
        Allocator::note_quarantined(self, frame, pages);
    }

    fn wait_at_most(&self, word: &AtomicU32, seen: u32, limit_ms: u32) {
        self.cpus().environment().wait(word, seen, limit_ms);
    }

    #[inline]
    fn caller(&self) -> Option<NonZeroUsize> {
        self.cpus().environment().caller()
    }
}

// SAFETY: each method calls that of the host behind the reference.
unsafe impl<H: Host + ?Sized> Host for &H {
    #[inline]
    fn cpu(&self) -> Option<CpuId> {
        (**self).cpu()
    }

    fn alloc_block(&self, order: Order, flags: Flags) -> Result<Pfn, AllocError> {
        (**self).alloc_block(order, flags)
    }

    fn alloc_frames(&self, flags: Flags, out: &mut [Pfn]) -> Result<usize, AllocError> {
        (**self).alloc_frames(flags, out)
    }

    unsafe fn free_blocks(&self, blocks: &[(Pfn, Order)]) -> Result<(), FreeManyError> {
        // SAFETY: the caller's promise.
        unsafe { (**self).free_blocks(blocks) }
    }

    unsafe fn split_block(&self, frame: Pfn, order: Order) -> bool {
        // SAFETY: the caller's promise.
        unsafe { (**self).split_block(frame, order) }
    }

    fn check_usable(&self) -> Result<(), Unusable> {
        (**self).check_usable()
    }

    fn add_quarantined(&self, frame: Pfn, pages: i64) {
        (**self).add_quarantined(frame, pages);
    }

    fn node_of(&self, frame: Pfn) -> NodeId {
        (**self).node_of(frame)
    }

    fn wait(&self, word: &AtomicU32, seen: u32) {
        (**self).wait(word, seen);
    }

    fn wait_at_most(&self, word: &AtomicU32, seen: u32, limit_ms: u32) {
        (**self).wait_at_most(word, seen, limit_ms);
    }

    #[inline]
    fn caller(&self) -> Option<NonZeroUsize> {
        (**self).caller()
    }

    fn wake_one(&self, word: &AtomicU32) {
        (**self).wake_one(word);
    }

    fn wake_all(&self, word: &AtomicU32) {
        (**self).wake_all(word);
    }

    fn contention_begins(&self) {
        (**self).contention_begins();
    }

    fn contention_ends(&self) {
        (**self).contention_ends();
    }

    fn purge_wanted(&self) {
        (**self).purge_wanted();
    }
}
